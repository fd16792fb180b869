"""Cache folder: compiled code is reused, and failures name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpdrive_min.backends import cache
from warpdrive_min.errors import ConfigError


@pytest.mark.parametrize("variable", ["WARPDRIVE_MIN_CACHE", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize("place", ["/proc/none", "a file"])
def test_folder_that_cannot_be_made_is_named(variable, place, tmp_path, monkeypatch):
    """The error names an unusable folder and its variable."""
    for name in ("WARPDRIVE_MIN_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv(variable, place if place.startswith("/") else str(file))
    with pytest.raises(ConfigError) as caught:
        cache.cached({"text": "x"}, ".so", lambda path: pytest.fail("compiled"))
    said = str(caught.value)
    assert f"from ${variable}," in said
    assert str(cache.folder()) in said
    assert "set $WARPDRIVE_MIN_CACHE" in said
    assert "\n" not in said


def test_user_without_a_home_is_told(monkeypatch):
    """The error for a user without a home names the variable.

    A container may run under a number without a name.
    """
    for name in ("WARPDRIVE_MIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory")))
    with pytest.raises(ConfigError, match=r"needs a home folder.*set \$WARPDRIVE_MIN_CACHE or \$HOME"):
        cache.folder()


def test_compiled_file_is_made_once(tmp_path, monkeypatch):
    """A key is compiled once; another key gives another file."""
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path / "new"))
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("x")

    first, again, other = (cache.cached({"text": text}, ".so", make) for text in ("a", "a", "b"))
    assert first == again != other
    assert len(made) == 2
