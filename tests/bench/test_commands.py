"""Commands that are used wrongly, or find nothing, have their exit code and say what is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import typer

from bench import cli
from bench.core import machine
from bench.options import run_of
from tests.bench.builders import bench
from warpdrive_min import cli as core_cli

COMMANDS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text())["command"]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row["words"])
def test_command_says_what_is_wrong_and_measures_nothing(row, tmp_path, monkeypatch):
    """No exit code looks like that of a verdict, what is said is no traceback, and no file is written."""
    monkeypatch.chdir(machine.ROOT)
    monkeypatch.setattr(machine, "fingerprint", lambda device: {"gpu": None, "cpu": "a laptop's", "cores": 2})
    name, *words = row["words"].split()
    takes_out = any(option.name == "out" for option in COMMAND_LINE.commands[name].params)
    said = bench(name, *words, *(["--out", tmp_path / "out"] if takes_out else []), exits=row["exits"], COLUMNS="200")
    assert all(each in " ".join(said.split()) for each in row["says"])
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


COMMAND_LINE = typer.main.get_command(cli.app)


def parameters():
    """Return the words that give each command of both programs an empty argument or option."""
    found = []
    for program, line in (("bench", COMMAND_LINE), ("warpdrive_min", typer.main.get_command(core_cli.app))):
        for name, command in line.commands.items():
            for each in command.params:
                takes_value = each.name != "help" and not getattr(each, "is_flag", False)
                if takes_value:
                    words = [each.opts[0], ""] if each.param_type_name == "option" else [""]
                    found.append(pytest.param(line, [name, *words], id=f"{program} {name} {each.name}"))
    return found


@pytest.mark.parametrize(("line", "words"), parameters())
def test_empty_argument_is_refused(line, words, tmp_path, monkeypatch):
    """It would stand for the current folder, for everything, or for nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        line.main(words, prog_name="program")
    assert caught.value.code in (2, 5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "resume", ["/abs/path", "../x", "*", "a/b", "\0", "a" * 5_000, "[", "none"], ids=lambda each: each[:9]
)
def test_run_to_resume_is_a_run_id(resume, tmp_path):
    """A path, a pattern and an unknown id are usage errors."""
    with pytest.raises(typer.BadParameter, match="must be a run"):
        run_of(resume, tmp_path)
