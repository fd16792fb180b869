"""Figures as PGF for LaTeX, which takes the fonts of the document; their texts are measured by a TeX."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axis import Axis
from matplotlib.backends.backend_pgf import LatexError
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import Formatter

from .render import escape

ENGINES: Final = ("xelatex", "lualatex", "pdflatex")
"""One of them measures the texts of a PGF figure."""
INSTALL: Final = "apt-get install --no-install-recommends texlive-xetex texlive-latex-extra lmodern"


class NoTexError(RuntimeError):
    """No TeX here can measure texts; says why."""


def engine() -> str:
    """Return the TeX that measures the texts of PGF figures.

    Raises:
        NoTexError: None is installed, or what is installed lacks a package.
    """
    installed = [name for name in ENGINES if shutil.which(name)]
    if not installed:
        raise NoTexError(f"none of {', '.join(ENGINES)} is on the PATH; install one ({INSTALL}) and run this again")
    reasons = []
    for name in installed:
        figure = Figure()
        figure.text(0, 0, "x")
        try:
            with mpl.rc_context(_using(name)):
                figure.savefig(io.StringIO(), format="pgf", backend="pgf")
        except (LatexError, RuntimeError, OSError) as error:
            reasons.append(f"{name} fails ({_last_words(error)})")
        else:
            return name
    raise NoTexError(f"{', '.join(reasons)}; install what it lacks ({INSTALL}) and run this again")


def _last_words(error: Exception) -> str:
    """Return the line in which a TeX says what is wrong."""
    lines = str(error).splitlines()
    return next((line.lstrip("! ") for line in lines if line.startswith("!")), lines[0])


def _using(name: str) -> dict[Any, Any]:
    return {"pgf.texsystem": name, "pgf.rcfonts": False}


def save(figure: Figure, path: Path, tex: str) -> None:
    """Write a figure as PGF, whose texts a TeX measures; the figure's own texts become LaTeX."""
    _write_as_tex(figure)
    with mpl.rc_context(_using(tex)):
        figure.savefig(path)


def _write_as_tex(figure: Figure) -> None:
    """Escape all texts, for what a PGF figure says is read as LaTeX."""
    tickers = {id(axis.major): axis for axis in figure.findobj(Axis)}  # axes that are shared have one of them
    for axis in tickers.values():
        axis.set_major_formatter(Escaped(axis.get_major_formatter()))
    for text in figure.findobj(Text):
        text.set_text(escape(text.get_text()))


class Escaped(Formatter):
    """Writes what another formatter does, as LaTeX."""

    def __init__(self, plain: Formatter) -> None:
        self.plain = plain

    def set_locs(self, locs: list[float]) -> None:
        """Tell the other one all places on the axis, on which its digits depend."""
        self.plain.set_locs(locs)

    def __call__(self, value: float, place: int | None = None) -> str:
        """Return the words for one place."""
        return escape(self.plain(value, place))
