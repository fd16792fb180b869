"""Docstrings start with a verb or noun; first lines are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BARE = re.compile(r"(What|Of|Whether|How|Where|Which|In which|That|Than) ")
LONGEST = 80
"""Characters of a first line."""
FILES = [
    path.relative_to(ROOT) for package in ("warpdrive_min", "envs", "bench") for path in (ROOT / package).rglob("*.py")
]


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings: modules, classes, functions, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("path", FILES, ids=str)
def test_docstrings_open_with_a_verb_or_a_noun(path):
    """No docstring of a file starts with a word of `BARE`."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert [f"{path}:{line}: {text[:60]}" for line, text in docstrings(tree) if BARE.match(text)] == []


@pytest.mark.parametrize(
    "path", [*FILES, *(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))], ids=str
)
def test_first_lines_are_short(path):
    """No first line is longer than `LONGEST`."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented))
    assert [line for text in texts if len(line := text.partition("\n")[0]) > LONGEST] == []


def test_bare_clauses_are_seen():
    """The check finds a bare clause, and accepts a noun."""
    tree = ast.parse('size: int\n"""Of a block, bytes."""\nn: int\n"""Number of blocks."""\n')
    assert [line for line, text in docstrings(tree) if BARE.match(text)] == [2]
