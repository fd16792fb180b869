"""Notebooks have their pages' code, run, and show plots."""

from __future__ import annotations

import pytest

jupytext = pytest.importorskip("jupytext", reason="makes notebooks of pages")
nbclient = pytest.importorskip("nbclient", reason="executes notebooks")

import nbformat  # noqa: E402  (after the skips)

from tests import tutorial  # noqa: E402
from tests.notebooks import PAGES, execute, notebook, printed  # noqa: E402


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebook_has_the_cells_of_its_page_and_a_plot(page):
    """A committed notebook is that of its page, as `nox -s notebooks` makes it."""
    committed = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(committed)
    are_same = [cell.source for cell in committed.cells] == [cell.source for cell in notebook(page).cells]
    assert are_same, f"python -m tests.notebooks {page}"
    outputs = [output for cell in committed.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebook_runs_and_prints_what_its_page_shows(page):
    """A notebook runs by itself, with the outputs of its page."""
    seen = printed(execute(notebook(page)))
    shown = [block.printed for block in tutorial.blocks(page) if block.runs and not block.needs_gpu]
    assert [text for text in shown if text is not None and text not in seen] == []


def test_notebook_keeps_commands_and_excerpts_as_text(tmp_path):
    """Only Python that runs, and files, are cells; outputs are left out."""
    fences = ["python\nprint(1)", "text\n1", "python excerpt\nx =  1", "sh\nls", 'cuda title="a.cu"\nint x;', "text\n1"]
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n" + "\n\n".join(f"```{fence}\n```" for fence in fences) + "\n")
    cells = [cell for cell in notebook(page).cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells[1:]] == ["print(1)", "%%writefile a.cu\nint x;"]
    texts = "".join(cell.source for cell in notebook(page).cells if cell.cell_type == "markdown")
    assert texts.count("```text") == 1
    assert "```sh" in texts
    assert "x =  1" in texts
