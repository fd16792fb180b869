"""What `python -m tests.golden` calls a difference, and which differences it lets pass."""

from __future__ import annotations

import pytest

from tests.golden.compare import Expected, difference, differing, expected_in, unexplained


@pytest.fixture
def folders(tmp_path):
    """Give two folders: one file the same, one changed, one gone and one new, and pictures that differ."""
    before, after = tmp_path / "before", tmp_path / "after"
    contents = {
        "same.txt": (b"a\n", b"a\n"),
        "deep/changed.txt": (b"a\nb\n", b"a\nc\n"),
        "gone.txt": (b"a", None),
        "new.txt": (None, b"a"),
        "picture.pdf": (b"ab\xff", b"ab\xfe"),
    }
    for name, pair in contents.items():
        for folder, content in zip((before, after), pair, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                (folder / name).write_bytes(content)
    return before, after


def test_differing_names_what_changed_came_or_went(folders):
    """Bytes decide, in files of any depth."""
    assert differing(*folders) == ["deep/changed.txt", "gone.txt", "new.txt", "picture.pdf"]


@pytest.mark.parametrize(
    ("item", "want"),
    [
        ("deep/changed.txt", ["-b", "+c"]),
        ("gone.txt", ["only before"]),
        ("new.txt", ["only now"]),
        ("picture.pdf", ["3 and 3 bytes, the first that differs is number 2"]),
    ],
)
def test_a_difference_is_told_in_few_lines(folders, item, want):
    """Text by its lines, other bytes by the first that differs."""
    before, after = folders
    assert difference(before / item, after / item) == want


def test_a_long_line_is_shown_where_it_differs(tmp_path):
    """The letters before the difference are cut, and those long after it."""
    before, after = tmp_path / "a", tmp_path / "b"
    before.write_text("x" * 1000 + "one" + "y" * 1000)
    after.write_text("x" * 1000 + "two" + "y" * 1000)
    shown = difference(before, after)
    assert ["one" in shown[0], "two" in shown[1]] == [True, True]
    assert max(map(len, shown)) < 200


def test_what_is_listed_is_expected_and_must_differ():
    """An item that no row fits is unexplained; a row that fits no item of its part is idle."""
    head = "# Head\n\n| part | item | reason |\n|---|---|---|\n"
    text = f"{head}| `help` | bench-*.txt | names |\n| help | gone.txt | old |\n"
    rows = expected_in(text)
    assert rows == [Expected("help", "bench-*.txt", "names"), Expected("help", "gone.txt", "old")]
    assert unexplained("help", ["bench-run.txt", "other.txt"], rows) == (["other.txt"], [rows[1]])
    assert unexplained("tables", ["bench-run.txt"], rows) == (["bench-run.txt"], [])
