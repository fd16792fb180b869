"""Certificates of runs: content, replay verdicts, and answers to each corruption."""

from __future__ import annotations

import getpass
import hashlib
import json
import platform
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import needs_host, run
from tests.training import builders
from tests.training.builders import ON_GPU, RUNS, make_run, refused
from tests.training.test_commands import N_ITERATIONS, TINY, train
from warpdrive_min import backends
from warpdrive_min.commands import verify as verify_command
from warpdrive_min.errors import CertificateError
from warpdrive_min.training.loop.checkpoint import TENSORS
from warpdrive_min.training.record import certificate as certificates
from warpdrive_min.training.record.certificate import Certificate, Certifier
from warpdrive_min.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
WEIGHT = "policy/shared/model/fc.0.0.weight"


def certify(basedir: Path, *more: str) -> tuple[Path, str]:
    """Train a certified run of CartPole on one thread; return its folder and output."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    words = ("--seed", "3", "--results-dir", "whole", "--certify", "--set", "saving.model_params_save_freq=3")
    result = train(basedir, *words, *more)
    torch.set_num_threads(threads)
    return basedir / "single_cartpole" / "experiments" / "whole", result.output


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """Certificate and output of a CartPole run.

    The run saves and evaluates, which its replay does not.
    """
    folder, output = certify(tmp_path_factory.mktemp("certified"))
    return folder / certificates.NAME, output


@pytest.fixture
def forged(certified, tmp_path):
    """Return a function that changes a copy's fields and its hash."""

    def forge(change) -> Path:
        fields = json.loads(certified[0].read_text())
        del fields["sha256"]
        change(fields)
        path = tmp_path / "forged.json"
        path.write_text(json.dumps(fields | {"sha256": certificates._digest(fields)}))
        return path

    return forge


# ------------------------------------------------------------------ content


verify = partial(run, "verify", exits=None)


def verdict(result: Any) -> tuple[int, str]:
    """Return the exit code and the printed verdict.

    A line about compiling may precede it.
    """
    lines = [line for line in result.output.splitlines() if not line.startswith("compiling ")]
    return result.exit_code, lines[0].partition(":")[0]


def test_certificate_holds_the_run(certified):
    """A certificate has seed, config, curve and hashes.

    There are hashes after iterations 0, 1, 2, 4, ... and the last.
    """
    path, output = certified
    found = Certificate.read(path)
    assert [point.iteration for point in found.points] == [0, 1, 2, 4, 8, N_ITERATIONS]
    assert [point.env_steps for point in found.points] == [64 * i for i in (0, 1, 2, 4, 8, N_ITERATIONS)]
    assert (found.env, found.run_config["trainer"]["seed"], found.threads) == ("cartpole", 3, 1)
    rows = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
    want = [(row["iteration"], row["env_steps"], {"shared": row["shared/mean_episodic_return"]}) for row in rows]
    assert [(each.iteration, each.env_steps, each.mean_return) for each in found.curve] == want
    saved = load_file(path.parent / "checkpoints" / f"checkpoint_{N_ITERATIONS:09d}" / TENSORS)
    assert {name: certificates.tensor_hash(tensor) for name, tensor in saved.items()} == found.points[-1].tensors
    assert {WEIGHT, "env/state", "env/_done_"} < saved.keys()
    assert (
        f"certificate: {path}, hashes of {len(saved)} tensors after iterations 0, 1, 2, 4, 8, {N_ITERATIONS}" in output
    )
    assert f"verify:   python -m warpdrive_min verify {path}" in output


def test_certificate_names_code_and_machine_but_nobody(certified):
    """A certificate has code and machine, but no personal data.

    Source files have hashes, packages versions; no hosts, users or folders appear.
    """
    path, _ = certified
    origin = Certificate.read(path).origin
    for name in ("warpdrive_min/training/algorithms/returns.py", "envs/classic_control/cartpole/kernel.cu"):
        assert origin.sources[name] == hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    files = {f"{folder}/{each.relative_to(ROOT / folder).as_posix()}" for folder in ("warpdrive_min", "envs")
             for each in (ROOT / folder).rglob("*.cu*")}  # fmt: skip
    assert files <= origin.sources.keys()
    assert not any("__pycache__" in name or name.startswith("bench") for name in origin.sources)
    assert origin.dependencies["torch"].startswith(torch.__version__.partition("+")[0])
    assert origin.machine["backend"] == "cpu"
    text = path.read_text()
    unwanted = (platform.node(), str(path.parent), str(Path.home()), str(ROOT))
    assert not [each for each in unwanted if len(each) > 2 and each in text]
    assert f'"{getpass.getuser()}"' not in text


@pytest.mark.parametrize("name", ["PPO", "DDPG", "two policies"])
@pytest.mark.parametrize("backend", ["cpu", *ON_GPU])
def test_runs_are_replayed_to_the_bit(backend, name, tmp_path):
    """Another trainer reproduces a certificate's tensors and curve bit by bit."""
    env = RUNS[name][0]
    first = make_run(name, backend, basedir=tmp_path)
    certifier = Certifier(first, env)
    for _ in range(3):
        certifier.note(first.train(1))
    certifier.end()
    read = Certificate.read(first.folder)
    assert [point.iteration for point in read.points] == [0, 1, 2, 3]
    second = make_run(name, backend, basedir=tmp_path / "second")
    agreement = certificates.replay(read, second)
    assert (agreement.difference, agreement.last, agreement.n_points) == (None, 3, 4)
    third = make_run(name, backend, basedir=tmp_path / "third", seed=8)
    assert certificates.replay(read, third).last is None, "another seed starts elsewhere"


@needs_host
def test_machine_code_is_hashed_wherever_it_was_compiled(tmp_path):
    """The hash of machine code ignores where it was compiled.

    A copied source has the same instructions; another operation has others.
    """
    text = "WD_KERNEL(twice)(float* x, int n_envs) { WD_EACH_ENV(local, env) { x[env] = 2.f * x[env]; } }\n"
    hashes = []
    for folder, each in (("a", text), ("b/of/another/length", text), ("c", text.replace("2.f *", "2.f +"))):
        source = tmp_path / folder / "kernel.cu"
        source.parent.mkdir(parents=True)
        source.write_text(each)
        constants = {"N_AGENTS": 1, "THREADS": 8, "ENVS_PER_BLOCK": 8, "BLOCKS_PER_ENV": 1, "EXACT": True}
        (kernel,) = backends.get("host").compile(source, constants).values()
        hashes.append(certificates._machine_code_hash(kernel.binary))
    assert hashes[0] == hashes[1] != hashes[2]


# ------------------------------------------------------------------ verify


def test_verify_replays_a_run_and_writes_nothing(certified):
    """A replay of a run, or its beginning, writes nothing.

    It has the recorded bits; --iterations replays the beginning.
    """
    path, _ = certified
    before = sorted(path.parent.rglob("*"))
    result = verify(path.parent)
    assert verdict(result) == (0, "VERIFIED")
    assert "iterations 0 to 10 of 10 of cartpole, seed 3; 6 points of" in result.output
    result = verify(path, "--iterations", "5", "--json")
    told = json.loads(result.output)
    assert (told["verdict"], told["last"], told["n_points"], told["differs"]) == ("VERIFIED", 4, 4, {})
    assert sorted(path.parent.rglob("*")) == before


def test_verify_writes_nothing_wherever_a_certificate_saves(forged, tmp_path, monkeypatch):
    """A replay writes to no folder that a certificate names.

    Strangers may have written the certificate.
    """
    folders = {"basedir": str(tmp_path / "a"), "name": "b", "tag": "c/d"}

    def forbid(*given, **named):
        raise AssertionError(f"must not be written: {given}")

    monkeypatch.setattr(Path, "mkdir", forbid)
    path = forged(lambda fields: fields["run_config"]["saving"].update(folders, sinks=["csv"], keep_last=1))
    result = verify(path)
    assert verdict(result) == (0, "VERIFIED"), result.output
    assert list(tmp_path.iterdir()) == [path]
    saving = certificates.replay_config(Certificate.read(path), "cpu", "given")["saving"]
    assert (saving["basedir"], saving["name"], saving["tag"]) == ("given", "replay", "replay")


def hash_of(fields, iteration, name):
    (point,) = (each for each in fields["points"] if each["iteration"] == iteration)
    return point["tensors"][name]


def spoil_weight(fields):
    for point in fields["points"]:
        if point["iteration"] >= 4:
            point["tensors"][WEIGHT] = "0" * 64


FORGERIES = {
    "a weight": (spoil_weight, 2, f"{WEIGHT} after iteration 4: {'0' * 64} recorded, "),
    "the learning rate": (lambda f: f["run_config"]["policy"]["shared"].update(lr=0.5), 0, "after iteration 1: "),
    "the seed": (lambda f: f["run_config"]["trainer"].update(seed=4), None, "after iteration 0: "),
    "the environment": (lambda f: f["run_config"]["env"].update(reset_pool_size=3), None, "after iteration 0: "),
    "a tensor that is none": (lambda f: f["points"][1]["tensors"].update(more="1" * 64), 0, "more after iteration 1: "),
    "the curve": (
        lambda f: f["curve"][1]["mean_return"].update(shared=500.0),
        4,
        "the learning curve after iteration 5",
    ),
    "its length": (lambda f: f["points"][-1].update(iteration=11), 8, "the length of the run after iteration 10"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_verify_says_where_a_forged_certificate_differs(what, forged, certified):
    """A forged certificate's first difference is reported.

    It was re-signed. The report has iteration, tensor and both hashes.
    """
    change, agreed, said = FORGERIES[what]
    path = forged(change)
    result = verify(path, exits=1)
    reached = "no iteration, not even the start," if agreed is None else f"iterations 0 to {agreed} "
    assert result.output.startswith(f"DIFFERS: {reached}")
    assert said in result.output
    if what == "a weight":
        original = json.loads(certified[0].read_text())
        assert f"{hash_of(original, 4, WEIGHT)} here\n" in result.output, "no other tensor differs"


def test_verify_tells_of_code_that_changed_and_of_its_bits(certified, forged, monkeypatch):
    """`verify` names changed code and packages; the bits decide."""

    def change(fields):
        fields["origin"]["sources"]["warpdrive_min/training/returns.py"] = "2" * 64
        fields["origin"]["dependencies"]["numpy"] = "1.0"

    result = verify(forged(change), "--iterations", "1")
    assert verdict(result) == (0, "VERIFIED")
    assert "not as recorded: source warpdrive_min/training/returns.py, 222222222222 recorded, " in result.output
    assert "not as recorded: dependency numpy, 1.0 recorded, " in result.output
    update = Trainer.update

    def changed(trainer):
        update(trainer)
        with torch.no_grad():
            next(trainer.groups["shared"].acting.parameters())[0, 0] *= 1 + 2**-23

    monkeypatch.setattr(Trainer, "update", changed)
    result = verify(certified[0])
    assert verdict(result) == (1, "DIFFERS")
    assert f"first difference: {WEIGHT} after iteration 1: " in result.output


def test_verify_on_other_hardware(forged, monkeypatch):
    """On other hardware, only equal bits give a verdict."""

    def elsewhere(fields):
        fields["origin"]["machine"]["cpu"] = "Abacus 3"

    result = verify(forged(elsewhere), "--iterations", "1")
    assert verdict(result) == (0, "VERIFIED")
    assert "other hardware: cpu, Abacus 3 recorded, " in result.output
    result = verify(forged(lambda fields: (elsewhere(fields), spoil_weight(fields))))
    assert verdict(result) == (2, "OTHER HARDWARE")
    assert "iterations 0 to 2 of 10 of cartpole" in result.output


@needs_host
@pytest.mark.parametrize("backend", ["host", pytest.param("pycuda", marks=pytest.mark.gpu)])
def test_exact_runs_are_verified_elsewhere(backend, tmp_path, monkeypatch):
    """Exact runs are verified on `host`, with any thread count.

    NumPy has no exact kernels.
    """
    small = {"policy.shared.model.fc_dims": [8], "trainer.num_episodes": 12, "trainer.exact": True}
    result = train(
        tmp_path, "--certify", "--results-dir", "r", "--backend", backend, "--seed", "3", values=TINY | small
    )
    path = tmp_path / "single_cartpole" / "experiments" / "r" / certificates.NAME
    found = Certificate.read(path)
    assert "linear_weights" in found.origin.machine_code
    found.model_copy(update={"threads": 64}).write(path)
    seen, replay = [], verify_command.replay
    monkeypatch.setattr(
        verify_command, "replay", lambda *given: (seen.append(torch.get_num_threads()), replay(*given))[1]
    )
    torch.set_num_threads(2)
    result = verify(path, "--backend", "host")
    assert verdict(result) == (0, "VERIFIED"), result.output
    assert seen == [2], "not 64 threads, which need not have cores here"
    elsewhere = found.origin.model_copy(update={"machine": {**found.origin.machine, "cpu": "Abacus 3"}})
    other = found.points[1].model_copy(update={"tensors": {**found.points[1].tensors, WEIGHT: "0" * 64}})
    short = {"points": (found.points[0], other), "curve": found.curve[:1]}
    found.model_copy(update={"origin": elsewhere} | short).write(path)
    result = verify(path, "--backend", "host")
    assert verdict(result) == (1, "DIFFERS"), "no machine explains other bits"
    result = verify(path, "--backend", "cpu", exits=5)
    assert "exact training has kernels in CUDA C (got 'cpu'); use backend host or pycuda" in result.output


def test_verify_takes_another_backend_where_the_recorded_one_cannot_run(forged, monkeypatch):
    """`verify` replaces a backend that cannot run, and reports it.

    Torch has the run's number of threads.
    """

    def on_a_gpu(fields):
        fields["run_config"]["trainer"]["env_backend"] = "pycuda"
        fields["origin"]["machine"] |= {"backend": "pycuda", "gpu": "NVIDIA Abacus"}
        fields["threads"] = 2
        fields["points"][0]["tensors"][WEIGHT] = "0" * 64

    gone = backends.Availability(False, "gone", "get one")
    monkeypatch.setattr(type(backends.BACKENDS["pycuda"]), "availability", lambda self: gone)
    monkeypatch.setattr(verify_command, "first_available", lambda env, who: "cpu")
    seen = []
    replay = verify_command.replay
    monkeypatch.setattr(
        verify_command, "replay", lambda *given: (seen.append(torch.get_num_threads()), replay(*given))[1]
    )
    result = verify(forged(on_a_gpu))
    assert verdict(result) == (2, "OTHER HARDWARE")
    assert "other hardware: backend, pycuda recorded, cpu here" in result.output
    assert "other hardware: gpu, NVIDIA Abacus recorded, none here" in result.output
    assert (seen, torch.get_num_threads()) == ([2], 1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text[:-200], "is truncated or altered: it must be a whole JSON object"),
        (lambda text: "[]", "must be a JSON object with a schema_version"),
        (lambda text: text.replace('"seed": 3', '"seed": 4'), "is truncated or altered: its SHA-256 must be "),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 2'), "schema_version must be 1 (got 2)"),
        (lambda text: text.replace('"seed": 3', '"seed": NaN'), "is truncated or altered: it must be a whole JSON"),
        (None, "must be a file that can be read, or a run's folder that has one"),
    ],
    ids=["truncated", "no object", "altered", "another version", "no number", "missing"],
)
def test_damaged_certificates_are_refused(spoil, said, certified, tmp_path):
    """A damaged certificate is refused with its fault.

    The exit code is the one of what cannot be replayed.
    """
    path = tmp_path / "spoilt.json"
    if spoil is not None:
        text = certified[0].read_text()
        assert spoil(text) != text
        path.write_text(spoil(text))
    result = verify(path, exits=5)
    assert f"certificate {path}: {said}" in result.output


def _model(fields: dict) -> dict:
    return fields["run_config"]["policy"]["shared"]["model"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.pop("threads"), "threads: Field required"),
        (lambda f: f.update(threads="1"), "threads: Input should be a valid integer"),
        (lambda f: f.update(more=1), "more: Extra inputs are not permitted"),
        (lambda f: f.update(env="chess"), "unknown environment (got 'chess')"),
        (lambda f: f["run_config"]["trainer"].update(lr=1), "run config trainer.lr: is not a key"),
        (lambda f: f["environment"].update(n_agents=3), "this differs (got 'environment.n_agents')"),
        (lambda f: f.update(threads=0), "threads: Input should be greater than or equal to 1 (got 0)"),
        (lambda f: f.update(threads=10**9), "threads: Input should be less than or equal to 4096"),
        (lambda f: f.update(points=[]), "points: iterations must increase, from 0 on (got '')"),
        (lambda f: f["points"].pop(0), "points: iterations must increase, from 0 on (got '1, 2, 4, 8, 10')"),
        (lambda f: f.update(points=f["points"][:1]), "to the end of its curve (got '0')"),
        (lambda f: f["points"].pop(2), "is truncated: it must have points after iterations 0, 1, 2, 4, ..."),
        (lambda f: f["points"].reverse(), "points: iterations must increase, from 0 on"),
        (lambda f: f["curve"].reverse(), "curve: iterations must increase (got"),
        (lambda f: f["points"][0].update(tensors={}), "points.0.tensors: Dictionary should have at least 1 item"),
        (lambda f: f["points"][0]["tensors"].update({WEIGHT: "0"}), f"points.0.tensors.{WEIGHT}: String should match"),
        (lambda f: f["points"][-1].update(iteration=10**400), "points.5.iteration: Input should be less than"),
        (lambda f: f["points"][-1].update(env_steps=-1), "points.5.env_steps: Input should be greater than"),
        (lambda f: f.update(run_config={}), "run config policy: must name at least one"),
        (lambda f: f["run_config"].update(trainer=[]), "run config trainer: must be a valid dictionary"),
        (lambda f: f["run_config"]["trainer"].update(seed=None), "run_config.trainer.seed must be a number"),
        (lambda f: f["run_config"]["trainer"].update(num_gpus=8), "run_config.trainer.num_gpus must be 1"),
        (lambda f: _model(f).update(model_ckpt_filepath=__file__), "a certified run starts from its seed alone"),
        (lambda f: _model(f).update(fc_dims=[2**40, 2**40]), "fc_dims: must be less than or equal to"),
        (lambda f: f["run_config"]["env"].update(episode_length="1; exit"), "episode_length: must be a valid integer"),
        (lambda f: f["run_config"]["saving"].update(tag="/tmp/x"), "saving.tag: must be a folder inside basedir"),
        (lambda f: f["run_config"]["saving"].update(name="../../x"), "saving.name: must be a folder inside basedir"),
    ],
)
def test_certificates_that_cannot_be_replayed_are_refused(change, said, forged):
    """The error names an unknown release, or an impossible run config."""
    result = verify(forged(change), exits=5)
    assert said in result.output


# ------------------------------------------------------------------ runs that go on


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """Folder of the same run, stopped after six iterations."""
    return certify(tmp_path_factory.mktemp("stopped"), "--iterations", "6")[0]


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """Copy of that folder."""
    return Path(shutil.copytree(stopped_once, tmp_path / "stopped"))


def test_certificate_goes_on_with_its_run(stopped, certified, tmp_path):
    """A resumed run's certificate equals an uninterrupted run's."""
    shutil.copytree(stopped, tmp_path / "copy")
    want = {point.iteration: point for point in Certificate.read(certified[0]).points}
    for more, folder in (([], stopped), (["--results-dir", tmp_path / "other"], tmp_path / "other")):
        source = stopped if not more else tmp_path / "copy"
        run("train", "--resume", source, "--certify", "--quiet", *more)
        found = Certificate.read(folder)
        assert [point.iteration for point in found.points] == [0, 1, 2, 4, 6, 8, N_ITERATIONS]
        assert all(point == want[point.iteration] for point in found.points if point.iteration in want)
        assert found.curve == Certificate.read(certified[0]).curve
    assert verify(stopped).output.startswith("VERIFIED: iterations 0 to 10 of 10")


def test_certificate_goes_back_with_its_run(stopped, certified):
    """A run that goes back to a checkpoint shortens its certificate.

    Files after that checkpoint are written again.
    """
    run("train", "--resume", stopped / "checkpoints" / "checkpoint_000000003", "--certify")
    found = Certificate.read(stopped)
    assert found.points == Certificate.read(certified[0]).points


@pytest.mark.parametrize(("more", "n"), [([], 1), (["--certify"], 0)])
def test_resumed_run_names_a_certificate_that_it_does_not_continue(more, n, stopped):
    """`verify` would check the iterations before it only."""
    said = "certificate.json ends before this run does; add --certify to continue it\n"
    assert run("train", "--resume", stopped, *more).output.count(said) == n


def without_certificate(folder):
    (folder / certificates.NAME).unlink()


def with_other_state(folder):
    path = folder / "checkpoints" / "checkpoint_000000006"
    tensors = load_file(path / TENSORS)
    tensors["env/state"] += 2**-10
    save_file(tensors, path / TENSORS)
    header = json.loads((path / "state.json").read_text())
    header["sha256"] = hashlib.sha256((path / TENSORS).read_bytes()).hexdigest()
    (path / "state.json").write_text(json.dumps(header))


def with_other_source(folder):
    found = Certificate.read(folder)
    sources = found.origin.sources | {"envs/__init__.py": "3" * 64}
    origin = found.origin.model_copy(update={"sources": sources})
    found.model_copy(update={"origin": origin}).write(folder / certificates.NAME)


def with_gap(folder):
    found = Certificate.read(folder)
    found.model_copy(update={"points": found.points[:3], "curve": found.curve[:1]}).write(folder / certificates.NAME)


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        (without_certificate, [], "must be a file that can be read, or a run's folder that has one"),
        (
            with_other_state,
            [],
            "the checkpoint must be that of the certified run, in which env/state after iteration 6",
        ),
        (with_other_source, [], "must keep its code and settings; these changed (got 'source envs/__init__.py')"),
        (with_gap, [], "a run must be certified from its start, and this iteration is not certified (got 4)"),
        (None, ["--set", "policy.shared.lr=0.5"], "these changed (got 'run_config.policy.shared.lr')"),
        (None, ["--set", "trainer.stop_return=500"], "a run with a stop_return restarts its count of episodes"),
    ],
    ids=["none", "checkpoint", "source", "gap", "config", "stop_return"],
)
def test_runs_that_do_not_go_on_as_they_began_are_refused(change, more, said, stopped):
    """Only the certificate's run, code and machine may continue it."""
    if change is not None:
        change(stopped)
    before = {path: path.read_bytes() for path in stopped.glob(certificates.NAME)}
    result = run("train", "--resume", stopped, "--certify", *more, exits=1)
    assert said in result.output
    assert {path: path.read_bytes() for path in stopped.glob(certificates.NAME)} == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-n", "2"], "a certified run must have one process, or be exact (got 2)"),
        (["--auto-scale"], "needs a training run; leave --certify out"),
    ],
)
def test_what_is_no_single_run_is_not_certified(more, said, tmp_path):
    """Other bits on several processes, and searches, are not certified.

    A search is for a number of environments.
    """
    result = train(tmp_path, "--certify", *more, exits=1)
    assert f"train.certify: {said}" in result.output


def test_population_is_certified(tmp_path):
    """A certificate of a population has the weights of all members."""
    train(tmp_path, "--certify", "--population", "2", "--results-dir", "both")
    folder = tmp_path / "single_cartpole" / "experiments" / "both"
    assert Certificate.read(folder).run_config["population"]["size"] == 2
    assert "policy/shared/model/members.fc.0.0.weight" in Certificate.read(folder).points[-1].tensors
    assert verify(folder).output.startswith(f"VERIFIED: iterations 0 to {N_ITERATIONS} of")


def test_weights_from_a_file_are_not_certified(certified, tmp_path):
    """Weights from a file are not certified: others lack the file."""
    saved = certified[0].parent / "checkpoints" / f"checkpoint_{N_ITERATIONS:09d}"
    policy = {"shared": {**builders.A2C, "model": {"fc_dims": [32, 32], "model_ckpt_filepath": str(saved)}}}
    trainer = make_run(("cartpole", {"episode_length": 20}, policy), basedir=tmp_path)
    with refused("train.certify", str(saved), CertificateError):
        Certifier(trainer, "cartpole")
