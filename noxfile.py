"""One session per task; each wraps a command that also runs by itself."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
"""Versions of Python that are tested; one that is not installed is skipped, and nox says so."""

nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = False  # as it is elsewhere too, also where CI=true
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True


def install(session: nox.Session, *extras: str) -> None:
    """Install the project with extras, at tested versions.

    On a GPU machine both GPU backends are included. A new environment shows pip's progress.
    """
    if shutil.which("nvidia-smi"):
        extras = (*extras, "numba", "pycuda")
    folder = getattr(session.virtualenv, "location", sys.prefix)  # with --no-venv nox's own
    is_new = not list(Path(folder).glob("**/site-packages/torch"))
    if is_new:
        session.log("installing once into %s: up to 4 GB, most of it torch with CUDA", folder)
    # Torch first and alone: an index may hold the pinned build for one requester only.
    session.install("-c", "constraints.txt", "torch", silent=not is_new)
    session.install("-c", "constraints.txt", "-e", f".[{','.join(extras)}]", silent=not is_new)


@nox.session
def tests(session: nox.Session) -> None:
    """`pytest`: the tests of each change.

    Without a GPU, Numba runs in its simulator and the marker gpu is skipped.
    """
    install(session, "dev")
    session.run("pytest", "-n", "auto", "--dist", "worksteal", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """`pytest -m nightly`: tests too slow for each change, such as 300 kills."""
    install(session, "dev")
    session.run("pytest", "-m", "nightly", "-n", "auto", "--dist", "worksteal", *session.posargs)


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """`tests` on each Python that is installed."""
    tests(session)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, types and layers."""
    install(session, "dev")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session
def bench(session: nox.Session) -> None:
    """`python -m bench run`: sweep, check, measure, record, table, plots."""
    install(session, "bench")
    session.run("python", "-m", "bench", "run", *session.posargs)


@nox.session
def ray(session: nox.Session) -> None:
    """`python -m bench run --ray ADDRESS`: a sweep on a Ray cluster.

    The default is the cluster that runs on this machine.
    """
    install(session, "ray")
    named = session.posargs and not session.posargs[0].startswith("-")
    session.run("python", "-m", "bench", "run", "--ray", *([] if named else ["auto"]), *session.posargs)


@nox.session
def gate(session: nox.Session) -> None:
    """`python -m bench gate`: compare the speed with the main branch."""
    install(session, "static" if "--static" in session.posargs else "bench")
    named = any(each.startswith("--baseline") for each in session.posargs)
    session.run("python", "-m", "bench", "gate", *([] if named else ["--baseline", "main"]), *session.posargs)


@nox.session
def plots(session: nox.Session) -> None:
    """`python -m bench plot`: the figures again, from the records."""
    install(session, "bench")
    session.run("python", "-m", "bench", "plot", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """`python -m bench report`: the page of tables and figures, from the records."""
    install(session, "bench")
    session.run("python", "-m", "bench", "report", *session.posargs)


@nox.session
def board(session: nox.Session) -> None:
    """`python -m bench board RECORDS`: a site with the history of every night."""
    install(session, "bench")
    session.run("python", "-m", "bench", "board", *session.posargs)


@nox.session
def paper(session: nox.Session) -> None:
    """`python -m bench paper`: figures, LaTeX tables, method, manifest."""
    install(session, "bench")
    session.run("python", "-m", "bench", "paper", *session.posargs)


@nox.session
def reproduce(session: nox.Session) -> None:
    """`python -m bench reproduce RUN_ID`: measure recorded points again."""
    install(session, "bench")
    session.run("python", "-m", "bench", "reproduce", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """`python -m bench peers`: interleaved runs of other software and ours.

    ``--python`` names the interpreter with that software.
    """
    install(session, "bench", "bridges")
    session.run("python", "-m", "bench", "peers", *session.posargs)


@nox.session
def doctor(session: nox.Session) -> None:
    """`python -m bench doctor`: what this machine can measure, and what not."""
    install(session, "bench")
    session.run("python", "-m", "bench", "doctor", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """`mkdocs build --strict`: the documentation site, in the folder `site`."""
    needed = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["docs"]
    session.install("-c", "constraints.txt", *needed)  # the project is read, not imported: no torch
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def notebooks(session: nox.Session) -> None:
    """`python -m tests.notebooks`: the tutorials as notebooks, run on this machine."""
    install(session, "dev")
    session.run("python", "-m", "tests.notebooks", *session.posargs)


@nox.session
def asv(session: nox.Session) -> None:
    """`asv run` over the same cases, recorded for the present commit."""
    install(session, "bench")
    head = session.run("git", "rev-parse", "HEAD", silent=True, external=True)
    session.run("asv", "machine", "--yes")
    session.run("asv", "run", "-E", "existing:python", "--set-commit-hash", str(head).strip(), *session.posargs)
