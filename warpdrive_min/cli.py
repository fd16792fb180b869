"""Command line: `python -m warpdrive_min`; commands are imported when they run."""

from __future__ import annotations

from typing import ClassVar

import typer

from warpdrive_min.commands.table import Row, TableGroup


class Commands(TableGroup):
    """Commands with their documented exit codes."""

    rows: ClassVar = {
        "validate": Row("warpdrive_min.commands.validate:validate", file_error=2),
        "debug": Row("warpdrive_min.commands.debug:debug", file_error=2),
        "train": Row("warpdrive_min.commands.train:train"),
        "evaluate": Row("warpdrive_min.commands.evaluate:evaluate"),
        "verify": Row("warpdrive_min.commands.verify:verify", file_error=5),
        "render": Row("warpdrive_min.commands.render:render"),
        "new-env": Row("warpdrive_min.commands.new_env:new_env", file_error=2),
    }


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Create and check environments; train, evaluate and render policies."""
