"""Code of git revisions in temporary folders, and processes on it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from warpdrive_min.checkout import GitError, commit_of, git

from ..core.errors import NotComparable
from ..core.machine import ROOT
from .worker import Start, Worker

WORKING_TREE: Final = "."
"""Name of the present checkout in place of a revision."""


@contextmanager
def revisions(*names: str, root: Path = ROOT) -> Iterator[list[Start]]:
    """Yield functions that start a process on a git revision's code."""
    with checkouts(*names, root=root) as trees:
        yield [partial(Worker.on, tree) for tree in trees]


@contextmanager
def checkouts(*names: str, root: Path = ROOT) -> Iterator[list[Path]]:
    """Yield a folder with the code of each revision; `WORKING_TREE`: the checkout.

    Raises:
        NotComparable: A revision is unknown to git.
    """
    with tempfile.TemporaryDirectory(prefix="revisions-") as folder:
        trees = [root if name == WORKING_TREE else Path(folder, str(index)) for index, name in enumerate(names)]
        for name, tree in zip(names, trees, strict=True):
            if name != WORKING_TREE:
                _check_out(root, name, tree)
        yield trees


def _check_out(root: Path, name: str, tree: Path) -> None:
    """Check out a revision into a repository that borrows ``root``'s objects.

    Unlike a worktree this never leaves anything in ``root``.
    """
    try:
        commit = commit_of(name, root)
        objects = root / git("rev-parse", "--git-path", "objects", root=root)
        git("init", "--quiet", "--template=", str(tree), root=root)
        alternates = tree / ".git" / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text(f"{objects.resolve()}\n")
        git("checkout", "--quiet", "--detach", commit, root=tree)
    except GitError as error:
        rule = "must be an existing file or folder, or a git revision"
        raise NotComparable(f"{name} {rule} (got: {error})") from error
