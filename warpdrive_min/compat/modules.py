"""WarpDrive's module paths, served to ``import`` by a finder; ``names.toml`` and its neighbours are the tables."""

from __future__ import annotations

import fnmatch
import importlib
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from warpdrive_min import backends
from warpdrive_min.compat import torch_on_host
from warpdrive_min.errors import ConfigError, known, require

CHOICE: Final = "WARPDRIVE_MIN_COMPAT"
"""Environment variable; ``replace`` goes before a `warp_drive` that is really installed."""

PLAYER: Final = "WARPDRIVE_MIN_PYCUDA"
"""Environment variable; ``host`` lets that backend run what is written for `pycuda`, without a GPU."""


def _table(name: str) -> Any:
    return tomllib.loads(Path(__file__).with_name(name).read_text())


NAMES: Final[dict[str, dict[str, str]]] = _table("names.toml")
"""Source of each name of each module of 2.7, ``module:attribute``, imported when it is first asked for."""
EARLIER: Final[dict[str, dict[str, str]]] = _table("names_before.toml")
"""Likewise of versions 1.0 to 2.6, of what 2.7 has no more."""
LEFT_OUT: Final[dict[str, str]] = _table("left_out.toml")
"""Reason why a name is not there, by a pattern of ``module.name`` or ``module.Class.name``."""


def offered(module: str) -> dict[str, str]:
    """Return the source of each name that a module has, of all versions."""
    return {**EARLIER.get(module, {}), **NAMES.get(module, {})}


def why_left_out(name: str) -> str | None:
    """Return why a dotted name of WarpDrive is not there; None: no reason is known."""
    return next((reason for pattern, reason in LEFT_OUT.items() if fnmatch.fnmatchcase(name, pattern)), None)


# ------------------------------------------------------------------ import


class _Finder(MetaPathFinder, Loader):
    """Finds and makes the modules of the table below one top-level name, and the packages that they lie in."""

    def __init__(self, top: str, *, hides: bool) -> None:
        self.top = top
        self.hides = hides
        """It stands before the other finders, whose module of the name it would hide."""
        self._modules = {name for name in (*NAMES, *EARLIER) if name.split(".")[0] == top}
        parts = [name.split(".") for name in self._modules]
        self._packages = {".".join(part[:length]) for part in parts for length in range(1, len(part))}
        self._is_looking_elsewhere = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the table, or of a package on the way to one."""
        if self._is_looking_elsewhere:  # some finders ask all others
            return None
        if self.hides and fullname == self.top:
            self.refuse_to_shadow()
        if fullname in self._packages or fullname in self._modules:
            return ModuleSpec(fullname, self, origin="warpdrive_min.compat", is_package=fullname in self._packages)
        return None

    def refuse_to_shadow(self) -> None:
        """Raise `ConfigError` if another finder knows the top-level name, unless the user has chosen ours."""
        is_asked_for = sys.argv[:1] == ["-m"] and "warpdrive_min.compat" in sys.orig_argv  # while Python looks it up
        if is_asked_for or os.environ.get(CHOICE) == "replace":
            return
        if spec := self.hidden():
            raise ConfigError(
                f"warpdrive_min.compat: would hide the {self.top} that is installed here (got {_place(spec)}); "
                f"uninstall it, set {CHOICE}=replace, or start with python -m warpdrive_min.compat"
            )

    def hidden(self) -> ModuleSpec | None:
        """Return what would be imported under the top-level name without this finder; None: nothing."""
        self._is_looking_elsewhere = True
        try:
            specs = (finder.find_spec(self.top, None) for finder in sys.meta_path if finder is not self)
            return next(filter(None, specs), None)
        finally:
            self._is_looking_elsewhere = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the import system."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names, each of which is imported when it is first asked for."""
        names = offered(module.__name__)
        if (whole := names.pop("*", None)) is not None:
            names |= {name: f"{whole}:{name}" for name in importlib.import_module(whole).__all__}
            vars(module).update({name: _resolve(module.__name__, name, names) for name in names})
        module.__doc__ = f"WarpDrive's module {module.__name__}, by warpdrive_min."
        vars(module)["__all__"] = list(names)

        def get(name: str) -> Any:
            value = _resolve(module.__name__, name, names)
            setattr(module, name, value)
            return value

        vars(module)["__getattr__"] = get


def _resolve(module: str, name: str, names: Mapping[str, str]) -> Any:
    if name not in names:
        reason = why_left_out(f"{module}.{name}") or f"known are {known(names)}"
        raise AttributeError(f"module {module!r}: has no {name!r}; {reason}", name=name)
    source, _, attribute = names[name].partition(":")
    return getattr(importlib.import_module(source), attribute)


def hidden(top: str) -> ModuleSpec | None:
    """Return what would be imported under a top-level name without ours; None: nothing."""
    finders = (finder for finder in sys.meta_path if isinstance(finder, _Finder) and finder.top == top)
    return next(finders).hidden()


def install() -> None:
    """Offer WarpDrive's modules to ``import``; a second call does nothing.

    `warp_drive` goes before whatever else has that name, which there must not be: see Raises. `example_envs` goes
    last, so that a folder of that name beside the user's script is the user's own.

    Raises:
        ConfigError: A `warp_drive` is really installed, and the environment variable WARPDRIVE_MIN_COMPAT is not
            ``replace``.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get("warp_drive")
    got = loaded and _place(loaded.__spec__)
    require(loaded is None, "warpdrive_min.compat", "must be imported before warp_drive", got)
    first = _Finder("warp_drive", hides=True)
    first.refuse_to_shadow()
    sys.meta_path.insert(0, first)
    sys.meta_path.append(_Finder("example_envs", hides=False))


def cast_pycuda() -> None:
    """Let the backend that the environment variable WARPDRIVE_MIN_PYCUDA names play the part of `pycuda`.

    Where that is `host`, torch takes its device `cuda` for the CPU, in this thread.

    Raises:
        ConfigError: It is neither ``host`` nor ``pycuda``.
    """
    player = os.environ.get(PLAYER) or "pycuda"
    require(player in ("host", "pycuda"), PLAYER, "must be 'host' or 'pycuda'", player)
    backends.PLAYED_BY["pycuda"] = player
    torch_on_host.switch(player == "host")


def _place(spec: ModuleSpec | None) -> str:
    """Say where a module lies; a folder without ``__init__.py`` has locations only."""
    if spec is None:
        return "a module without a file"
    return spec.origin or ", ".join(spec.submodule_search_locations or [])
