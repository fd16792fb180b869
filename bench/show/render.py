"""Renderers of a `Table`: terminal, Markdown, HTML and LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich import box
from rich import table as rich_table
from rich.text import Text

from warpdrive_min.errors import one_line, printable
from warpdrive_min.terminal import Console

from ..core.archive import read_toml
from .columns import Table

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES: Final = Path(__file__).parent / "templates"
ROWS_A_PAGE: Final = 50
"""Maximum rows of a LaTeX table; longer ones are split."""
AS_ABOVE: Final = "Empty cells on the left are as above."
HEAD_LETTERS: Final = 8
"""Minimum width of a column head in LaTeX, characters."""

LEAST_WIDTH: Final = 24
"""Minimum width of a column of texts in a terminal; the others are cut first."""


def console(width: int = 200) -> Console:
    """Return a console on standard output, wide enough for a table."""
    made = Console()
    return made if made.width >= width else Console(width=width)


def terminal(table: Table[Any]) -> rich_table.Table:
    """Return a table for rich: words left, numbers right."""
    made = rich_table.Table(
        title=Text(table.title),
        caption=Text(caption) if (caption := f"{table.caption} {table.footnote}".strip()) else None,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    for index, column in enumerate(table.columns):
        made.add_column(
            Text(column.name),
            justify="right" if column.is_number else "left",
            width=column.width,
            min_width=LEAST_WIDTH if column.is_long and any(cells[index] for cells in table.cells) else None,
            overflow="fold" if column.width or column.is_long else "ellipsis",
            no_wrap=not (column.width or column.is_long),
        )
    for cells in table.cells:
        made.add_row(*map(Text, cells))
    return made


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
    """Return a template of the report or the paper.

    Its macro `table` renders a table.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # leaves HTML unchanged
        **options,
    )
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


# ------------------------------------------------------------------ LaTeX: floats


def latex_header(packages: Sequence[str], name: str) -> str:
    """Return a LaTeX file's first comment: packages, and how to include it."""
    folder, _, file = name.rpartition("/")
    return (
        f"% In the preamble: \\usepackage{{{','.join(['import', *packages])}}}\n"
        f"% Where it stands: \\import{{{folder}/}}{{{file}}}, the folder as seen from the document\n"
    )


def floating_figure(name: str, file: str, caption: str, label: str, is_narrow: bool) -> str:
    """Return a floating figure that shrinks to the document's width.

    Args:
        name: Path of the LaTeX file that is made.
        file: Picture in the same folder, for ``graphicx``.
        caption: Plain text, like all others here.
        label: Label after ``fig:``.
        is_narrow: True for one column of the page instead of all.
    """
    named = f"\\caption{{{escape(caption)}}}\n\\label{{fig:{label}}}\n"
    picture = f"\\includegraphics{{{file}}}%\n"
    return latex_header(("graphicx", "adjustbox"), name) + _float("figure", is_narrow, "", picture, named)


def floating_table(name: str, table: Table[Any]) -> str:
    """Return a floating booktabs table; long ones are split, wide ones shrink.

    Args:
        name: Path of the LaTeX file that is made.
        table: The table.
    """
    cells = table.cells
    n_parts = max(1, -(-len(cells) // ROWS_A_PAGE))
    n_rows = -(-len(cells) // n_parts)
    heads = _row(_heads(table, cells))
    parts = []
    for place in range(n_parts):
        lines, is_shorter = _lines(cells[place * n_rows : (place + 1) * n_rows], table.n_grouping)
        caption = table.caption + (f" Part {place + 1} of {n_parts}." if n_parts > 1 else "")
        caption += f" {table.footnote}" if table.footnote else ""
        caption += f" {AS_ABOVE}" if is_shorter and AS_ABOVE not in caption else ""
        label = f"{table.label}-{place + 1}" if place else table.label
        named = f"\\caption{{{escape(caption)}}}\n\\label{{tab:{label}}}\n"
        small = "\\medskip\n\\scriptsize\\setlength{\\tabcolsep}{4pt}%\n"
        columns = "".join("r" if column.is_number else "l" for column in table.columns)
        tabular = (
            f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n"
            f"\\toprule\n{heads}\\midrule\n{lines}\\bottomrule\n"
            "\\end{tabular}%\n"
        )
        parts.append(_float("table", table.is_narrow, named + small, tabular, ""))
    return latex_header(("booktabs", "adjustbox"), name) + "".join(parts)


def _float(kind: str, is_narrow: bool, above: str, body: str, below: str) -> str:
    environment, width = (kind, "\\linewidth") if is_narrow else (f"{kind}*", "\\textwidth")
    return (
        f"\\begin{{{environment}}}[tp]\n\\centering\n{above}"
        f"\\begin{{adjustbox}}{{max width={width},max totalheight=0.85\\textheight}}%\n{body}\\end{{adjustbox}}\n"
        f"{below}\\end{{{environment}}}\n"
    )


def _lines(rows: Sequence[Sequence[str]], n_grouping: int) -> tuple[str, bool]:
    """Return LaTeX rows, repeated leading cells empty, and whether any is empty."""
    lines, is_shorter, above = "", False, None
    for row in rows:
        n_same = next((i for i in range(n_grouping) if row[i] != above[i]), n_grouping) if above else 0
        lines += "\\addlinespace\n" if above and n_grouping and not n_same else ""
        lines += _row([""] * n_same + [escape(cell) for cell in row[n_same:]])
        is_shorter, above = is_shorter or any(row[:n_same]), row
    return lines, is_shorter


def _heads(table: Table[Any], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the column heads, wrapped to the width of their cells."""
    heads = []
    for place, column in enumerate(table.columns):
        width = max([HEAD_LETTERS, *(len(row[place]) for row in cells)])
        lines = textwrap.wrap(column.name, width, break_long_words=False, break_on_hyphens=False)
        stacked = r"\\".join(map(escape, lines))
        heads.append(f"\\shortstack[{'r' if column.is_number else 'l'}]{{{stacked}}}" if len(lines) > 1 else stacked)
    return heads


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\" + "\n"
