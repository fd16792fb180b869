"""Docstrings start with a verb or noun; first lines are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BARE = re.compile(r"(What|Of|Whether|How|Where|Which|In which|That|Than) ")
LONGEST = 80
"""Characters of a first line."""
PACKAGES = ("warpdrive_min", "envs", "bench")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def texts(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings: modules, classes, functions, attributes."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_docstrings_are_short_and_open_with_a_verb_or_a_noun(package):
    """No first line is longer than `LONGEST`, or starts with a word of `BARE`.

    Those of tests may start with it.
    """
    long, bare = [], []
    for path in sorted((ROOT / package).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        firsts = ((ast.get_docstring(node) or "").partition("\n")[0] for node in nodes if isinstance(node, DOCUMENTED))
        long += [f"{path}: {line}" for line in firsts if len(line) > LONGEST]
        if package in PACKAGES:
            bare += [f"{path}:{line}: {text[:60]}" for line, text in texts(nodes) if BARE.match(text)]
    assert (long, bare) == ([], [])


def test_bare_clauses_are_seen():
    """The check finds a bare clause, and accepts a noun."""
    tree = ast.parse('size: int\n"""Of a block, bytes."""\nn: int\n"""Number of blocks."""\n')
    assert [line for line, text in texts(ast.walk(tree)) if BARE.match(text)] == [2]
