"""Tables in documents match the output of their commands."""

from __future__ import annotations

import re

import pytest

from bench.core import machine
from bench.core.errors import ShowError
from bench.core.record import append
from bench.show import documents
from bench.show.documents import COMMAND, markdown_tables, with_renewed_figures, with_renewed_tables
from bench.show.views import cases
from bench.show.views.overview import overview
from bench.workloads.cases import CASES
from tests.bench.builders import bench, metric, point, record

RESULTS = "results/README.md"
DOCUMENT = """# Results

Fast, by `python -m bench table sweeps/*.jsonl --case env_step --where backend=host`, as we saw:

| old | head |
|---|---|
| old | row |

Then, `python -m bench table sweeps/a.jsonl`:

| old |
|---|

The end.
"""


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """Return a folder with records of two backends, and enter its parent.

    One file is out of order.
    """
    monkeypatch.chdir(tmp_path)
    for name, backends in (("a", ("host", "cpu")), ("b", ("host",))):
        for index, backend in enumerate(backends):
            append(tmp_path / "sweeps" / f"{name}.jsonl", measured(backend, f"2026-01-01T00:00:0{index}+00:00", name))
    append(tmp_path / "sweeps" / "b.jsonl", measured("host", "2026-01-01T00:00:09+00:00", "b", case="published"))
    return tmp_path / "sweeps"


def measured(backend, started_at, run_id, **changes):
    rate = metric(2e6, 1.9e6, 2.1e6, "env_steps/s")
    metrics = {"env_steps_per_s": rate, "agent_steps_per_s": rate, "ns_per_env_step": metric(500.0, 490.0, 510.0, "ns")}
    return record(point=point(backend, 100), metrics=metrics, started_at=started_at, run_id=run_id, **changes)


def test_refresh_prints_each_table_again_in_its_place(sweeps):
    """`refresh` replaces each table with its command's output."""
    document = sweeps.parent / "README.md"
    document.write_text(DOCUMENT)
    assert "updated" in bench("refresh", document)
    both = markdown_tables(["sweeps/*.jsonl"], ["env_step"], ["backend=host"])
    assert both.count("| C++ ") == 2  # of each file one
    assert "NumPy (" not in both
    first, second = "| old | head |\n|---|---|\n| old | row |", "| old |\n|---|"
    assert document.read_text() == DOCUMENT.replace(first, both).replace(second, markdown_tables(["sweeps/a.jsonl"]))
    assert "unchanged" in bench("refresh", document)


def test_the_order_of_measuring_does_not_order_tables(sweeps):
    """The order of records does not change a table."""
    lines = (sweeps / "a.jsonl").read_text().splitlines()
    backwards = sweeps.parent / "backwards.jsonl"
    backwards.write_text("\n".join(reversed(lines)) + "\n")
    assert markdown_tables([str(backwards)]) == markdown_tables(["sweeps/a.jsonl"])


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("`python -m bench table sweeps/a.jsonl`\n", 1, "must be followed by a table"),
        (
            "`python -m bench table sweeps/c.jsonl`\n\n| a |\n",
            1,
            "sweeps/c.jsonl must be an existing file, folder or pattern",
        ),
        (
            "`python -m bench table sweeps/a.jsonl --where n_envs=7`\n\n| a |\n",
            1,
            "of sweeps/a.jsonl passes --where n_envs=7",
        ),
        ("`python -m bench table sweeps/a.jsonl --colour red`\n\n| a |\n", 2, "No such option: --colour"),
        ("`python -m bench table sweeps/*.jsonl`\n\n| a |\n", 1, "must print one table (got 2); keep one case"),
        (DOCUMENT[: DOCUMENT.index("| old |\n")], 1, "must be followed by a table"),
    ],
)
def test_refresh_refuses_what_it_cannot_print(sweeps, text, code, words):
    """A failing command is named, and the document stays unchanged."""
    document = sweeps.parent / "README.md"
    document.write_text(text)
    assert words in " ".join(bench("refresh", document, exits=code).split())
    assert document.read_text() == text


def test_a_table_that_ends_the_file_without_a_line_end_is_replaced(sweeps):
    """A table at the end of a file without newline is replaced."""
    text = "`python -m bench table sweeps/a.jsonl`\n\n| a |\n|---|"
    assert with_renewed_tables(text, str).endswith(markdown_tables(["sweeps/a.jsonl"]) + "\n")


@pytest.mark.parametrize(
    "name", ["README.md", "docs/README.md", "docs/performance.md", "docs/training-speed.md", "results/README.md"]
)
def test_published_tables_are_those_of_their_records(name, monkeypatch):
    """Tables in documents match the commands above them."""
    monkeypatch.chdir(machine.ROOT)
    text = (machine.ROOT / name).read_text()
    assert COMMAND.search(text) or "<!-- figure " in text
    assert with_renewed_figures(with_renewed_tables(text, str)) == text


PROSE_FIGURE = re.compile(
    r"(?<![\w.,/^-])\d+(?:[.,]\d+)*(?:x|\s?(?:%|s|ms|us|ns|k|M|G|MB)|\s?(?:env[ -])?steps/s)(?![\w/])"
)
NOT_MEASURED = {  # number of figures of a page that no record has, and what they are
    "docs/board.md": (1, "the smallest change that counts"),
    "docs/ci.md": (7, "sizes of an example, and lengths of samples"),
    "docs/environments/acrobot.md": (2, "the length of a step"),
    "docs/environments/rice.md": (4, "rates of the model"),
    "docs/environments/tag_gridworld.md": (1, "computed from the number of agents"),
    "docs/gating.md": (31, "thresholds; probabilities that the simulated gates of tests/bench make"),
    "docs/intervals.md": (4, "coverage that tests/bench/coverage.py makes"),
    "docs/peers.md": (2, "lengths of samples"),
    "docs/reference-tests.md": (3, "computed probabilities"),
    "docs/reproducing.md": (3, "tolerances"),
    "docs/static.md": (3, "tolerances"),
    "docs/training.md": (2, "rules"),
    "docs/tutorials/scaling_up.md": (1, "a definition"),
}


def prose_figures(text: str) -> list[str]:
    """Return the figures of a text.

    Without code, tables, renewed ones and confidence levels.
    """
    for apart in (r"<!-- figure .*?<!-- -->", r"```.*?```", r"`[^`]*`", r"(?m:^\|.*$)", r"\b95 %"):
        text = re.sub(apart, "", text, flags=re.DOTALL if "```" in apart else 0)
    return PROSE_FIGURE.findall(" ".join(text.split()))


PAGES = [
    str(path.relative_to(machine.ROOT))
    for path in [
        machine.ROOT / "README.md",
        machine.ROOT / "results" / "README.md",
        *(machine.ROOT / "docs").rglob("*.md"),
    ]
    if "adr" not in path.parts
]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_measured_figure_in_prose_comes_from_a_record(page):
    """A new one needs a `<!-- figure ... -->`, so that one value has one place."""
    found = prose_figures((machine.ROOT / page).read_text())
    allowed, what = NOT_MEASURED.get(page, (0, "none"))
    assert len(found) == allowed, f"{found}; not measured: {what}"


def test_figure_in_prose_is_renewed(sweeps):
    """It is the metric of one point; several points are refused."""
    words = "figure sweeps/a.jsonl --where backend=host --metric env_steps_per_s"
    text = f"It takes <!-- {words} -->9 M<!-- --> steps/s, 7 M once."
    renewed = with_renewed_figures(text)
    assert renewed == text.replace("9 M", "2 M")
    assert prose_figures(renewed) == ["7 M"]
    with pytest.raises(ShowError, match=r"needs one point that has it \(got 2\)"):
        with_renewed_figures(text.replace(" --where backend=host", ""))


def million(case, rate, **axes):
    """Return a record of a million CartPoles on a GPU."""
    at = {"env": "cartpole", "n_envs": 1_000_000, "n_agents": 1, **axes}
    rates = {"env_steps_per_s": metric(rate, unit="env_steps/s"), "ours_over_peer": metric(10.2)}
    alone = {} if case == "peer" else {"taken": "alone"}
    return record(case=case, point=at, metrics=rates, samples_ns=[1.0], threads=None, **alone)


def test_overview_has_our_three_columns_and_the_fastest_other():
    """The ratio is in the column that stores as much as the other does."""
    fused = {"backend": "pycuda", "mode": "fused"}
    ours = [
        million("env_step", 21.5e9, backend="pycuda", exact=False),
        million("env_step", 1.5e9, backend="pycuda", exact=True),
        million("many_steps", 88e9, **fused, kept="all"),
        million("many_steps", 222e9, **fused, kept="last"),
        million("many_steps", 7e9, **fused, kept="last", policy="64-64"),
    ]
    beside = {"case": "many_steps", "point": {"env": "cartpole", **fused, "kept": "last"}}
    peers = [
        million("peer", rate, peer="gymnax", work="simulate", variant=variant).model_copy(
            update={"notes": {"ours": beside, "version": "1.0.1", "options": {"unroll": unroll}}}
        )
        for variant, unroll, rate in (("scan", 1, 9.7e9), ("scan-2", 2, 21.9e9))
    ]
    (only,) = (made := overview([*ours, *peers])).cells
    assert only[1:] == ["21.5 G", "88 G", "222 G (10.2x)", "21.9 G: gymnax 1.0.1, unroll 2"]
    assert made.columns[0].name == "env steps/s on NVIDIA H200"
    spread = {"env_steps_per_s": metric(30e9), "ours_over_peer": metric(10.2, low=9.0, high=11.6)}
    (only,) = overview([*ours, peers[0].model_copy(update={"metrics": spread})]).cells
    assert only[3] == "222 G (9x to 11.6x)", "a wide interval has no middle"
    found_later = {"started_at": "2090-01-01T00:00:00+00:00", "metrics": {"env_steps_per_s": metric(99e9)}}
    (only,) = overview([*ours, *peers, *(peer.model_copy(update=found_later) for peer in peers)]).cells
    assert only[4] == "21.9 G: gymnax 1.0.1, unroll 2", "a later record without a ratio hides none that has one"
    (only,) = overview(ours).cells
    assert only[1:] == ["21.5 G", "88 G", "222 G"], "no column of others without a record"
    of_another = {"started_at": "2020-01-01T00:00:00+00:00", "machine": {**ours[0].machine, "gpu": "another"}}
    (only,) = overview([*ours, *(peer.model_copy(update=of_another) for peer in peers)]).cells
    assert only[1:] == ["21.5 G", "88 G", "222 G"], "cards are not compared"


def test_newest_names_the_newest_finished_set(sweeps, monkeypatch):
    """A table of it needs no name of a folder."""
    monkeypatch.setattr(documents, "newest_sets", lambda: [sweeps])
    assert markdown_tables(["newest"], ["published"]) == markdown_tables(["sweeps/b.jsonl"], ["published"])
    monkeypatch.setattr(documents, "newest_sets", list)
    with pytest.raises(ShowError, match=r"newest has no record"):
        markdown_tables(["newest"], overview=True)


def test_latest_keeps_one_record_of_a_point_and_names_its_commit(sweeps):
    """`--latest` shows a point's newest record with its commit."""
    git = {"sha": "1234567890" * 4, "dirty": False}
    append(sweeps / "d.jsonl", measured("host", "2026-01-02T00:00:00+00:00", "d", git=git))
    shown = markdown_tables(["sweeps/*.jsonl"], ["env_step"], only_latest=True)
    (of_host,) = [line for line in shown.splitlines() if line.startswith("| C++ ")]
    assert of_host.endswith("| 1234567 |")
    assert "commit" not in markdown_tables(["sweeps/a.jsonl"])
    command = "python -m bench table sweeps/*.jsonl --case env_step --latest"
    assert with_renewed_tables(f"`{command}`:\n\n| old |\n", str).endswith(f"\n\n{shown}\n")
    assert markdown_tables(["sweeps/d.jsonl"]) in bench("table", "sweeps/d.jsonl", "--latest")


def test_a_table_is_of_the_machines_that_are_asked_for(sweeps):
    """`--on` selects machines by the start of their names."""
    other = {**record().machine, "gpu": "NVIDIA L4", "cores": 8}
    append(sweeps / "d.jsonl", measured("pycuda", "2026-01-02T00:00:00+00:00", "d", machine=other))
    shown = markdown_tables(["sweeps/*.jsonl"], ["env_step"], on="nvidia-l4")
    assert "CUDA C" in shown
    assert "NumPy" not in shown
    with pytest.raises(ShowError, match=r"--on nvidia-l40"):
        markdown_tables(["sweeps/*.jsonl"], on="nvidia-l40")


def test_table_without_records_says_why(sweeps):
    """Each reason for an empty table has its own error."""
    (sweeps / "empty.jsonl").touch()
    append(sweeps / "failed.jsonl", record(status="failed", reason="too hot"))
    for words, message in {
        "sweeps/c.jsonl": "sweeps/c.jsonl must be an existing file, folder or pattern (got none)",
        "sweeps/empty.jsonl": "sweeps/empty.jsonl has no record",
        "sweeps/a.jsonl --case train": "records of sweeps/a.jsonl passes --case train; they are of cases env_step on",
        "sweeps/a.jsonl --overview": "records of sweeps/a.jsonl is of the overview; leave out --overview",
        "sweeps/failed.jsonl": "none of 1 records of sweeps/failed.jsonl is measured and correct: failed (too hot)",
    }.items():
        assert message in " ".join(bench("table", *words.split(), exits=1).split())


def test_tables_and_charts_are_of_cases():
    """Own tables and charts name cases; all others have a baseline for theirs."""
    of_charts = {case for _, named in cases.CHARTS for case in named}
    assert of_charts - {"peer", "peer_solution"} <= {*CASES}
    assert {*cases._TABLES} == {name for name, case in CASES.items() if not case.over}
