"""Git's facts about a checkout of code, and refusals of git."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from warpdrive_min.checkout import GitError, commit_of, commit_of_code, git


def repository(folder: Path, n_commits: int = 2) -> Path:
    """Return a new repository with a file `code` and some commits."""
    folder.mkdir()
    _git(folder, "init", "-b", "main")
    for number in range(n_commits):
        (folder / "code").write_text(str(number))
        _git(folder, "add", ".")
        _git(folder, "-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "commit", "-m", str(number))
    return folder


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def _clone(origin: Path, *words: str) -> Path:
    clone = origin.parent / "clone"
    subprocess.run(["git", "clone", "-q", *words, origin.as_uri(), str(clone)], check=True)
    return clone


def _is_in(origin: Path) -> Path:
    (inner := origin / "site-packages").mkdir()
    (inner / "code").touch()
    return inner


def _broken(origin: Path) -> Path:
    (origin / ".git" / "HEAD").write_text("nothing")
    return origin


def _without_objects(origin: Path) -> Path:
    for folder in (origin / ".git" / "objects").glob("??"):
        shutil.rmtree(folder)
    return origin


def _with_branch(origin: Path) -> Path:
    _git(origin, "branch", "other")
    return origin


@pytest.mark.parametrize(
    ("made", "variables", "name", "says"),
    [
        (lambda origin: origin.parent, {}, "HEAD", "not a git repository"),
        (lambda origin: origin, {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, "HEAD", "add safe.directory"),
        (lambda origin: repository(origin.parent / "new", 0), {}, "HEAD", "no commit yet"),
        (lambda origin: origin, {"PATH": "/none"}, "HEAD", "git cannot be started"),
        (_broken, {}, "HEAD", "not a git repository"),
        (lambda origin: _clone(origin, "--depth", "1"), {}, "HEAD~1", "git fetch --unshallow.*fetch-depth: 0"),
        (lambda origin: _clone(_with_branch(origin)), {}, "other", "name origin/other"),
        (lambda origin: _clone(origin), {}, "v1", "git fetch --tags origin v1"),
        (lambda origin: origin, {}, "v1", "see `git log`"),
        (lambda origin: origin, {}, "--all", "Needed a single revision"),
        (lambda origin: origin, {}, "^HEAD", "is a range, not a revision"),
        (lambda origin: origin, {}, "HEAD^{tree}", "names a tree: name a commit"),
        (_without_objects, {}, "HEAD", "objects are missing: look with `git fsck`"),
        (_is_in, {}, "", "does not belong to the checkout around it"),
    ],
    ids=["no repository", "another owner", "no commits", "no git", "broken", "shallow", "remote branch", "not fetched",
         "unknown", "an option", "a range", "a tree", "objects missing", "inside another checkout"],
)  # fmt: skip
def test_git_that_refuses_is_quoted_with_advice(
    made: Callable[[Path], Path], variables: dict, name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has git's message and a remedy."""
    root = made(repository(tmp_path / "origin"))
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(GitError, match=says):
        commit_of(name, root) if name else commit_of_code(root, "code")


@pytest.mark.parametrize("made", ["checkout", "detached", "worktree", "submodule", "subfolder"])
def test_commit_is_that_of_the_folder(made, tmp_path, monkeypatch):
    """The commit is that of the code's checkout, of any kind.

    Git's variables of a hook may name another repository.
    """
    root = repository(tmp_path / "origin")
    want = _git(root, "rev-parse", "HEAD").strip()
    if made == "detached":
        want = _git(root, "rev-parse", "HEAD~1").strip()
        _git(root, "checkout", "--detach", want)
    elif made == "worktree":
        _git(root, "worktree", "add", str(tmp_path / "tree"))
        root = tmp_path / "tree"
    elif made == "submodule":
        outer = repository(tmp_path / "outer")
        _git(outer, "-c", "protocol.file.allow=always", "submodule", "add", str(root), "inner")
        root = outer / "inner"
    elif made == "subfolder":
        root = repository(tmp_path / "outer") / "inner"
        root.mkdir()
        (root / "code").touch()
        _git(root, "add", ".")
        want = _git(root, "rev-parse", "HEAD").strip()
    other = repository(tmp_path / "other", 1)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert commit_of_code(root, "code") == want


def test_output_that_is_not_utf8_is_read(tmp_path):
    """Git output in another encoding can be read."""
    root = repository(tmp_path / "origin")
    (root / "code").write_bytes(b"caf\xe9 au lait\n")
    assert "caf\ufffd" in git("diff", root=root)


@pytest.mark.parametrize(
    "settings",
    [
        {"diff.external": "touch {ran}; echo"},
        {"core.fsmonitor": "touch {ran}"},
        {"diff.words.textconv": "touch {ran}; echo"},
        {"color.ui": "always"},
        {"diff.noprefix": "true", "diff.context": "1", "diff.algorithm": "patience"},
        {"diff.mnemonicPrefix": "true", "core.quotePath": "false", "diff.orderFile": "{ran}"},
        {"status.showUntrackedFiles": "no", "diff.renames": "false", "status.renames": "false"},
    ],
    ids=lambda settings: "+".join(settings),
)
def test_diff_does_not_depend_on_the_users_settings(settings, tmp_path):
    """The diff ignores the user's git settings.

    Records have its hash; no program in the settings is run.
    """
    root, ran = repository(tmp_path / "origin"), tmp_path / "ran"
    (root / ".gitattributes").write_text("code diff=words\n")
    (root / "caf\u00e9").write_text("\n".join("abcdefgh"))
    _git(root, "add", ".")
    (root / "caf\u00e9").write_text("\n".join("abcdefghi"))
    (root / "code").write_text("new")
    (root / "unknown").touch()
    _git(root, "mv", "caf\u00e9", "renamed")
    want = git("diff", "HEAD", root=root), git("status", "--porcelain", root=root)
    for name, value in settings.items():
        _git(root, "config", name, value.format(ran=ran))
    assert (git("diff", "HEAD", root=root), git("status", "--porcelain", root=root)) == want
    assert "+new" in want[0]
    assert not ran.exists()


def test_hooks_are_not_run(tmp_path):
    """A checkout of a baseline runs no hooks of the user."""
    root = repository(tmp_path / "origin")
    hook = root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    os.chmod(hook, 0o755)
    git("checkout", "--quiet", "--detach", "HEAD~1", root=root)
    assert not (tmp_path / "ran").exists()
