"""Report: one self-contained page from records."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench import report
from bench.core import stats
from bench.core.record import Record, merged, read_all
from bench.judge.published.claims import for_report
from bench.judge.published.ledger import LINKS
from bench.show.charts import DataPoint
from bench.show.columns import Column, Table
from bench.show.labels import digits
from bench.show.tables import headline
from bench.show.views.cases import charts
from bench.show.views.env_charts import saturation
from tests.bench.builders import bench, point, record, two_backends
from tests.browser import WIDTHS, look
from tests.support import CHROMIUM, Page

SHIPPED = [Path(__file__).parents[2] / "results" / "archive.zip" / name for name in ("sweeps", "peers")]


def line(*pairs: tuple[float, float]) -> list[DataPoint]:
    return [DataPoint(x, y, y, y) for x, y in pairs]


def test_saturation_is_the_first_size_near_the_highest_rate() -> None:
    """Saturation is the first size at 90 % of the maximum."""
    assert saturation(line((1, 10), (100, 90), (1_000, 100))).endswith("at 100 environments")
    assert saturation(line((1, 10), (100, 80), (1_000, 100))) == "throughput still grows at 1,000 environments"


def test_energy_is_that_of_a_million_steps() -> None:
    """Energy is joules per million env steps."""
    telemetry = {"energy_j": 50.0, "duration_s": 5.0}
    found = [record(2e6, telemetry=telemetry), record(started_at="2027-01-01T00:00:00", run_id="later")]
    (chart,) = (each for each in charts(found) if each.name == "energy")
    assert [place.y for place in chart.panels[0].series[0].points] == [5.0]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return read_all(SHIPPED)


@pytest.fixture(scope="module")
def shipped(records: list[Record]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "RESAMPLES", 20)  # bands of 300 curves; their width does not matter here
        return report.html(records, for_report(records))


@pytest.mark.nightly
def test_report_of_shipped_records_is_complete_and_small(records: list[Record], shipped: str) -> None:
    """Each record, of all its processes, is a row, and each figure has a table."""
    page = Page(shipped)
    counts = Counter(tag for tag, _ in page.elements)
    ids = [each["id"] for _, each in page.elements if "id" in each]
    assert len(shipped.encode()) < 2_200 * len(records)
    assert counts["code"] >= sum(record.is_evidence for record in merged(records)) > 100
    assert counts["figure"] > 8
    assert counts["table"] > counts["figure"]
    assert page.loaded == ["data:,"]
    assert {link for link in page.links if not link.startswith("#")} <= set(LINKS.values())
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(ids)
    assert len(ids) == len(set(ids))
    assert all(record.run_id in shipped for record in records)


@pytest.mark.parametrize(
    ("value", "n", "text"),
    [
        (1e6, 6, "1,000,000"),
        (13_848_123.4, 4, "13,850,000"),
        (9_531.8, 4, "9,532"),
        (0.037714, 4, "0.03771"),
        (0, 4, "0"),
    ],
)
def test_values_are_written_without_exponents(value: float, n: int, text: str) -> None:
    """Values have a few digits, commas and no exponent."""
    assert digits(value, n) == text


def test_headline_is_there_only_with_its_records() -> None:
    """Without env step records the page has no headline."""
    assert any("headline" in link for link in Page(report.html([record()])).links)
    others = Page(report.html([record(case="published")]))
    assert not any("headline" in str(each.values()) for _, each in others.elements)


def test_headline_compares_within_the_newest_run_that_has_both() -> None:
    """The headline's ratio is of the newest run with both.

    A newer record without NumPy leads, with the earlier run's ratio.
    """
    both = [record(2e6), record(8e6, point=point("host", 100))]
    alone = record(16e6, point=point("host", 100), run_id="later", started_at="2027-01-01T00:00:00")
    made = headline([*both, alone])
    (best,) = made.rows
    assert best is alone
    (over,) = (column for column in made.columns if column.name == "times reference (NumPy, 1 thread)")
    assert over.text(best) == "4"
    larger = record(32e6, point=point("pycuda", 1_000))
    assert not any(column.name.startswith("times") for column in headline([both[0], larger]).columns), "of another size"


def test_report_is_the_same_for_the_same_records() -> None:
    """The same records give the same page."""
    assert report.html(two_backends()) == report.html(two_backends())


def test_report_shows_what_is_no_evidence_apart() -> None:
    """Failed records have their own table, and no figure."""
    page = report.html([record(), record(status="failed", reason="it broke", point=point("host", 77_777))])
    assert "it broke" in page
    assert "No evidence" in page
    assert "77777" in page.split("No evidence")[1]
    assert "77777" not in page.split("No evidence")[0]


def test_report_shows_claims_with_their_counts_and_sources() -> None:
    """Claims show their source, ratio and counts of verdicts."""
    columns = [
        Column("claim", lambda row: row[0], is_long=True),
        Column("source", lambda row: "somebody", link=lambda row: "https://example.org/paper"),
        Column("measured / claimed", lambda row: f"{row[1]}", lambda row: row[1]),
    ]
    table = Table(columns=columns, rows=[("on a good day", 0.5), ("ours", 2.0)])
    claims = {"counts": {"does not hold": 1, "holds": 1}, "table": table}
    page = report.html([record()], claims)
    assert "https://example.org/paper" in Page(page).links
    (found,) = re.findall(r'<section id="claims">.*?</section>', page, re.DOTALL)
    assert "does not hold:&nbsp;<strong>1</strong>, holds:&nbsp;<strong>1</strong>." in found
    assert found.count("<tr>") == 3
    assert "on a good day" in found
    assert 'data-value="0.5"' in found
    assert "#claims" not in Page(report.html([record()])).links


def test_report_command_judges_the_records_that_it_shows(tmp_path: Path) -> None:
    """`bench report` judges claims by the given records."""
    records, out = tmp_path / "records.jsonl", tmp_path / "report.html"
    tag = {"env": "tag_continuous", "backend": "pycuda", "n_envs": 2_000, "n_agents": 110, "exact": False}
    records.write_text(record(3e6, point=tag, threads=None, run_id="the-tag-run").to_line())
    bench("report", records, "--out", out)
    (found,) = re.findall(r'<section id="claims">.*?</section>', out.read_text(), re.DOTALL)
    rows = [row for row in found.split("<tr>") if "Tag runs at millions of steps a second" in row]
    assert len(rows) == 1
    assert all(
        text in rows[0] for text in ("other hardware", "3 M (interval 2.73 M to 3.3 M)", "the-tag-run", "README.md")
    )
    records.write_text(record(point=point("host", 12_345)).to_line())
    bench("report", records, "--out", out)
    assert "Claims" not in out.read_text()


def test_report_command_writes_the_page_or_says_why_not(tmp_path: Path) -> None:
    """`bench report` writes a page, or exits with 1."""
    records, out = tmp_path / "records.jsonl", tmp_path / "new" / "report.html"
    records.write_text(record(status="failed", reason="it broke").to_line())
    assert "no record is measured and correct" in bench("report", records, "--out", out, exits=1)
    assert not out.exists()
    records.write_text(record().to_line())
    bench("report", records, "--out", out)
    assert out.read_text().startswith("<!doctype html>")
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH to open the page in")
def test_report_works_in_a_browser(shipped: str, tmp_path: Path) -> None:
    """The page works in a browser without errors or requests.

    Tables sort and filter, series can be hidden, nothing overflows.
    """
    watch = (
        "<head><script>window.errors = []; onerror = (...all) => { errors.push(String(all[0])); };"
        "addEventListener('securitypolicyviolation', event => { errors.push(event.violatedDirective); });</script>"
    )
    page = tmp_path / "report.html"
    probe = Path(__file__).with_name("report_probe.js").read_text()
    allowed = f"script-src 'sha256-{base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode()}' "
    text = shipped.replace("<head>", watch, 1).replace("script-src ", allowed, 1)
    page.write_text(text.replace("</body>", f"<script>{probe}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command = [str(CHROMIUM), *options, "--window-size=500,900", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said = json.loads(done.stdout.split("PROBE")[1])
    assert said["errors"] == said["empty"] == said["requests"] == []
    assert said["broken"] == 0
    assert said["rising"] == sorted(said["rising"])
    assert said["falling"] == sorted(said["rising"], reverse=True)
    assert said["rising"][0] < said["rising"][-1]
    assert all(said["filtered"])
    assert 0 < len(said["filtered"]) < len(said["rising"])
    assert said["lines"][1] < said["lines"][0]
    ratios = [float(value) for value in said["ratios"] if value is not None]
    assert ratios == sorted(ratios)
    assert said["ratios"][-1] is None, "what was not measured comes last"
    assert set(said["verdicts"]) == {"does not hold"}
    assert len(said["verdicts"]) < len(said["ratios"])
    assert said["wide"] <= 0
    assert said["claims_wide"] <= 0, "on a narrow screen each claim is a card"
    assert said["cut"] == []
    assert said["crowded"] == 0, "no name below an axis runs into the next one"
    assert said["hidden"] == [], "no ratio beside a mark lies over another one"
    assert said["bars"] == [2, 2, 0], "the total of each row is no third part"
    assert said["totals"] == 4, "a line from low to high and a mark per row"
    assert said["twice"] == [], "no two ticks of an axis have one name"


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH to open the page in")
def test_report_fits_wide_and_narrow_windows(shipped: str, tmp_path: Path) -> None:
    """Nothing is wider than the window, and no label of a figure is cut."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "report.html").write_text(shipped)
    probe = Path(__file__).with_name("board_probe.js")
    for each in look(tmp_path / "site", tmp_path, probe, {"pages": ["report.html"], "widths": WIDTHS}):
        assert each["cut"] == []
        assert each["broken"] == 0
        assert each["wide"] <= 0
