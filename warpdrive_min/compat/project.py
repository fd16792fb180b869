"""The project around the package `warp_drive`: where scripts look for run configs and data, and kernels for sources."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

from warpdrive_min.backends import cache
from warpdrive_min.backends.base import Language, Source
from warpdrive_min.compat import modules
from warpdrive_min.compat.words import ENVIRONMENTS, RUN_CONFIGS, STEPPED
from warpdrive_min.files import write_atomically

PACKAGE: Final = "warp_drive"
TEST_BUILD: Final = Path(__file__).with_name("test_build.cu")
"""Source of the compiled file that WarpDrive's tutorials load."""
DEFAULT_CONFIGS: Final = Path(__file__).with_name("default_configs.yaml")
"""Settings that WarpDrive fills run configs up with."""


def get_project_root() -> Path:
    """Return the folder that holds the `warp_drive` of which ours takes the place, as a checkout of WarpDrive does.

    It is that which would be imported without ours, else that of the checkout around the script or the working folder.
    Where there is none, it is a folder in the user's cache that has run configs of ours, and the source of
    `test_build.fatbin`, where WarpDrive's lie.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    return _hidden_root() or root_around(Path(script or ".").resolve()) or root_around(Path.cwd()) or _own_root()


def _hidden_root() -> Path | None:
    """Return the folder of the `warp_drive` that ours hides; None: there is no other."""
    spec = modules.hidden(PACKAGE)
    locations = spec and spec.submodule_search_locations
    return Path(next(iter(locations))).resolve().parent if locations else None


def _own_root() -> Path:
    """Write run configs under WarpDrive's names, and what else scripts load, and return the folder of all."""
    root = cache.folder() / "project"
    configs = root / PACKAGE / "training" / "run_configs"
    for file, folder in ((TEST_BUILD, root / PACKAGE / "cuda_includes"), (DEFAULT_CONFIGS, configs)):
        _keep(folder / file.name, file.read_text())
    for name, source in ENVIRONMENTS.items():
        module, _, attribute = source.partition(":")
        path = _beside(getattr(importlib.import_module(module), attribute), RUN_CONFIGS.get(name, "run_config.yaml"))
        text = re.sub(r"^name: .*$", f'name: "{name}"', path.read_text(), count=1, flags=re.MULTILINE)
        _keep(configs / f"{name}.yaml", text)
    return root


def _keep(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        write_atomically(path, text)


def _beside(cls: type, name: str) -> Path:
    """Return the file of a name that lies beside a class, or beside the one that it is derived from."""
    folders = (Path(inspect.getfile(each)).parent for each in cls.__mro__ if each is not object)
    return next(path for folder in folders if (path := folder / name).is_file())


def root_around(path: Path) -> Path | None:
    """Return the checkout of WarpDrive in which a path lies; None: it lies in none."""
    parts = [Path(PACKAGE, *part) for part in (["__init__.py"], ["training"], ["cuda_includes"])]
    around = (path, *path.parents)
    return next((folder for folder in around if any((folder / part).exists() for part in parts)), None)


# ------------------------------------------------------------------ sources


def default_source(name: str, language: Language, env: type = object) -> Source | None:
    """Return the source of kernels for an environment that names none; None: none is found.

    WarpDrive's table of names goes first, whose files are those of the package `example_envs`; then a file beside the
    class, or beside one that it is derived from, which has the name of that file: ``x_step.cu`` or ``x_step_numba.py``
    beside ``x.py``.

    Args:
        name: Environment.
        language: Of the kernels.
        env: Class of the environment.
    """
    listed = [STEPPED[name]] if name in STEPPED else []
    for module in (*listed, *(each.__module__ for each in env.__mro__)):
        if language == "numba" and _is_there(f"{module}_step_numba"):
            return f"{module}_step_numba"
        if language == "cuda_c":
            for source in _cuda_sources(module):
                if source.is_file():
                    return source
    return None


def _cuda_sources(module: str) -> Iterator[Path]:
    """Yield where the step in CUDA C of a module's environment may lie; the module need not exist."""
    package, _, stem = module.rpartition(".")
    folders: Iterable[str] = ()
    if file := getattr(sys.modules.get(module), "__file__", None):
        folders, stem = [str(Path(file).parent)], Path(file).stem
    elif package and (spec := _spec(package)):
        folders = spec.submodule_search_locations or ()
    for folder in folders:
        yield Path(folder, f"{stem}_step_pycuda.cu")
        yield Path(folder, f"{stem}_step.cu")


def _is_there(module: str) -> bool:
    return _spec(module) is not None


def _spec(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:  # its package is not there either
        return None


def binary_path(name: str | Path) -> Path:
    """Return the path of a compiled file; one that is not there is WarpDrive's in `cuda_bin`."""
    path = Path(name)
    return path if path.is_file() else get_project_root() / PACKAGE / "cuda_bin" / path


def source_of_binary(binary: Path) -> Path | None:
    """Return the source that a compiled file stands for, ``cuda_includes/x.cu`` of ``cuda_bin/x.fatbin``, or None."""
    source = binary.parent.with_name("cuda_includes") / f"{binary.stem}.cu"
    return source if source.is_file() else None
