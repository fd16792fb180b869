"""The terminal: every command prints through this module, which escapes what is not printable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import rich.console
import typer
from rich.console import ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from warpdrive_min.text import printable


def echo(text: object, err: bool = False) -> None:
    """Print text on standard output, or on standard error."""
    typer.echo(printable(str(text)), err=err)


class Console(rich.console.Console, RenderHook):
    """A console that takes text as it is: no markup, no emoji names, no highlighting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        self.push_render_hook(self)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Escape all text that is printed."""
        return [_Printable(each) for each in renderables]

    def say(self, text: str) -> None:
        """Print text without breaking its lines."""
        self.print(text, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Printable:
    """Something to print, whose text is escaped; colours and cursor movements of rich stay."""

    content: ConsoleRenderable

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.content, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
