"""The names under which a checkout and a wheel have their parts."""

from __future__ import annotations

import envs
import warpdrive_min.envs


def test_environments_have_one_name_everywhere():
    """`warpdrive_min.envs` offers in a checkout what the folder `envs` does, not a copy of it."""
    assert warpdrive_min.envs.__all__ == envs.__all__
    assert all(getattr(warpdrive_min.envs, name) is getattr(envs, name) for name in envs.__all__)
