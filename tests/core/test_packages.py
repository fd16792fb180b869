"""Commands that install optional packages, as messages print them."""

from __future__ import annotations

import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from warpdrive_min import packages
from warpdrive_min.packages import install_command, with_own_install_commands


def test_checkout_is_installed_from_its_folder(monkeypatch, tmp_path):
    """Inside it as a dot, elsewhere with its path."""
    monkeypatch.chdir(packages.ROOT)
    assert install_command("bench") == 'pip install -e ".[bench]"'
    monkeypatch.chdir(tmp_path)
    assert install_command("bench") == f'pip install -e "{packages.ROOT}[bench]"'


def test_install_commands_of_another_checkout_name_this_one(monkeypatch):
    """A baseline's temporary checkout is gone when its reason is read."""
    monkeypatch.chdir(packages.ROOT)
    told = 'no CUDA compiler; pip install -e "/tmp/revisions-x/0[static]"'
    assert with_own_install_commands(told) == 'no CUDA compiler; pip install -e ".[static]"'
    assert with_own_install_commands("pip install -e elsewhere") == "pip install -e elsewhere"


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        ({"url": "file:///x/a.whl", "archive_info": {}}, 'pip install "warpdrive-min[train] @ file:///x/a.whl"'),
        (
            {"url": "https://host/us.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            'pip install "warpdrive-min[train] @ git+https://host/us.git@ab12"',
        ),
        ({}, 'pip install "PATH_OR_URL_OF_WHEEL[train]"'),
        (None, 'pip install "PATH_OR_URL_OF_WHEEL[train]"'),
    ],
)
def test_wheel_is_installed_from_its_origin(recorded, command, monkeypatch, tmp_path):
    """Pip records it; without that the user names the wheel."""
    found = SimpleNamespace(read_text=lambda name: recorded and json.dumps(recorded))
    monkeypatch.setattr(metadata, "distribution", lambda name: found)
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    assert install_command("train") == command


def test_wheel_that_pip_does_not_know(monkeypatch, tmp_path):
    """Such as a folder of packages on PYTHONPATH."""

    def distribution(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(packages, "ROOT", tmp_path)
    assert install_command("train") == 'pip install "PATH_OR_URL_OF_WHEEL[train]"'
