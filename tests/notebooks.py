"""The tutorials as notebooks, made from their Markdown.

As a script it writes them, or those of some pages, with their outputs: `python -m tests.notebooks [PAGE...]`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from tests import tutorial

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("[!R]*.md"))
SETUP = '''
# Without a GPU, Numba kernels run in their simulator, and cells that need a GPU are skipped.
import os

import torch
from IPython import get_ipython
from IPython.core.magic import register_cell_magic

if not torch.cuda.is_available():
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"


@register_cell_magic
def gpu(_, cell):
    """Run a cell that needs a GPU, or say that there is none."""
    if torch.cuda.is_available():
        get_ipython().run_cell(cell).raise_error()
    else:
        print("skipped: needs an NVIDIA GPU")
'''


def notebook(page: Path) -> nbformat.NotebookNode:
    """Make a page's notebook, without outputs.

    Python blocks and files are cells, after those of the page that this one continues. Printed outputs are left out,
    as a cell prints its own.
    """
    lines, parts, before, end, shown = page.read_text().splitlines(keepends=True), [], "", 1, None
    for block in tutorial.blocks(page):
        if block.page != page:
            before += _cell(block)
            continue
        stop = block.line + block.text.count("\n")
        fence = "".join(lines[block.line - 2 : stop])
        other = fence.replace(f"```{block.language}", f"```{block.language} .noeval", 1)  # not a cell
        parts += ["".join(lines[end : block.line - 2]), _cell(block) or ("" if block.text == shown else other)]
        end, shown = stop, block.printed if block.runs else None
    before = before and f"Cells of the page before:\n\n{before}"
    parts = [lines[0], _fenced(SETUP), before, *parts, "".join(lines[end:])]
    text = "\n\n".join(part.strip() for part in parts if part.strip())  # two empty lines would begin a cell
    made = jupytext.reads(text, fmt="md")
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return made


def _cell(block: tutorial.Block) -> str:
    """Return a block as the fence of a cell; empty: it is none."""
    if block.title is not None:
        return _fenced(f"%%writefile {block.title}\n{block.text}")
    return _fenced(("%%gpu\n" if block.needs_gpu else "") + block.text) if block.runs else ""


def _fenced(text: str) -> str:
    return f"```python\n{text.strip()}\n```\n\n"


def execute(made: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run a notebook in an empty folder, and keep its outputs.

    Raises:
        CellExecutionError: A cell fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(made, record_timing=False, resources={"metadata": {"path": folder}})
        client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])})
    return made


def printed(made: nbformat.NotebookNode) -> list[str]:
    """Return what each cell printed."""
    texts = [[each.text for each in cell.get("outputs", []) if each.get("name") == "stdout"] for cell in made.cells]
    return ["".join(text) for text in texts]


if __name__ == "__main__":
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        text = nbformat.writes(execute(notebook(page)))
        page.with_suffix(".ipynb").write_text(text.replace(str(ROOT), "."))
