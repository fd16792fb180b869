"""The command line: `python -m warpdrive_min new-env|validate|render`."""

from __future__ import annotations

import typer

from warpdrive_min.commands.new_env import new_env
from warpdrive_min.commands.render import render
from warpdrive_min.commands.validate import validate

app = typer.Typer(
    help="Write, prove and look at environments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("new-env")(new_env)
app.command("validate")(validate)
app.command("render")(render)
