"""Git checkout of the running code."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from warpdrive_min import processes

_WHICH: Final = ("DIR", "WORK_TREE", "INDEX_FILE", "OBJECT_DIRECTORY", "COMMON_DIR", "NAMESPACE", "PREFIX")
ELSEWHERE: Final = frozenset(f"GIT_{name}" for name in _WHICH)
"""Variables that point git to another repository; git sets them in hooks."""


SETTINGS: Final = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "true",
    "diff.algorithm": "default",
    "diff.context": "3",
    "diff.interHunkContext": "0",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.orderFile": os.devnull,
    "diff.renames": "true",
    "status.renames": "true",
    "status.showUntrackedFiles": "normal",
}
"""Git's defaults, which override the user's settings."""
PATCH: Final = ("--no-ext-diff", "--no-textconv", "--no-color")
"""Options for patches, against programs from the user's settings."""


class GitError(RuntimeError):
    """Git is missing or fails; the message is git's own."""


def git(*arguments: str, root: Path) -> str:
    """Return git's output for a folder's repository, without locking it.

    The user's settings cannot make it run another program. One exception are filters of attributes, which define a
    file's content.

    Raises:
        GitError: Git is missing or fails.
    """
    settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    command, *more = arguments
    patch = PATCH if command in ("diff", "show") else ()
    words = ["git", "--no-optional-locks", *settings, "-C", str(root), command, *patch, *more]
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
        GitError: No such commit, or git fails; the message ends with advice.
    """
    try:
        commit = git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}", root=root)
        if re.fullmatch("[0-9a-f]+", commit):
            return commit
        raise GitError(f"{name} is a range, not a revision")
    except GitError as error:
        git("rev-parse", "--git-dir", root=root)  # raises if git cannot read the repository at all
        raise GitError(f"{error}; {_advice(name, root)}") from error


def _advice(name: str, root: Path) -> str:
    with contextlib.suppress(GitError):
        found = git("rev-parse", "--verify", "--end-of-options", name, root=root)
        if found != name:
            return _why_no_commit(found, root)
    if name == "HEAD":
        return "the repository has no commit yet: commit the code"
    if git("rev-parse", "--is-shallow-repository", root=root) == "true":
        return "the clone is shallow: run `git fetch --unshallow`, or in CI set `fetch-depth: 0` of actions/checkout"
    if found := git("for-each-ref", "--format=%(refname:short)", f"refs/remotes/*/{name}", root=root):
        return f"there is no local branch of that name: name {found.splitlines()[0]}"
    remotes = git("remote", root=root).split()
    return f"if it is on {remotes[0]}, run `git fetch --tags {remotes[0]} {name}`" if remotes else "see `git log`"


def _why_no_commit(found: str, root: Path) -> str:
    """Return the reason why a hash is not a commit's."""
    try:
        return f"it names a {git('cat-file', '-t', found, root=root)}: name a commit"
    except GitError:
        return "its objects are missing: look with `git fsck`, or clone the repository again"


def commit_of_code(root: Path, *paths: str) -> str:
    """Return the hash of the checked-out commit, which must contain some paths.

    Raises:
        GitError: There is no commit, or it lacks the paths: the code is a copy inside another project's checkout.
    """
    commit = commit_of("HEAD", root)
    if not git("ls-files", "--", *paths, root=root):
        raise GitError(f"the code does not belong to the checkout around it, which is at {commit}")
    return commit
