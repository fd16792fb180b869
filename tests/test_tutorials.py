"""Documentation runs: every Python block prints the output on its page."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import envs  # noqa: F401  (registers before a page runs, whose registrations are forgotten after it)
from tests import tutorial
from tests.bench.builders import bench
from tests.support import BACKENDS_HERE, by_night, is_simulated
from warpdrive_min import BACKENDS, EnvironmentRegistrar, cli
from warpdrive_min.backends import Availability

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = {str(page.relative_to(ROOT)): page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}


def pages_with_blocks(needs_gpu):
    """Return the pages with a runnable block, with or without GPU."""
    return [
        name
        for name, page in PAGES.items()
        if any(block.runs and block.needs_gpu == needs_gpu for block in tutorial.blocks(page))
    ]


NEEDS = {"docs/bridges.md": ("gymnasium", "pettingzoo", "tensordict", "torchrl")}
"""Optional packages that the blocks of a page import."""


@pytest.fixture
def folder(tmp_path, monkeypatch, _one_thread):
    """Empty working folder for imports, cleaned up after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for table in ("_classes", "_sources"):
        monkeypatch.setattr(EnvironmentRegistrar, table, dict(getattr(EnvironmentRegistrar, table)))
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def namespace(monkeypatch):
    """Namespace of a module, for a page's classes and dataclasses."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return vars(module)


LATE = [f"docs/tutorials/{name}.md" for name in ("training", "custom_environment_numba", "sampler", "scaling_up")]
"""Pages that take long, and whose subjects, or blocks, other tests check by day."""


@pytest.mark.parametrize("name", [by_night(n) if n in LATE else n for n in pages_with_blocks(needs_gpu=False)])
def test_page_runs(name, folder, namespace, request):
    """Each page's blocks run without a GPU, with its output."""
    if name.endswith("_numba.md"):
        request.getfixturevalue("small_blocks")
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    want = sum(block.runs and not block.needs_gpu for block in tutorial.blocks(PAGES[name]))
    assert tutorial.run(PAGES[name], folder, namespace, has_gpu=False) == want


@pytest.mark.gpu
@pytest.mark.parametrize("name", pages_with_blocks(needs_gpu=True))
def test_page_runs_on_a_gpu(name, folder, namespace):
    """On a GPU every block of a page runs."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    want = sum(block.runs for block in tutorial.blocks(PAGES[name]))
    assert tutorial.run(PAGES[name], folder, namespace, has_gpu=True) == want


@pytest.mark.parametrize("name", ["basics", "custom_environment_cuda_c", "scaling_up"])
def test_pages_that_choose_a_backend_run_without_a_gpu_package(name, folder, namespace, monkeypatch):
    """Pages with `availability()` run without Numba and PyCUDA."""
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
    """Every tutorial is listed and has blocks for the CPU."""
    listed, run = (TUTORIALS / "README.md").read_text(), pages_with_blocks(needs_gpu=False)
    pages = sorted(TUTORIALS.glob("[!R]*.md"))
    assert len(pages) == 7
    for page in pages:
        assert f"({page.name})" in listed
        assert str(page.relative_to(ROOT)) in run


# ------------------------------------------------------------------ whole examples


def write_files(name, folder):
    """Write the files of a page's example."""
    for block in tutorial.blocks(PAGES[name]):
        if block.title is not None:
            (folder / block.title).write_text(block.text)


def command(name, start):
    """Return the arguments of a page's only command with this start."""
    shell = [block.text for block in tutorial.blocks(PAGES[name]) if block.language == "sh"]
    (line,) = {line for text in shell for line in text.splitlines() if line.startswith(start)}
    return shlex.split(line.partition(" -m ")[2], comments=True)[1:]


@pytest.mark.parametrize(
    "backend", [each if each.marks or each.values == ("cpu",) else by_night(*each.values) for each in BACKENDS_HERE]
)
def test_example_of_an_environment_is_valid(backend, folder):
    """The example environment passes `validate` on each backend.

    Without a GPU, compiled backends are nightly: other tests validate, train and measure on them by day.
    """
    write_files("docs/authoring.md", folder)
    before = "NUMBA_ENABLE_CUDASIM=1 " if is_simulated(backend) else ""
    words = command("docs/authoring.md", f"{before}python -m warpdrive_min validate walk")
    more = [] if "--backend" in words else ["--backend", backend, "--no-card"]
    done = CliRunner().invoke(cli.app, [*words, *more])
    assert done.exit_code == 0, done.output
    assert "passed" in done.output


def test_example_of_an_environment_is_trained(folder):
    """It learns from a seed that would walk away with the default discount."""
    write_files("docs/authoring.md", folder)
    done = CliRunner().invoke(cli.app, ["train", "-e", "walk.py", "--seed", "5", "--backend", "cpu"])
    assert done.exit_code == 0, done.output
    assert float(re.findall(r"shared ([\d.]+)", done.output)[-1]) > 0.99


@pytest.mark.nightly
def test_example_of_an_environment_is_measured(folder, monkeypatch):
    """The page's command measures its environment on the CPU."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)  # times of the simulator would mean nothing
    write_files("docs/authoring.md", folder)
    words = command("docs/authoring.md", "python -m bench run")
    shown = bench(*words, "--preset", "smoke", "--backend", "cpu", "--backend", "host", "--no-plot")
    assert "5 measured, 0 failed" in shown


def test_example_of_a_benchmark_runs(folder):
    """The page's benchmark runs in a copy of `bench`."""
    name, ignored = "docs/extending.md", shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "bench", folder / "bench", ignore=ignored)
    (folder / "envs").symlink_to(ROOT / "envs")
    write_files(name, folder)
    (table,) = [block.text for block in tutorial.blocks(PAGES[name]) if block.text.startswith("[sort]")]
    cases = folder / "bench" / "workloads" / "cases.py"
    text, n = re.subn(r"from \. import |\(vars, \(", r"\g<0>sort, ", cases.read_text())
    assert n == 2
    cases.write_text(text)
    with cases.with_suffix(".toml").open("a") as file:
        file.write(f"\n{table}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "0"}
    words = [sys.executable, "-m", "bench", *command(name, "python -m bench run --case"), "--no-plot"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 measured, 0 failed" in done.stdout


# ------------------------------------------------------------------ the runner


def test_runner_refuses_another_output(folder, namespace):
    """A page with wrong output fails, with its line."""
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
