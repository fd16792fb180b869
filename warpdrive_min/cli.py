"""Command line: `python -m warpdrive_min`, with the commands of `app`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from warpdrive_min.commands.evaluate import evaluate
from warpdrive_min.commands.new_env import new_env
from warpdrive_min.commands.render import render
from warpdrive_min.commands.strict import Strict
from warpdrive_min.commands.train import train
from warpdrive_min.commands.validate import validate
from warpdrive_min.commands.verify import BROKEN, verify


class Commands(Strict):
    """Command group with the documented exit codes."""

    exit_codes: ClassVar[Mapping[str, int]] = {"new-env": 2, "validate": 2, "verify": BROKEN}


app = typer.Typer(
    cls=Commands,
    help="Create and check environments; train, evaluate and render policies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (validate, train, evaluate, verify, render):
    app.command()(command)
app.command("new-env")(new_env)
