"""Command `new-env`: write a small working environment to start from."""

from __future__ import annotations

import importlib.util
import keyword
import re
import tempfile
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from warpdrive_min.commands.environments import report_errors
from warpdrive_min.errors import require
from warpdrive_min.files import errors_name_path, explain_full_disk
from warpdrive_min.packages import bench_package
from warpdrive_min.terminal import echo

TEMPLATE = Path(__file__).with_name("new_env_template")
SUFFIX = ".template"


def new_env(
    name: Annotated[str, typer.Argument(help="Name of the package: a Python identifier.")],
    folder: Annotated[Path, typer.Argument(help="Folder in which to create the package.")] = Path(),
) -> None:
    """Write a starter package NAME: NumPy, CUDA C and Numba kernels and a test."""
    with report_errors(exit_code=2):
        package = write_starter(name, folder)
    for path in sorted(package.iterdir()):
        echo(f"wrote {path}")
    inside = "" if folder == Path() else f"cd {folder} && "
    echo("next:")
    echo(f"  {inside}pytest {name}")
    echo(f"  {inside}python -m warpdrive_min validate {name}")
    echo(f"  {inside}python -m {bench_package()} run --env {name}")
    echo(f"  {inside}python -m warpdrive_min train -e {name}")


def write_starter(name: str, folder: Path) -> Path:
    """Write the package ``folder/name`` and return its path.

    A failed write leaves no partial package.

    Raises:
        ConfigError: The name is no identifier or names another module, the folder is missing, or the package exists.
        WriteError: The folder cannot be written.
    """
    check_name(name)
    package = folder / name
    with errors_name_path(package):
        require(folder.is_dir(), "new-env", "the folder must exist", folder, "create it first")
        require(not package.exists(), "new-env", f"{package} exists already", do="choose another name or move it away")
    is_free = importlib.util.find_spec(name) is None
    require(is_free, "new-env", "the name must not be that of an installed module", name, "choose another one")
    words = {"name": name, "title": class_name(name)}
    with (
        explain_full_disk(package),
        errors_name_path(package),
        tempfile.TemporaryDirectory(dir=folder, prefix=".new-env-") as scratch,
    ):
        unfinished = Path(scratch) / name
        unfinished.mkdir()
        for template in TEMPLATE.glob(f"*{SUFFIX}"):
            target = unfinished / Template(template.name.removesuffix(SUFFIX)).substitute(words)
            target.write_text(Template(template.read_text()).substitute(words))
        unfinished.rename(package)
    return package


def check_name(name: str) -> None:
    """Raise `ConfigError` unless a package and a class can have this name."""
    is_name = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and not keyword.iskeyword(name)
    require(is_name, "new-env", "the name must be a Python identifier that begins with a letter", name)


def class_name(name: str) -> str:
    """Return the package's class name: ``ring_walk`` gives ``RingWalk``."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))
