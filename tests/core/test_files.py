"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from warpdrive_min.files import replacing, write_atomically


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    """The folder is made, the text replaced, nothing else left."""
    path = tmp_path / "new" / "file.txt"
    for text in ("first\n", "é\n"):
        write_atomically(path, text)
        assert path.read_bytes() == text.encode()
        assert list(path.parent.iterdir()) == [path]


def test_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    """An error within the block keeps the old file and leaves no other."""
    path = tmp_path / "file.txt"
    write_atomically(path, "before")
    with pytest.raises(FileNotFoundError), replacing(path) as unfinished:
        unfinished.with_name("missing").read_text()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_written_file_has_the_suffix_and_usual_mode(tmp_path: Path) -> None:
    """Writers that look at the suffix see it; the mode is that of any new file."""
    usual = tmp_path / "usual"
    usual.touch()
    with replacing(tmp_path / "picture.png") as unfinished:
        assert unfinished.suffix == ".png"
        unfinished.touch()
    assert (tmp_path / "picture.png").stat().st_mode == usual.stat().st_mode
