"""The shipped environments, under the one name that they have everywhere.

In a checkout they are the folder `envs` beside this package; in a wheel that folder takes the place of this file.
"""

from __future__ import annotations

from envs import *  # noqa: F403
from envs import __all__ as __all__
