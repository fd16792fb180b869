"""Fuzzing: damaged files and wrong commands give one-line errors.

They may also work, if the damage does no harm.

Errors have a non-zero exit code. Records, checkpoints, certificates and run configs are real ones, changed in a few
places; command lines are drawn from each command's options. A traceback, a hang, or a silently accepted wrong value is
a failure. Quick tests draw the same examples each time; those marked `nightly` draw others.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import HealthCheck, Phase, currently_in_test_context, given, note, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench import cli as bench_cli
from bench.core.machine import ROOT
from bench.core.record import RESULTS, RecordError, read_all, read_comparisons
from tests.bench import builders
from warpdrive_min import cli as training_cli
from warpdrive_min.commands.environments import run_config_path
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import CertificateError, CheckpointError, ConfigError
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.record import certificate

BOUND_S = 20
"""Time after which an example counts as a hang, s."""
LONGEST = 10_000
"""Characters of a line of error, at most."""
Doc = Any
Place = tuple[Any, ...]


def examples(quick: int, thorough: int) -> Any:
    """Parametrise a test with its number of examples: few, or many at night."""
    return pytest.mark.parametrize("n", [quick, pytest.param(thorough, marks=pytest.mark.nightly)])


def fuzz(n: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Check ``n`` examples of a strategy.

    Large numbers get new examples each time.
    """
    suppressed = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    phases = [Phase.generate, Phase.shrink]  # an explanation would run the failing example a hundred times more
    profile = settings(max_examples=n, deadline=None, derandomize=n < 300, database=None, print_blob=True)
    profile = settings(profile, phases=phases, suppress_health_check=suppressed, report_multiple_bugs=n >= 300)
    profile(given(strategy)(check))()


# ------------------------------------------------------------------ the rule


class HangError(BaseException):
    """Example that took longer than `BOUND_S`."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail if a block takes too long."""

    def stop(*_: Any) -> None:
        raise HangError(f"took longer than {BOUND_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, BOUND_S)
    try:
        yield
    except HangError as error:
        raise AssertionError(f"a hang: {error}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def error_of(read: Callable[[], Any], *kinds: type[Exception]) -> str:
    """Return a reader's one-line error for its input; "" if it accepts it.

    Any other kind of exception is a traceback in the command, and fails the test.
    """
    try:
        with bounded():
            read()
    except kinds as error:
        message = str(error)
        say(message[:LONGEST])
        assert message.strip(), "an error must say what is wrong"
        assert len(message.splitlines()) == 1, f"not one line: {message[:LONGEST]!r}"
        assert len(message) <= LONGEST, f"{len(message)} characters: {message[:200]!r}..."
        assert_printable(message)
        return message
    return ""


def say(text: str) -> None:
    """Make Hypothesis print a text with the failing example."""
    if currently_in_test_context():
        note(text)


def assert_printable(text: str) -> None:
    """Check that a text has no terminal control."""
    escapes = re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert not escapes, f"control characters reach the terminal: {escapes[:5]}"


# ------------------------------------------------------------------ changed documents


@dataclass(frozen=True)
class Token:
    """Text that is written into a document verbatim, without quotes."""

    name: str
    """Text, or its name in `LONG`."""

    @property
    def text(self) -> str:
        """The text."""
        return LONG.get(self.name, self.name)


LONG = {
    "5,000 characters": '"' + "x" * 5_000 + '"',
    "5,000 digits": "7" * 5_000,
    "400 deep": "[" * 400 + "]" * 400,
    "200,000 deep": "[" * 200_000,
}
NOT_NUMBERS = ["NaN", "Infinity", "-Infinity", '"5"', '"x"', "[]", "[5]", "{}", '{"a": 1}', "[[[[1]]]]"]
NUMBERS = ["0", "-1", "-5", "0.5", "-0.0", "1e308", "1e-320", "9223372036854775808", "4294967296", "5" + "0" * 30]
OTHERS = [
    *("true", "false", "null", '""', '"\\u001b]0;x\\u0007"', '"a\\nb"', '"\\ud800"', '"../../../x"', '"\\\\input{x}"'),
    *("1e999", *LONG),
]
TOKENS = [*NOT_NUMBERS, *NUMBERS, *OTHERS]


@dataclass(frozen=True)
class Change:
    """A change of a document at one place."""

    place: Place
    kind: str
    """``"put"`` a token there, ``"drop"`` the place, or ``"add"`` a neighbouring key."""
    token: Token

    def apply(self, document: Doc) -> None:
        """Change a document in place, if the place still exists."""
        *way, last = self.place
        with contextlib.suppress(KeyError, IndexError, TypeError):
            for step in way:
                document = document[step]
            document[last]
            if self.kind == "drop":
                del document[last]
            elif self.kind == "put":
                document[last] = self.token
            elif isinstance(document, dict):
                document["never_heard_of"] = self.token


def places(document: Doc, at: Place = ()) -> list[Place]:
    """Return the places of a document.

    Of a long list, only the first two items and the last one.
    """
    items: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = [(index, document[index]) for index in sorted({0, 1, len(document) - 1} & set(range(len(document))))]
    return [place for key, value in items for place in [(*at, key), *places(value, (*at, key))]]


def value_at(document: Doc, place: Place) -> Any:
    """Return the value at a place."""
    return functools.reduce(lambda part, step: part[step], place, document)


def changes(document: Doc, tokens: list[str] = TOKENS) -> st.SearchStrategy[list[Change]]:
    """Draw changes of a document."""
    where, kind = st.sampled_from(places(document)), st.sampled_from(["put", "put", "put", "drop", "add"])
    return st.lists(st.builds(Change, where, kind, st.sampled_from(tokens).map(Token)), max_size=2)


def changed(document: Doc, drawn: list[Change]) -> Doc:
    """Return a document with changes."""
    document = copy.deepcopy(document)
    for each in drawn:
        each.apply(document)
    return document


def text_of(document: Doc) -> str:
    """Return a document as JSON, with verbatim tokens."""
    tokens: list[str] = []

    def stand_in(value: Any) -> str:
        assert isinstance(value, Token)
        tokens.append(value.text)
        return f"@token {len(tokens) - 1}@"

    text = json.dumps(document, default=stand_in)
    return re.sub(r'"@token (\d+)@"', lambda match: tokens[int(match[1])], text)


def is_nonsense(document: Doc, drawn: list[Change], typed: str) -> bool:
    """Return true if the only change makes a number non-finite.

    ``typed`` is a regex of the places of numbers. A number's text is no number, but a reader may accept it.
    """
    for each in drawn:
        place = ".".join(map(str, each.place))
        is_number = isinstance(value_at(document, each.place), int | float)
        is_typed = re.fullmatch(typed, place) and is_number and each.kind == "put"
        if is_typed and each.token.text in {*NOT_NUMBERS, "1e999"} - {'"5"'} and len(drawn) == 1:
            return True
    return False


@dataclass(frozen=True)
class Damage:
    """A change of a file's bytes."""

    kind: str
    at: float
    """Place, as a share of the file's length."""

    def apply(self, content: bytes) -> bytes:
        """Return the bytes, changed."""
        at = int(self.at * len(content))
        return {
            "none": content,
            "cut": content[:at],
            "empty": b"",
            "not UTF-8": content[:at] + b"\xff\xfe" + content[at:],
            "a mark": b"\xef\xbb\xbf" + content,
            "zeros": content[:at] + b"\0" * 8 + content[at:],
            "a flipped bit": content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] if content else content,
            "UTF-16": content.decode(errors="replace").encode("utf-16"),
            "deep": b"[" * (200_000 if content[:1] == b"{" else 2_000),  # YAML is read in Python, which is slow
            "digits": b"9" * 5_000,
            "a pickle": b"\x80\x04cos\nsystem\n(S'echo'\ntR.",
        }[self.kind]


DAMAGES = ("cut", "empty", "not UTF-8", "a mark", "zeros", "a flipped bit", "UTF-16", "deep", "digits", "a pickle")
damages = st.builds(Damage, st.sampled_from(DAMAGES), st.floats(0, 0.999))


# ------------------------------------------------------------------ records


@functools.cache
def real_record() -> dict[str, Any]:
    """Return a published record with samples, as a dict.

    Without one, return a record of the builders.
    """
    for path in sorted((ROOT / RESULTS).rglob("*.jsonl"), key=lambda path: (path.stat().st_size, path)):
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            if fields.get("schema") == 2 and fields.get("samples_ns") and fields.get("telemetry"):
                return fields  # type: ignore[no-any-return]
    return json.loads(builders.record().to_line())  # type: ignore[no-any-return]


TYPED_IN_RECORDS = (
    r"samples_ns\.\d+|device_ns\.\d+|work_per_run\.\w+|n|case_version|runs_per_sample|duration_s|threads"
    r"|metrics\.\w+\.(value|low|high)|correctness\.max_error|correctness\.(before|after)\.max_error|process\.\d+"
)
WRONG_IN_RECORDS = {
    "samples_ns.0": ("0", "-1", "-5", "-0.0", "1e308"),
    "work_per_run.env_steps": ("0", "-1", "-5"),
    "n": ("0", "-1", "-5", "5" + "0" * 30),
    "duration_s": ("-1", "-5"),
}
"""Numbers that a field cannot have."""


def record_is_wrong(drawn: list[Change]) -> bool:
    """Return true if a record's change must be refused."""
    if len(drawn) != 1 or drawn[0].kind != "put":
        return False
    place = ".".join(map(str, drawn[0].place))
    return drawn[0].token.text in WRONG_IN_RECORDS.get(place, ()) or is_nonsense(real_record(), drawn, TYPED_IN_RECORDS)


@examples(40, 5000)
def test_records_are_read_or_refused(n, tmp_path):
    """Impossible values in records and comparisons are refused."""
    file = tmp_path / "records.jsonl"

    def check(drawn: list[Change]) -> None:
        file.write_text(text_of(changed(real_record(), drawn)) + "\n", errors="surrogatepass")
        say(str(drawn))
        told = error_of(lambda: read_all([file]), RecordError)
        error_of(lambda: read_comparisons([file]), RecordError)
        assert told or not record_is_wrong(drawn), "taken without a word"
        assert str(file) in told or not told, "an error names the file"

    fuzz(n, changes(real_record()), check)


@examples(40, 2000)
def test_bytes_of_records_are_read_or_refused(n, tmp_path):
    """Cut or overwritten record files are read or refused.

    Lines that are cut are reported.
    """
    file = tmp_path / "records.jsonl"
    whole = f"{json.dumps(real_record())}\n{json.dumps(real_record())}\n".encode()

    def check(damage: Damage) -> None:
        file.write_bytes(damage.apply(whole))
        cut: list[str] = []
        say(str(damage))
        told = error_of(lambda: read_all([file], cut), RecordError)
        is_gone = damage.kind in ("deep", "digits", "a pickle", "UTF-16", "not UTF-8")
        assert told or cut or not is_gone, "taken without a word"

    fuzz(n, damages, check)


READING = ("table", "claims", "export", "compare", "gate", "report", "plot", "paper")
"""Commands that read records; the last three draw."""


def words_of_reading(command: str, file: Path, out: Path) -> list[str]:
    """Return a command that reads a file and measures nothing."""
    return {
        "table": ["table", str(file)],
        "claims": ["claims", str(file)],
        "export": ["export", "github", str(file), "--out", str(out / "export.json")],
        "compare": ["compare", str(file), str(file), "--out", str(out)],
        "gate": ["gate", "--baseline", str(file), "--records", str(file)],
        "report": ["report", str(file), "--out", str(out / "report.html")],
        "plot": ["plot", str(file), "--out", str(out / "plots")],
        "paper": ["paper", str(file), "--out", str(out / "paper")],
    }[command]


@pytest.mark.parametrize("command", READING)
@examples(2, 1000)
def test_commands_read_records_or_say_why_not(n, command, tmp_path, monkeypatch):
    """Commands read changed records or name the fault."""
    monkeypatch.chdir(tmp_path)
    file, out = tmp_path / "records.jsonl", tmp_path / "out"
    n = 1 if n < 10 and command in ("paper", "plot") else n  # they draw for seconds
    good = {**real_record(), "id": "good", "started_at": "2026-01-01T00:00:00+00:00"}

    def check(drawn: list[Change]) -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        lines = [json.dumps(good), text_of(changed(real_record(), drawn))]
        file.write_text("\n".join(lines) + "\n", errors="surrogatepass")
        say(str(drawn))
        outcome = run(bench_cli.app, words_of_reading(command, file, out))
        if record_is_wrong(drawn):
            is_told = outcome.exit_code != 0 or "line 2" in outcome.output or str(file) in outcome.output
            assert is_told, f"taken without a word: {outcome.output[-500:]}"
        assert {each.name for each in tmp_path.iterdir()} == {"records.jsonl", "out"}, "written outside --out"

    fuzz(n, changes(real_record()), check)


# ------------------------------------------------------------------ runs: checkpoints, certificates, run configs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a tiny certified CartPole run."""
    base = tmp_path_factory.mktemp("runs")
    over = {
        **{"env.episode_length": 5, "trainer.num_envs": 2, "trainer.train_batch_size": 4},
        **{"trainer.num_episodes": 2, "saving.basedir": str(base)},
        "policy.shared.model.fc_dims": [4],
    }
    words = [word for key, value in over.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    outcome = run(
        training_cli.app,
        ["train", "-e", "cartpole", "--backend", "cpu", "--certify", "--quiet", "--results-dir", "run", *words],
    )
    assert outcome.exit_code == 0, outcome.output
    return Path(outcome.output.split()[-1])


TYPED_IN_HEADERS = "iteration|env_steps|seconds|seed|best_return"
WRONG_IN_HEADERS = {"iteration": ("-1", "-5", "0.5"), "env_steps": ("-1", "-5", "0.5"), "seed": ("-1", "-5", "0.5")}


@examples(50, 4000)
def test_headers_of_checkpoints_are_read_or_refused(n, trained, tmp_path):
    """Impossible values in a checkpoint's header are refused."""
    found = tmp_path / "checkpoint"
    shutil.copytree(checkpoint.find(trained / checkpoint.FOLDER), found)
    whole = json.loads((found / checkpoint.HEADER).read_text())

    def check(drawn: list[Change]) -> None:
        (found / checkpoint.HEADER).write_text(text_of(changed(whole, drawn)), errors="surrogatepass")
        say(str(drawn))
        told = error_of(lambda: checkpoint.load(found), CheckpointError, ConfigError)
        (only, *more) = drawn or [None]
        is_wrong = is_nonsense(whole, drawn, TYPED_IN_HEADERS)
        if only and not more and only.kind == "put":
            is_wrong |= only.token.text in WRONG_IN_HEADERS.get(".".join(map(str, only.place)), ())
        assert told or not is_wrong, "taken without a word"

    fuzz(n, changes(whole), check)


@examples(60, 3000)
def test_bytes_of_checkpoints_are_read_or_refused(n, trained, tmp_path):
    """Cut or overwritten checkpoint files are read or refused.

    Changed tensors are refused.
    """
    whole = checkpoint.find(trained / checkpoint.FOLDER)
    kept = {name: (whole / name).read_bytes() for name in (checkpoint.HEADER, checkpoint.TENSORS)}
    found = tmp_path / "checkpoint"
    found.mkdir()

    def check(case: tuple[str, Damage]) -> None:
        name, damage = case
        for each, content in kept.items():
            (found / each).write_bytes(damage.apply(content) if each == name else content)
        say(str(case))
        told = error_of(lambda: checkpoint.load(found), CheckpointError, ConfigError)
        assert told or name == checkpoint.HEADER, "taken without a word"

    fuzz(n, st.tuples(st.sampled_from(sorted(kept)), damages), check)


@examples(25, 1500)
def test_tensors_with_their_own_hash_are_read_or_refused(n, trained, tmp_path):
    """A wrong safetensors header is refused despite a valid hash.

    Sizes are false or names repeated.
    """
    whole, found = checkpoint.find(trained / checkpoint.FOLDER), tmp_path / "checkpoint"
    shutil.copytree(whole, found)
    content = (whole / checkpoint.TENSORS).read_bytes()
    size = int.from_bytes(content[:8], "little")
    table, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    fields = json.loads((whole / checkpoint.HEADER).read_text())

    def check(case: tuple[list[Change], int]) -> None:
        drawn, extra = case
        text = text_of(changed(table, drawn)).encode(errors="surrogatepass")
        tensors = max(len(text) + extra, 0).to_bytes(8, "little") + text + data
        (found / checkpoint.TENSORS).write_bytes(tensors)
        (found / checkpoint.HEADER).write_text(json.dumps(fields | {"sha256": hashlib.sha256(tensors).hexdigest()}))
        say(str(case))
        error_of(lambda: checkpoint.load(found), CheckpointError, ConfigError)

    fuzz(n, st.tuples(changes(table), st.sampled_from([0, 0, 0, -1, 1, 10**9, 10**15])), check)


@pytest.mark.parametrize("command", ["train", "evaluate", "render"])
@examples(6, 300)
def test_commands_use_checkpoints_or_say_why_not(n, command, trained, tmp_path, monkeypatch):
    """Commands on a run with a changed header work or explain.

    They resume, evaluate and render it.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    file = checkpoint.find(folder / checkpoint.FOLDER) / checkpoint.HEADER
    whole = json.loads(file.read_text())
    words = {
        "train": ["train", "--resume", str(folder), "--iterations", "1", "--quiet"],
        "evaluate": ["evaluate", str(folder), "--episodes", "2"],
        "render": ["render", "--policy", str(folder), "--out", str(tmp_path / "film.html")],
    }[command]

    def check(drawn: list[Change]) -> None:
        file.write_text(text_of(changed(whole, drawn)), errors="surrogatepass")
        say(str(drawn))
        with no_work():
            run(training_cli.app, words)

    fuzz(n, changes(whole), check)


@examples(40, 4000)
def test_certificates_are_read_or_refused(n, trained, tmp_path):
    """Changed certificates are refused, unless re-hashed and valid."""
    file = tmp_path / certificate.NAME
    whole = json.loads((trained / certificate.NAME).read_text())
    sealed = {key: value for key, value in whole.items() if key != "sha256"}

    def check(case: tuple[list[Change], bool]) -> None:
        drawn, is_sealed = case
        text = text_of(changed(whole, drawn))
        say(str(case))
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if is_sealed and isinstance(fields, dict):
            fields.pop("sha256", None)
            with contextlib.suppress(ValueError, UnicodeEncodeError):
                text = json.dumps(fields | {"sha256": certificate._digest(fields)})
        file.write_text(text, errors="surrogatepass")
        told = error_of(lambda: certificate.Certificate.read(file), CertificateError)
        assert told or is_sealed or fields == whole, "an altered certificate was taken"
        typed = r"threads|points\.\d+\.(iteration|env_steps)|curve\.\d+\.(iteration|env_steps|mean_return\.\w+)"
        assert told or not is_nonsense(sealed, [each for each in drawn if each.place != ("sha256",)], typed)

    fuzz(n, st.tuples(changes(whole), st.booleans()), check)


@examples(30, 2000)
def test_bytes_of_certificates_are_refused(n, trained, tmp_path):
    """A cut or overwritten certificate is refused."""
    file, whole = tmp_path / certificate.NAME, (trained / certificate.NAME).read_bytes()

    def check(damage: Damage) -> None:
        file.write_bytes(damage.apply(whole))
        say(str(damage))
        told = error_of(lambda: certificate.Certificate.read(file), CertificateError)
        is_whole = damage.kind in ("a mark", "UTF-16") or damage.apply(whole).strip() == whole.strip()
        assert told or is_whole, "an altered certificate was taken"

    fuzz(n, damages, check)


@examples(6, 300)
def test_verify_says_5_where_a_certificate_is_damaged(n, trained, tmp_path):
    """`verify` gives a verdict or exits with 5.

    Certificates have changed fields and a new hash; none causes a traceback.
    """
    file = tmp_path / certificate.NAME
    whole = json.loads((trained / certificate.NAME).read_text())

    def check(drawn: list[Change]) -> None:
        text = text_of(changed(whole, drawn))
        say(str(drawn))
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            fields = json.loads(text)
            fields.pop("sha256", None)
            text = json.dumps(fields | {"sha256": certificate._digest(fields)})
        file.write_text(text, errors="surrogatepass")
        with no_work():
            outcome = run(training_cli.app, ["verify", str(file)])
        assert outcome.exit_code in (0, 1, 2, 5), outcome.output

    fuzz(n, changes(whole), check)


RUN_CONFIG = yaml.safe_load(run_config_path("cartpole").read_text())
TYPED_IN_CONFIGS = r"(trainer|policy\.\w+|saving|population|sampler\.params)\.\w+"
SIZES = r"trainer\.(num_envs|train_batch_size|num_episodes)|policy\.\w+\.model\.fc_dims\.\d+|saving\.\w+_freq"


@examples(60, 6000)
def test_run_configs_are_read_or_refused(n, tmp_path):
    """Unknown keys and non-numbers in run configs are refused."""
    file = tmp_path / "run_config.yaml"

    def check(drawn: list[Change]) -> None:
        file.write_text(text_of(changed(RUN_CONFIG, drawn)), errors="surrogatepass")
        say(str(drawn))
        told = error_of(lambda: RunConfig.load(file), ConfigError)
        is_wrong = is_nonsense(RUN_CONFIG, drawn, TYPED_IN_CONFIGS)
        if len(drawn) == 1:
            (only,) = drawn
            place, is_key = ".".join(map(str, only.place)), isinstance(only.place[-1], str)
            is_size = re.fullmatch(SIZES, place) and only.kind == "put"
            is_wrong |= bool(is_size) and only.token.text in ("0", "-1", "-5", "0.5")
            is_wrong |= "fc_dims" in place and only.kind == "put" and only.token.text == "5" + "0" * 30
            is_policy = re.fullmatch(r"policy\.\w+", place) and only.token.text == "{}"  # a further one, by default
            is_wrong |= only.kind == "add" and is_key and not place.startswith("env.") and not is_policy
        assert told or not is_wrong, "taken without a word"

    fuzz(n, changes(RUN_CONFIG, [each for each in TOKENS if each != "200,000 deep"]), check)


@examples(5, 2000)
def test_bytes_of_run_configs_are_read_or_refused(n, tmp_path):
    """Cut or overwritten run configs are read or refused."""
    file, whole = tmp_path / "run_config.yaml", run_config_path("cartpole").read_bytes()

    def check(damage: Damage) -> None:
        file.write_bytes(damage.apply(whole))
        say(str(damage))
        told = error_of(lambda: RunConfig.load(file), ConfigError)
        assert told or damage.kind not in ("deep", "digits", "a pickle", "not UTF-8"), "taken without a word"

    fuzz(n, damages, check)


@pytest.mark.parametrize(
    "kind", ["a folder", "nothing", "no permission", "a loop", "a pipe that is closed", "/dev/null"]
)
@pytest.mark.parametrize("what", ["records", "checkpoint", "certificate", "run config"])
def test_files_that_cannot_be_read_are_refused(what, kind, tmp_path):
    """Folders, broken links and unreadable files are refused."""
    path = tmp_path / "given.jsonl"
    if kind == "a folder":
        (path / "given.jsonl").mkdir(parents=True)
    elif kind == "no permission":
        path.touch(mode=0)
        if os.access(path, os.R_OK):
            pytest.skip("root may read everything")
    elif kind == "a loop":
        path.symlink_to(path)
    elif kind == "a pipe that is closed":
        pytest.skip("a reader of a pipe waits for its writer, as every command does")
    elif kind == "/dev/null":
        path = Path("/dev/null")
    readers = {
        "records": (lambda: read_all([path]), RecordError),
        "checkpoint": (lambda: checkpoint.load(path), CheckpointError),
        "certificate": (lambda: certificate.Certificate.read(path), CertificateError),
        "run config": (lambda: RunConfig.load(path), ConfigError),
    }
    read, error = readers[what]
    told = error_of(read, error)
    assert told or (what, kind) in (("records", "a folder"), ("records", "/dev/null"), ("run config", "/dev/null"))


# ------------------------------------------------------------------ command lines


class WorkError(BaseException):
    """Accepted input: a command would measure or train now."""


GIT_READS = {"rev-parse", "log", "status", "diff", "config", "show", "ls-files", "describe", "merge-base", "cat-file"}


@contextlib.contextmanager
def no_work() -> Iterator[None]:
    """Raise `WorkError` when a command starts a process or many envs."""
    start, fork, make = subprocess.Popen.__init__, os.fork, EnvWrapper.__init__
    start_ours = BaseProcess.start

    def started(self: Any, args: Any, *others: Any, **named: Any) -> None:
        words = [str(each) for each in args] if isinstance(args, list | tuple) else str(args).split()
        program = words[words.index("guard") + 2 :] if "guard" in words else words
        if Path(program[0]).name != "git" or not GIT_READS & set(program):
            raise WorkError(program)
        start(self, args, *others, **named)

    def forked(*_: Any) -> int:
        raise WorkError("fork")

    def made(self: EnvWrapper, *given: Any, **named: Any) -> None:
        if named.get("num_envs", 1) > 8:
            raise WorkError(named)
        make(self, *given, **named)

    subprocess.Popen.__init__, os.fork = started, forked  # type: ignore[method-assign, assignment]
    EnvWrapper.__init__, BaseProcess.start = made, forked  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        subprocess.Popen.__init__, os.fork = start, fork  # type: ignore[method-assign]
        EnvWrapper.__init__, BaseProcess.start = make, start_ours  # type: ignore[method-assign]


@dataclass(frozen=True)
class Outcome:
    """Result of a command line."""

    exit_code: int
    output: str


def run(app: typer.Typer, words: list[str]) -> Outcome:
    """Run a command in this process; simulated work returns 0.

    A traceback and a hang fail the test. Only typed words may bring control characters to the terminal.
    """
    with bounded():
        try:
            result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
        except WorkError:
            return Outcome(0, "")
    say(f"{words} exits with {result.exit_code}: {result.output[-LONGEST:]}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"a traceback: {result.exception!r}") from result.exception
    assert "Traceback (most recent call last)" not in result.output
    assert result.exit_code == 0 or result.output.strip(), "an error must say what is wrong"
    if result.exit_code:
        assert max(map(len, result.output.splitlines())) <= LONGEST, "a line is longer than a message is"
    if not re.search(r"[\x00-\x1f]", "".join(words)):
        assert_printable(result.output)
    return Outcome(result.exit_code, result.output)


NOT_RUN = {"refresh", "doctor", "list"}
"""Commands without input, or that write into the checkout."""
BENCH, TRAINING = (typer.main.get_command(each.app) for each in (bench_cli, training_cli))
COMMANDS = [
    (app, name)
    for app, group in ((bench_cli.app, BENCH), (training_cli.app, TRAINING))
    for name in group.commands  # type: ignore[attr-defined]
    if name not in NOT_RUN
]
WORDS = [
    *("", " ", "-1", "0", "1", "nan", "inf", "1e400", "9" * 30, "abc", "a=b", "=", "env=", "env=cartpole", "cartpole"),
    *("no/such/file", ".", "/dev/null", "/proc/none/x", "\x1b]0;x\x07", "[", "{}", "None", "x" * 300, "records.jsonl"),
    *(
        "run_config.yaml",
        "x\ny",
        "é",
        "cpu",
        "host",
        "backend=cpu,inf",
        "n_envs=1e9",
        "smoke",
        "HEAD",
        "--",
        "%s",
        "{x}",
    ),
]
NO_NUMBER = {"", " ", "abc", "a=b", "=", "[", "{}", "None", "nan", "1e400", "9" * 30}
"""Words that number options refuse."""


def parameters(app: typer.Typer, name: str) -> tuple[list[str], set[str]]:
    """Return a command's options with a value, and the numeric ones.

    Arguments are "".
    """
    is_bench = app is bench_cli.app
    command: Any = (BENCH if is_bench else TRAINING).commands[name]  # type: ignore[attr-defined]
    command = command.imported()
    hints, options, numbers = typing.get_type_hints(command.callback), [], set()
    for each in command.params:
        if each.param_type_name == "argument":
            options.append("")
        elif not each.is_flag and each.name != "help":
            options.append(each.opts[0])
            kinds = {hints[each.name], *typing.get_args(hints[each.name])}
            numbers |= {each.opts[0]} if kinds & {int, float} else set()
    return options, numbers


def command_lines(options: list[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    """Draw options of a command with words."""
    drawn = st.tuples(st.sampled_from([*dict.fromkeys(options), "--no-such-option"]), st.sampled_from(WORDS))
    return st.lists(drawn, min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("app", "name"),
    COMMANDS,
    ids=[f"{'bench' if app is bench_cli.app else 'warpdrive_min'}-{n}" for app, n in COMMANDS],
)
@examples(2, 1000)
def test_command_lines_work_or_say_why_not(n, app, name, trained, tmp_path, monkeypatch):
    """Commands with random options work or explain their error.

    The folder has records, a run config and a run. Starting to measure or train counts as success.
    """
    monkeypatch.chdir(tmp_path)
    options, wrong_for = parameters(app, name)

    def check(drawn: list[tuple[str, str]]) -> None:
        for each in tmp_path.iterdir():
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        Path("records.jsonl").write_text(json.dumps(real_record()) + "\n")
        shutil.copy(run_config_path("cartpole"), "run_config.yaml")
        shutil.copytree(trained, "run")
        words = [part for option, word in drawn for part in ([option, word] if option else [word])]
        with no_work():
            outcome = run(app, [name, *words])
        is_wrong = any(option in wrong_for and word in NO_NUMBER for option, word in drawn)
        is_wrong |= any(option == "--no-such-option" for option, word in drawn)
        assert outcome.exit_code or not is_wrong or "--" in [word for _, word in drawn], "taken without a word"

    fuzz(n, command_lines(options), check)


@pytest.mark.parametrize(("app", "name"), [(app, name) for app, name in COMMANDS])
def test_numbers_of_options_are_checked(app, name, tmp_path, monkeypatch):
    """Each number option refuses each non-number."""
    monkeypatch.chdir(tmp_path)
    for option in sorted(parameters(app, name)[1]):
        for word in sorted(NO_NUMBER):
            with no_work():
                outcome = run(app, [name, option, word])
            assert outcome.exit_code, f"{option} {word!r} was taken without a word"
