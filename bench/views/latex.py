"""LaTeX from plain text: what must be escaped, and figures and tables that float and fit on a page of any width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TABLE_PACKAGES: Final = ("booktabs", "adjustbox")
ROWS_A_PAGE: Final = 50
"""Of a table; a longer one is cut into parts."""
AS_ABOVE: Final = "Empty cells on the left are as above."
HEAD_LETTERS: Final = 8
"""A line of a column's name may have as many, also where the cells are narrower."""


# ------------------------------------------------------------------ text

SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "\N{MINUS SIGN}": r"\ensuremath{-}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}

TYPESET: Final = (
    (r"(?<![\w.+-])(-?\d(?:\.\d+)?)e([+-])0*(\d+)(?![\w-]|\.\d)", lambda m: _power(m[1], m[2].strip("+") + m[3])),
    (r"(?<![\w.)\]^${-])-(?=\d)", lambda m: "$-$"),
    (r"(?<=\d) (?=[kMGT]\b|\\%)", lambda m: r"\,"),
    (r"(?<=\d) x\b|(?<=\w) x(?= \d)", lambda m: r"\,$\times$"),
)
"""How numbers are set: powers of ten, minus signs, and a narrow space before a unit."""


def _power(digits: str, exponent: str) -> str:
    if not float(digits):
        return "0"
    return digits if exponent == "0" else f"${digits}\\cdot10^{{{exponent}}}$"


def escape(text: str) -> str:
    """Return plain text as LaTeX prints it, with its numbers set as such."""
    text = "".join(SPECIAL.get(letter, letter) for letter in text)
    for pattern, put in TYPESET:
        text = re.sub(pattern, put, text)
    return text


# ------------------------------------------------------------------ floats


def head(packages: Sequence[str], name: str) -> str:
    """Return the comment at the head of a file that a document includes: what it needs, and how it is included."""
    folder, _, file = name.rpartition("/")
    return (
        f"% In the preamble: \\usepackage{{{','.join(['import', *packages])}}}\n"
        f"% Where it stands: \\import{{{folder}/}}{{{file}}}, the folder as seen from the document\n"
    )


def floating_figure(name: str, file: str, caption: str, label: str, is_narrow: bool) -> str:
    """Return a figure that floats, and shrinks where it is wider or higher than the document has room for.

    Args:
        name: Path of the LaTeX file that is made.
        file: The picture beside it: PGF code, else what ``graphicx`` includes.
        caption: Plain text, like all others here.
        label: Its label after ``fig:``.
        is_narrow: It stands in one column of the page, not across all of them.
    """
    is_code = file.endswith(".pgf")
    shown = f"\\input{{{file}}}" if is_code else f"\\includegraphics{{{file}}}"
    packages = ("pgf", "lmodern", "adjustbox") if is_code else ("graphicx", "adjustbox")
    environment, width = ("figure", "\\linewidth") if is_narrow else ("figure*", "\\textwidth")
    return (
        f"{head(packages, name)}"
        f"\\begin{{{environment}}}[tp]\n"
        "\\centering\n"
        f"\\begin{{adjustbox}}{{max width={width},max totalheight=0.85\\textheight}}%\n"
        f"{shown}%\n"
        "\\end{adjustbox}\n"
        f"\\caption{{{escape(caption)}}}\n"
        f"\\label{{fig:{label}}}\n"
        f"\\end{{{environment}}}\n"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table in plain text."""

    names: Sequence[str]
    """Of the columns."""
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    """Which columns are aligned to the right."""
    caption: str
    label: str = ""
    """After ``tab:``."""
    n_grouping: int = 0
    """So many columns from the left say nothing where they are as in the row above; a new value of the first starts a
    group."""
    is_narrow: bool = False
    """It fits into a column of the page."""


def floating_table(name: str, table: Table) -> str:
    """Return a table with the rules of booktabs that floats; a long one is cut into parts, a wide one shrinks.

    Args:
        name: Path of the LaTeX file that is made.
        table: The table.
    """
    n_parts = max(1, -(-len(table.rows) // ROWS_A_PAGE))
    n_rows = -(-len(table.rows) // n_parts)
    parts = [table.rows[i * n_rows : (i + 1) * n_rows] for i in range(n_parts)]
    return head(TABLE_PACKAGES, name) + "".join(
        _part(table, rows, f" Part {place} of {n_parts}." if n_parts > 1 else "", f"-{place}" if place > 1 else "")
        for place, rows in enumerate(parts, start=1)
    )


def _part(table: Table, rows: Sequence[Sequence[str]], which: str, suffix: str) -> str:
    environment, width = ("table", "\\linewidth") if table.is_narrow else ("table*", "\\textwidth")
    columns = "".join("r" if each else "l" for each in table.right)
    caption = table.caption + which
    lines = []
    for row, above in zip(rows, [None, *rows], strict=False):
        if above and table.n_grouping and row[0] != above[0]:
            lines.append("\\addlinespace\n")
        cells = _without_repeats(row, above, table.n_grouping)
        lines.append(_row([escape(cell) for cell in cells]))
        if cells != [*row] and AS_ABOVE not in caption:
            caption = f"{caption} {AS_ABOVE}"
    return (
        f"\\begin{{{environment}}}[tp]\n"
        "\\centering\n"
        f"\\caption{{{escape(caption)}}}\n"
        f"\\label{{tab:{table.label}{suffix}}}\n"
        "\\medskip\n"
        "\\scriptsize\\setlength{\\tabcolsep}{4pt}%\n"
        f"\\begin{{adjustbox}}{{max width={width},max totalheight=0.85\\textheight}}%\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n"
        f"\\toprule\n{_row(_heads(table))}\\midrule\n{''.join(lines)}\\bottomrule\n"
        "\\end{tabular}%\n"
        "\\end{adjustbox}\n"
        f"\\end{{{environment}}}\n"
    )


def _without_repeats(row: Sequence[str], above: Sequence[str] | None, n_grouping: int) -> list[str]:
    """Empty the first cells up to that which differs from the row above."""
    cells = list(row)
    for place in range(n_grouping):
        if above is None or row[place] != above[place]:
            break
        cells[place] = ""
    return cells


def _heads(table: Table) -> list[str]:
    """Return the names of the columns, in as many lines as make them as narrow as their cells."""
    widths = [max([HEAD_LETTERS, *(len(row[place]) for row in table.rows)]) for place in range(len(table.names))]
    heads = []
    for name, width, is_right in zip(table.names, widths, table.right, strict=True):
        lines = [escape(line) for line in textwrap.wrap(name, width, break_long_words=False, break_on_hyphens=False)]
        stacked = r"\\".join(lines)
        heads.append(f"\\shortstack[{'r' if is_right else 'l'}]{{{stacked}}}" if len(lines) > 1 else stacked)
    return heads


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\" + "\n"
