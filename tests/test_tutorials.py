"""Documentation runs: every Python block prints the output on its page."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

import envs  # noqa: F401  (registers before a page runs, whose registrations are forgotten after it)
from tests import tutorial
from warpdrive_min import BACKENDS, EnvironmentRegistrar
from warpdrive_min.backends import Availability

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = {str(page.relative_to(ROOT)): page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}


def pages_with_blocks(needs_gpu):
    """Return names of pages with a runnable block, with or without GPU."""
    return [
        name
        for name, page in PAGES.items()
        if any(block.runs and block.needs_gpu == needs_gpu for block in tutorial.blocks(page))
    ]


NEEDS = {"docs/bridges.md": ("gymnasium", "pettingzoo", "tensordict", "torchrl")}
"""Optional packages that the blocks of a page import."""


@pytest.fixture
def folder(tmp_path, monkeypatch, _one_thread):
    """Empty working folder for imports; a page's changes end with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for table in ("_classes", "_sources"):
        monkeypatch.setattr(EnvironmentRegistrar, table, dict(getattr(EnvironmentRegistrar, table)))
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def namespace(monkeypatch):
    """Namespace of a separate module, for lookups by a page's classes and dataclasses."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return vars(module)


@pytest.mark.parametrize("name", pages_with_blocks(needs_gpu=False))
def test_page_runs(name, folder, namespace, request):
    """Without a GPU every block that needs none runs, with the page's output."""
    if name.endswith("_numba.md"):
        request.getfixturevalue("small_blocks")
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    want = sum(block.runs and not block.needs_gpu for block in tutorial.blocks(PAGES[name]))
    assert tutorial.run(PAGES[name], folder, namespace, has_gpu=False) == want


@pytest.mark.gpu
@pytest.mark.parametrize("name", pages_with_blocks(needs_gpu=True))
def test_page_runs_on_a_gpu(name, folder, namespace):
    """On a GPU every block runs, those that need one included."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    want = sum(block.runs for block in tutorial.blocks(PAGES[name]))
    assert tutorial.run(PAGES[name], folder, namespace, has_gpu=True) == want


@pytest.mark.parametrize("name", ["basics", "custom_environment_cuda_c", "scaling_up"])
def test_pages_that_choose_a_backend_run_without_a_gpu_package(name, folder, namespace, monkeypatch):
    """Pages with `availability()` use another backend if Numba and PyCUDA cannot run."""
    if name == "custom_environment_cuda_c" and not BACKENDS["pycuda"].availability().available:
        pytest.skip("asks for PyCUDA alone, which is not here: test_page_runs has run it so")
    absent = Availability(False, "is not here", "install it")
    for backend in ("numba", "pycuda"):
        monkeypatch.setattr(type(BACKENDS[backend]), "availability", lambda _: absent)
    assert tutorial.run(TUTORIALS / f"{name}.md", folder, namespace, has_gpu=False) > 0
    chosen = {namespace.get("backend", "host"), *namespace.get("here", ())}
    assert chosen <= {"cpu", "host"}


@pytest.mark.parametrize("name", PAGES)
def test_page_links_lead_somewhere(name):
    """Every relative link of a page leads to a file or folder."""
    for target in tutorial.links(PAGES[name]):
        if not target.startswith(("http://", "https://", "#")):
            assert (PAGES[name].parent / target.partition("#")[0]).exists(), f"{name}: {target}"


def test_tutorials_are_all_listed_and_run():
    """The list names every tutorial, and each has blocks that run without a GPU."""
    listed, run = (TUTORIALS / "README.md").read_text(), pages_with_blocks(needs_gpu=False)
    pages = sorted(TUTORIALS.glob("[!R]*.md"))
    assert len(pages) == 7
    for page in pages:
        assert f"({page.name})" in listed
        assert str(page.relative_to(ROOT)) in run


# ------------------------------------------------------------------ the runner


def test_runner_refuses_another_output(folder, namespace):
    """A page with another output fails, and the error names the line."""
    page = folder / "page.md"
    page.write_text("```python\nprint(42)\n```\n\n```text\n43\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:2"):
        tutorial.run(page, folder, namespace, has_gpu=False)


def test_runner_refuses_unknown_words(folder, namespace):
    """A misspelt word after the language is an error."""
    page = folder / "page.md"
    page.write_text("```python gup\nx = 1\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:2: unknown words \['gup'\]"):
        tutorial.run(page, folder, namespace, has_gpu=False)
