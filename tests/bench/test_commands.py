"""Commands that are used wrongly, or find nothing, have their exit code and say what is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import typer

from bench import cli, machine
from tests.bench.builders import bench

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
