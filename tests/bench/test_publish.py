"""Published sets: made at once or in parts, verified and read."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import replace

import pytest

from bench import publish
from bench.core import case, machine
from bench.core.errors import Code
from bench.core.point import Point, matches, point_name
from bench.core.record import ALONE, Comparison, Context, append, read_all, read_comparisons
from bench.doctor import Finding
from bench.judge.evidence import name_of
from bench.peers import search, sides
from bench.peers.command import chosen
from bench.process import interleaved, local
from bench.process.worker import WorkerError
from bench.publish import UNSEARCHED
from bench.show import sets
from bench.show.sets import (
    COMPARISONS,
    CRATE,
    MANIFEST,
    RECORDS,
    SetError,
    newest_sets,
    past_records,
    published_records,
    read_manifest,
    verify,
)
from bench.show.views.overview import overview
from bench.workloads import cases
from tests.bench.builders import bench, metric, record

SMOKE = ["case=env_step", "env=cartpole", "backend=cpu", "backend=host"]
CLEAN = {"sha": "0123456789abcdef", "dirty": False, "diff_hash": None}


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Return a function that publishes smoke points.

    The machine passes as healthy.
    """
    jobs = cases.jobs("smoke", SMOKE)
    monkeypatch.setattr(
        publish,
        "jobs",
        lambda preset, where=(): [job for job in jobs if matches({"case": "env_step", **job.point}, where)],
    )
    first, other = (job.point for job in jobs[:2])
    env_step = replace(jobs[0].case, pairs=lambda preset: [(first, other)])
    monkeypatch.setattr(publish, "CASES", {"env_step": env_step})
    monkeypatch.setattr(publish, "is_claimed", lambda *_: True)
    monkeypatch.setattr(publish, "chosen", lambda *_: [])
    monkeypatch.setattr(machine, "git_state", lambda root: CLEAN)
    monkeypatch.setattr(publish.doctor, "examine", lambda: [Finding("GPU", "note", "none")])

    def run(*more: str, preset: str = "smoke", exits: int = 0) -> str:
        return bench("publish", "--preset", preset, "--out", tmp_path / "sets", *more, exits=exits)

    return run


def folder_in(tmp_path):
    (folder,) = (tmp_path / "sets").iterdir()
    return folder


def test_set_is_made_stopped_and_gone_on_with(here, tmp_path):
    """A second call resumes an unfinished set."""
    stopped = here("--until-s", "0", exits=Code.UNFINISHED)
    assert "`python -m bench publish --preset smoke` continues" in stopped
    folder = folder_in(tmp_path)
    (first,) = read_all([folder / RECORDS])
    assert read_manifest(folder).finished_at is None
    assert newest_sets(tmp_path) == []
    here()
    records = read_all([folder / RECORDS])
    assert records[0] == first
    points = [job.point for job in publish.jobs("smoke")]
    assert [record.point for record in records] == points + points[:2]
    (comparison,) = read_comparisons([folder / COMPARISONS])
    assert (comparison.a, comparison.b) == (records[-2].id, records[-1].id)
    manifest = read_manifest(folder)
    assert {record.run_id for record in records} == {manifest.run_id}
    assert (manifest.commit, manifest.preset, manifest.failed) == (CLEAN["sha"], "smoke", {})
    assert folder.name == f"{machine.kind(manifest.machine)}-{CLEAN['sha'][:7]}"
    assert {RECORDS, COMPARISONS, "tables.md", CRATE} == set(manifest.files)
    crate = {each["@id"]: each for each in json.loads((folder / CRATE).read_text())["@graph"]}
    assert all((folder / part["@id"]).exists() and part["@id"] in crate for part in crate["./"]["hasPart"])
    assert {RECORDS, MANIFEST} < {part["@id"] for part in crate["./"]["hasPart"]}
    assert crate["#warpdrive-min"]["version"] == CLEAN["sha"]
    assert list((folder / "figures").glob("*.png"))
    assert "backend pycuda" in manifest.skipped
    (tmp_path / "sweeps").mkdir()
    assert (published_records(tmp_path), past_records(tmp_path)) == ([folder], [tmp_path / "sweeps"])
    assert "was finished at" in here()


def test_set_of_points_at_once_is_stopped_and_gone_on_with(here, monkeypatch, tmp_path):
    """A stopped set with concurrent points resumes without repeats."""
    monkeypatch.setattr(local, "is_on_gpu", lambda job: True)
    here("--at-once", "2", "--until-s", "0", exits=Code.UNFINISHED)
    (first,) = read_all([folder_in(tmp_path) / RECORDS])
    here("--at-once", "2", "--skip", "pairs", "--skip", "figures")
    records = read_all([folder_in(tmp_path) / RECORDS])
    assert records[0] == first
    assert [record.notes["at_once"] for record in records] == [2] * len(publish.jobs("smoke"))
    assert sorted(map(name_of, records)) == sorted(
        point_name(job.case.name, job.point) for job in publish.jobs("smoke")
    )


def test_pairs_that_were_measured_together_are_all_kept(here, monkeypatch, tmp_path):
    """A set that stops after a batch of rounds has the comparisons of all its pairs."""
    points = [job.point for job in publish.jobs("smoke")]
    (env_step,) = publish.CASES.values()
    both = replace(env_step, pairs=lambda preset: [(points[0], points[1]), (points[1], points[0])])
    monkeypatch.setattr(publish, "CASES", {"env_step": both})
    options = ["--skip", "sweep", "--at-once", "4"]
    assert "the next measurement may take" in here(*options, "--until-s", "0", exits=Code.UNFINISHED)
    assert len(read_comparisons([folder_in(tmp_path) / COMPARISONS])) == 2


@pytest.mark.nightly
def test_pair_is_measured_whole_before_the_clock_is_asked(here, monkeypatch, tmp_path):
    """Even without time left a call saves a pair of several rounds."""
    monkeypatch.setitem(interleaved.ROUNDS, "smoke", 3)
    options = ["--skip", "sweep", "--skip", "figures", "--skip", "tables"]
    here(*options, "--until-s", "0", exits=Code.UNFINISHED)
    (comparison,) = read_comparisons([folder_in(tmp_path) / COMPARISONS])
    assert len(comparison.log_ratios) == 3


def two_environments(monkeypatch) -> tuple[list[Point], list[Point]]:
    """Publish points of a second environment too, and return those of both."""
    first, last = publish.jobs("smoke"), cases.jobs("smoke", ["case=env_step", "env=pendulum", "backend=cpu"])
    monkeypatch.setattr(publish, "jobs", lambda preset, where=(): first + last)
    return [job.point for job in first], [job.point for job in last]


def test_shards_of_a_set_share_its_points(here, monkeypatch, tmp_path):
    """Each shard measures its own points, those of a case and an environment together."""
    first, last = two_environments(monkeypatch)
    for shard, points in (("2/2", last), ("1/2", last + first)):
        here("--shard", shard, exits=Code.UNFINISHED)
        alone = [record.point for record in read_all([folder_in(tmp_path) / RECORDS]) if record.taken == ALONE]
        assert alone == points
        assert newest_sets(tmp_path) == []
    here()
    assert len(read_comparisons([folder_in(tmp_path) / COMPARISONS])) == 1
    assert len({record.run_id for record in read_all([folder_in(tmp_path) / RECORDS])}) == 1


@pytest.mark.parametrize(
    ("codes", "exits"), [((4, 4, 0), Code.OK), ((4, 4, 1), 1), ((4, 3), Code.NOTHING), ((0, 0, 0), Code.OK)]
)
def test_shards_run_at_once_and_then_the_rest(monkeypatch, tmp_path, codes, exits):
    """Each shard has a GPU and its cores; the rest has all GPUs and the first share."""
    cores, started, ended = set(range(6)), [], iter(codes)

    class Fake:
        def __init__(self, words, env):
            started.append((words[words.index("publish") :], env.get("CUDA_VISIBLE_DEVICES"), sorted(cores)))

        def wait(self):
            return next(ended)

    monkeypatch.setattr(publish, "Child", Fake)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, some: (cores.clear(), cores.update(some)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    words = ["--preset", "smoke", "--shards", "2", "--at-once", "8", "--out", str(tmp_path)]
    said = bench("publish", *words, exits=exits)
    rest = [] if exits == Code.NOTHING else [(["publish", *words, "--shard", "0/2"], "3,5", [0, 1, 2])]
    shards = [(["publish", *words, "--shard", f"{k + 1}/2"], "35"[k], [[0, 1, 2], [3, 4, 5]][k]) for k in range(2)]
    assert started == [*shards, *rest]
    assert ("shard 2/2 has failed (exit code 3)" in said) == (exits == Code.NOTHING)


def test_shards_need_gpus_and_equal_shares_of_the_cores(monkeypatch):
    """Shards do not share a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    said = bench("publish", "--shards", "3", exits=Code.NOTHING)
    assert "publish --shards 3: needs as many GPUs, and cores that can be shared equally (got 2 and " in said


def test_shards_on_gpus_leave_points_on_the_cpu(here, monkeypatch, tmp_path):
    """Shards on GPUs measure no point on the CPU."""
    get = Context.here
    monkeypatch.setattr(
        Context, "here", lambda *given: replace(got := get(*given), machine={**got.machine, "gpu": "a card"})
    )
    here("--shard", "1/2", exits=Code.UNFINISHED)
    assert not [record for record in read_all([folder_in(tmp_path) / RECORDS]) if record.taken == ALONE]


def test_points_of_several_cards_are_left_to_the_last_step():
    """They are those of scaling, and of repetitions on another card."""
    found = {
        (job.case.name, job.point.get("variation")) for job in publish.jobs("paper") if publish.takes_several_cards(job)
    }
    assert found == {("scaling", None), ("determinism", "card")}


def test_processes_of_a_point_are_passes_over_all_points(here, monkeypatch, tmp_path):
    """Each pass measures every point; a shard has all processes of its points."""
    briefs = list[bool]()
    measure = case.Timed.measure
    monkeypatch.setattr(
        case.Timed, "measure", lambda self, plan: (briefs.append(not plan.has_reference_run), measure(self, plan))[1]
    )
    monkeypatch.setattr(local, "start", None)  # this process sees the plans
    first, last = two_environments(monkeypatch)
    words = ("--processes", "3", "--skip", "pairs", "--skip", "figures")
    here(*words, "--shard", "2/2", exits=Code.UNFINISHED)
    folder = folder_in(tmp_path)
    assert [record.point for record in read_all([folder / RECORDS])] == last * 3
    here(*words)
    assert [record.point for record in read_all([folder / RECORDS])] == last * 3 + first * 3
    assert briefs == [brief for of in (last, first) for brief in [True] * 2 * len(of) + [False] * len(of)]
    assert read_manifest(folder).processes == 3
    assert "has 3 processes of each point (got 1)" in here(exits=Code.NOTHING)


def test_process_that_failed_is_not_hidden_by_others(here, monkeypatch, tmp_path):
    """A point lacks a process until a later call measures it."""
    n_failed = 0
    setup = publish.jobs("smoke")[0].case.setup

    def fails_once(point):
        nonlocal n_failed
        if point["backend"] == "host" and not n_failed:
            n_failed += 1
            raise RuntimeError("out of luck")
        return setup(point)

    jobs = publish.jobs
    monkeypatch.setattr(
        publish, "jobs", lambda *given: [replace(job, case=replace(job.case, setup=fails_once)) for job in jobs(*given)]
    )
    monkeypatch.setattr(local, "start", None)
    words = ("--processes", "2", "--skip", "pairs", "--skip", "figures")
    assert "out of luck" in here(*words, exits=1)
    assert len(read_manifest(folder_in(tmp_path)).failed) == 1
    here(*words)
    assert read_manifest(folder_in(tmp_path)).failed == {}


def test_set_of_chosen_points_has_no_others(here, tmp_path):
    """A set of chosen points has no others."""
    here("--case", "env_step", "--where", "backend=host", "--peer", "gymnax")
    folder = folder_in(tmp_path)
    assert {record.point["backend"] for record in read_all([folder / RECORDS])} == {"host"}
    assert not (folder / COMPARISONS).exists(), "a pair of which one side was not chosen"
    manifest = read_manifest(folder)
    assert manifest.chosen == ["case=env_step", "backend=host", "peer=gymnax"]
    assert manifest.command.endswith("--case env_step --where backend=host --peer gymnax")
    said = here(exits=Code.NOTHING)
    assert "has case=env_step backend=host peer=gymnax (got all points)" in said
    assert "unknown (known: " in here("--where", "backend=abacus", exits=2)


def test_set_of_chosen_points_hides_no_set_of_all(here, monkeypatch, tmp_path):
    """Documents prefer complete sets to newer chosen sets."""
    here()
    whole = folder_in(tmp_path)
    monkeypatch.setattr(machine, "git_state", lambda root: {**CLEAN, "sha": "fedcba9876543210"})
    here("--where", "backend=host")
    (chosen,) = set((tmp_path / "sets").iterdir()) - {whole}
    assert read_manifest(chosen).finished_at >= read_manifest(whole).finished_at
    assert newest_sets(tmp_path) == [whole]
    shutil.rmtree(whole)
    assert newest_sets(tmp_path) == [chosen]
    monkeypatch.setattr(machine, "git_state", lambda root: {**CLEAN, "sha": "0011223344556677"})
    here("--where", "backend=host")
    (later,) = set((tmp_path / "sets").iterdir()) - {chosen}
    assert set(newest_sets(tmp_path)) == {chosen, later}


@pytest.fixture
def peers_here(here, monkeypatch, tmp_path):
    """Return a function that publishes a peer and returns measured variants.

    The peer is searched. The variants take 10 s, 11 s, ... to a solution; some fail, with or without a failed check.
    """
    jobs = next(each for each in search.groups(chosen("paper", ["cleanrl"], [])) if search.is_searched(each))
    variants, versions, measured = [job.axes["variant"] for job in jobs], {"cleanrl": "1.0"}, list[str]()
    kind = machine.kind(Context.here("smoke").machine)

    def solved(job, run_id="search"):
        seconds = 10.0 + variants.index(job.axes["variant"])
        fields = {
            "run_id": run_id,
            "preset": "smoke",
            "scope": "startup",
            "machine": Context.here("smoke").machine,
            "taken": sides.TAKEN,
            "metrics": {"total_s": metric(seconds), "ours_total_s": metric(1.0), "ours_over_peer": metric(seconds)},
            "notes": {"ours": {"case": "", "point": {}}, "version": "1.0", "versions": versions, "samples_s": {}},
        }
        return record(case=job.case, point=job.point, **fields)

    for job in jobs:
        append(tmp_path / "searches" / f"{kind}.jsonl", solved(job))
    monkeypatch.setattr(publish, "chosen", lambda *_: jobs)
    monkeypatch.setattr(search, "versions", lambda job, run: versions)

    def run(failed: dict[str, bool], *more: str, exits: int = 1) -> list[str]:
        def measure_each(todo, run, at_once):
            for job in todo:
                variant = job.axes["variant"]
                measured.append(variant)
                if variant in failed:
                    kind = sides.WrongResultError if failed[variant] else WorkerError
                    yield job, [sides._unmeasured(job, run, kind("Died", "out of luck"))], None
                else:
                    theirs, mine = solved(job, run.context.run_id), record(1.0, run_id=run.context.run_id)
                    yield job, [theirs, mine], Comparison.of(mine, theirs, [[1.0], [2.0]])
                run.after_batch()

        monkeypatch.setattr(sides, "measure_each", measure_each)
        measured.clear()
        skipped = [word for step in ("sweep", "pairs", "search", "figures") for word in ("--skip", step)]
        here(*skipped, *more, exits=exits)
        return list(measured)

    run.variants = variants
    return run


def failures_in(tmp_path) -> dict[str, str]:
    """Return the reason of each failed variant in the manifest."""
    failed = read_manifest(folder_in(tmp_path)).failed
    return {re.search(r"variant=([\w-]+)", name)[1]: reason for name, reason in failed.items()}


def test_next_fastest_variant_is_measured_if_the_fastest_fails_its_check(peers_here, tmp_path):
    """The manifest names both, and tables show the one that passed."""
    first, second, third, *_ = peers_here.variants
    wrong = {first: True, second: True}
    assert peers_here(wrong) == [first, second, third]
    reason = f"out of luck; fastest variant that passed: {third}"
    assert failures_in(tmp_path) == {first: reason, second: reason}
    (line,) = overview(read_all([folder_in(tmp_path) / RECORDS])).rows
    assert line.software == f"12 s: cleanrl 1.0, {third}"
    assert peers_here(wrong) == [], "no failed variant is tried again"
    assert failures_in(tmp_path) == {first: reason, second: reason}


def test_peer_whose_settings_are_not_searched_is_skipped(peers_here, tmp_path):
    """An untried setting could be faster, so a ratio to another one may flatter ours."""
    (file,) = (tmp_path / "searches").iterdir()
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[1:]))
    assert peers_here({}, exits=0) == []
    skipped = read_manifest(folder_in(tmp_path)).skipped
    assert [reason for name, reason in skipped.items() if "cleanrl" in name] == [UNSEARCHED]
    file.write_text("".join(lines))
    assert peers_here({}, exits=0) == peers_here.variants[:1]
    file.write_text("".join(lines[1:]))
    assert peers_here({}, exits=0) == []
    assert "cleanrl" not in str(read_manifest(folder_in(tmp_path)).skipped), "it was measured by the other file"


@pytest.mark.parametrize("search_failed", [False, True])
def test_ratio_to_a_peer_without_a_search_is_not_kept(peers_here, tmp_path, monkeypatch, search_failed):
    """A first setting does not pass for the fastest one.

    After a search the set is complete.
    """
    (file,) = (tmp_path / "searches").iterdir()
    searched, first = read_all([file]), peers_here.variants[0]
    file.unlink()
    with monkeypatch.context() as patch:
        if search_failed:
            for each in searched:
                append(file, each.model_copy(update={"status": "failed", "reason": "Died"}))
        else:
            patch.setattr(search, "_versions", lambda job, run: None)
        assert peers_here({}, exits=0) == [first]
        assert UNSEARCHED in read_manifest(folder_in(tmp_path)).skipped.values()
    file.unlink(missing_ok=True)
    for place, each in enumerate(searched):  # now the last one is the fastest
        append(file, each.model_copy(update={"metrics": {**each.metrics, "total_s": metric(100.0 - place)}}))
    assert peers_here({}, exits=0) == [peers_here.variants[-1]]
    assert "cleanrl" not in str(read_manifest(folder_in(tmp_path)).skipped)


def test_rounds_on_a_busy_host_leave_no_record_of_ours(peers_here, tmp_path, monkeypatch):
    """Ours was measured on that host, too."""
    slowed = {"status": "failed", "reason": "slowed"}
    monkeypatch.setattr(search, "if_not_slowed", lambda job, record, *_: record.model_copy(update=slowed))
    assert peers_here({}) == peers_here.variants[:1]
    (theirs,) = read_all([folder_in(tmp_path) / RECORDS])
    assert (theirs.case, theirs.status) == ("peer_solution", "failed")


def test_set_that_continues_measures_the_next_fastest_variant(peers_here):
    """A variant whose check failed before the set was stopped is not tried again."""
    first, second, *_ = peers_here.variants
    assert peers_here({first: True}, "--until-s", "0", exits=Code.UNFINISHED) == [first]
    assert peers_here({first: True}) == [second]


def test_no_variant_is_tried_twice_if_all_fail_their_checks(peers_here, tmp_path):
    """Their reasons name no other variant."""
    wrong = dict.fromkeys(peers_here.variants, True)
    assert peers_here(wrong) == peers_here.variants
    assert peers_here(wrong) == []
    assert failures_in(tmp_path) == dict.fromkeys(peers_here.variants, "out of luck")


def test_variant_that_failed_without_a_check_is_tried_again(peers_here, tmp_path):
    """A process that died does not disqualify the fastest variant."""
    first, *_ = peers_here.variants
    assert peers_here({first: False}) == [first]
    assert failures_in(tmp_path) == {first: "out of luck"}
    assert peers_here({}, exits=0) == [first]
    assert failures_in(tmp_path) == {}


@pytest.mark.parametrize("how", ["changed", "missing", "added"])
def test_set_that_is_not_as_its_manifest_says_is_not_read(how, here, tmp_path):
    """A set that differs from its manifest is refused."""
    here("--skip", "pairs", "--skip", "figures")
    folder = folder_in(tmp_path)
    assert read_manifest(folder).skipped["step pairs"] == "left out by --skip"
    verify(folder)
    name = "other.jsonl" if how == "added" else RECORDS
    if how == "missing":
        (folder / name).unlink()
    else:
        (folder / name).write_text("{}\n")
    with pytest.raises(SetError, match=re.escape(str(folder / name))):
        published_records(tmp_path)


@pytest.mark.parametrize(
    ("git", "findings", "says"),
    [
        (CLEAN | {"dirty": True}, [], "needs a checkout without changes"),
        (CLEAN | {"sha": None}, [], "needs a commit"),
        (CLEAN, [Finding("GPU", "problem", "it is shared", "wait")], "GPU: it is shared; wait"),
    ],
    ids=["changes", "no commit", "problem"],
)
def test_what_could_not_be_published_is_refused(git, findings, says, here, tmp_path, monkeypatch):
    """Changed code, no commit or a doctor's problem is refused."""
    monkeypatch.setattr(machine, "git_state", lambda root: git)
    monkeypatch.setattr(publish.doctor, "examine", lambda: findings)
    assert says in here(exits=Code.NOTHING)
    assert not (tmp_path / "sets").exists()


def test_load_of_its_own_does_not_stop_a_set(here, monkeypatch, tmp_path):
    """A set that continues ignores the load; a new one waits for it."""
    loads = [Finding("load", "problem", "9 processes", "wait")]
    monkeypatch.setattr(publish.doctor, "examine", lambda: loads)
    monkeypatch.setattr(publish, "MOST_WAIT_S", -1.0)
    assert "load: 9 processes; wait" in here(exits=Code.NOTHING)
    monkeypatch.setattr(publish, "MOST_WAIT_S", 99.0)
    late = here("--until-s", "5", exits=Code.UNFINISHED)
    assert "stopped: the load must fall first (9 processes); `python -m bench publish" in late
    assert "waiting" not in late
    now = time.monotonic

    def sleep(seconds):
        loads.clear()
        monkeypatch.setattr(publish.time, "monotonic", lambda: now() + 99)

    monkeypatch.setattr(publish.time, "sleep", sleep)
    assert "waiting for the load to fall: 9 processes" in here("--until-s", "60", exits=Code.UNFINISHED)
    monkeypatch.setattr(publish.doctor, "examine", lambda: [Finding("load", "problem", "9 processes", "wait")])
    here("--until-s", "0", exits=Code.UNFINISHED)


def test_set_goes_on_as_it_began(here, tmp_path):
    """A set continues only with its preset and versions."""
    here("--until-s", "0", exits=Code.UNFINISHED)
    assert "has preset smoke (got full)" in here(preset="full", exits=Code.NOTHING)
    manifest = read_manifest(folder_in(tmp_path))
    manifest.model_copy(update={"machine": {**manifest.machine, "torch": "1.0"}}).write(folder_in(tmp_path))
    assert "torch: '1.0' against" in here(exits=Code.NOTHING)


def test_archive_is_read_while_there_is_no_set(tmp_path):
    """Without a finished set documents use the archived sweeps."""
    (tmp_path / "sweeps").mkdir()
    assert (published_records(tmp_path), past_records(tmp_path)) == ([tmp_path / "sweeps"], [])


def test_broken_manifest_names_its_field(tmp_path):
    """A manifest that breaks the schema is refused."""
    (tmp_path / sets.MANIFEST).write_text('{"commit": 1}')
    with pytest.raises(SetError, match=r"manifest\.json: commit: "):
        read_manifest(tmp_path)
