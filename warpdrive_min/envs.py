"""The shipped environments, importable as `warpdrive_min.envs`.

A checkout has them in the folder `envs` next to this package, so that a user's own package may be called `envs`. In a
wheel that folder replaces this file.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

_INIT = Path(__file__).parents[1] / "envs" / "__init__.py"
_found = importlib.util.find_spec("envs")

if TYPE_CHECKING:
    from envs import *  # noqa: F403
    from envs import __all__ as __all__
elif _found is not None and _found.origin is not None and _INIT.samefile(_found.origin):
    from envs import ENVS, __all__, __dir__, __getattr__  # noqa: F401
else:
    _spec = importlib.util.spec_from_file_location(__name__, _INIT, submodule_search_locations=[str(_INIT.parent)])
    assert _spec is not None and _spec.loader is not None  # noqa: PT018  (the path is a Python file's)
    sys.modules[__name__] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
