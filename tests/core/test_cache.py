"""Cache folder: compiled code is reused, and failures name the variable."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warpdrive_min.backends import cache
from warpdrive_min.errors import ConfigError


@pytest.mark.parametrize("variable", ["WARPDRIVE_MIN_CACHE", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize("place", ["/proc/none", "a file"])
def test_folder_that_cannot_be_made_is_named(variable, place, tmp_path, monkeypatch):
    """The error names an unusable folder and its variable."""
    for name in ("WARPDRIVE_MIN_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv(variable, place if place.startswith("/") else str(file))
    with pytest.raises(ConfigError) as caught:
        cache.cached({"text": "x"}, ".so", lambda path: pytest.fail("compiled"))
    said = str(caught.value)
    assert f"from ${variable}," in said
    assert str(cache.folder()) in said
    assert "set $WARPDRIVE_MIN_CACHE" in said
    assert "\n" not in said


def test_user_without_a_home_is_told(monkeypatch):
    """The error for a user without a home names the variable.

    A container may run under a number without a name.
    """
    for name in ("WARPDRIVE_MIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory")))
    with pytest.raises(ConfigError, match=r"needs a home folder.*set \$WARPDRIVE_MIN_CACHE or \$HOME"):
        cache.folder()


def test_compiled_file_is_made_once(tmp_path, monkeypatch):
    """A key is compiled once; another key gives another file."""
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path / "new"))
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("x")

    first, again, other = (cache.cached({"text": text}, ".so", make) for text in ("a", "a", "b"))
    assert first == again != other
    assert len(made) == 2


BUILD = """
import sys, time
from pathlib import Path
from warpdrive_min.backends.cache import cached

def make(path):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    time.sleep(float(sys.argv[2]))
    path.write_text("code")

print(cached({"key": 1}, ".txt", make).read_text())
"""


def started(folder, seconds):
    """Start a process that builds a file in some seconds."""
    command = [sys.executable, "-c", BUILD, str(folder / "log"), str(seconds)]
    environment = {**os.environ, cache.VARIABLE: str(folder / "cache")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_processes_build_a_file_once(tmp_path):
    """Processes wait for the one that builds, and leave no lock."""
    children = [started(tmp_path, 0.5) for _ in range(3)]
    assert [child.communicate()[0] for child in children] == ["code\n"] * 3
    assert (tmp_path / "log").read_text() == "made\n"
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".txt"]


def test_killed_builder_leaves_no_lock(tmp_path):
    """A process that waits for a killed one builds the file."""
    first = started(tmp_path, 60)
    while not (tmp_path / "log").exists():
        time.sleep(0.01)
    second = started(tmp_path, 0)
    time.sleep(0.3)
    assert second.poll() is None
    first.kill()
    assert second.communicate()[0] == "code\n"
    first.communicate()


def test_suspended_builder_stops_nobody(tmp_path, monkeypatch):
    """A process that waits too long for another one builds the file itself."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(cache, "PATIENCE_S", 0.1)
    lock = cache.entry({"key": 1}, ".lock")
    with lock.open("w") as held:
        cache.fcntl.flock(held, cache.fcntl.LOCK_EX)
        assert cache.cached({"key": 1}, ".txt", lambda path: path.write_text("code")).read_text() == "code"
        assert lock.exists(), "its owner removes it"


def test_file_is_built_without_locks(tmp_path, monkeypatch):
    """A file system without locks stops nothing."""

    def refuse(*_):
        raise OSError("planted")

    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(cache.fcntl, "flock", refuse)
    assert cache.cached({"key": 1}, ".txt", lambda path: path.write_text("code")).read_text() == "code"
    assert [path.suffix for path in tmp_path.iterdir()] == [".txt"]
