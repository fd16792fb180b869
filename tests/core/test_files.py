"""Files are written completely or not at all."""

import importlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.training.builders import limited
from warpdrive_min import files
from warpdrive_min.cli import app
from warpdrive_min.errors import DiskFullError
from warpdrive_min.files import own_folder, replacing, write_atomically

ROOT = Path(__file__).parents[2]
MODULE = "warpdrive_min.envs:CartPole"


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    """A write makes the folder, replaces the text, and leaves nothing else."""
    path = tmp_path / "new" / "file.txt"
    for text in ("first\n", "é\n"):
        write_atomically(path, text)
        assert path.read_bytes() == text.encode()
        assert list(path.parent.iterdir()) == [path]


def test_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    """A failed write keeps the old file and leaves no other."""
    path = tmp_path / "file.txt"
    write_atomically(path, "before")
    with pytest.raises(FileNotFoundError), replacing(path) as unfinished:
        unfinished.with_name("missing").read_text()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_written_file_has_the_suffix_and_usual_mode(tmp_path: Path) -> None:
    """A new file has the given suffix and the usual mode."""
    usual = tmp_path / "usual"
    usual.touch()
    with replacing(tmp_path / "picture.png") as unfinished:
        assert unfinished.suffix == ".png"
        unfinished.touch()
    assert (tmp_path / "picture.png").stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize("write", [write_atomically, files.append])
def test_link_and_mode_stay(write, tmp_path: Path) -> None:
    """A write keeps links and modes: the link's target is written."""
    target, link = tmp_path / "there" / "file.txt", tmp_path / "link.txt"
    write_atomically(target, "before\n")
    target.chmod(0o640)
    link.symlink_to(Path("there", "file.txt"))
    files.require_writable(link, "--out", is_file=True)
    write(link, "after\n")
    assert link.is_symlink()
    assert target.read_text().endswith("after\n")
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.rglob("*")) == [link, target.parent, target]


@pytest.mark.parametrize("write", [write_atomically, files.append])
def test_pipe_is_written_and_stays(write, tmp_path: Path) -> None:
    """Pipes and devices are written in place, and errors name them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.require_writable(pipe, "--out", is_file=True)
    write(pipe, "line\n")
    assert os.read(reader, 100) == b"line\n"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
    if Path("/dev/full").exists():
        with pytest.raises(DiskFullError, match="/dev/full: needs"):
            write(Path("/dev/full"), "line\n")
        assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs /dev/stdout")
@pytest.mark.parametrize("name", ["/dev/stdout", "out.txt"])
def test_standard_output_is_written_between_what_is_printed(name, tmp_path: Path) -> None:
    """A write to standard output keeps the order of prints.

    It may be a regular file, which a rename would remove from the process.
    """
    code = "import sys, pathlib; from warpdrive_min.files import write_atomically as write; print(1)"
    with (tmp_path / "out.txt").open("w") as out:
        words = [sys.executable, "-c", f"{code}; write(pathlib.Path(sys.argv[1]), '2\\n'); print(3)", name]
        subprocess.run(words, cwd=tmp_path, stdout=out, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (tmp_path / "out.txt").read_text() == "1\n2\n3\n"


def test_own_folder_takes_away_what_killed_processes_left(tmp_path: Path) -> None:
    """Folders of killed processes are removed; others stay."""
    (tmp_path / ".own-abcdefgh").mkdir()
    (tmp_path / ".own-abcdefgh" / "half").touch()
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(1, flush=True)"
    words = [sys.executable, "-S", "-c", f"{code}; sys.stdin.read()", str(tmp_path / ".own-abcdefgh")]
    (tmp_path / ".own-longer-than-theirs").mkdir()
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "1\n"
        theirs = tmp_path / ".own-abcdefgh"
        with own_folder(tmp_path, ".own-") as ours:
            assert {theirs, ours} <= set(tmp_path.iterdir())
        assert not ours.exists()
        other.kill()
        other.wait()
        assert (theirs / "half").exists()
        with own_folder(tmp_path, ".own-"):
            assert not theirs.exists()
    assert [each.name for each in tmp_path.iterdir()] == [".own-longer-than-theirs"]


def test_own_folder_comes_back_that_another_process_took_away_as_it_was_made(tmp_path: Path, monkeypatch) -> None:
    """A folder removed before its lock is made again.

    Another process may remove it as abandoned.
    """
    locks = iter([shutil.rmtree])

    def lock_of(path: Path, *, wait: bool = False) -> int | None:
        for take_away in locks:
            take_away(path)
        return real(path, wait=wait)

    real = files.lock_of
    monkeypatch.setattr(files, "lock_of", lock_of)
    with own_folder(tmp_path, ".own-") as folder:
        assert folder.is_dir()
        assert real(folder) is None, "it is locked"
    assert not list(tmp_path.iterdir())


def test_new_folders_are_of_one_process_each(tmp_path: Path) -> None:
    """Concurrent requests for new folders get separate ones."""
    names = [str(number) for number in range(32)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: files.new_folder(tmp_path / "runs", names), range(32)))
    assert sorted(path.name for path in made) == sorted(names)
    with pytest.raises(FileExistsError):
        files.new_folder(tmp_path / "runs", names)


def test_held_folder_is_of_one_process(tmp_path: Path) -> None:
    """Only one process at a time locks a folder.

    It shares the lock; the last user releases it.
    """
    first, second = files.lock_folder(tmp_path), files.lock_folder(tmp_path)
    assert first is second
    del first
    assert files.lock_of(tmp_path) is None, "another descriptor is as another process"
    del second
    other = files.lock_of(tmp_path)
    assert other is not None
    with pytest.raises(BlockingIOError):
        files.lock_folder(tmp_path)
    os.close(other)
    assert files.lock_folder(tmp_path, wait_s=1) is not None


@pytest.mark.parametrize("in_child", [False, True])
def test_limited_import_leaves_no_truncated_bytecode(in_child, tmp_path: Path, monkeypatch) -> None:
    """Imports with limited file size leave no truncated bytecode.

    Otherwise a test of a full disk breaks packages for the tests after it.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    (tmp_path / "long_module.py").write_text(f"x = {list(range(500))}")
    monkeypatch.syspath_prepend(tmp_path)
    with limited(100):
        if in_child:
            subprocess.run([sys.executable, "-c", "import long_module"], cwd=tmp_path, check=True)
        else:
            importlib.import_module("long_module")
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.parametrize(
    "words",
    ["new-env ring_walk {folder}", "validate {module} --no-card --backend cpu --check flags --json {folder}/x.json"],
)
def test_command_on_a_full_disk_names_the_path_and_leaves_nothing(words: str, tmp_path: Path) -> None:
    """On a full disk, one line names the path.

    Partial files are removed.
    """
    with limited(100):
        done = CliRunner().invoke(app, words.format(folder=tmp_path, module=MODULE).split())
    assert done.exit_code == 2
    (line,) = (line for line in done.output.splitlines() if "ulimit -f" in line)
    assert line.startswith(str(tmp_path))
    assert not list(tmp_path.iterdir())
