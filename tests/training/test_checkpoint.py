"""Checkpoints: round trips, kills, cuts, alterations, and other runs' files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from tests.training.builders import limited
from warpdrive_min.errors import CheckpointError, ConfigError, DiskFullError
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.checkpoint import Header, Writer, discard_after, find, latest, load, restore

ROOT = Path(__file__).resolve().parents[2]


def header(iteration: int, **changes) -> Header:
    fields = {
        "iteration": iteration,
        "env_steps": 1000 * iteration,
        "seconds": 0.5 * iteration,
        "run_config": {"name": "tag_continuous", "policy": {"tagger": {"lr": [[0, 0.1], [10, 0.01]]}}},
        "environment": {
            "name": "TagContinuous",
            "n_envs": 4,
            "n_agents": 2,
            "episode_length": 7,
            "arrays": [False, "first"],
            "ranks": 1,
            "policies": {"tagger": ["0", "1"]},
        },
        "seed": 11,
        "best_return": None,
    }
    return Header(**{**fields, **changes})


def save(folder: Path, tensors: dict, header: Header, keep_last: int = 3, is_best: bool = False) -> Path:
    """Write a checkpoint in this thread."""
    return checkpoint._save(folder, checkpoint._copies(tensors), header, keep_last, is_best)


def state(iteration: int, size: int = 3) -> dict[str, Tensor]:
    """Two tensors that hold only the iteration."""
    return {"model/weights": torch.full((size,), float(iteration)), "counters/steps": torch.tensor(iteration)}


def iteration_of(path: Path) -> int:
    """Return the iteration in a checkpoint's header and tensors."""
    tensors, head = load(path)
    assert tensors.keys() == state(0).keys()
    values = {float(value) for tensor in tensors.values() for value in tensor.unique()}
    assert values == {float(head.iteration)}
    return head.iteration


def saved(folder: Path) -> list[int]:
    """Return the iterations of a folder's visible checkpoints."""
    return sorted(int(path.name.removeprefix("checkpoint_")) for path in folder.glob("checkpoint_*"))


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


# ------------------------------------------------------------------ there and back


def test_checkpoint_returns_every_dtype_and_shape(tmp_path):
    """Tensors of every dtype and shape are saved bit by bit.

    All dtypes, 0-d, empty, shared, transposed, expanded, parameters.
    """
    flat = torch.arange(12, dtype=torch.float32)
    tensors = {
        "a/bool": torch.tensor([True, False]),
        "a/uint8": torch.arange(256, dtype=torch.uint8),
        "a/int32": torch.tensor(-7, dtype=torch.int32),
        "a/int64": torch.tensor([2**62]),
        "a/bfloat16": torch.tensor([1.5, float("inf"), float("nan")], dtype=torch.bfloat16),
        "a/float64": torch.tensor(1 / 3, dtype=torch.float64),
        "a/empty": torch.zeros(0, 3),
        "b/flat": flat,
        "b/view": flat[3:6],
        "b/transposed": flat.view(3, 4).T,
        "b/expanded": torch.tensor(2.0).expand(2, 2),
        "b/parameter": torch.nn.Parameter(torch.ones(2)),
    }
    got, _ = load(save(tmp_path, tensors, header(1)))
    assert got.keys() == tensors.keys()
    for name, want in tensors.items():
        assert got[name].dtype == want.dtype, name
        torch.testing.assert_close(got[name], want.detach(), rtol=0, atol=0, equal_nan=True)


def test_checkpoint_returns_header(tmp_path):
    """The header returns with versions and time, in group-readable files."""
    want = header(12, best_return=3.5)
    path = save(tmp_path, state(12), want)
    assert path == tmp_path / "checkpoint_000000012"
    _, got = load(path)
    assert got == want
    assert got.versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]  # an index may cut the build
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", got.created)
    assert json.loads((path / "state.json").read_text())["schema"] == 1
    assert (path / "state.safetensors").stat().st_mode == (path / "state.json").stat().st_mode


def test_checkpoint_needs_safetensors(tmp_path, monkeypatch):
    """Without safetensors the error names the install line; nothing partial remains."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ConfigError, match=r'needs the package safetensors .*pip install -e ".*\[train\]"'):
        save(tmp_path, state(1), header(1))
    assert latest(tmp_path) is None


# ------------------------------------------------------------------ which ones stay


def test_checkpoint_keeps_the_last_ones(tmp_path):
    """Only the last ``keep_last`` checkpoints stay."""
    for iteration in range(1, 7):
        save(tmp_path, state(iteration), header(iteration), keep_last=3)
        assert saved(tmp_path) == list(range(max(1, iteration - 2), iteration + 1))
    assert leftovers(tmp_path) == []


def test_checkpoint_of_other_names_is_left_alone(tmp_path):
    """Other files in the folder stay, and are no checkpoints."""
    (tmp_path / "checkpoint_mine").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    save(tmp_path, state(1), header(1), keep_last=1)
    save(tmp_path, state(2), header(2), keep_last=1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint_mine", "metrics.jsonl", "checkpoint_000000002"}


def test_checkpoint_best_stays(tmp_path):
    """`best` is a separate checkpoint, and only improves.

    It stays if its iteration is deleted.
    """
    for iteration, is_best in ((1, True), (2, False), (3, False), (4, True), (5, False)):
        save(tmp_path, state(iteration), header(iteration), keep_last=1, is_best=is_best)
        assert iteration_of(tmp_path / "best") == (1 if iteration < 4 else 4)
        assert saved(tmp_path) == [iteration]
    assert leftovers(tmp_path) == []


def test_checkpoint_of_a_run_that_goes_back(tmp_path):
    """A run resumed earlier deletes later checkpoints, except the best."""
    for iteration in (1, 2, 3, 4):
        save(tmp_path, state(iteration), header(iteration), keep_last=9, is_best=True)
    discard_after(tmp_path, 2)
    assert saved(tmp_path) == [1, 2]
    assert iteration_of(tmp_path / "best") == 4
    save(tmp_path, state(3), header(3, seed=99), keep_last=9)
    assert load(latest(tmp_path))[1].seed == 99


def test_checkpoint_of_an_earlier_iteration_leaves_later_ones(tmp_path):
    """Saving an earlier iteration keeps the later checkpoints.

    Saving 3 next to 10 and 20 counts and removes only earlier ones.
    """
    for iteration in (1, 10, 20):
        save(tmp_path, state(iteration), header(iteration), keep_last=9)
    save(tmp_path, state(3), header(3), keep_last=1)
    assert saved(tmp_path) == [3, 10, 20]


# ------------------------------------------------------------------ finding


def test_find_takes_a_checkpoint_or_a_folder(tmp_path):
    """`find` accepts a checkpoint, `best` or a folder.

    `latest` is never `best`.
    """
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None
    first = save(tmp_path, state(1), header(1), is_best=True)
    second = save(tmp_path, state(2), header(2))
    assert find(first) == first
    assert find(tmp_path / "best") == tmp_path / "best"
    assert find(str(tmp_path)) == latest(tmp_path) == second


@pytest.mark.parametrize(("name", "got"), [("", "a folder without"), ("missing", "nothing there")])
def test_find_says_that_there_is_none(tmp_path, name, got):
    """The error tells missing checkpoints from a missing folder."""
    with pytest.raises(CheckpointError, match=rf"must be a folder with state.json .*\(got '{got}'\)"):
        find(tmp_path / name)


def test_find_names_a_run_below(tmp_path):
    """In a folder of runs, the error names one."""
    run = tmp_path / "name" / "tag" / "1"
    save(run / "checkpoints", state(1), header(1))
    (run.parent / "2" / "checkpoints").mkdir(parents=True)  # has none yet
    for folder in (tmp_path, tmp_path / "name", run.parent):
        with pytest.raises(CheckpointError, match=rf"'a folder of runs'\); name one of them, as {run}"):
            find(folder)


# ------------------------------------------------------------------ damage


def cut(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 5)


def alter(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def edit(file: Path, **changes) -> None:
    """Set fields of a header; None removes them."""
    fields = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def write(name: str, content: bytes):
    return lambda path: (path / name).write_bytes(content)


def to_folder(name: str):
    def change(path: Path) -> None:
        (path / name).unlink()
        (path / name).mkdir()

    return change


DAMAGES = {
    "cut tensors": (
        lambda path: cut(path / "state.safetensors"),
        r"state\.safetensors: is truncated or altered.*SHA-256",
    ),
    "altered tensors": (lambda path: alter(path / "state.safetensors"), r"state\.safetensors: is truncated or altered"),
    "no tensors": (lambda path: (path / "state.safetensors").unlink(), r"needs state\.safetensors"),
    "cut header": (lambda path: cut(path / "state.json"), r"state\.json: must be a whole JSON object"),
    "a list": (lambda path: (path / "state.json").write_text("[]"), r"state\.json: must be a whole JSON object"),
    "no hash": (lambda path: edit(path / "state.json", sha256=None), r"whole JSON object .*sha256"),
    "no header": (lambda path: (path / "state.json").unlink(), r"needs state\.json"),
    "a field less": (lambda path: edit(path / "state.json", env_steps=None), r"fields of schema 1 .*env_steps"),
    "a field more": (lambda path: edit(path / "state.json", wings=2), r"fields of schema 1 .*wings"),
    "nested header": (write("state.json", b"[" * 200_000), None),
    "nested field": (write("state.json", b'{"schema":' + b"[" * 200_000), None),
    "long number": (write("state.json", b'{"schema": 1, "sha256": "", "iteration": ' + b"1" * 5_000 + b"}"), None),
    "no UTF-8": (write("state.json", b'{"schema": "\xff\xfe"}'), None),
    "empty header": (write("state.json", b""), None),
    "header is a folder": (to_folder("state.json"), None),
    "tensors are a folder": (to_folder("state.safetensors"), None),
    "empty tensors": (write("state.safetensors", b""), None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_refused_and_passed_over(tmp_path, damage, caplog):
    """A damaged checkpoint is refused, and `latest` uses the one before.

    The error names file, fault and remedy.
    """
    hurt, message = DAMAGES[damage]
    first, second = (save(tmp_path, state(iteration), header(iteration)) for iteration in (1, 2))
    hurt(second)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(second)
    assert str(second) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert "resume from an earlier one or from best" in str(caught.value)
    assert latest(tmp_path) == first
    assert str(second) in caplog.text
    hurt(first)
    with pytest.raises(CheckpointError, match=message):
        latest(tmp_path)


def nested(key: str, value):
    """Set a field of the environment, as `key`."""
    return lambda fields: fields["environment"].update({key: value})


TAG_OUTSIDE = {"policy": {"tagger": {}}, "saving": {"tag": "../../x"}}
WIDE = {"policy": {"tagger": {"model": {"fc_dims": [10**9]}}}}
BROKEN = {
    **{
        f"{name} {value!r:.20}": (name, lambda fields, name=name, value=value: fields.update({name: value}))
        for name, values in {
            "iteration": (-5, 1.5, "7", True, None, 2**62, 10**300),
            "env_steps": (-1, float("nan"), [], 2**63 - 1),
            "seconds": (-0.5, float("inf"), "1"),
            "seed": (-1, 2**63, 0.5),
            "best_return": (float("nan"), float("-inf"), "3"),
            "environment": ([], None, "CartPole", {}),
            "run_config": ([], {}, {"policy": 3}, {"policy": {}}, TAG_OUTSIDE, WIDE),
            "versions": ([], {"torch": 2}),
            "created": (7,),
        }.items()
        for value in values
    },
    **{
        f"environment.{name} {value!r}": ("environment", nested(name, value))
        for name, values in {
            "name": (7, None),
            "n_envs": (0, -1, 2**31, "4"),
            "ranks": (0, 1.5),
            "arrays": ([], [False, "middle"], "first"),
            "policies": ([], {}, {"other": ["0", "1"]}, {"tagger": "01"}),
            "wings": (2,),
        }.items()
        for value in values
    },
}
"""Changes that break a header's rule, and words of errors."""


def rewrite(file: Path, change, keeps_hash: bool = False) -> None:
    """Change the fields of a header, and its hash with them."""
    fields = json.loads(file.read_text())
    known = fields.pop("header_sha256")
    change(fields)
    fields["header_sha256"] = known if keeps_hash else checkpoint._hash_of(fields)
    file.write_text(json.dumps(fields))


@pytest.mark.parametrize("broken", BROKEN)
def test_header_that_breaks_a_rule_is_refused(tmp_path, broken):
    """A header that breaks a rule raises, even with a matching hash.

    The error is one line that names file and field.
    """
    name, change = BROKEN[broken]
    path = save(tmp_path, state(1), header(1))
    rewrite(path / "state.json", change)
    with pytest.raises(CheckpointError, match=name) as caught:
        load(path)
    assert str(path / "state.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_altered_header_is_refused(tmp_path):
    """An altered header is refused; reordered fields are not."""
    path = save(tmp_path, state(1), header(1))
    rewrite(path / "state.json", lambda fields: fields.update(iteration=2), keeps_hash=True)
    with pytest.raises(CheckpointError, match=r"state\.json: is altered"):
        load(path)
    rewrite(path / "state.json", lambda fields: fields.update(sorted({**fields, "iteration": 1}.items())))
    assert iteration_of(path) == 1


def with_header(n_bytes: int, header: bytes = b"{}"):
    """Replace the tensors' file, with a given header length and hash."""

    def change(path: Path) -> None:
        (path / "state.safetensors").write_bytes(n_bytes.to_bytes(8, "little") + header)
        rewrite(path / "state.json", lambda fields: fields.update(sha256=checkpoint._hash(path / "state.safetensors")))

    return change


WITH_HASH = {
    "header of 1e15 bytes": with_header(10**15),
    "header of 2**64 - 1 bytes": with_header(2**64 - 1),
    "header is no JSON": with_header(3, b"abc"),
    "a dtype of nobody": with_header(56, b'{"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}   1234'),
    "offsets beyond the end": with_header(57, b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}  1234'),
}


@pytest.mark.parametrize("damage", WITH_HASH)
def test_unreadable_tensors_are_refused(tmp_path, damage):
    """Tensors that fit their hash alone give a one-line error."""
    path = save(tmp_path, state(1), header(1))
    WITH_HASH[damage](path)
    with pytest.raises(CheckpointError, match=rf"^[^\n]*{path}[^\n]*$"):
        load(path)


def test_damaged_checkpoint_is_replaced(tmp_path):
    """A run saves over a damaged checkpoint."""
    for iteration in (1, 2):
        save(tmp_path, state(iteration), header(iteration))
    (tmp_path / "checkpoint_000000002" / "state.json").unlink()
    assert iteration_of(save(tmp_path, state(2), header(2))) == 2
    assert leftovers(tmp_path) == []


def test_checkpoint_of_another_schema_is_refused(tmp_path):
    """A newer schema is refused, and the error names its release.

    It is no damage, so no older checkpoint is loaded.
    """
    save(tmp_path, state(1), header(1))
    path = save(tmp_path, state(2), header(2, versions={"warpdrive-min": "9.9"}))
    edit(path / "state.json", schema=2)
    for read in (load, latest):
        with pytest.raises(CheckpointError, match=r"schema must be 1 \(got 2\); use the release .*9\.9"):
            read(tmp_path)


# ------------------------------------------------------------------ full disks


@pytest.mark.parametrize("full", ["tensors", "header", "best"])
def test_checkpoint_that_finds_no_room_leaves_the_last_one(full, tmp_path, monkeypatch):
    """A full disk keeps the last checkpoint, and no partial file.

    The error has the path, the size and the cause.
    """
    path = save(tmp_path, state(1), header(1), is_best=True)
    before = {file: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()}
    large = {"weights": torch.zeros(100_000)}
    n_bytes, reason = 400_000, "; no space left on device: make room"
    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        no_room = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if full == "tensors":
            stack.enter_context(limited(200_000))
            reason = r", and a file may have 200,000 \(ulimit -f\); file too large: raise the limit"
        elif full == "header":
            patch.setattr(Path, "write_text", Mock(side_effect=no_room))
        else:
            n_bytes *= 2
            patch.setattr(shutil, "copy", Mock(side_effect=no_room))
        with pytest.raises(DiskFullError) as caught:
            save(tmp_path, large, header(2), is_best=full == "best")
    rule = rf"{tmp_path}/checkpoint_000000002: needs {n_bytes:,} bytes{reason} and resume from"
    assert re.match(rule, str(caught.value))
    assert {file: file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()} == before
    assert latest(tmp_path) == path
    assert leftovers(tmp_path) == []


# ------------------------------------------------------------------ the thread


@pytest.fixture
def gate(monkeypatch):
    """Hold all writes until the event is set."""
    opened, put = threading.Event(), checkpoint._rename_into_place
    monkeypatch.setattr(checkpoint, "_rename_into_place", lambda *paths: (opened.wait(60), put(*paths)))
    yield opened
    opened.set()


def test_writer_saves_the_tensors_of_the_call(tmp_path, gate):
    """It returns before the write; later changes of the tensors do not count."""
    writer, tensors = Writer(), state(1)
    path = writer.save(tmp_path / "threaded", tensors, header(1), 3, is_best=True)
    for tensor in tensors.values():
        tensor.zero_()
    assert not path.exists()
    gate.set()
    writer.wait()
    assert [iteration_of(each) for each in (path, path.parent / "best")] == [1, 1]
    now = save(tmp_path / "now", state(1), header(1))
    assert (path / "state.safetensors").read_bytes() == (now / "state.safetensors").read_bytes()


def test_writer_writes_one_after_the_other(tmp_path, monkeypatch):
    """Slow writes do not overlap, and keep the order of the calls."""
    put, at_once, most, order = checkpoint._rename_into_place, [], [], []

    def slowly(unfinished, target):
        at_once.append(target)
        most.append(len(at_once))
        time.sleep(0.05)
        order.append(target.name)
        put(unfinished, target)
        at_once.remove(target)

    monkeypatch.setattr(checkpoint, "_rename_into_place", slowly)
    writer = Writer()
    for iteration in range(1, 5):
        writer.save(tmp_path, state(iteration), header(iteration), 2, is_best=False)
    writer.wait()
    assert (max(most), order) == (1, [f"checkpoint_{iteration:09d}" for iteration in range(1, 5)])
    assert saved(tmp_path) == [3, 4]


@pytest.mark.parametrize("by", ["save", "wait"])
def test_error_of_the_thread_is_raised_once_in_the_caller(by, tmp_path, monkeypatch):
    """A full disk raises at the next save or wait, and the next one succeeds."""
    writer = Writer()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        writer.save(tmp_path, state(1), header(1), 3, is_best=False)
        with pytest.raises(DiskFullError, match="checkpoint_000000001: needs 20 bytes"):
            writer.wait() if by == "wait" else writer.save(tmp_path, state(2), header(2), 3, is_best=False)
    assert saved(tmp_path) == leftovers(tmp_path) == []
    writer.save(tmp_path, state(3), header(3), 3, is_best=False)
    writer.wait()
    assert saved(tmp_path) == [3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_fork_does_not_wait_for_the_thread(tmp_path, monkeypatch):
    """A child saves elsewhere while its parent's thread still writes."""
    put, started, opened = checkpoint._rename_into_place, threading.Event(), threading.Event()
    monkeypatch.setattr(checkpoint, "_rename_into_place", lambda *paths: (started.set(), opened.wait(60), put(*paths)))
    writer = Writer()
    writer.save(tmp_path / "parent", state(1), header(1), 3, is_best=False)
    assert started.wait(60)
    monkeypatch.setattr(checkpoint, "_rename_into_place", put)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12, of forks beside threads
        child = os.fork()
    if child == 0:
        writer.save(tmp_path / "child", state(2), header(2), 3, is_best=False)
        writer.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (saved(tmp_path / "parent"), saved(tmp_path / "child")) == ([], [2])
    opened.set()
    writer.wait()
    assert saved(tmp_path / "parent") == [1]


def test_process_ends_after_its_last_checkpoint(tmp_path):
    """A program that does not wait still leaves a whole checkpoint."""
    program = f"""
import pathlib, time
from tests.training.test_checkpoint import checkpoint, header, state
put = checkpoint._rename_into_place
checkpoint._rename_into_place = lambda *paths: (time.sleep(0.5), put(*paths))
checkpoint.Writer().save(pathlib.Path({str(tmp_path)!r}), state(1), header(1), 3, False)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
    assert iteration_of(tmp_path / "checkpoint_000000001") == 1
    assert leftovers(tmp_path) == []


# ------------------------------------------------------------------ killed writers


class Killed(BaseException):
    """Simulated SIGKILL, which nothing catches."""


class Killer:
    """Simulate a kill at one disk call.

    A call that removes or copies is left half done.
    """

    CALLS = ((Path, "mkdir"), (Path, "rename"), (Path, "write_text"), (os, "fsync"))
    HALVES = ((shutil, "rmtree"), (shutil, "copy"))

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for owner, name in self.CALLS:
            monkeypatch.setattr(owner, name, self._wrap(getattr(owner, name), lambda *args: None))
        for owner, name in self.HALVES:
            monkeypatch.setattr(owner, name, self._wrap(getattr(owner, name), getattr(self, f"_half_{name}")))

    def _wrap(self, call, half):
        def wrapped(*args, **kwargs):
            if self.left == 0:
                half(*args)
                raise Killed
            self.left -= 1
            return call(*args, **kwargs)

        return wrapped

    @staticmethod
    def _half_rmtree(path: Path) -> None:
        next(iter(path.iterdir())).unlink()

    @staticmethod
    def _half_copy(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:-3])


@pytest.mark.parametrize("new", [3, 2], ids=["a further iteration", "the same iteration again"])
def test_checkpoint_survives_a_kill_at_every_call(tmp_path, monkeypatch, new):
    """A kill at any disk call leaves the old or new state."""
    for at in itertools.count():
        folder = tmp_path / str(at)
        for iteration in (1, 2):
            save(folder, state(iteration), header(iteration), keep_last=2, is_best=iteration == 2)
        was_killed = False
        with monkeypatch.context() as patch:
            Killer(patch, at)
            try:
                save(folder, state(new), header(new, seed=5), keep_last=2, is_best=True)
            except Killed:
                was_killed = True
        old_and_new = [(2, 11), (new, 5)]
        place = {}
        for path in (folder, folder / "best"):
            _, head = load(path)
            place[path] = old_and_new.index((head.iteration, head.seed))
            assert iteration_of(path) == head.iteration
        assert place[folder / "best"] >= place[folder], "a checkpoint must not know of a better one than `best`"
        save(folder, state(4), header(4), keep_last=2, is_best=True)
        assert iteration_of(latest(folder)) == iteration_of(folder / "best") == 4
        assert leftovers(folder) == []
        if not was_killed:
            break
    assert at > 15, "both folders are made, synchronised and renamed"


# ------------------------------------------------------------------ restoring


@pytest.mark.parametrize(
    ("live", "message"),
    [
        (
            {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int32)},
            r"of another shape or dtype: a is \(2,\) float32 there and \(3,\) float32 here, "
            r"b is \(2,\) float32 there and \(2,\) int32 here\).*another environment, or other sizes",
        ),
        ({"a": torch.zeros(2)}, r"got only in the checkpoint: b\).*other policies, algorithms or models"),
        (
            {"a": torch.zeros(2), "b": torch.zeros(2), **{f"c{i}": torch.zeros(1) for i in range(7)}},
            r"got only in the run: c0, c1, c2, c3, c4 and 2 more\)",
        ),
    ],
    ids=["shapes and dtypes", "too many", "missing"],
)
def test_restore_refuses_other_tensors(live, message):
    """Tensors of another run are refused, and nothing is copied.

    All mismatches are listed with the likely cause.
    """
    with pytest.raises(CheckpointError, match=message):
        restore(live, {"a": torch.ones(2), "b": torch.ones(2)}, "run/checkpoint_000000001")
    assert all(not tensor.any() for tensor in live.values())


def test_versions_name_what_is_not_installed(monkeypatch):
    """A package without metadata counts as not installed.

    A checkout in place has none.
    """
    monkeypatch.setattr(checkpoint, "PACKAGES", ("torch", "no-such-package"))
    assert header(1).versions["no-such-package"] == "not installed"
