"""Import finder for WarpDrive's modules; tables are ``names.toml`` and others."""

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

COMPAT_VARIABLE: Final = "WARPDRIVE_MIN_COMPAT"
"""Environment variable; ``replace`` overrides an installed `warp_drive`."""

PYCUDA_VARIABLE: Final = "WARPDRIVE_MIN_PYCUDA"
"""Environment variable; ``host`` runs code for `pycuda` without a GPU."""


def _table(name: str) -> Any:
    return tomllib.loads(Path(__file__).with_name(name).read_text())


NAMES: Final[dict[str, dict[str, str]]] = _table("names.toml")
"""Source ``module:attribute`` of each name of each module of 2.7.

Imported on first access.
"""
EARLIER_NAMES: Final[dict[str, dict[str, str]]] = _table("names_before.toml")
"""Names of versions 1.0 to 2.6 that 2.7 no longer has, as `NAMES`."""
UNSUPPORTED: Final[dict[str, str]] = _table("left_out.toml")
"""Reasons why names are unsupported.

Keys are patterns of ``module.name`` or ``module.Class.name``.
"""


def why_unsupported(name: str) -> str | None:
    """Return the reason why a dotted name is unsupported; None if unknown."""
    return next((reason for pattern, reason in UNSUPPORTED.items() if fnmatch.fnmatchcase(name, pattern)), None)


# ------------------------------------------------------------------ import


class _Finder(MetaPathFinder, Loader):
    """Finder and loader of the table's modules and their parent packages.

    It serves one top-level name.
    """

    def __init__(self, top: str, *, hides: bool) -> None:
        self.top = top
        self.hides = hides
        """True if it precedes the other finders and hides their module."""
        self._modules = {name for name in (*NAMES, *EARLIER_NAMES) if name.split(".")[0] == top}
        parts = [name.split(".") for name in self._modules]
        self._packages = {".".join(part[:length]) for part in parts for length in range(1, len(part))}
        self._is_looking_elsewhere = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the table or a parent package."""
        if self._is_looking_elsewhere:  # some finders ask all others
            return None
        if self.hides and fullname == self.top:
            self.refuse_to_shadow()
        if fullname in self._packages or fullname in self._modules:
            return ModuleSpec(fullname, self, origin="warpdrive_min.compat", is_package=fullname in self._packages)
        return None

    def refuse_to_shadow(self) -> None:
        """Raise `ConfigError` if another finder has the name, unless the user chose ours."""
        is_asked_for = sys.argv[:1] == ["-m"] and "warpdrive_min.compat" in sys.orig_argv  # while Python looks it up
        if is_asked_for or os.environ.get(COMPAT_VARIABLE) == "replace":
            return
        if spec := self.hidden():
            raise ConfigError(
                f"warpdrive_min.compat: would hide the {self.top} that is installed here (got {_place(spec)}); "
                f"uninstall it, set {COMPAT_VARIABLE}=replace, or start with python -m warpdrive_min.compat"
            )

    def hidden(self) -> ModuleSpec | None:
        """Return the spec that this finder hides; None if nothing."""
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
        """Give the module its names; each is imported on first access."""
        names = EARLIER_NAMES.get(module.__name__, {}) | NAMES.get(module.__name__, {})
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
        reason = why_unsupported(f"{module}.{name}") or f"known are {known(names)}"
        raise AttributeError(f"module {module!r}: has no {name!r}; {reason}", name=name)
    source, _, attribute = names[name].partition(":")
    return getattr(importlib.import_module(source), attribute)


def hidden(top: str) -> ModuleSpec | None:
    """Return the spec that our finder of a top-level name hides; None if nothing."""
    finders = (finder for finder in sys.meta_path if isinstance(finder, _Finder) and finder.top == top)
    return next(finders).hidden()


def install() -> None:
    """Install the finder of WarpDrive's modules; a second call does nothing.

    Our `warp_drive` precedes any other of that name; see Raises. Our `example_envs` comes last, so a folder of that
    name next to the user's script is the user's own.

    Raises:
        ConfigError: A `warp_drive` is installed, and the environment variable WARPDRIVE_MIN_COMPAT is not ``replace``.
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
    """Replace `pycuda` by the backend in WARPDRIVE_MIN_PYCUDA.

    For `host`, torch treats its device `cuda` as the CPU, in this thread.

    Raises:
        ConfigError: The variable is neither ``host`` nor ``pycuda``.
    """
    player = os.environ.get(PYCUDA_VARIABLE) or "pycuda"
    require(player in ("host", "pycuda"), PYCUDA_VARIABLE, "must be 'host' or 'pycuda'", player)
    backends.REPLACED_BY["pycuda"] = player
    torch_on_host.switch(player == "host")


def _place(spec: ModuleSpec | None) -> str:
    """Return a module's location; a namespace package has locations only."""
    if spec is None:
        return "a module without a file"
    return spec.origin or ", ".join(spec.submodule_search_locations or [])
