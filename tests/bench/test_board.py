"""The board: histories, the runs at which levels change, pages and feed."""

from __future__ import annotations

import json
import random
import shlex
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
import yaml

from bench import cli
from bench.board import FEED, INDEX, MOST_ROWS, site
from bench.core.archive import ARCHIVE, glob_paths
from bench.core.errors import ShowError
from bench.core.groups import groups_of
from bench.core.record import RESULTS, Record, oldest_first, read_all
from bench.show.views.history import changes_of, histories
from tests.bench.builders import bench, point, record
from tests.browser import WIDTHS, broken_links, look
from tests.support import CHROMIUM, Page

ROOT = Path(__file__).parents[2]
NIGHTS = Path(__file__).with_name("golden") / "nights.zip"
"""Records of four commits, measured on two cores of a busy machine."""
STEP = 0.05
STEP_AT, N_NIGHTS = 80, 100
ATOM = {"atom": "http://www.w3.org/2005/Atom"}
REPOSITORY = "https://example.org/owner/name"


def sha_of(night: int) -> str:
    """Return the commit of a simulated night."""
    return f"{night:08x}" + "0" * 32


def scaled(found: Record, factor: float, **changes: object) -> Record:
    """Return a record whose times are multiplied by a factor."""
    if not found.samples_ns:
        return found.model_copy(update=changes)
    metrics = {}
    for name, each in (found.metrics or {}).items():
        times = factor if each.direction == "lower" else 1 / factor
        ends = {end: getattr(each, end) * times for end in ("value", "low", "high")}
        metrics[name] = each.model_copy(update=ends)
    samples = [sample * factor for sample in found.samples_ns]
    return found.model_copy(update={"samples_ns": samples, "metrics": metrics, **changes})


@pytest.fixture(scope="module")
def nights() -> list[Record]:
    """Return nights of four measured commits, and simulated ones with a step of 5 %.

    The simulated ones repeat a record of each case, with noise of 1 %. From one night on, an env step takes 5 % longer.
    """
    measured = oldest_first(read_all([NIGHTS]))
    runs = list(dict.fromkeys(each.run_id for each in measured))
    by_case = groups_of((each for each in measured if each.case != "train"), lambda each: each.case).values()
    template = [sorted(own, key=lambda each: sum(each.samples_ns or ()))[len(own) // 2] for own in by_case]
    noise = random.Random(0)
    simulated = []
    for night in range(len(runs), N_NIGHTS):
        for each in template:
            factor = noise.lognormvariate(0, 0.01) * (1 + STEP * (night >= STEP_AT and each.case == "env_step"))
            started = (measured[-1].start + timedelta(days=night)).isoformat()
            named = {"run_id": f"night-{night}", "id": f"{night}-{each.id}", "started_at": started}
            energy = {"energy_j": 5.0, "duration_s": 5.0} if each.case == "env_step" else None
            git = {"sha": sha_of(night), "dirty": False}
            simulated.append(scaled(each, factor, git=git, telemetry=energy, **named))
    return [*measured, *simulated]


@pytest.fixture(scope="module")
def files(nights: list[Record]) -> dict[str, str]:
    found, n_left_out = site(nights, REPOSITORY)
    assert n_left_out == 0
    return found


def written(files: dict[str, str], folder: Path) -> dict[str, Page]:
    """Write a site; return its pages."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {name: Page(text) for name, text in files.items() if name.endswith(".html")}


# ------------------------------------------------------------------ changes


def test_planted_step_is_found_at_its_commit(nights: list[Record], files: dict[str, str]) -> None:
    """The feed has the 5 % step in speed and its energy, at its commit."""
    feed = ElementTree.fromstring(files[FEED])
    entries = {each.findtext("atom:title", "", ATOM): each for each in feed.iterfind("atom:entry", ATOM)}
    (speed,) = (title for title in entries if title.startswith("worse: speed -"))
    assert speed.endswith("CartPole, env_step")
    assert 0.04 < float(speed.split("-")[1].split("%")[0]) / 100 < 0.056
    assert sorted(title.split()[1] for title in entries) == ["energy", "speed"]
    summary = entries[speed].findtext("atom:summary", "", ATOM)
    assert f"commits {sha_of(STEP_AT - 1)[:7]}..{sha_of(STEP_AT)[:7]}" in summary
    link = entries[speed].find("atom:link", ATOM)
    assert link is not None
    assert link.get("href", "").split("#")[0] in files
    compare = f"{REPOSITORY}/compare/{sha_of(STEP_AT - 1)}...{sha_of(STEP_AT)}"
    assert compare in Page(files[INDEX]).links
    assert "2 worse" in files[INDEX]
    measured = {each.git["sha"] for each in nights if each.samples_ns and not each.run_id.startswith("night")}
    assert len(measured) == 4, "commits of this repository"


def test_measured_step_is_found_at_its_commit() -> None:
    """Three commits, and three with a planted loop, were measured on one GPU."""
    measured = read_all(glob_paths(str(RESULTS / ARCHIVE / "nights" / "*.jsonl")))
    assert len({each.git["sha"] for each in measured}) == 6
    assert len({each.card for each in measured}) == 1
    feed = ElementTree.fromstring(site(measured, REPOSITORY)[0][FEED])
    entries = {each.findtext("atom:title", "", ATOM): each for each in feed.iterfind("atom:entry", ATOM)}
    assert sorted(entries) == [f"worse: speed -{percent}%, CartPole, env_step" for percent in ("2.9", "5.0")]
    assert all("commits 84ddc57..e4fc7c9" in each.findtext("atom:summary", "", ATOM) for each in entries.values())


def noisy(seed: int, n: int = 60, correlation: float = 0.0, slow: float = 0.0) -> np.ndarray:
    """Return rates with noise of 1 %, correlated, and some nights 30 % slower."""
    generator = np.random.default_rng(seed)
    logs = generator.normal(0, 0.01, n)
    for place in range(1, n):
        logs[place] = correlation * logs[place - 1] + (1 - correlation**2) ** 0.5 * logs[place]
    return np.exp(logs - 0.3 * (generator.random(n) < slow))


@pytest.mark.parametrize(
    ("more", "most"), [({}, 4), ({"n": 365}, 4), ({"n": 365, "correlation": 0.3}, 12), ({"n": 365, "slow": 0.03}, 4)]
)
def test_levels_without_a_change_have_none(more: dict, most: int) -> None:
    """Few of 200 histories without a change have a false one."""
    assert sum(bool(changes_of(noisy(seed, **more))) for seed in range(200)) <= most


@pytest.mark.parametrize("nights_after", [3, 5, 20])
def test_steps_of_5_percent_are_found_where_they_are(nights_after: int) -> None:
    """At least 95 of 100 steps are found, not a night off for 90."""
    found = []
    for seed in range(100):
        rates = noisy(seed, 60 + nights_after)
        rates[60:] *= 1 - STEP
        found.append(changes_of(rates))
    assert sum(any(abs(place - 60) <= 1 for place in places) for places in found) >= 95
    assert sum(60 in places for places in found) >= 90


def test_short_constant_and_small_changes() -> None:
    """Two slow nights, five nights and changes below 1 % have no mark."""
    assert changes_of([100.0, 100.0, 50.0, 50.0, 50.0]) == []
    assert changes_of([100.0] * 20 + [50.0] * 2 + [100.0] * 20) == []
    assert changes_of([76.0] * 30) == []
    assert changes_of([1000.0] * 10 + [1005.0] * 10) == []
    assert changes_of([76.0] * 10 + [80.0] * 10) == [10]


def test_history_has_the_newest_version_of_undisturbed_evidence() -> None:
    """A history has one value for each run, of one preset and version."""

    def night(number: int, value: float = 1e6, **changes: object) -> Record:
        return record(value, run_id=f"night-{number}", started_at=f"2026-01-{number:02}T00:00:00", **changes)

    others = [
        night(6, status="failed", reason="it broke"),
        night(7, passed=False),
        night(8, telemetry={"contended": True}),
        night(9, taken="in turns"),
        night(1, case="peer", point={"peer": "gymnax", "env": "cartpole", "n_envs": 100}),
    ]
    old = [night(number, 2e6, case_version=0) for number in (1, 2)]
    (history,) = histories([*others, *old, night(4), night(3, 3e6), night(4, 5e6)])
    assert [value.figure.value for value in history] == [3e6, 5e6]
    by_preset = histories([night(1), night(2, preset="full")])
    assert [len(history) for history in by_preset] == [1, 1]


# ------------------------------------------------------------------ pages


def test_pages_are_complete(files: dict[str, str], tmp_path: Path) -> None:
    """Links lead somewhere, each run has a page, each quantity a panel."""
    pages = written(files, tmp_path)
    assert broken_links(tmp_path, pages) == []
    assert sum(name.startswith("runs/") for name in files) == N_NIGHTS
    (history,) = (page for name, page in pages.items() if name.startswith("histories/"))
    drawn = json.loads(history.scripts["application/json"])
    titles = [panel["title"].split(":")[0] for chart in drawn.values() for panel in chart["panels"]]
    assert sorted(titles) == ["energy", "memory", "speed", "speed", "start-up"], "the second speed is of training"
    assert all(f"{REPOSITORY}/commit/{sha_of(night)}" in history.links for night in (N_NIGHTS - 1, STEP_AT))
    assert len(history.links) < 3 * 3 * MOST_ROWS
    assert {each for page in pages.values() for each in page.loaded if each != "data:,"} == {FEED}


def test_board_is_the_same_for_the_same_records(nights: list[Record]) -> None:
    """A second run gives the same files."""
    assert site(nights[:60]) == site(nights[:60])


def test_texts_of_records_are_text(tmp_path: Path) -> None:
    """Texts of records reach neither markup nor paths."""
    evil = "../../</script><img src=x onerror=alert(1)>\x00\"'&{{7*7}}"
    found = [
        record(
            run_id=f"{evil}{number}",
            id=f"{evil}{number}",
            started_at=f"2026-01-{number:02}T00:00:00",
            command=evil,
            machine={"gpu": evil, "cores": 16},
            notes={"note": evil},
            point=point("cpu", 100, env="cartpole:" + json.dumps({"name": evil}), more=evil),
            metrics={"env_steps_per_s": record(1e6 if number < 5 else 2e6).metrics["env_steps_per_s"]},
        )
        for number in range(1, 9)
    ]
    failed = found[-1].model_copy(update={"status": "failed", "reason": evil, "id": "failed"})
    files, _ = site([*found, failed], "https://example.org/\"'><img src=x>")
    assert all(not Path(name).is_absolute() and ".." not in Path(name).parts for name in files)
    pages = written(files, tmp_path)
    assert broken_links(tmp_path, pages) == []
    for page in pages.values():
        assert "img" not in dict(page.elements)
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "1 failed" in files[INDEX]
    feed = ElementTree.fromstring(files[FEED])
    assert len(feed.findall("atom:entry", ATOM)) == 1
    assert not any("49" in text and "7*7" not in text for text in files.values() if "{{" in text)


def test_size_has_a_limit(nights: list[Record], tmp_path: Path) -> None:
    """Records of the oldest runs are left out first, without dead links."""
    few = nights[:150]
    every, _ = site(few)
    size = sum(len(text.encode()) for text in every.values())
    files, n_left_out = site(few, most_bytes=round(0.8 * size))
    assert sum(len(text.encode()) for text in files.values()) <= 0.8 * size
    runs = [name for name in every if name.startswith("runs/")]
    assert 0 < n_left_out < len(runs)
    assert [name for name in files if name.startswith("runs/")] == runs[: len(runs) - n_left_out], "newest first"
    assert broken_links(tmp_path, written(files, tmp_path)) == []


def test_command_writes_a_site_and_replaces_its_own_pages(tmp_path: Path) -> None:
    """`bench board` names what is wrong, and removes only its old pages."""
    records, out = tmp_path / "nights", tmp_path / "out"
    records.mkdir()
    (records / "one.jsonl").write_text(record(status="failed", reason="it broke").to_line())
    with (records / "one.jsonl").open("a") as file:
        file.write(record(taken="in turns").to_line())
    assert "no record is timed, correct and measured alone" in bench("board", records, "--out", out, exits=1)
    assert not out.exists()
    (records / "one.jsonl").write_text(record().to_line())
    bench("board", records, "--out", out)
    (old,) = (out / "runs").iterdir()
    (records / "one.jsonl").write_text(record(run_id="another").to_line())
    mine = [out / name for name in ("mine.html", "docs/index.html", "runs/mine.html")]
    for page in mine:
        page.parent.mkdir(exist_ok=True)
        page.touch()
    bench("board", records, "--out", out)
    assert not old.exists()
    assert all(page.exists() for page in mine)
    assert (out / INDEX).read_text().startswith("<!doctype html>")

    with pytest.raises(ShowError, match="--most-mb must be at least 1 for the histories"):
        site([record()], most_bytes=10_000)


@pytest.mark.parametrize(("workflow", "command"), [("nightly", "run"), ("board", "board"), ("cpu-gate", "gate")])
def test_workflows_call_commands_that_exist(workflow: str, command: str) -> None:
    """Sessions and options of the example workflows exist."""
    text = (ROOT / "docs" / "examples" / "workflows" / f"{workflow}.yml").read_text()
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    (line,) = (step["run"] for step in steps if "nox -s" in step.get("run", ""))
    _, session, *words = shlex.split(line.partition("nox ")[2])
    assert f"def {session}(session" in (ROOT / "noxfile.py").read_text()
    params = typer.main.get_command(cli.app).commands[command].imported().params
    options = {option for each in params for option in (*each.opts, *each.secondary_opts)}
    assert {word for word in words if word.startswith("--") and word != "--"} <= options


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH to open the board in")
def test_board_works_in_a_browser(files: dict[str, str], tmp_path: Path) -> None:
    """Pages fit, ranges select, and a click opens commit and record."""
    (history,) = (name for name in files if name.startswith("histories/"))
    newest = next(name for name in files if name.startswith("runs/"))
    written(files, tmp_path / "site")
    probe = Path(__file__).with_name("board_probe.js")
    found = look(tmp_path / "site", tmp_path, probe, {"pages": [INDEX, history, newest], "widths": WIDTHS})
    assert [each["page"] for each in found] == [INDEX, history, newest] * len(WIDTHS)
    for each in found:
        assert each["errors"] == each["pictures"] == each["cut"] == []
        assert each["wide"] <= 0
        assert each["broken"] == 0
    for each in (each for each in found if each["page"] == history):
        # The first panel, of the speed: a mark for each night of the range, and one of the change.
        assert {name: marks[0] for name, marks in each["ranges"].items()} == {
            "30 days": 31 + 1,
            "90 days": 91 + 1,
            "all": N_NIGHTS + 1,
        }
        assert len(each["dates"]) > 3
        clicked = each["clicked"]
        assert "speed -" in clicked["tip"]
        assert f"{REPOSITORY}/commit/{sha_of(STEP_AT)}" in clicked["links"]
        assert clicked["isOpen"]
        assert f'"run_id": "night-{STEP_AT}"' in clicked["text"]
        assert clicked["errors"] == []
