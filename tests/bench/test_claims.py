"""Claims checked against small examples and the shipped records."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.core.record import Comparison, Host, append, read_all
from bench.judge.evidence import Filter, remarks
from bench.judge.published.anchors import ANCHORS
from bench.judge.published.claims import (
    counts,
    evidence,
    for_report,
    judge,
    own_claims,
    points,
    published,
    ratio_to_claim,
    to_dict,
)
from bench.judge.published.ledger import ABOUT, CLAIMS, FILE, LINKS, UNNAMED, Claim, Ledger, LedgerError, Query
from bench.show.columns import FOOTNOTES, NOTHING, speedup_column
from bench.workloads.cases import CASES
from bench.workloads.learn import TASKS
from bench.workloads.points import SEEDS
from bench.workloads.shared import env_config
from envs import ENVS
from tests.bench.builders import bench, point, record, seed_record
from warpdrive_min import EnvWrapper
from warpdrive_min.backends import availability
from warpdrive_min.backends.base import Availability

SWEEPS = Path(__file__).parents[2] / "results" / "archive.zip" / "sweeps"
ONE_SWEEP = SWEEPS / "20261121T194602-a9a8fbd-9c01.jsonl"

FAST = Filter(case="env_step", axes={"backend": "pycuda", "n_envs": 100})
SLOW = Filter(case="env_step", axes={"backend": "cpu", "n_envs": 100})
RATE = Query(quantity="Rate", of=FAST)


def claim(query=RATE, **changes) -> Claim:
    """Return a claim of 2 M env-steps/s on an H200."""
    fields = {
        "name": "fast",
        "source": "somebody",
        "says": "fast",
        "bound": "at least",
        "low": 2e6,
        "unit": "env_steps/s",
        "hardware": "H200",
        "query": query,
    }
    return Claim(**{**fields, **changes})


def on_gpu(value: float, n_envs: int = 100, **changes):
    return record(value, point=point("pycuda", n_envs), threads=None, **changes)


@pytest.mark.parametrize(
    ("changes", "value", "verdict"),
    [
        ({}, 2.3e6, "holds"),
        ({}, 2e6, "inconclusive"),
        ({}, 1.5e6, "does not hold"),
        ({"bound": "about"}, 2e6, "holds"),
        ({"bound": ""}, 2e6, "holds"),
        ({"bound": "about", "low": 2e6 * (1 + 2 * ABOUT)}, 2e6, "inconclusive"),
        ({"bound": "about"}, 2.1e6, "inconclusive"),
        ({"bound": "about"}, 9e6, "exceeds"),
        ({"bound": "about"}, 1e6, "does not hold"),
        ({"bound": "about", "direction": "lower"}, 9e6, "does not hold"),
        ({"bound": "about", "direction": "lower"}, 1e6, "exceeds"),
        ({"bound": "at most"}, 9e6, "does not hold"),
        ({"bound": "at most"}, 1e6, "holds"),
        ({"low": 1.5, "high": 3}, 1.7, "holds"),
        ({"low": 1.5, "high": 3}, 2.9, "inconclusive"),
        ({"low": 1.5, "high": 3}, 1.1, "does not hold"),
        ({"low": 1.5, "high": 3}, 4, "exceeds"),
        ({"hardware": "A100"}, 9e6, "other hardware"),
        ({"hardware": UNNAMED}, 9e6, "other hardware"),
    ],
    ids=str,
)
def test_rate_is_held_against_the_whole_interval(changes, value, verdict):
    """A claim is compared with the whole interval of a rate.

    Each record's interval is a factor of 1.1; it lies inside, across or outside the claimed range.
    """
    judged = judge(claim(**changes), [on_gpu(value)])
    assert judged.verdict == verdict
    low = changes.get("low", 2e6)
    got = ratio_to_claim(judged)
    assert (got.value, *got.interval) == pytest.approx((value / low, value / 1.1 / low, 1.1 * value / low))


def test_newer_record_of_other_hardware_does_not_take_the_place_of_one_of_the_claims():
    """The claimed GPU's record outranks newer ones of other GPUs."""
    machine = {"gpu": "NVIDIA H100", "cores": 16}
    newer = on_gpu(1e6).model_copy(update={"machine": machine, "started_at": "2099-01-01T00:00:00+00:00"})
    judged = judge(claim(), [on_gpu(9e6), newer])
    assert (judged.verdict, judged.estimate.value) == ("holds", 9e6)
    assert judge(claim(), [newer]).verdict == "other hardware"


def test_counts_are_of_each_verdict_that_was_given():
    """counts() omits verdicts that no claim has."""
    judged = [judge(claim(), records) for records in ([on_gpu(9e6)], [], [on_gpu(9e6)])]
    assert counts(judged) == {"holds": 2, "not measured yet": 1}


def test_report_gets_the_whole_ledger():
    """The report has a row for every claim."""
    tag = {"env": "tag_continuous", "backend": "pycuda", "n_envs": 2_000, "n_agents": 110, "exact": False}
    found = for_report([record(3e6, point=tag, threads=None)])
    assert len(found["table"].rows) == sum(found["counts"].values()) == len(CLAIMS) + len(own_claims(published()))
    names = [column.name for column in found["table"].columns]
    rows = {cells[0]: dict(zip(names, cells, strict=True)) for cells in found["table"].cells}
    assert rows["Tag runs at millions of steps a second"]["measured / claimed"].startswith("1.5 (")
    scaling = rows["Tag GridWorld scales linearly with agents"]
    assert (scaling["measured"], scaling["verdict"], scaling["run"]) == ("", "not measured yet", "")


def test_claim_without_records_says_what_is_missing():
    """An unmeasured claim names the reason.

    Reasons: no record, no such point, or no possible measurement.
    """
    assert (
        "--run"
        in judge(claim(Query(quantity="Rate", of=replace(FAST, axes=CASES["env_step"].points("full")[0]))), []).why
    )
    nowhere = claim(Query(quantity="Rate", of=replace(FAST, axes={"n_envs": 77})))
    assert judge(nowhere, []).verdict == "not measured yet"
    assert "no preset" in judge(nowhere, []).why
    judged = judge(claim(cannot="there is no such environment"), [on_gpu(1e6)])
    assert (judged.verdict, judged.why) == ("not measurable here", "there is no such environment")
    assert judged.estimate.value == 1e6, "what stands for it is shown all the same"


def test_newest_evidence_decides():
    """The newest valid record decides a claim.

    Older, smoke, contended, wrong and other-version records are ignored.
    """
    records = [
        on_gpu(3e6, started_at="2026-01-02T00:00:00", run_id="good"),
        on_gpu(1e6, started_at="2026-01-01T00:00:00"),
        on_gpu(1e6, started_at="2026-01-03T00:00:00", preset="smoke"),
        on_gpu(1e6, started_at="2026-01-03T00:00:00", passed=False),
        on_gpu(1e6, started_at="2026-01-03T00:00:00", telemetry={"contended": True}),
        on_gpu(1e6, started_at="2026-01-03T00:00:00", case_version=99),
    ]
    judged = judge(claim(), records)
    assert (judged.estimate.value, judged.estimate.run_id) == (3e6, "good")
    assert len(evidence(records)) == 2


def test_ratio_is_of_one_run_and_names_its_baseline():
    """A ratio uses two records of one run."""
    records = [
        on_gpu(1e7, run_id="both", started_at="2026-01-01T00:00:00"),
        record(1e6, point=point("cpu", 100), run_id="both", started_at="2026-01-01T00:00:00"),
        on_gpu(9e7, run_id="one side", started_at="2026-01-02T00:00:00"),
    ]
    records[1] = records[1].model_copy(update={"machine": {"gpu": "NVIDIA H200", "cpu": "some CPU", "cores": 16}})
    judged = judge(claim(Query(quantity="Ratio", of=FAST, over=SLOW), low=8, hardware="A100"), records)
    assert judged.estimate.run_id == "both"
    seen = judged.estimate
    assert (seen.value, seen.low, seen.high) == pytest.approx((10, 10 / 1.21, 12.1))
    assert judged.verdict == "holds on other hardware"
    assert "cpu, 1 thread of some CPU; claimed on A100" in judged.why


def on_card(card: str, rate: float, backend: str, day: int, **changes):
    """Return a GPU's record from the run of a day."""
    when = {"run_id": f"day {day}", "started_at": f"2026-01-0{day}"}
    machine = {"gpu": "NVIDIA H200", "cores": 16, "gpu_uuid_hash": card}
    return record(rate, point=point(backend, 100), threads=None, machine=machine, **when, **changes)


def test_ratio_of_two_cards_decides_nothing():
    """A ratio needs both records on one GPU."""
    over_numba = Query(quantity="Ratio", of=FAST, over=Filter(case="env_step", axes={"backend": "numba"}))
    two = [on_card("first", 9e6, "pycuda", 2), on_card("second", 1e6, "numba", 2)]
    one = [on_card("first", 4e6, "pycuda", 1), on_card("first", 2e6, "numba", 1)]
    judged = judge(claim(over_numba, low=1.5), two + one)
    assert (judged.estimate.run_id, judged.estimate.value) == ("day 1", 2)
    judged = judge(claim(over_numba, low=1.5), two)
    assert (judged.verdict, judged.estimate) == ("not measured yet", None)
    assert judged.why.startswith("its two sides were measured on different GPUs")
    again = on_card("second", 3e6, "pycuda", 2)
    assert judge(claim(over_numba), [*two, again]).estimate.value == 3, "the other card has both sides"
    turned = [each.model_copy(update={"work_per_run": {"env_steps": 1_000}}) for each in two]
    assert over_numba.estimate(turned, [Comparison.of(*turned, [[math.log(9)] * 3] * 4)]) is None


def test_table_has_no_ratio_of_two_cards():
    """The speedup column compares only records of one GPU."""
    near, far = on_card("first", 4e6, "pycuda", 1), on_card("second", 4e6, "pycuda", 1)
    base = on_card("first", 2e6, "numba", 1)
    for found, text in ((near, "2"), (far, NOTHING)):
        assert speedup_column([base, found], "backend", "numba").text(found) == text


@pytest.mark.parametrize("is_turned", [False, True])
def test_ratio_is_that_of_a_comparison_where_there_is_one(is_turned):
    """An interleaved comparison outranks ratios of newer records."""
    work = {"env_steps": 1_000}
    fast = on_gpu(1e7, run_id="turns-a", work_per_run=work)
    slow = record(1e6, point=point("cpu", 100), run_id="turns-b", work_per_run=work)
    change = {"run_id": "newer", "started_at": "2030-01-01"}
    newer = [each.model_copy(update={**change, "id": each.id[::-1]}) for each in (fast, slow)]
    rounds = [[math.log(8)] * 3] * 4
    compared = Comparison.of(fast, slow, rounds)
    if is_turned:
        compared = Comparison.of(slow, fast, [[-each for each in turns] for turns in rounds])
    ratio = Query(quantity="Ratio", of=FAST, over=SLOW, per=2)
    seen = ratio.estimate([fast, slow, *newer], [compared])
    assert (seen.value, seen.low, seen.high) == pytest.approx((4, 4, 4))
    assert seen.records == (fast, slow)
    assert seen.note == "interleaved, 4 rounds of new processes"
    assert ratio.estimate([fast, *newer], [compared]).run_id == "newer", "a comparison needs both of its records"


def beside(times: float, peer: str, day: int = 2, card: str = "first"):
    """Return our record, a peer's record and their interleaved comparison.

    Ours has 8 M env steps/s, `times` the peer's; pairs vary by 1 %.
    """
    ours = on_card("first", 8e6, "pycuda", day).model_copy(
        update={"id": f"ours {peer} {times}", "taken": "in turns with a peer"}
    )
    name, _, variant = peer.partition("-")
    axes = {"peer": name, "variant": variant, "env": "cartpole", "n_envs": 100, "n_agents": 1, "work": "simulate"}
    theirs = on_card(card, 8e6 / times, "", day, case="peer").model_copy(
        update={"id": f"{peer} {times}", "point": axes, "taken": "in turns with ours"}
    )
    logs = [math.log(times * share) for share in (0.99, 1.0, 1.01)]
    return [ours, theirs], Comparison.of(ours, theirs, [[each] for each in logs])


def test_peer_in_turns_goes_before_its_figure_of_another_run():
    """Interleaved runs with a peer outrank its published constant.

    Interleaved with the peer's faster variant, ours is 8x as fast; over the constant 0.5 M it would be 16x. Newer
    interleaved runs of a variant replace older ones; another peer is ignored.
    """
    goal = claim(Query(quantity="Ratio", of=FAST, peer="theirs", theirs=0.5e6), low=10, unit="times")
    sides = [beside(30, "theirs-slow"), beside(4, "theirs-fast", day=1), beside(8, "theirs-fast")]
    records, turns = [each for both, _ in [*sides, beside(2, "others")] for each in both], [each for _, each in sides]
    turns.append(beside(2, "others")[1])
    judged = judge(goal, records, turns)
    assert judged.estimate.value == pytest.approx(8, rel=1e-3)
    assert judged.verdict == "does not hold"
    assert "interleaved, 3 rounds of new processes with theirs fast" in judged.why
    assert judge(goal, records).estimate.value == pytest.approx(16), "without turns the constant is what there is"
    both, apart = beside(8, "theirs", card="second")
    assert judge(goal, both, [apart]).estimate.value == pytest.approx(16), "nor do turns join two cards"


def test_peer_that_was_faster_elsewhere_widens_the_interval():
    """A peer's faster result on the same GPU model lowers the bound.

    Interleaved, ours is 12x; over the peer's 1 M of another run it is 8x, so 10x stays unproven. A 1 M measured on an
    H200 does not affect interleaved runs on an H100. They decide the goal too, as a ratio on one GPU.
    """
    goal = claim(Query(quantity="Ratio", of=FAST, peer="theirs", theirs=1e6), low=10, unit="times")
    records, turns = beside(12, "theirs")
    judged = judge(goal, records, [turns])
    assert (judged.estimate.value, judged.estimate.low) == pytest.approx((12, 8), rel=1e-3)
    assert judged.verdict == "inconclusive"
    assert "compared with WarpDrive's 1 M of another run: 8" in judged.why
    machine = {"gpu": "NVIDIA H100", "cores": 16, "gpu_uuid_hash": "first"}
    elsewhere = judge(
        goal, [each.model_copy(update={"machine": machine, "mode": "fused"}) for each in records], [turns]
    )
    assert elsewhere.verdict == "holds on other hardware"
    assert elsewhere.estimate.low == pytest.approx(12, rel=0.03)


def test_loop_in_python_that_was_faster_beside_another_gpu_widens_the_interval():
    """A Python-bound peer's result on any GPU lowers the bound.

    Such a peer depends on the CPU: its interleaved run may have had a busy core.
    """
    goal = claim(Query(quantity="Ratio", of=FAST, peer="theirs", theirs=1e6), low=10, unit="times")
    records, turns = beside(12, "theirs")
    machine = {"gpu": "NVIDIA H100", "cores": 16, "gpu_uuid_hash": "first"}
    judged = judge(goal, [each.model_copy(update={"machine": machine}) for each in records], [turns])
    assert (judged.estimate.value, judged.estimate.low) == pytest.approx((12, 8), rel=0.03)
    assert "compared with WarpDrive's 1 M of another run: 8" in judged.why


def test_remarks_on_what_is_timed_in_laps_tell_how_slow_the_cores_were():
    """Timings by fastest laps carry a remark about slow cores.

    Fastest laps confirm each other even on a busy core.
    """
    host = Host(load_before=0.1, pinned_cores=None, loop_ns=[300_000, 630_000])
    confirmed = record(notes={"undisturbed_rounds": 1}, samples_ns=[1.0], host=host)
    assert remarks(confirmed) == []
    laps = confirmed.model_copy(update={"notes": {**confirmed.notes, "laps": "of each the fastest counts"}})
    assert remarks(laps) == ["the cores varied: one Python loop took 1 to 2.1 times its shortest time"]


def test_efficiency_is_the_ratio_over_what_was_put_in():
    """`per` divides a ratio by the added resources.

    Ten times the environments at eight times the rate are 0.8 of linear.
    """
    ten = replace(FAST, axes=FAST.axes | {"n_envs": 1000})
    seen = Query(quantity="Ratio", of=ten, over=FAST, per=10).estimate([on_gpu(1e6), on_gpu(8e6, n_envs=1000)])
    assert seen.value == pytest.approx(0.8)


def test_traffic_is_bytes_over_agent_steps():
    """Traffic is PCIe bytes, both directions, per agent step."""
    telemetry = {"gpm": {"pcie_received_mib_per_s": 1.0, "pcie_sent_mib_per_s": 3.0}}
    traffic = Query(quantity="Traffic", of=FAST)
    seen = traffic.estimate([on_gpu(4 * 2**20, telemetry=telemetry)])
    assert seen.value == pytest.approx(1.0)
    assert traffic.estimate([on_gpu(1e6)]) is None, "the GPU did not count"
    at_most = claim(traffic, low=0.5, bound="at most")
    assert judge(at_most, [on_gpu(4 * 2**20, telemetry=telemetry)]).verdict == "does not hold"
    assert judge(at_most, [on_gpu(16 * 2**20, telemetry=telemetry)]).verdict == "holds"


def learned(n_envs: int, seconds: list[float | None], after: float = 500.0, **more):
    """Return a `learn` record for each seed."""
    changes = {"case_version": CASES["learn"].version, "point": {"n_envs": n_envs, **more}}
    return [seed_record(seed, value, after, **changes) for seed, value in enumerate(seconds)]


TEN = Filter(case="learn", axes={"n_envs": 10, "precision": None})


def query(quantity, of=TEN, **more) -> Query:
    """Return a query of time to the threshold."""
    return Query(quantity=quantity, of=of, metric="seconds_to_threshold", **more)


def test_time_to_learn_is_the_median_over_all_seeds():
    """Seeds that miss the threshold count as infinitely slow.

    If half of them miss it, there is no median.
    """
    seen = query("Learned").estimate(learned(10, [1.0, 9.0, None]))
    assert (seen.value, seen.low, seen.high) == (9.0, 1.0, math.inf)
    assert seen.note == "median of 3 seeds; 1 did not reach it"
    assert query("Learned").estimate(learned(10, [1.0, None])) is None


def test_time_to_learn_needs_enough_seeds():
    """Runs with too few seeds are ignored."""
    five = query("Learned", n_seeds=5)
    two = [each.model_copy(update={"run_id": "newer", "started_at": "2030-01-01"}) for each in learned(10, [1.0, 1.0])]
    assert five.estimate([*learned(10, [3.0] * 5), *two]).value == 3.0
    assert five.estimate(two) is None
    assert five.estimate(learned(10, [3.0] * 4) * 2) is None, "eight records of four seeds"


def test_time_to_learn_without_bound_decides_nothing():
    """A failed seed leaves the claim inconclusive.

    The median of 9 s meets "at most 10 s", but the interval has no upper end.
    """
    slow = claim(query("Learned"), low=10, bound="at most", hardware="host")
    judged = judge(slow, learned(10, [1.0, 9.0, None]))
    assert judged.verdict == "inconclusive"
    assert to_dict(judged)["measured"]["high"] is None
    assert judge(slow, learned(10, [1.0, 9.0, 9.5])).verdict == "holds"


def test_select_tells_an_absent_axis():
    """A filter's None excludes records that have the axis.

    TF32 records have the axis `precision`; fp32 records lack it.
    """
    records = learned(10, [1.0, 1.0, 1.0]) + learned(10, [5.0, 5.0, 5.0], precision="tf32")
    assert query("Learned").estimate(records).value == 1.0
    tf32 = replace(TEN, axes=TEN.axes | {"precision": "tf32"})
    assert query("Learned", tf32).estimate(records).value == 5.0
    assert len(points(Filter(case="learn", axes={"env": "cartpole", "n_envs": 2_048, "precision": None}))) == 20


@pytest.mark.parametrize("how", ["counted", "told"])
def test_time_to_learn_on_a_shared_gpu_is_no_evidence(how):
    """A shared GPU invalidates times, but not reached thresholds."""
    alone = learned(10, [2.0] * 5)
    shared = {"host": Host(load_before=0.0, pinned_cores=None, gpu_users=1)}
    if how == "told":
        shared = {"notes": {"note": "several runs of learn shared the GPU: of times only their order counts"}}
    together = [each.model_copy(update=shared) for each in alone]
    slow = claim(query("Learned", n_seeds=5), bound="at most", low=3, hardware="host")
    assert judge(slow, alone).verdict == "holds"
    assert (judge(slow, together).verdict, judge(slow, together).estimate) == ("not measured yet", None)
    assert "other processes used the GPU" in judge(slow, together).why
    assert query("Reached", n_seeds=5).estimate(together).value == 5


def test_times_sooner_divides_the_medians():
    """`TimesSooner` divides the medians of two times."""
    many = replace(TEN, axes={"n_envs": 1_000})
    records = learned(10, [5.0, 6.0, 7.0]) + learned(1_000, [1.0, 2.0, 3.0])
    sooner = query("TimesSooner", many, over=TEN)
    in_seconds = sooner.estimate(records)
    assert (in_seconds.value, in_seconds.low, in_seconds.high) == pytest.approx((3, 5 / 3, 7))
    in_iterations = sooner.model_copy(update={"metric": "env_steps_to_threshold", "per_env": True})
    assert in_iterations.estimate(records).value == pytest.approx(300)


@pytest.mark.parametrize(
    ("seconds", "verdict", "note"),
    [
        ([1.0] * 5, "holds", ""),
        ([1.0] * 4, "inconclusive", "4 of 5 seeds are measured"),
        ([1.0] * 4 + [None], "does not hold", ""),
        ([1.0] * 3 + [None], "does not hold", "4 of 5 seeds are measured"),
    ],
    ids=["all", "one not measured", "one missed", "one missed, one not measured"],
)
def test_every_seed_must_learn(seconds, verdict, note):
    """One missed threshold fails; a missing seed decides nothing."""
    every = claim(query("Reached", n_seeds=5), low=5, hardware="host")
    judged = judge(every, learned(10, seconds))
    assert (judged.verdict, judged.estimate.note) == (verdict, note)
    assert judge(every, []).estimate is None


def test_seeds_that_play_worse_afterwards_are_told():
    """A low evaluation after training is only reported.

    The claim concerns the exploring policy, which reached the threshold.
    """
    judged = judge(claim(query("Reached", n_seeds=2), low=2, hardware="host"), learned(10, [1.0, 1.0], after=300.0))
    assert judged.verdict == "holds"
    assert "evaluated after training, 2 of 2 are below it" in judged.why


def test_rate_over_a_published_one_is_a_number_of_times():
    """A ratio to a published rate has our record's interval."""
    tenfold = claim(Query(quantity="Ratio", of=FAST, theirs=0.2e6, unpaired="of another run"), low=10, unit="times")
    seen = judge(tenfold, [on_gpu(2e6)]).estimate
    assert seen.note == "of another run"
    assert (seen.value, seen.low, seen.high) == pytest.approx((10, 10 / 1.1, 11))
    assert judge(tenfold, [on_gpu(3e6)]).verdict == "holds"


def test_claim_about_several_gpus_says_how_many_it_needs():
    """A claim about four ranks asks for four GPUs."""
    four, one = (Filter(case="scaling", axes={"backend": "pycuda", "n_ranks": n}) for n in (4, 1))
    judged = judge(claim(Query(quantity="Ratio", of=four, over=one, per=4)), [])
    assert (judged.verdict, judged.why) == ("not measured yet", "not measured here; needs 4 GPUs")


def test_own_claim_needs_another_run():
    """Only a later run confirms our own claim."""
    best, other = on_gpu(2e6, run_id="first"), on_gpu(1e6, n_envs=10, run_id="first")
    (own,) = own_claims([best, other])
    assert (own.low, own.made_by) == (2e6, "first")
    alone = judge(own, [best, other])
    assert alone.verdict == "not repeated yet"
    assert "only run first" in alone.why
    assert judge(own, [best, on_gpu(2.1e6, run_id="second")]).verdict == "holds"
    assert judge(own, [on_gpu(1.5e6, run_id="second")]).verdict == "does not hold"
    earlier = on_gpu(1.5e6, run_id="before", started_at="2000-01-01T00:00:00+00:00")
    assert judge(own, [best, earlier]).verdict == "not repeated yet"


@pytest.mark.parametrize(
    ("now", "verdict"), [(3e6, "holds"), (2.1e6, "holds"), (1.9e6, "inconclusive"), (1.5e6, "does not hold")]
)
def test_own_claim_is_held_against_the_newest_run(now, verdict):
    """The newest run must match the published value."""
    years = ("2001", "2002", "2003")
    runs = [
        on_gpu(rate, run_id=f"of {year}", started_at=f"{year}-01-01T00:00:00+00:00")
        for rate, year in zip((9e6, 2e6, now), years, strict=True)
    ]
    (own,) = own_claims(runs)
    assert (own.low, own.made_by) == (2e6, "of 2002")
    assert judge(own, runs).verdict == verdict


def test_own_claim_is_what_another_run_has_on_the_same_hardware():
    """Own claims prefer hardware with two runs."""
    slow = [on_gpu(2e6, run_id=name, started_at=f"{name}-01-01T00:00:00+00:00") for name in ("2001", "2002")]
    fast = on_gpu(9e6, run_id="2003", started_at="2003-01-01T00:00:00+00:00")
    fast = fast.model_copy(update={"machine": fast.machine | {"gpu": "another"}})
    (own,) = own_claims([*slow, fast])
    assert (own.low, own.made_by, judge(own, [*slow, fast]).verdict) == (2e6, "2001", "holds")
    (own,) = own_claims([slow[0], fast])
    assert (own.low, own.hardware) == (9e6, "another")


def test_own_claim_of_learning_needs_every_seed():
    """An own learning claim needs all seeds in one precision."""
    five = learned(10, [3.0] * len(SEEDS))
    records = five + learned(20, [1.0, 1.0]) + learned(10, [2.0], precision="tf32")
    (own,) = own_claims(records)
    assert own.low == 3.0
    assert own.name == "learn: cartpole, host, n_envs 10, PPO, shared, threshold 475"


def test_ledger_names_points_that_the_suite_has():
    """Each claim names points of a preset, or a reason."""
    assert all(each.query is not None or each.cannot for each in CLAIMS)
    assert len({each.name for each in CLAIMS}) >= len(CLAIMS) - 2
    missing = {each.name for each in CLAIMS if each.query is not None and not all(map(points, each.query.filters))}
    assert missing == set()


NUMBER = re.compile(r"(\d[\d,.]*\d|\d)( million)?")


def test_claims_about_the_time_to_learn_leave_whole_runs_out():
    """Claims about learning exclude complete runs and populations.

    Complete runs are not timed; a population has other seeds.
    """
    queries = [each.query for each in CLAIMS if each.query is not None]
    filters = [of for query in queries for of in (query.of, query.over) if of is not None and of.case == "learn"]
    assert filters
    for of in filters:
        assert {"until": None, "population": None}.items() <= of.axes.items()


def quoted_numbers(claim: Claim) -> set[float]:
    found = NUMBER.findall(claim.quote)
    return {float(digits.replace(",", "")) * (1e6 if million else 1) for digits, million in found}


OF_OTHERS = [each for each in CLAIMS if each.source != "goals of this project"]


@pytest.mark.parametrize("bound", ["low", "high"])
def test_ledger_keeps_to_the_words_that_it_quotes(bound):
    """A claim's figures appear in its quotation.

    Otherwise the claim is marked as read from words or a chart.
    """
    for each in OF_OTHERS:
        figure = getattr(each, bound)
        assert each.quote or each.reading or each.cannot, each.name
        if figure is not None and not each.reading:
            assert figure in quoted_numbers(each), each.name


def test_ledger_says_at_least_and_about_where_its_source_does():
    """A claim's bound matches the wording of its quotation.

    Quoted ranges have two figures; readings from charts are exempt.
    """
    words = {"at least": ("at least", "over"), "at most": ("at most", "up to"), "about": ("about", "~", "roughly")}
    for each in OF_OTHERS:
        if each.bound and not each.reading:
            assert any(word in each.quote for word in words[each.bound]), each.name
        for word, said in words.items():
            if any(phrase in each.quote for phrase in said) and not each.reading and each.high is None:
                assert each.bound == word, each.name
        assert (each.high is not None) == bool(re.search(r"\d[xX]?-\d", each.quote)), each.name


def test_quoted_numbers_by_hand():
    """Quoted numbers include commas, millions and both range ends."""
    quote = "2.9 million steps with 2000 environments, 7-8X, 1.5x-3x, 10-fold and 16,384"
    assert quoted_numbers(claim(quote=quote)) == {2.9e6, 2000, 7, 8, 1.5, 3, 10, 16384}


def test_ledger_links_every_source():
    """Each source has an address, and each address a source."""
    assert {each.source for each in CLAIMS} == set(LINKS)
    assert all(re.fullmatch(r"https://[^ ]+|#[a-z]+", link) for link in LINKS.values())


def test_ledger_has_every_row_of_the_reference():
    """Each published `train` rate is a goal.

    PureJaxRL's rates are goals in TF32 too.
    """
    goals = [each for each in CLAIMS if each.source == "goals of this project" and each.query]
    for anchor in ANCHORS:
        if anchor.env_steps_per_s is not None:
            fitting = [
                each.query.of.axes["precision"] for each in goals if anchor.axes.items() <= each.query.of.axes.items()
            ]
            assert "fp32" in fitting, anchor
            assert anchor.by != "PureJaxRL" or "tf32" in fitting, anchor


TRANSITIONS = [each for each in CLAIMS if each.name.endswith("training sends nothing over PCIe")]


@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda each: each.name)
def test_ledger_knows_what_a_transition_is(transition):
    """A transition's bytes match the env's arrays.

    The bound is a hundredth of these bytes; a number has four.
    """
    env, n_agents = (transition.query.of.axes[axis] for axis in ("env", "n_agents"))
    wrapper = EnvWrapper(ENVS[env](**env_config(env, n_agents)), num_envs=1, env_backend="cpu", auto_reset=True)
    wrapper.reset_all_envs()
    pull = wrapper.cuda_data_manager.pull_data_from_device
    n_floats = sum(pull(name)[0, 0].size for name in ("observations", "sampled_actions", "rewards"))
    assert transition.low == pytest.approx(n_floats * 4 / 100)
    assert f"are {n_floats} numbers" in transition.reading


def test_ledger_asks_for_what_case_learn_has():
    """Each task of `learn` is a goal with all seeds."""
    of_learn = [each for each in CLAIMS if each.query and each.query.of.case == "learn"]
    assert {each.query.n_seeds for each in of_learn} == {len(SEEDS)}
    goals = [each.query.of.axes for each in of_learn if each.query.quantity == "Reached"]
    names = ("env", "algorithm", "n_envs", "learner", "threshold")
    assert [tuple(axes[name] for name in names) for axes in goals] == [
        tuple(getattr(task, name) for name in names) for task in TASKS
    ]


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("low = 24", 'low = "many"', ["COVID-19 economy in 60 environments", "low", "many"]),
        ("low = 24", "low = 24\nlwo = 1", ["COVID-19 economy in 60 environments", "lwo"]),
        ("over {threads}", "over {threds}", ["over {threds}", "'threds'"]),
        (', until = "{until}"', "", ["axes of learn", "(got until)"]),
    ],
    ids=["type", "unknown field", "unknown value of a row", "axis that is not there"],
)
def test_broken_claim_names_file_claim_and_field(tmp_path, before, after, names):
    """Errors name the ledger file, the claim and the field."""
    file = tmp_path / "claims.toml"
    file.write_text(FILE.read_text().replace(before, after))
    with pytest.raises(LedgerError) as error:
        _ = Ledger(file).claims
    assert all(name in str(error.value) for name in [str(file), *names])


def test_command_prints_every_claim():
    """Table, JSON and Markdown list the claims with a reason."""
    table, as_json, markdown = (
        bench("claims", "--records", ONE_SWEEP, *flags, COLUMNS="240") for flags in ([], ["--json"], ["--markdown"])
    )
    found = json.loads(as_json)
    assert {each["verdict"] for each in found} >= {
        "holds, few processes",
        "does not hold, few processes",
        "other hardware",
    }
    assert all(each["why"] for each in found)
    assert all(each["verified_by"] or each["verdict"] == "not measurable here" for each in found)
    assert "not measurable here" in table
    summary, rows, footnote = markdown.strip().split("\n\n")
    assert all(line.count("|") >= 9 for line in rows.splitlines())
    assert footnote == "\N{DAGGER} " + FOOTNOTES["\N{DAGGER}"]
    others = sum(claim.source.startswith("WarpDrive") for claim in CLAIMS)
    counts = [int(re.search(rf"(\d+) of {others}", line)[1]) for line in summary.splitlines()[:5]]
    assert sum(counts) == others, "each claim is in one of the first five lines"
    assert len(summary.splitlines()) == 10


def test_archive_decides_what_a_set_lacks(tmp_path, monkeypatch):
    """Archived records decide claims that the published set lacks."""
    (tmp_path / "empty.jsonl").touch()
    monkeypatch.setattr("bench.judge.published.command.published_records", lambda: [tmp_path])
    monkeypatch.setattr("bench.judge.published.command.past_records", lambda: [ONE_SWEEP])
    assert json.loads(bench("claims", "--json")) == json.loads(bench("claims", "--records", ONE_SWEEP, "--json"))


@pytest.mark.parametrize("has_gpu", [True, False])
def test_command_measures_what_this_machine_can(tmp_path, monkeypatch, has_gpu):
    """`--run` measures available points and names missing backends."""
    there, absent = availability()["cpu"], Availability(False, "no GPU")
    monkeypatch.setattr(
        "bench.judge.published.command.availability",
        lambda: {"cpu": there, "host": there, "pycuda": there if has_gpu else absent, "numba": absent},
    )
    monkeypatch.chdir(tmp_path)  # where nothing is published
    seen = []

    def sweep(todo, context, file, runner):
        seen.extend(todo)
        for job in todo:
            version = CASES[job.case.name].version
            append(file, record(1e6, case=job.case.name, case_version=version, point=dict(job.point)))
            yield read_all([file])[-1]

    monkeypatch.setattr("bench.process.sweep.run", sweep)
    said, _, printed = bench("claims", "--run", "--source", "README", "--json", "--out", tmp_path).rpartition("\n[")
    found = {each["name"]: each["verdict"] for each in json.loads(f"[{printed}")}
    over_numpy = found["cartpole: throughput over NumPy on 1 thread"]
    if has_gpu:
        assert {"cpu", "host", "pycuda"} == {job.point["backend"] for job in seen}
        assert over_numpy == "does not hold on other hardware", "both sides have the same rate"
    else:
        assert seen == []
        assert over_numpy == "not measured yet"
        assert "not measured: claims that need backend pycuda" in said
