"""The git checkout that code is in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from warpdrive_min import processes

_WHICH: Final = ("DIR", "WORK_TREE", "INDEX_FILE", "OBJECT_DIRECTORY", "COMMON_DIR", "NAMESPACE", "PREFIX")
ELSEWHERE: Final = frozenset(f"GIT_{name}" for name in _WHICH)
"""Variables of another repository than that of a folder; git sets them in hooks."""


class GitError(RuntimeError):
    """Git is missing, or refuses; the message is its own."""


def git(*arguments: str, root: Path) -> str:
    """Return what git prints about the repository of a folder; it takes no lock there and runs no hook.

    Raises:
        GitError: There is no git, or it refuses.
    """
    words = ["git", "--no-optional-locks", "-c", f"core.hooksPath={os.devnull}", "-C", str(root), *arguments]
    env = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    try:
        done = processes.run(words, env=env)
    except OSError as error:
        raise GitError(f"git cannot be started: {error}") from error
    if done.returncode:
        raise GitError(" ".join(done.stderr.split()) or f"git {arguments[0]} ended with exit code {done.returncode}")
    return done.stdout.rstrip("\n")


def commit_of(name: str, root: Path) -> str:
    """Return the hash of the commit that a revision names.

    Raises:
        GitError: There is none, or git refuses; says what to do.
    """
    try:
        return git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}", root=root)
    except GitError as error:
        git("rev-parse", "--git-dir", root=root)  # whether it reads the repository at all
        raise GitError(f"{error}; {_advice(name, root)}") from error


def _advice(name: str, root: Path) -> str:
    if name == "HEAD":
        return "the repository has no commit yet: commit the code"
    if git("rev-parse", "--is-shallow-repository", root=root) == "true":
        return "the clone is shallow: run `git fetch --unshallow`, or in CI set `fetch-depth: 0` of actions/checkout"
    if found := git("for-each-ref", "--format=%(refname:short)", f"refs/remotes/*/{name}", root=root):
        return f"there is no local branch of that name: name {found.splitlines()[0]}"
    remotes = git("remote", root=root).split()
    return f"if it is on {remotes[0]}, run `git fetch --tags {remotes[0]} {name}`" if remotes else "see `git log`"


def commit_of_code(root: Path, *paths: str) -> str:
    """Return the hash of the commit that is checked out with some paths below a folder.

    Raises:
        GitError: There is none, or it has none of the paths: they are a copy in a checkout of something else.
    """
    commit = commit_of("HEAD", root)
    if not git("ls-files", "--", *paths, root=root):
        raise GitError(f"the code is no part of the checkout it is in, which is at {commit}")
    return commit
