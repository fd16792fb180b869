"""Public names of a WarpDrive checkout, 2.7.1's stored as TOML.

``python -m tests.compat.warp_drive_names CHECKOUT`` writes ``warp_drive_names.toml``.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).with_suffix(".toml")
CHECKOUT = "WARP_DRIVE_CHECKOUT"
"""Environment variable: folder of a checkout of WarpDrive 2.7.1."""


def kept() -> dict[str, list[str]]:
    """Return each module's public names in 2.7.1; ``Class.method`` for classes."""
    return {module: text.split() for module, text in tomllib.loads(FILE.read_text()).items()}


def found(checkout: Path) -> dict[str, list[str]]:
    """Return the public names of a checkout, by module."""
    files = sorted(path for top in ("warp_drive", "example_envs") for path in (checkout / top).rglob("*.py"))
    return {module_of(path.relative_to(checkout)): sorted(set(names(path))) for path in files}


def module_of(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def names(path: Path) -> Iterator[str]:
    """Yield a file's top-level names, and its classes' methods and attributes."""
    for node in ast.parse(path.read_text()).body:
        yield from public(node)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                yield from (f"{node.name}.{name}" for name in public(inner))


def public(node: ast.stmt) -> Iterator[str]:
    """Yield the public names that a statement binds, except by import."""
    bound: list[str] = []
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        bound = [node.name]
    elif isinstance(node, ast.Assign):
        bound = [target.id for target in node.targets if isinstance(target, ast.Name)]
    yield from (name for name in bound if not name.startswith("_"))


if __name__ == "__main__":
    lines = [f'"{module}" = "{" ".join(each)}"' for module, each in found(Path(sys.argv[1])).items()]
    FILE.write_text("# Public names of WarpDrive 2.7.1, by module.\n\n" + "\n".join(lines) + "\n")
