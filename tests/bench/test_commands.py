"""Misused commands and empty results: exit codes and error lines."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import typer

from bench import cli
from bench import list as bench_list
from bench.core import machine
from bench.core.record import append
from bench.options import resumed_or_new_run_id
from bench.workloads.cases import CASES
from tests.bench.builders import bench, record
from tests.support import by_night
from warpdrive_min import BACKENDS, availability
from warpdrive_min import cli as core_cli

COMMANDS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text())["command"]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row["words"])
def test_command_says_what_is_wrong_and_measures_nothing(row, tmp_path, monkeypatch):
    """Misused commands print an error and write no file.

    They use no verdict's exit code and print no traceback.
    """
    file = tmp_path / "records.jsonl"
    append(file, record())
    monkeypatch.chdir(machine.ROOT)
    monkeypatch.setattr(machine, "fingerprint", lambda device: {"gpu": None, "cpu": "a laptop's", "cores": 2})
    name, *words = row["words"].format(file=file, out=tmp_path / "out").split()
    takes_out = any(option.name == "out" for option in COMMAND_LINE.commands[name].imported().params)
    takes_out &= name != "claims" and "{out}" not in row["words"]
    said = bench(name, *words, *(["--out", tmp_path / "out"] if takes_out else []), exits=row["exits"], COLUMNS="200")
    assert all(each in " ".join(said.split()) for each in row["says"])
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == [file]


COMMAND_LINE = typer.main.get_command(cli.app)


def parameters():
    """Return an empty argument or option for each command."""
    found = []
    core_line = typer.main.get_command(core_cli.app)
    ours = {name: command.imported() for name, command in COMMAND_LINE.commands.items()}
    for program, line, commands in (("bench", COMMAND_LINE, ours), ("warpdrive_min", core_line, core_line.commands)):
        for name, command in commands.items():
            for each in command.params:
                takes_value = each.name != "help" and not getattr(each, "is_flag", False)
                if takes_value:
                    words = [each.opts[0], ""] if each.param_type_name == "option" else [""]
                    found.append(pytest.param(line, [name, *words], id=f"{program} {name} {each.name}"))
    return found


@pytest.mark.parametrize(("line", "words"), parameters())
def test_empty_argument_is_refused(line, words, tmp_path, monkeypatch, capsys):
    """An empty argument or option is refused, in one line."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        line.main(words, prog_name="program")
    assert caught.value.code in (2, 5)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "exits", "line"),
    [
        ("--colour", 2, "program: No such option: --colour; see `program --help`"),
        ("weigh", 2, "program: No such command 'weigh'; see `program --help`"),
        ("run --zz", 2, "program run: No such option: --zz; see `program run --help`"),
        ("gate --zz", 5, "program gate: No such option: --zz; see `program gate --help`"),
        ("run --out", 2, "program run: Option '--out' requires an argument; see `program run --help`"),
    ],
)
def test_incorrect_usage_is_reported_in_one_line(words, exits, line, capsys):
    """Incorrect usage prints one line, which names the error and the help."""
    with pytest.raises(SystemExit) as caught:
        COMMAND_LINE.main(words.split(), prog_name="program")
    assert caught.value.code == exits
    assert capsys.readouterr() == ("", line + "\n")


@pytest.mark.parametrize("name", cli.Commands.rows)
def test_help_of_a_command_is_its_docstring(name):
    """A command's short help is its docstring's first paragraph."""
    first, *_ = COMMAND_LINE.commands[name].imported().help.split("\n\n")
    assert " ".join(first.split()) == cli.Commands.rows[name].help()


def test_list_names_cases_and_backends():
    """`bench list` prints cases and the state of backends."""
    lines = bench("list").splitlines()
    assert all(f"{case.name} ({case.scope}): {case.title}" in lines for case in CASES.values())
    assert lines[-len(BACKENDS) :] == [f"  {name}: {state}" for name, state in availability().items()]


def test_list_explains_axes_that_exist():
    """Every explained axis is an axis of a case."""
    axes = {axis for case in CASES.values() for axis in case.axes("full")}
    assert set(bench_list.AXES) <= axes


def test_list_says_that_a_backend_does_not_answer(monkeypatch):
    """`bench list` reports a backend that does not answer.

    This happens with a broken torch.
    """
    monkeypatch.setattr(bench_list, "ASK", "raise SystemExit(3)")
    assert "exit code 3" in bench("list", exits=1)


HEAVY = ("torch", "numpy", "scipy", "pandas", "matplotlib", "numba")


MEASURING = ("torch", "numba", "scipy.stats", "matplotlib")
"""Packages that only measuring and drawing need."""


@pytest.mark.parametrize(
    ("words", "exits", "absent"),
    [
        ("", 2, (*HEAVY, "bench.workloads")),
        ("--help", 0, (*HEAVY, "bench.workloads")),
        ("no-such-command", 2, (*HEAVY, "bench.workloads")),
        ("gate-typo --help", 2, (*HEAVY, "bench.workloads")),
        ("list", 0, HEAVY),
        ("table FILE", 0, (*MEASURING, "scipy")),
        by_night("claims", 0, MEASURING),
        ("gate --baseline FILE --records FILE", 0, MEASURING),
        by_night("report FILE --out FILE.html", 0, MEASURING),
    ],
)
def test_command_starts_without_heavy_packages(words, exits, absent, tmp_path):
    """Commands that only read import no heavy package."""
    file = tmp_path / "records.jsonl"
    append(file, record(samples_ns=[1.0]))
    lines = imported_by("-m", "bench", *words.replace("FILE", str(file)).split(), exits=exits)
    assert "bench.cli" in lines
    assert not {*absent} & lines


def test_availability_of_a_build_for_cpus_needs_no_torch():
    """Querying CPU backends imports neither torch nor NumPy."""
    if torch.version.cuda or torch.version.hip:
        pytest.skip("torch is a build for GPUs, which must be asked")
    assert not imported_by("-c", "from warpdrive_min import availability; availability()") & {"torch", "numpy"}


@pytest.mark.parametrize(
    "module",
    [
        "warpdrive_min",
        "warpdrive_min.backends",
        "warpdrive_min.backends.host",
        "warpdrive_min.backends.numba_cuda",
        "warpdrive_min.backends.pycuda_driver",
        "warpdrive_min.files",
        "bench.core.case",
        "bench.core.nvml",
    ],
)
def test_module_imports_no_heavy_package(module):
    """Modules that read or print import no heavy package."""
    lines = imported_by("-c", f"import {module}")
    assert module in lines
    assert not lines & {*HEAVY}


def imported_by(*words, exits=0):
    """Return the modules that a new Python process imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words], cwd=machine.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == exits, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    "resume", ["/abs/path", "../x", "*", "a/b", "\0", "a" * 5_000, "[", "none"], ids=lambda each: each[:9]
)
def test_run_to_resume_is_a_run_id(resume, tmp_path):
    """`--resume` takes only a known run id.

    A path or a pattern is a usage error.
    """
    with pytest.raises(typer.BadParameter, match="must be a run"):
        resumed_or_new_run_id(resume, tmp_path, "smoke")
