"""Callers' torch and NumPy settings stay, and change no run."""

from __future__ import annotations

import ast
import contextlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import warpdrive_min
from tests.training.builders import CLASSIC, NORMALISED, PPO, differences, everything, make_run
from tests.training.test_population import make_population

GRU = {**PPO, "n_minibatches": 1, "model": {"type": "gru", "fc_dims": [8], "hidden_size": 4}}
RUNS = {
    "PPO": ("cpu", "PPO", {}),
    "PPO on torch alone": ("cpu", ("cartpole", CLASSIC, {"shared": {**PPO, "model": NORMALISED}}), {}),
    "PPO, continuous": ("host", "PPO, continuous", {}),
    "DDPG": ("cpu", "DDPG", {}),
    "recurrent": ("cpu", ("cartpole", CLASSIC, {"shared": GRU}), {}),
    "exact": ("host", "A2C", {"wrapper": {"exact": True}, "trainer": {"exact": True}}),
    "at once": ("host", "PPO", {"trainer": {"fused_rollout": True}}),
    "population": ("cpu", "PPO", {"population": {"clip_param": [0.1, 0.2]}}),
    "without auto-reset": ("host", "two policies", {"wrapper": {"auto_reset": False}}),
    "captured": ("pycuda", "PPO", {}),
    "captured, two policies": ("pycuda", "two policies", {}),
}
ON_GPU = [name for name, (backend, *_) in RUNS.items() if backend == "pycuda"]


@contextlib.contextmanager
def default(setter, before, value):
    """Set a default within the block."""
    setter(value)
    try:
        yield
    finally:
        setter(before)


DEFAULTS = {
    "dtype": lambda: default(torch.set_default_dtype, torch.float32, torch.float64),
    "half": lambda: default(torch.set_default_dtype, torch.float32, torch.bfloat16),
    "device": lambda: default(torch.set_default_device, None, "meta"),
    "context of a device": lambda: torch.device("meta"),
    "threads": lambda: default(torch.set_num_threads, torch.get_num_threads(), 2),
    "deterministic": lambda: default(torch.use_deterministic_algorithms, False, True),
    "gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "products": lambda: default(torch.set_float32_matmul_precision, "highest", "medium"),
    "errors": lambda: np.errstate(all="raise"),
    "random numbers": lambda: default(torch.manual_seed, 0, 99),
}


def state_of_caller():
    """Return the settings of a caller."""
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_float32_matmul_precision(),
        np.geterr(),
        torch.get_rng_state().tolist(),
        [torch.cuda.get_rng_state(each).tolist() for each in range(torch.cuda.device_count())],
        np.random.get_state(legacy=False)["state"]["key"].tolist(),  # noqa: NPY002  (the caller's)
    ]


def run(name, folder):
    """Train, log, save, evaluate and resume; return all bits."""
    backend, which, given = RUNS[name]
    make = partial(make_population, 4) if name == "population" else make_run
    trainer = make(which, backend, basedir=folder, metrics_log_freq=2, **given)
    trainer.train(2)
    trainer.save_checkpoint()
    scores = trainer.evaluate(5, seed=1)
    again = make(which, backend, basedir=folder, folder="again", **given)
    again.load_checkpoint(trainer.folder / "checkpoints")
    again.train(1)
    return everything(again), scores


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return each run's result without changed settings."""
    found = {}

    def of(name):
        if name not in found:
            found[name] = run(name, tmp_path_factory.mktemp("plain"))
        return found[name]

    return of


BY_DAY = [(name, "dtype") for name in ("PPO", "PPO on torch alone", "DDPG", "exact")] + [("DDPG", "device")]
BY_DAY += [("captured, two policies", "dtype")]
BY_DAY += [("population", changed) for changed in ("dtype", "device", "errors")]


def cases():
    """Return each run with each change of settings.

    Most pairs are nightly.
    """
    for name in RUNS:
        for changed in DEFAULTS:
            is_quick = name in ("recurrent", "captured") or (name, changed) in BY_DAY
            marks = [pytest.mark.gpu] if name in ON_GPU else []
            yield pytest.param(name, changed, marks=marks if is_quick else [*marks, pytest.mark.nightly])


@pytest.mark.parametrize(("name", "changed"), list(cases()))
def test_callers_defaults_change_nothing(name, changed, expected, tmp_path):
    """Callers' settings change no training, evaluation or resumed run.

    They are bit-identical; the settings persist.
    """
    want, scores = expected(name)
    with DEFAULTS[changed]():
        before = state_of_caller()
        got, same_scores = run(name, tmp_path)
        assert state_of_caller() == before
    assert differences(want, got) == []
    assert same_scores == scores


FACTORIES = {"empty", "eye", "full", "ones", "rand", "randn", "zeros"}
FACTORIES |= {"linspace", "logspace", "scalar_tensor", "tensor"}
PLACED = {"arange", "as_tensor", "asarray", "randint", "randperm"}
"""Functions whose type follows from their arguments."""


@pytest.mark.parametrize("path", sorted(Path(warpdrive_min.__file__).parent.rglob("*.py")), ids=lambda path: path.stem)
def test_allocations_name_type_and_device(path):
    """Allocations name dtype and device.

    Otherwise they would use the caller's defaults.
    """
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch.")):
            continue
        name, given = ast.unparse(node.func).removeprefix("torch."), {each.arg for each in node.keywords}
        wanted = {"dtype", "device"} if name in FACTORIES else {"device"} if name in PLACED else set()
        if None not in given and wanted - given:
            missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)} needs {', '.join(sorted(wanted - given))}")
    assert missing == []
