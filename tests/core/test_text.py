"""Text from elsewhere in terminals, tables and files."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from rich.table import Table

from warpdrive_min.errors import CheckpointError, escape_texts, one_line, printable
from warpdrive_min.terminal import Console, echo

HOSTILE = {
    "title of the window": ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
    "8-bit escape": ("\x9b2J", r"\x9b2J"),
    "carriage return": ("good\rbad", r"good\rbad"),
    "null": ("a\0b", r"a\x00b"),
    "direction of text": ("\u202egnp", r"\u202egnp"),
    "lone surrogate": ("\ud800", r"\ud800"),
    "no character of XML": ("\uffff", r"\uffff"),
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_text_is_escaped_wherever_it_is_printed(text, shown, capsys):
    """Hostile text is escaped in lines, tables and errors."""
    echo(text)
    echo(text, err=True)
    assert capsys.readouterr() == (f"{shown}\n", f"{shown}\n")
    console = Console(file=io.StringIO(), width=60)
    console.say(f"[red]:smile: {text}")
    table = Table("a")
    table.add_row(f"[b]{text}")
    console.print(table)
    printed = console.file.getvalue()
    assert printed.startswith("[red]:smile: ")
    assert "[b]" in printed
    assert set(printed) - {"\n"} == {each for each in printed if each.isprintable()}
    assert str(CheckpointError.of(text, "must be")) == f"{shown}: must be"


def test_colours_of_our_own_stay():
    """Colours that Rich itself prints are not escaped."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print("x\x1b[8m", style="red")
    assert console.file.getvalue() == "\x1b[31mx\\x1b[8m\x1b[0m\n"


def test_usual_text_stays():
    """Letters of all languages, line breaks and tabs stay.

    A line has none of the last two.
    """
    assert printable("é 中 😀\n\t") == "é 中 😀\n\t"
    assert one_line("a\n\tb") == r"a\n\tb"


def test_all_texts_of_a_structure_are_lines():
    """Every text in a structure is escaped; other values stay."""

    @dataclass(frozen=True)
    class Part:
        name: str
        size: float

    assert escape_texts({"a\n": [Part("\x1b", 1.0), None], "b": (True, "\t")}) == {
        r"a\n": [Part(r"\x1b", 1.0), None],
        "b": (True, r"\t"),
    }
