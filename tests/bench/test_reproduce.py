"""`bench reproduce`: verdicts on faked and shipped records."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bench.core import machine
from bench.core.archive import with_archived
from bench.core.errors import Skip
from bench.core.point import Check, Curve
from bench.core.record import SWEEPS, Context, append, read_all
from bench.judge import reproduce
from bench.judge.outcomes import exit_code
from bench.judge.reproduce import BROKEN, NOT_REPRODUCED, OTHER_HARDWARE, REPRODUCED, Repetition, compare, find, lines
from bench.process import sweep
from bench.workloads.cases import jobs
from tests.bench.builders import bench, case, in_this_process, metric, record, seed_record, timed
from warpdrive_min.backends import Availability
from warpdrive_min.cli import app as train_app
from warpdrive_min.training.record.certificate import Certificate

ON_GPU = {"threads": None, "mode": "graph"}


def taken(ns: float, half: float = 0.0, **changes):
    """Return a record with a time per step and a half width, both ns."""
    samples_ns = [ns - half, ns, ns + half]
    return record(metrics={"ns_per_env_step": metric(ns, unit="ns")}, samples_ns=samples_ns, **changes)


def learned(final: float, steps: float | None, returns: tuple[float, ...] = (10.0, 100.0)):
    """Return a seed's record with its last return.

    ``steps`` to the threshold are None if the seed missed it.
    """
    curve = Curve(env_steps=[1, 2], seconds=[0.1, 0.2], mean_return={"shared": list(returns)})
    return seed_record(3, steps, final, curve=curve)


@pytest.mark.parametrize(
    ("here", "half", "verdict", "says"),
    [
        (100.5, 1.0, REPRODUCED, "the spreads overlap"),
        (105.0, 1.0, REPRODUCED, "lies within 10%"),
        (112.0, 1.0, NOT_REPRODUCED, "does not lie within 10%"),
        (85.0, 1.0, NOT_REPRODUCED, "does not lie within 10%"),
        (130.0, 40.0, REPRODUCED, "wider than the tolerance of 10%: weak evidence"),
    ],
)
def test_verdict_is_by_overlap_or_tolerance(here, half, verdict, says):
    """Overlapping intervals or a ratio within tolerance agree."""
    got = compare(taken(100.0, 1.0), taken(here, half), 0.1)
    assert got.verdict == verdict
    assert any(says in reason for reason in got.reasons)
    ratio = got.estimate.value, *got.estimate.interval
    assert ratio == pytest.approx((here / 100, (here - half) / 101, (here + half) / 99))


def test_metric_that_may_be_zero_has_no_ratio():
    """Metrics around zero are compared by overlapping intervals only."""
    none, some = (record(metrics={"bytes_per_env": metric(*figure, "bytes")}) for figure in ((0, 0, 0), (5, 4, 6)))
    same, apart = compare(none, none, 0.1), compare(none, some, 0.1)
    assert (same.verdict, same.estimate) == (REPRODUCED, None)
    assert (apart.verdict, apart.estimate) == (NOT_REPRODUCED, None)


def test_other_hardware_gives_the_ratio_as_information():
    """Another GPU neither reproduces nor refutes a record.

    For CPU points the CPU decides in the same way.
    """
    then = record(machine={"gpu": "NVIDIA H200", "cpu": "a", "cores": 16}, **ON_GPU)
    here = record(2e6, machine={"gpu": "NVIDIA A100", "cpu": "b", "cores": 16}, **ON_GPU)
    got = compare(then, here, 0.1)
    assert got.verdict == OTHER_HARDWARE
    assert got.estimate.value == 2
    assert got.reasons[0].startswith("gpu NVIDIA H200 recorded, NVIDIA A100 here")
    assert got.differs["machine.gpu"] == ("NVIDIA H200", "NVIDIA A100")
    other_cpu = here.model_copy(update={"machine": {**here.machine, "gpu": "NVIDIA H200"}})
    assert compare(then, other_cpu, 9).verdict == REPRODUCED
    on_cpu = {"threads": 1, "mode": "eager"}
    assert compare(then.model_copy(update=on_cpu), other_cpu.model_copy(update=on_cpu), 9).verdict == (OTHER_HARDWARE)


def test_differences_are_listed():
    """Only differing versions, commits and packages are listed."""
    then = record(dependencies_hash="a", machine={"gpu": None, "torch": "2.11", "cores": 2, "unread": {"gpu": "none"}})
    git = {"sha": "fedcba", "dirty": True, "diff_hash": "1"}
    machine = {"gpu": None, "torch": "2.13", "cores": 2, "unread": {}, "settings": None}  # older records lack settings
    here = record(dependencies_hash="b", machine=machine, git=git)
    assert reproduce.differences(then, here) == {
        "machine.torch": ("2.11", "2.13"),
        "git.sha": ("0123456789", "fedcba"),
        "git.dirty": (False, True),
        "git.diff_hash": (None, "1"),
        "dependencies_hash": ("a", "b"),
    }
    assert "  differs: git.diff_hash: none or unknown -> 1" in reproduce.lines(compare(then, here, 0.1))


def test_troubles_of_either_side_are_told():
    """The verdict lists what disturbed the measurement."""
    telemetry = {"throttle_reasons": {"hardware thermal": 0.5, "idle": 1.0}, "contended": True}
    got = compare(record(), record(telemetry=telemetry, warm_up={"settled": False, "cap_s": 2.0}), 0.1)
    assert got.reasons[-3:] == (
        "here: another process used the GPU",
        "here: throttled by hardware thermal in 50% of the samples",
        "here: times did not stabilise in 2.0 s of warm-up",
    )


@pytest.mark.parametrize(
    ("here", "verdict"),
    [
        (learned(100.0, 2.0), REPRODUCED),
        (learned(95.0, 3.0, (9.0, 95.0)), REPRODUCED),
        (learned(95.0, None, (9.0, 95.0)), NOT_REPRODUCED),
        (learned(50.0, 2.0), NOT_REPRODUCED),
    ],
)
def test_learning_is_the_threshold_and_the_end_of_the_curve(here, verdict):
    """A seed must reach the threshold and end within tolerance."""
    got = compare(learned(100.0, 2.0), here, 0.1)
    assert got.verdict == verdict
    assert got.reasons[0].startswith("seed 3: the threshold is reached in the record")
    same = "the two curves are the same to the last digit" in got.reasons
    assert same == (here.curve.mean_return["shared"] == [10.0, 100.0])


# ------------------------------------------------------------------ finding


def test_records_are_found_by_run_number_and_condition():
    """RUN_ID or its start, RUN_ID:N and AXIS=VALUE select records.

    Invalid records are skipped.
    """
    points = [{"env": "cartpole", "backend": "cpu", "n_envs": n, "n_agents": 1, "exact": False} for n in (1, 10)]
    records = [record(run_id="run-a", point=each) for each in points]
    records += [record(run_id="run-a", passed=False), record(run_id="run-b")]
    records.append(record(run_id="run-b", case="peer", point={"peer": "gymnax", "env": "cartpole"}))
    assert find(records, "run-a", []) == records[:2]
    assert find(records, "run-a:2", []) == records[1:2]
    assert find(records, "run-a", ["n_envs=10", "exact=False", "case=env_step"]) == records[1:2]
    assert find(records, "run-b", []) == find(records, "run-b:1", []) == records[3:4]
    for run, conditions, says in (
        ("run", [], "known are run-a, run-b"),
        ("chess", [], "known are run-a, run-b"),
        ("run-a:4", [], "N must be 1 to 3"),
        ("run-a:0", [], "N must be 1 to 3"),
        ("run-a:x", [], "N must be 1 to 3"),
        ("run-a:3", [], "is ours, measured and correct"),
        ("run-a", ["n_envs=7"], "meets n_envs=7"),
    ):
        with pytest.raises(reproduce.NoSuchRunError, match=says):
            find(records, run, conditions)


def test_worst_verdict_decides():
    """The worst verdict sets the exit code.

    Order: broken, not reproduced, other hardware.
    """
    order = [BROKEN, NOT_REPRODUCED, OTHER_HARDWARE, REPRODUCED]
    assert [exit_code(order[n:][::-1]) for n in range(4)] == [5, 1, 2, 0]


# ------------------------------------------------------------------ the command


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Return a file with a fake point's record, and its set-up."""
    how = {"setup": lambda point: timed(lambda: sum(range(3000)))}
    point = case(lambda point: how["setup"](point), 1)
    monkeypatch.setitem(reproduce.CASES, "fake", point)
    file = tmp_path / "r.jsonl"
    (recorded,) = sweep.run(jobs("smoke", cases={"fake": point}), Context.here("smoke", "run-1"), file, in_this_process)
    assert recorded.is_evidence
    return file, how


def again(file, *more: object, exits: int = 0) -> str:
    return bench("reproduce", "run-1", "--records", file, *more, exits=exits)


def test_command_reproduces_on_this_machine(fake, tmp_path):
    """The same point is reproduced, and its new record saved."""
    file, _ = fake
    out = tmp_path / "new.jsonl"
    assert again(file, "--tolerance", "1000", "--out", out).startswith("REPRODUCED: fake[env=fake,backend=cpu,")
    (new,) = read_all([out])
    assert new.is_evidence
    assert new.point == read_all([file])[0].point
    (found,) = json.loads(again(file, "--tolerance", "1000", "--json"))
    assert found["verdict"] == "REPRODUCED"
    assert found["ratio"][1] <= found["ratio"][0] <= found["ratio"][2]


def test_figure_that_was_never_true_is_not_reproduced(fake):
    """A false record exits with 1."""
    file, _ = fake
    (recorded,) = read_all([file])
    metric = recorded.metrics["ns_per_env_step"]
    faster = {name: getattr(metric, name) / 1e3 for name in ("value", "low", "high")}
    claimed = recorded.model_copy(update={"metrics": {"ns_per_env_step": metric.model_copy(update=faster)}})
    file.write_text(claimed.to_line())
    assert again(file, exits=1).startswith("NOT REPRODUCED")


@pytest.mark.parametrize(
    ("setup", "old", "new", "says"),
    [
        (lambda point: timed(check=lambda: Check(False, 1.0, "by hand", "off by 1")), "", "", "off by 1"),
        (lambda point: 1 / 0, "", "", "ZeroDivisionError"),
        (None, '"case_version":1', '"case_version":0', "version 0 of the case then, 1 here"),
        (None, '"case":"fake"', '"case":"gone"', "no case 'gone'"),
        (None, '"schema":2', '"schema":9', "schema must be 1 or 2"),
    ],
    ids=["wrong", "raises", "version", "case", "schema"],
)
def test_what_cannot_be_measured_is_broken(fake, setup, old, new, says):
    """Records that cannot be measured exit with 5.

    Causes: failed check, exception, other version, unknown case, bad file.
    """
    file, how = fake
    how["setup"] = setup or how["setup"]
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert says in again(file, exits=5)


def test_backend_that_is_missing_is_other_hardware_only_where_the_machine_is_another(fake):
    """A missing backend counts as other hardware on another machine.

    On the recording machine it is broken.
    """
    file, how = fake

    def missing(point):
        raise Skip("pycuda: not available")

    how["setup"] = missing
    again(file, exits=5)
    (recorded,) = read_all([file])
    machine = {**recorded.machine, "gpu": "NVIDIA H200"}
    file.write_text(recorded.model_copy(update={"machine": machine, "threads": None}).to_line())
    assert again(file, exits=2) == "OTHER HARDWARE: 1 of 1 record skipped: pycuda: not available\n"
    (found,) = json.loads(again(file, "--json", exits=2))
    assert found["differs"]["machine.gpu"] == ["NVIDIA H200", None]


def test_records_that_cannot_run_are_counted_by_reason(fake, monkeypatch):
    """A line per missing backend comes first."""
    file, _ = fake
    (recorded,) = read_all([file])
    machine = {**recorded.machine, "gpu": "NVIDIA H200"}

    def on(backend):
        return recorded.model_copy(
            update={"machine": machine, "threads": None, "point": {**recorded.point, "backend": backend}}
        )

    absent = {"pycuda": Availability(False, "no GPU", "use one"), "numba": Availability(False, "no driver")}
    monkeypatch.setattr(reproduce, "availability", lambda: {"cpu": Availability(True), **absent})
    why = "backend pycuda is not available: no GPU; use one"
    file.write_text(on("pycuda").to_line() * 2)
    assert again(file, exits=2) == f"OTHER HARDWARE: 2 of 2 records skipped: {why}\n"
    file.write_text("".join(each.to_line() for each in (recorded, on("numba"), on("pycuda"), on("pycuda"))))
    first, second, third, *_ = again(file, "--tolerance", "1000", exits=2).splitlines()
    assert first == f"OTHER HARDWARE: 2 of 4 records skipped: {why}"
    assert second == "OTHER HARDWARE: 1 of 4 records skipped: backend numba is not available: no driver"
    assert third.startswith("REPRODUCED: fake[")


def test_difference_of_all_records_is_printed_once(fake):
    """A difference that several records share is printed at the first."""
    file, _ = fake
    (recorded,) = read_all([file])
    other = recorded.model_copy(update={"machine": {**recorded.machine, "cpu": "another"}})
    file.write_text(other.to_line() * 3)
    said = again(file, "--tolerance", "1000", exits=2)
    assert (said.count("fake["), said.count("differs: machine.cpu: another")) == (3, 1)


def test_record_cut_in_half_is_no_such_run(fake):
    """A truncated line is reported and skipped."""
    file, _ = fake
    text = file.read_text()
    file.write_text(text[: len(text) // 2])
    said = again(file, exits=3)
    assert "left out:" in said
    assert "is cut short" in said
    file.write_text(text + text[: len(text) // 2])
    again(file, "--tolerance", "1000")


def test_shipped_record_of_a_gpu_is_other_hardware_here():
    """A published record of another CPU counts as other hardware."""
    records = read_all(with_archived(machine.ROOT / SWEEPS))
    (then,) = find(records, "20261121T053012", ["case=env_step", "env=cartpole", "backend=cpu", "n_envs=100"])
    here = Context.here("smoke")
    got = reproduce.repeat(then.model_copy(update={"machine": {**then.machine, "cpu": "another"}}), here, 0.1)
    assert got.verdict == OTHER_HARDWARE
    assert got.estimate.value > 0
    assert got.differs["machine.cpu"][0] == "another"


def test_set_is_found_by_its_folder(tmp_path, monkeypatch):
    """The folder of a set stands for its run, and its records are read."""
    repeated = []
    monkeypatch.setattr(reproduce, "repeat", lambda then, *_: (repeated.append(then), compare(then, then, 0.1))[1])
    then = record(run_id="a-set")
    append(tmp_path / "a-set" / "records.jsonl", then)
    (tmp_path / "a-set" / "manifest.json").write_text("{}")
    bench("reproduce", tmp_path / "a-set")
    assert repeated == [then]


def test_runs_are_looked_for_in_sets_and_in_the_archive(tmp_path):
    """Runs are found in published sets and sweeps by default."""
    for folder, run_id in (("sets/a-set", "a-set"), ("sweeps", "run-a")):
        append(tmp_path / folder / "records.jsonl", record(run_id=run_id))
        assert find(read_all(reproduce.default_folders(tmp_path)), run_id, [])
    assert {path.name for path in reproduce.default_folders(tmp_path)} == {"sets", "sweeps"}


# ------------------------------------------------------------------ certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Folder with certificates: good, other weights, truncated."""
    folder = tmp_path_factory.mktemp("certificates")
    given = (
        "trainer.num_envs=4",
        "trainer.train_batch_size=16",
        "env.episode_length=8",
        f"saving.basedir={folder}/runs",
    )
    words = [word for each in given for word in ("--set", each)]
    run = CliRunner().invoke(
        train_app,
        ["train", "-e", "cartpole", "--backend", "cpu", "--iterations", "2", "--certify", "--seed", "1", *words],
    )
    assert run.exit_code == 0, run.output
    (path,) = folder.glob("runs/*/*/*/certificate.json")
    found = Certificate.read(path)
    points = (*found.points[:-1], found.points[-1].model_copy(update={"tensors": {"policy/x": "0" * 64}}))
    found.write(folder / "good.json")
    found.model_copy(update={"points": points}).write(folder / "other.json")
    (folder / "cut.json").write_text(path.read_text()[:-9])
    return folder


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("good.json", 0, "REPRODUCED: good\n  VERIFIED: iterations 0 to 2 of 2 of cartpole, seed 1; 3 points of"),
        ("other.json", 1, "NOT REPRODUCED: other\n  DIFFERS: iterations 0 to 1 of 2 of cartpole, seed 1; 2 points"),
        ("cut.json", 5, "BROKEN: cut\n  certificate "),
        ("none.json", 5, "BROKEN: none\n  certificate "),
        ("", 5, "NOT REPRODUCED: other"),
        ("runs", 3, "must hold certificates, *.json (got none)"),
    ],
)
def test_certificates_are_replayed(name, code, says, certificates):
    """Certificates are replayed; differing tensors are named.

    In a folder the worst verdict decides.
    """
    output = bench("reproduce", certificates / name, exits=code)
    assert says in output
    if name == "other.json":
        assert f"policy/x after iteration 2: {'0' * 64} recorded, missing here" in output


def test_answers_on_certificates_are_kept(certificates, tmp_path):
    """`--out` writes a line per certificate with its machine."""
    bench("reproduce", certificates, "--out", tmp_path / "answers.jsonl", exits=5)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [(each["name"], each["verdict"]) for each in answers] == [
        ("cut", "BROKEN"),
        ("good", "REPRODUCED"),
        ("other", "NOT REPRODUCED"),
    ]
    assert all(each["machine"]["cores"] and each["git"]["sha"] and each["answered_at"] for each in answers)
    differs = {f"source {n}.py": ("a", "b") for n in range(4)} | {"commit": ("a", None), "machine code step": (1, 2)}
    said = lines(Repetition(subject="x", verdict="REPRODUCED", reasons=(), differs=differs))
    assert said[1:] == [
        "  differs: commit: a -> none or unknown",
        "  differs: machine code step: 1 -> 2",
        "  differs: 4 sources (--json names them)",
    ]


def test_published_certificates_are_named_after_their_runs(certificates):
    """Published certificates are named after their runs."""

    def name(found: Certificate) -> str:
        (algorithm,) = {policy["algorithm"] for policy in found.run_config["policy"].values()}
        trainer = found.run_config["trainer"]
        return f"{found.env}-{algorithm.lower()}-{trainer['env_backend']}-{trainer['seed']}"

    assert name(Certificate.read(certificates / "good.json")) == "cartpole-a2c-cpu-1"
    published = sorted(SWEEPS.parent.glob("certificates/*.json"))
    names = [(path.stem, name(Certificate.read(path))) for path in published]
    assert all(stem in (run, f"{run}-{stem.rpartition('-')[2]}") for stem, run in names)
