"""Renderers of a `Table`: terminal, Markdown, HTML and LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich import box
from rich import table as rich_table
from rich.cells import cell_len
from rich.text import Text

from warpdrive_min.errors import one_line, printable
from warpdrive_min.terminal import Console

from ..core.archive import read_toml
from .columns import SPREAD, Table
from .labels import plural

if TYPE_CHECKING:
    from jinja2 import Template
    from rich.console import ConsoleOptions, RenderableType

TEMPLATES: Final = Path(__file__).parent / "templates"
ROWS_A_PAGE: Final = 50
"""Maximum rows of a LaTeX table; longer ones are split."""
AS_ABOVE: Final = "Empty cells on the left are as above."
HEAD_LETTERS: Final = 8
"""Minimum width of a wrapped column head, characters."""

LEAST_WIDTH: Final = 24
"""Minimum width of a column of texts in a terminal; the others are cut first."""


def console(width: int = 200) -> Console:
    """Return a console on standard output.

    It is as wide as the terminal; elsewhere at least as wide as asked.
    """
    made = Console()
    return made if made.file.isatty() or made.width >= width else Console(width=width)


@dataclass(frozen=True, slots=True)
class terminal:  # noqa: N801  (a renderer, called as `markdown`)
    """Table for rich: words left, numbers right.

    In a narrow console, heads wrap to their cells. Then columns from the spread on are left out, the last first; words
    of cells wrap; and sentences are left out. The caption names what is missing.
    """

    table: Table[Any]

    def __rich_console__(self, _: object, options: ConsoleOptions) -> Iterator[RenderableType]:
        table, most = self.table, options.max_width
        cells = table.cells
        names = [column.name for column in table.columns]
        there, is_folded = list(range(len(names))), False
        if self._width(names, there, is_folded) > most:
            names = ["\n".join(lines) for lines in _wrapped_heads(table, cells)]
            first = next((place for place in there if table.columns[place].name == SPREAD), 3)
            others = [place for place in reversed(there) if place >= first]
            sentences = [place for place in others if table.columns[place].is_long]
            for place in [*(each for each in others if each not in sentences), None, *sentences]:
                if self._width(names, there, is_folded) <= most:
                    break
                if place is None:
                    is_folded = True
                else:
                    there.remove(place)
        missing = [column.name for place, column in enumerate(table.columns) if place not in there]
        note = one_line(f"Not shown in {most} columns: {', '.join(missing)}.") if missing else ""
        caption = " ".join(each for each in (table.caption, table.footnote, note) if each)
        made = rich_table.Table(
            title=Text(table.title),
            caption=Text(caption) if caption else None,
            title_justify="left",
            header_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1),
        )
        for place in there:
            column = table.columns[place]
            is_text = column.is_long and any(row[place] for row in cells)
            wraps = bool(column.width or column.is_long or (is_folded and not column.is_number))
            made.add_column(
                Text(names[place]),
                justify="right" if column.is_number else "left",
                width=LEAST_WIDTH if is_folded and is_text else column.width,  # rich would give it more than fits
                min_width=LEAST_WIDTH if is_text else None,
                overflow="fold" if wraps else "ellipsis",
                no_wrap=not wraps,
            )
        for row in cells:
            made.add_row(*(Text(row[place]) for place in there))
        yield made

    def _width(self, names: Sequence[str], there: Sequence[int], is_folded: bool) -> int:
        """Return the minimum width of some columns, characters."""

        def least(place: int) -> int:
            column, texts = self.table.columns[place], [row[place] for row in self.table.cells]
            if column.width or (column.is_long and any(texts)):
                return column.width or LEAST_WIDTH
            parts = [text.split() if is_folded and not column.is_number else [text] for text in texts]
            return max(map(cell_len, [*names[place].split("\n"), *chain.from_iterable(parts)]))

        return 1 + sum(least(place) + 3 for place in there)


def markdown(table: Table[Any]) -> str:
    """Return a table as Markdown, without a trailing line break."""
    latex_header = [column.name.replace("\n", " ") for column in table.columns]
    lines = [f"| {' | '.join(map(escape_markdown, cells))} |" for cells in (latex_header, *table.cells)]
    return "\n".join(
        [lines[0], "|---" * len(latex_header) + "|", *lines[1:], *(["", note] if (note := table.footnote) else [])]
    )


def escape_markdown(text: str) -> str:
    """Escape plain text for Markdown: line breaks, HTML, links, cell ends."""
    return re.sub(r"[\\|<]|(?<=\])\(", r"\\\g<0>", one_line(text))


def template(name: str, **options: Any) -> Template:
    """Return a template of the report, the board or the paper.

    The macro `table` of `table.html` renders a table.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # leaves HTML unchanged
        **options,
    )
    environment.filters |= {"latex": escape, "latex_lines": _escape_lines, "plural": plural, "span": _span}
    return environment.get_template(name)


# ------------------------------------------------------------------ LaTeX: text

SPECIAL: Final = read_toml(Path(__file__).with_name("latex.toml"))

TYPESET: Final = (
    (r"(?<![\w.+-])(-?\d(?:\.\d+)?)e([+-])0*(\d+)(?![\w-]|\.\d)", lambda m: _power(m[1], m[2].strip("+") + m[3])),
    (r"(?<![\w.)\]^${-])-(?=\d)", lambda m: "$-$"),
    (r"(?<=\d) (?=[kMGT]\b|\\%)", lambda m: r"\,"),
    (r"(?<=\d) x\b|(?<=\w) x(?= \d)", lambda m: r"\,$\times$"),
)
"""Style of numbers: powers of ten, minus signs, spaces before units."""


def _power(digits: str, exponent: str) -> str:
    if not float(digits):
        return "0"
    return digits if exponent == "0" else f"${digits}\\cdot10^{{{exponent}}}$"


def escape(text: str) -> str:
    """Return plain text escaped for LaTeX, with its numbers typeset."""
    text = "".join(SPECIAL.get(letter, letter) for letter in one_line(text))
    for pattern, put in TYPESET:
        text = re.sub(pattern, put, text)
    return text


def _escape_lines(text: str) -> str:
    return "".join(f"{escape(line)}\n" for line in text.splitlines())


def _span(values: Sequence[float]) -> str:
    """Write the smallest and the largest value with three digits."""
    return " to ".join(dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values))))


# ------------------------------------------------------------------ LaTeX: documents


def latex(template_name: str, **values: Any) -> str:
    """Render a LaTeX template: values in ``<< >>``, statements in ``<% %>``."""
    delimiters = {
        f"{kind}_{end}_string": bracket
        for kind, brackets in (("variable", ("<<", ">>")), ("block", ("<%", "%>")), ("comment", ("<#", "#>")))
        for end, bracket in zip(("start", "end"), brackets, strict=True)
    }
    return template(template_name, keep_trailing_newline=True, **delimiters).render(values)


def _float(name: str, kind: str, is_narrow: bool, parts: Sequence[Mapping[str, Any]], **values: Any) -> str:
    environment, width = (kind, "\\linewidth") if is_narrow else (f"{kind}*", "\\textwidth")
    return latex("float.tex", name=name, environment=environment, width=width, parts=parts, **values)


def floating_figure(name: str, file: str, caption: str, label: str, is_narrow: bool) -> str:
    """Return a floating figure that shrinks to the document's width.

    Args:
        name: Path of the LaTeX file that is made.
        file: Picture in the same folder, for ``graphicx``.
        caption: Plain text, like all others here.
        label: Label after ``fig:``.
        is_narrow: True for one column of the page instead of all.
    """
    part = {"picture": file, "caption": caption, "label": label}
    return _float(name, "figure", is_narrow, [part], packages=("graphicx", "adjustbox"), table=None)


def floating_table(name: str, table: Table[Any]) -> str:
    """Return a floating booktabs table; long ones are split, wide ones shrink.

    Args:
        name: Path of the LaTeX file that is made.
        table: The table.
    """
    cells, parts = table.cells, list[dict[str, Any]]()
    n_parts = max(1, -(-len(cells) // ROWS_A_PAGE))
    n_rows = -(-len(cells) // n_parts)
    for place in range(n_parts):
        own = cells[place * n_rows : (place + 1) * n_rows]
        n_same = [_n_same(above, row, table.n_grouping) for above, row in zip([[], *own], own, strict=False)]
        is_shorter = any(any(row[:n]) for n, row in zip(n_same, own, strict=True))
        words = [table.caption, f"Part {place + 1} of {n_parts}." * (n_parts > 1), table.footnote]
        caption = " ".join(filter(None, [*words, AS_ABOVE * is_shorter]))
        label = f"{table.label}-{place + 1}" if place else table.label
        parts.append({"caption": caption, "label": label, "rows": list(zip(n_same, own, strict=True))})
    heads = _heads(table, cells)
    return _float(name, "table", table.is_narrow, parts, packages=("booktabs", "adjustbox"), table=table, heads=heads)


def _n_same(above: Sequence[str], row: Sequence[str], n_grouping: int) -> int:
    """Return how many leading cells repeat the row above."""
    return next((i for i in range(n_grouping) if above[i : i + 1] != row[i : i + 1]), n_grouping)


def _wrapped_heads(table: Table[Any], cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the lines of the column heads, wrapped to the width of their cells."""
    widths = [max([HEAD_LETTERS, *(len(row[place]) for row in cells)]) for place in range(len(table.columns))]
    return [
        textwrap.wrap(column.name, width, break_long_words=False, break_on_hyphens=False)
        for column, width in zip(table.columns, widths, strict=True)
    ]


def _heads(table: Table[Any], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the column heads in LaTeX."""
    heads = []
    for column, lines in zip(table.columns, _wrapped_heads(table, cells), strict=True):
        stacked = r"\\".join(map(escape, lines))
        heads.append(f"\\shortstack[{'r' if column.is_number else 'l'}]{{{stacked}}}" if len(lines) > 1 else stacked)
    return heads
