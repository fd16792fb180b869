"""Folder around the package `warp_drive`: run configs, data and sources."""

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
"""WarpDrive's default settings for run configs."""


def get_project_root() -> Path:
    """Return the folder that contains `warp_drive`, as in a WarpDrive checkout.

    That is the folder of the `warp_drive` that ours hides, else the checkout around the script or the working folder.
    Without either, it is a folder in the user's cache. It has our run configs and the source of `test_build.fatbin` at
    WarpDrive's paths.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    return (
        _hidden_root() or checkout_around(Path(script or ".").resolve()) or checkout_around(Path.cwd()) or _own_root()
    )


def _hidden_root() -> Path | None:
    """Return the folder of the `warp_drive` that ours hides; None without one."""
    spec = modules.hidden(PACKAGE)
    locations = spec and spec.submodule_search_locations
    return Path(next(iter(locations))).resolve().parent if locations else None


def _own_root() -> Path:
    """Write run configs and other files at WarpDrive's paths; return the folder."""
    root = cache.folder() / "project"
    configs = root / PACKAGE / "training" / "run_configs"
    for file, folder in ((TEST_BUILD, root / PACKAGE / "cuda_includes"), (DEFAULT_CONFIGS, configs)):
        _write_if_changed(folder / file.name, file.read_text())
    for name, source in ENVIRONMENTS.items():
        module, _, attribute = source.partition(":")
        path = _file_next_to_class(
            getattr(importlib.import_module(module), attribute), RUN_CONFIGS.get(name, "run_config.yaml")
        )
        text = re.sub(r"^name: .*$", f'name: "{name}"', path.read_text(), count=1, flags=re.MULTILINE)
        _write_if_changed(configs / f"{name}.yaml", text)
    return root


def _write_if_changed(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        write_atomically(path, text)


def _file_next_to_class(cls: type, name: str) -> Path:
    """Return the file of a name next to a class or one of its bases."""
    folders = (Path(inspect.getfile(each)).parent for each in cls.__mro__ if each is not object)
    return next(path for folder in folders if (path := folder / name).is_file())


def checkout_around(path: Path) -> Path | None:
    """Return the WarpDrive checkout around a path; None without one."""
    parts = [Path(PACKAGE, *part) for part in (["__init__.py"], ["training"], ["cuda_includes"])]
    around = (path, *path.parents)
    return next((folder for folder in around if any((folder / part).exists() for part in parts)), None)


# ------------------------------------------------------------------ sources


def default_source(name: str, language: Language, env: type = object) -> Source | None:
    """Return the default source of an environment's kernels; None if not found.

    WarpDrive's table of names comes first; its files are in the package `example_envs`. Then follow files next to the
    class or one of its bases, named after that file: ``x_step.cu`` or ``x_step_numba.py`` next to ``x.py``.

    Args:
        name: Environment.
        language: Language of the kernels.
        env: Class of the environment.
    """
    listed = [STEPPED[name]] if name in STEPPED else []
    for module in (*listed, *(each.__module__ for each in env.__mro__)):
        if language == "numba" and _spec(f"{module}_step_numba"):
            return f"{module}_step_numba"
        if language == "cuda_c":
            for source in _cuda_sources(module):
                if source.is_file():
                    return source
    return None


def _cuda_sources(module: str) -> Iterator[Path]:
    """Yield possible paths of a module's CUDA C step; it need not exist."""
    package, _, stem = module.rpartition(".")
    folders: Iterable[str] = ()
    if file := getattr(sys.modules.get(module), "__file__", None):
        folders, stem = [str(Path(file).parent)], Path(file).stem
    elif package and (spec := _spec(package)):
        folders = spec.submodule_search_locations or ()
    for folder in folders:
        yield Path(folder, f"{stem}_step_pycuda.cu")
        yield Path(folder, f"{stem}_step.cu")


def _spec(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:  # its package does not exist either
        return None


def binary_path(name: str | Path) -> Path:
    """Return the path of a compiled file, by default in WarpDrive's `cuda_bin`."""
    path = Path(name)
    return path if path.is_file() else get_project_root() / PACKAGE / "cuda_bin" / path


def source_of_binary(binary: Path) -> Path | None:
    """Return the source of a compiled file, or None.

    It is ``cuda_includes/x.cu`` for ``cuda_bin/x.fatbin``.
    """
    source = binary.parent.with_name("cuda_includes") / f"{binary.stem}.cu"
    return source if source.is_file() else None
