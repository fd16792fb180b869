"""Exact training: kernels against NumPy and torch; complete runs.

Bit for bit against NumPy.
"""

from __future__ import annotations

import itertools
import platform
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import by_day, by_night, needs_cuda_compiler
from tests.training import builders
from tests.training.builders import fingerprint, make_run, refused
from tests.training.models_support import in_torch
from tests.training.test_population import make_population, of_member
from warpdrive_min import backends
from warpdrive_min.backends import cuda_c, host
from warpdrive_min.function_manager import KERNELS, LaunchShape
from warpdrive_min.kernels import maths_numpy
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.algorithms.optimiser import ExactAdam, FlatAdam
from warpdrive_min.training.models.exact_weights import initialise
from warpdrive_min.training.models.gru import Gates
from warpdrive_min.training.paths.exact import exact as exactly
from warpdrive_min.training.paths.exact import layers as exact_layers
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.paths.exact.learning import ExactLearning
from warpdrive_min.training.paths.fused import cpu
from warpdrive_min.training.paths.fused.loss import LossRule, Minibatch

HAS_COMPILER = backends.BACKENDS["host"].availability().available
pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
BACKENDS = ["host", pytest.param("pycuda", marks=pytest.mark.gpu)]
F = np.float32


@pytest.fixture
def exact(backend):
    return Exact(backends.get(backend))


# ------------------------------------------------------------------ the definition


def fma(a, b, c):
    """Return a b + c, rounded once.

    The sum in float64, rounded to odd, loses nothing that float32 could represent.
    """
    product, wide = a.astype(np.float64) * b.astype(np.float64), np.asarray(c, np.float64)
    total = product + wide
    part = total - product
    error = (product - (total - part)) + (wide - part)
    is_even = (total.view(np.int64) & 1) == 0
    return np.where((error != 0) & is_even, np.nextafter(total, np.copysign(np.inf, error)), total).astype(F)


def chain(x):
    """Return the sums over the first axis, added in order."""
    total = np.zeros(x.shape[1:], F)
    for row in x:
        total = total + row
    return total


def parts_of(n_rows):
    size = max(64, -(-n_rows // 1024))
    return [slice(start, start + size) for start in range(0, n_rows, size)]


def total(x):
    return chain(np.stack([chain(x[part]) for part in parts_of(len(x))]))


def tanh(x):
    z, size = x * x, np.abs(x)
    p = F(-5.70498872745e-3)
    for coefficient in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        p = p * z + F(coefficient)
    far = F(1) - F(2) / (maths_numpy.exp(size + size) + F(1))
    return np.where(np.isnan(x), x, np.where(size < F(0.625), (p * z) * x + x, np.where(x < 0, -far, far)))


def products(x, weights, start):
    """Return start plus products of rows, each a chain of `fma`."""
    out = np.broadcast_to(start, (len(x), len(weights))).astype(F)
    for i in range(x.shape[1]):
        out = fma(x[:, i : i + 1], weights[:, i][None], out)
    return out


def forward(x, weights, activation):
    """Return each layer's input, and the outputs."""
    act = {"tanh": tanh, "relu": lambda x: np.where(x < 0, F(0), x)}[activation]
    seen = [x]
    for layer in range(0, len(weights), 2):
        out = products(seen[-1], weights[layer], weights[layer + 1])
        seen.append(act(out) if layer < len(weights) - 2 else out)
    return seen


def backward(d_out, seen, weights, activation):
    """Return the gradients by inputs and weights."""
    slope = {"tanh": lambda y: F(1) - y * y, "relu": lambda y: (y > 0).astype(F)}[activation]
    gradients = []
    for layer in reversed(range(0, len(weights), 2)):
        x = seen[layer // 2]
        by_weights = chain(np.stack([products(d_out[part].T, x[part].T, F(0)) for part in parts_of(len(x))]))
        gradients = [by_weights, total(d_out), *gradients]
        d_out = products(d_out, weights[layer].T, F(0)) * (slope(x) if layer else F(1))
    return [d_out, *gradients]


@pytest.fixture(autouse=True)
def gradients_in_this_thread():
    """Compute gradients in the calling thread's context, as training does."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


def same(got, want):
    """Compare bits; a NaN's are the device's own."""
    got, want = got.detach().cpu().numpy(), np.asarray(want, F)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(*(np.where(np.isnan(each), 0, each.view(np.int32)) for each in (got, want)))


def numbers(exact, *shape, scale=1.0, seed=0):
    drawn = np.random.default_rng([seed, *shape]).standard_normal(shape) * scale
    return torch.from_numpy(drawn.astype(F)).to(exact._backend.device)


# ------------------------------------------------------------------ kernels


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_networks_are_their_definition(exact, activation):
    """Exact networks equal NumPy bit by bit, and torch within rounding."""
    sizes = [5, 70, 33, 3]
    weights = []
    for n_in, n_out in itertools.pairwise(sizes):
        weights += [numbers(exact, n_out, n_in, scale=n_in**-0.5), numbers(exact, n_out, scale=0.1)]
    x, d_out = numbers(exact, 150, 5, scale=3), numbers(exact, 150, 3, seed=1)
    leaves = [each.clone().requires_grad_() for each in (x, *weights)]
    out = exact.perceptron(leaves[0].view(75, 2, 5), leaves[1:], activation)
    gradients = torch.autograd.grad(out, leaves, d_out.view(75, 2, 3))
    plain = [each.cpu().numpy() for each in weights]
    seen = forward(x.cpu().numpy(), plain, activation)
    same(out.view(150, 3), seen[-1])
    for got, want in zip(gradients, backward(d_out.cpu().numpy(), seen, plain, activation), strict=True):
        same(got, want)
    hidden = in_torch(leaves[0].double(), leaves[1:], activation)
    torch.testing.assert_close(out.view(150, 3).double(), hidden, rtol=1e-5, atol=1e-5)  # float32, 70 terms
    for got, want in zip(gradients, torch.autograd.grad(hidden, leaves, d_out.double()), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # 150 terms


@pytest.mark.parametrize("backend", BACKENDS)
def test_tanh_is_its_definition_and_accurate(exact):
    """Exact tanh equals NumPy's bits, within 2 ulp of tanh.

    It is odd, and 1 far out; NaN propagates.
    """
    x = numbers(exact, 999, scale=3)
    x[:6] = torch.tensor([0.0, -0.0, 0.625, -40.0, 200.0, torch.nan])
    x.requires_grad_()
    y = exact.tanh(x)
    same(y, tanh(x.detach().cpu().numpy()))
    want = np.tanh(x.detach().cpu().numpy().astype(np.float64))
    errors = np.abs(y.detach().cpu().numpy() - want) / np.spacing(np.abs(want).astype(F))
    assert np.nanmax(errors) <= 2
    assert np.isnan(y.detach().cpu().numpy()).tolist() == [i == 5 for i in range(999)]
    (slope,) = torch.autograd.grad(y.sum(), x)
    same(slope, F(1) - y.detach().cpu().numpy() ** 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_squared_error_is_its_definition(exact):
    """Exact squared error and its gradient equal NumPy bit by bit."""
    x, target = numbers(exact, 99, 1).requires_grad_(), numbers(exact, 99, 1, seed=1)
    loss = exact.squared_error(x, target)
    error = (x.detach() - target).cpu().numpy()
    same(loss, total(error * error)[0] / F(99))
    share = F(1) / F(99)
    same(torch.autograd.grad(loss, x)[0], share * error + share * error)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 200])
def test_normalisation_is_its_definition(exact, n):
    """Exact normalisation equals NumPy; a single number gives 0."""
    x = numbers(exact, n, scale=5) + 100
    plain = x.cpu().numpy()
    distance = plain - total(plain[:, None])[0] / F(n)
    variance = total((distance * distance)[:, None])[0] / F(max(1, n - 1))
    want = distance / (np.sqrt(np.maximum(variance, F(1e-10) * F(1e-10))) + F(1e-10))
    got = exact.normalise(x.view(n, 1))
    same(got.view(n), want)
    torch.testing.assert_close(got.view(n), losses.normalise(x), rtol=0, atol=2e-5)  # 100 / 5 / 2^-23, in ulp


@pytest.mark.parametrize("backend", BACKENDS)
def test_adam_is_its_definition(exact):
    """Exact Adam equals NumPy bit by bit, and torch within rounding.

    Cases: with or without clipping, a skipped and a broken step.
    """
    start, lr = numbers(exact, 130), torch.tensor(0.01, device=exact._backend.device)
    ours = ExactAdam(exact, [torch.nn.Parameter(start.clone())], lr, 2.0, 1e-6)
    torchs = FlatAdam([torch.nn.Parameter(start.clone())], lr, 2.0, 1e-6)
    p, m, v, t = start.cpu().numpy(), np.zeros(130, F), np.zeros(130, F), 0
    for k, scale in enumerate((1.0, 0.01, 1.0, torch.nan, 3.0)):
        gradient = numbers(exact, 130, seed=k) * scale
        for each in (ours, torchs):
            each.gradient.copy_(gradient)
            each.apply(torch.tensor(k == 2, device=lr.device))
        norm = np.sqrt(total((gradient.cpu().numpy() ** 2)[:, None])[0])
        same(ours.norm, norm)
        if k in (2, 3):
            continue
        t += 1
        g = gradient.cpu().numpy() / max(F(1), (norm + F(1e-6)) / F(2))
        m = m + (g - m) * F(0.1)
        v = v + (g * g - v) * F(0.001)
        rate, root = F(0.01) / F(1 - squared_power(0.9, t)), F(np.sqrt(1 - squared_power(0.999, t)))
        p = p - rate * (m / (np.sqrt(v) / root + F(1e-6)))
        same(ours.vector, p)
    state = ours.state()
    assert (state["step"].item(), ours.n_skipped.item()) == (3, 1)
    same(state["exp_avg"], m)
    same(state["exp_avg_sq"], v)
    for name, want in torchs.state().items():
        torch.testing.assert_close(state[name], want, rtol=1e-5, atol=1e-6)


def squared_power(base, exponent):
    """Return a power by squares."""
    result = 1.0
    while exponent:
        result = result * base if exponent & 1 else result
        base, exponent = base * base, exponent >> 1
    return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_of_a_gaussian_is_its_definition(exact):
    """PPO's loss of a continuous action equals NumPy bit by bit."""
    space, n = ActionSpace((), n_types=1, low=(-1.0,), high=(1.0,)), 100
    head, values, actions, advantages = (
        numbers(exact, n, 1, *more, seed=k) for k, more in enumerate(((1,), (), (1,), ()))
    )
    log_std = numbers(exact, 1, scale=0.3)
    z, inverse = None, maths_numpy.exp(-log_std.cpu().numpy())
    m, v, a, gain = (each.cpu().numpy().reshape(n) for each in (head, values, actions, advantages))
    z = (a - m) * inverse
    log_prob = (F(-0.5) * (z * z) - log_std.cpu().numpy()) - F(0.918938533)
    old = log_prob + F(0.3) * np.sin(np.arange(n)).astype(F)
    ratio = maths_numpy.exp(log_prob - old)
    whole, clipped = ratio * gain, np.clip(ratio, F(1) - F(0.2), F(1) + F(0.2)) * gain
    error, count = v - F(2), F(n)
    of_policy = np.where(clipped < whole, F(0), -whole) / count
    entropy = (F(0.5) + F(0.918938533)) + log_std.cpu().numpy()
    terms = np.stack([-np.where(clipped < whole, clipped, whole), error * error, np.broadcast_to(entropy, n),
                      (ratio - F(1)) - (log_prob - old), (np.abs(ratio - F(1)) > F(0.2)).astype(F)], 1)  # fmt: skip
    leaves = [each.requires_grad_() for each in (head, values, log_std)]
    scalars = [torch.tensor(value, device=head.device) for value in (float(n), 0.5, 0.01)]
    log_probs, returns = torch.from_numpy(old).view(n, 1).to(head.device), torch.full_like(values, 2)
    rows = Minibatch(actions, log_probs, returns, advantages, old_values=values.detach())
    loss, got = exact.loss(space, head, values, rows, LossRule(*scalars[1:], 0.2, True, None), scalars[0], log_std)
    same(got, total(terms) / count)
    d_head, d_values, d_log_std = torch.autograd.grad(loss, leaves)
    same(d_head.view(n), of_policy * (z * inverse))
    same(d_values.view(n), (F(0.5) * (F(2) * error)) / count)
    same(d_log_std, total((of_policy * (z * z - F(1)) - F(0.01) / count)[:, None]))


# ------------------------------------------------------------------ initial weights


@pytest.mark.parametrize(("method", "spread"), [(None, 64**-0.5), ("xavier", (6 / 96) ** 0.5), ("orthogonal", None)])
def test_initial_weights_follow_the_method(method, spread):
    """Initial weights follow their method.

    They are spread within their limits, or orthonormal times the gain.
    """
    layers = torch.nn.ModuleDict({"fc": torch.nn.Linear(64, 32), "policy_head": torch.nn.Linear(3, 8)})
    initialise(layers, method, [5])
    gates = Gates(9, 25)
    initialise(gates, method, [5])
    by_gate = gates.weight.detach().double().view(3, 25, 9)
    if method == "orthogonal":
        torch.testing.assert_close(by_gate.mT @ by_gate, torch.eye(9).double().expand(3, 9, 9), atol=1e-6, rtol=0)
    else:
        want = {None: 25**-0.5, "xavier": (6 / 34) ** 0.5}[method]
        assert 0.95 * want < by_gate.abs().max() <= want
        assert 0.8 * 25**-0.5 < gates.bias.abs().max() <= 25**-0.5
    weight, head = layers["fc"].weight.detach().double(), layers["policy_head"].weight.detach().double()
    if spread is None:
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(32).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(head.T @ head, 1e-4 * torch.eye(3).double(), atol=1e-9, rtol=0)
        assert not layers["fc"].bias.any()
    else:
        assert 0.99 * spread < weight.abs().max() <= spread
        assert abs(weight.std() / (spread / 3**0.5) - 1) < 0.05
        assert 0 < layers["fc"].bias.abs().max() <= 64**-0.5


# ------------------------------------------------------------------ runs


MODEL = {"fc_dims": [12, 9], "activation": "tanh", "init_method": "orthogonal"}
GRU = {**MODEL, "type": "gru", "hidden_size": 5, "sequence_length": 3}
NORMALISED = {"normalize_observations": True}
A2C = {**builders.A2C, "model": MODEL}
PPO = {**builders.PPO, "normalize_advantage": True, "model": {**MODEL, "shared": False}, "target_kl": 0.5}
RUNS = {
    "A2C": ("cartpole", A2C),
    "PPO": ("cartpole", PPO),
    "PPO, continuous": ("pendulum", {**PPO, "value_clip": 0.3, "entropy_coeff": 0.01}),
    "A2C, continuous": ("pendulum", {**A2C, "normalize_return": True, "normalize_rewards": True, "gae_lambda": 0.9}),
    "DDPG": ("pendulum", {**builders.DDPG, "model": {"actor": MODEL, "critic": MODEL}}),
    "PPO, normalised": ("cartpole", {**PPO, "model": {**PPO["model"], **NORMALISED}}),
    "DDPG, normalised": ("pendulum", {**builders.DDPG, "model": {"actor": MODEL, "critic": {**MODEL, **NORMALISED}}}),
    "PPO, centralised critic": ("tag_continuous", {**PPO, "centralised_critic": {**MODEL, **NORMALISED}}),
    "PPO, GRU": ("cartpole", {**PPO, "model": {**GRU, "shared": False, "init_method": None}}),
    "A2C, GRU": ("pendulum", {**A2C, "normalize_return": True, "model": {**GRU, **NORMALISED}}),
    "PPO, successes": ("tag_gridworld", {**PPO, "normalize_return": True}),
}
REPLAY = {"buffer_size": 24, "batch_size": 150, "learning_starts": 20}
for steps, more in ((1, {}), (3, REPLAY), (7, {**REPLAY, "buffer_size": 100, "batch_size": 1})):
    RUNS[f"DDPG, {steps} steps, {more.get('batch_size', 8)} drawn"] = ("pendulum", {**RUNS["DDPG"][1], **more})
TRAINERS = {
    "PPO, successes": {"neg_pos_env_ratio": 0.5},
    "DDPG, 1 steps, 8 drawn": {"n_step": 1},
    "DDPG, 7 steps, 1 drawn": {"n_step": 7},
}
"""Trainer settings of some runs."""
CONFIGS = {
    "tag_continuous": {"num_taggers": 1, "num_runners": 2},
    "tag_gridworld": {"num_taggers": 2, "grid_length": 3},
}


def made(env, policy, folder, backend="host", *, exact=True, **trainer):
    """Return a trainer of an exact run, or of another."""
    run = (env, {"episode_length": 9, **CONFIGS.get(env, {})}, {"shared": policy})
    trainer = {"exact": exact, **trainer}
    return make_run(run, backend, trainer=trainer, wrapper={"exact": exact}, basedir=folder)


def trained(name, backend, folder, n_iterations=3, **given):
    """Return the hash of an exact run's bits after some iterations."""
    few = {"max_rows": 16, "n_step": 3, **TRAINERS.get(name, {}), **given}
    run = made(*RUNS[name], folder, backend, **few)
    run.train(n_iterations)
    group = run.groups["shared"]
    if (weights := getattr(group.algorithm, "weights", None)) is not None:
        assert 0 < weights.mean() < 1, "some environments count"
    assert not isinstance(group._evaluation, cpu.Evaluation), "no other kernels act"
    learning = getattr(group.algorithm, "_learning", None)
    assert learning is None or isinstance(learning, ExactLearning), "no other kernels learn"
    return fingerprint(run)


OF_THREADS = ("A2C", "PPO, continuous", "PPO, centralised critic", "PPO, GRU", "PPO, successes")
OF_THREADS += ("DDPG, 3 steps, 150 drawn",)
"""By day: each algorithm, kind of network, and way to choose rows."""


@pytest.mark.parametrize("name", by_day(RUNS, OF_THREADS))
def test_runs_have_the_same_bits_for_every_number_of_threads(name, tmp_path):
    """Any number of threads gives the same bits.

    Another seed does not.
    """
    want = trained(name, "host", tmp_path / "one")
    assert name != "A2C" or trained(name, "host", tmp_path / "seed", seed=8) != want
    torch.set_num_threads(2)
    assert trained(name, "host", tmp_path / "two") == want


SMALL = {
    "A2C": ("cartpole", {**A2C, "model": {"fc_dims": [32, 32], "activation": "relu"}}, {}),
    "A2C, apart": ("cartpole", {**A2C, "model": {**MODEL, "shared": False}}, {}),
    "A2C, continuous": ("pendulum", {**A2C, "normalize_return": True}, {}),
    "PPO": ("cartpole", PPO, {}),
    "PPO, one layer": ("cartpole", {**PPO, "value_clip": 0.3, "model": {"fc_dims": [20]}}, {"max_rows": 16}),
    "PPO, continuous": ("pendulum", {**PPO, "entropy_coeff": 0.01}, {}),
    "PPO, two choices": ("tag_continuous", PPO, {}),
}
"""Environments and policies with one-pass gradients, and trainer settings."""
LATE = ("A2C", "A2C, apart", "A2C, continuous", "PPO", "PPO, one layer")
"""Nightly: their kernels are built in other forms by the other runs."""


def taught(env, policy, folder, **trainer):
    """Return a run's state after some iterations, and its learner."""
    run = made(env, policy, folder, **trainer)
    run.train(3)
    return builders.everything(run), run.groups["shared"].algorithm._learning


@pytest.fixture
def in_blocks(monkeypatch):
    """Make small networks a GPU's: fibres simulate its threads."""
    load = Exact._load

    def loaded(self, name, constants):
        own = Path(__file__).with_name(name)
        monkeypatch.setattr(exactly, "KERNELS", own.parent if own.exists() else KERNELS)
        return load(self, name, constants)

    monkeypatch.setattr(Exact, "_load", loaded)
    monkeypatch.setattr(exact_layers, "_for_cpu", exact_layers._for_gpu)


@pytest.mark.parametrize("name", [by_night(name) if name in LATE else name for name in SMALL])
def test_every_way_has_the_bits_of_steps_and_layers(name, tmp_path, request):
    """Fast rollouts and gradients are bit-identical to single kernels.

    One-launch rollouts and one-pass gradients, by CPU SIMD and by GPU blocks.
    """
    env, policy, trainer = SMALL[name]
    apart = {**policy, "model": {**policy["model"], "fused": False}}
    want, learning = taught(env, apart, tmp_path / "apart", **trainer, fused_rollout=False)
    assert learning is None
    for way in ("rows", "blocks"):
        if way == "blocks":
            request.getfixturevalue("in_blocks")
        got, learning = taught(env, policy, tmp_path / way, **trainer)
        assert isinstance(learning, ExactLearning)
        assert not builders.differences(got, want)


NETWORKS = [(3, 12, 9, 2), (21, 20, 5), (70, 33, 128, 1)]
"""Inputs, units of hidden layers, and outputs."""


def outputs_and_gradients(sizes, activation, n_rows, exact):
    """Return a random network's outputs, and gradients of inputs and weights."""
    torch.manual_seed(3)
    shapes = [shape for n_in, n_out in itertools.pairwise(sizes) for shape in ((n_out, n_in), (n_out,))]
    given = [torch.randn(n_rows, sizes[0]), *(torch.randn(shape) / 4 for shape in shapes)]
    given = [each.requires_grad_() for each in given]
    out = exact.perceptron(given[0], given[1:], activation)
    return [out.detach(), *torch.autograd.grad(out, given, torch.randn(n_rows, sizes[-1]))]


@pytest.mark.parametrize(
    ("sizes", "activation"),
    [
        (NETWORKS[1], "tanh"),
        by_night(NETWORKS[2], "relu"),
        *(by_night(*each) for each in zip(NETWORKS, ("relu", "relu", "tanh"), strict=True)),
        by_night(NETWORKS[0], "tanh"),
    ],
    ids=str,
)
def test_small_networks_have_the_bits_of_their_layers(sizes, activation, monkeypatch, request):
    """Small networks are bit-identical to their layers.

    One pass over 150 rows in three parts, by CPU SIMD or GPU blocks.
    """
    with monkeypatch.context() as patch:
        patch.setattr(Exact, "packed", lambda self, weights: None)
        want = outputs_and_gradients(sizes, activation, 150, Exact(backends.get("host")))
    for way in ("rows", "blocks"):
        if way == "blocks":
            request.getfixturevalue("in_blocks")
        got = outputs_and_gradients(sizes, activation, 150, Exact(backends.get("host")))
        assert all(map(torch.equal, got, want)), way


@pytest.mark.parametrize("architecture", ["sm_90", by_night("sm_80"), by_night("sm_120")])
@needs_cuda_compiler
def test_one_pass_compiles_for_the_gpu(architecture, tmp_path, monkeypatch):
    """One-pass gradients compile for two 64-64 networks.

    They are near the limit of a block's shared memory.
    """
    asked, launch = [], Exact.launch_blocks

    def launched(self, source, constants, *words, **given):
        asked.extend([constants] if source == "exact_learn.cu" else [])
        launch(self, source, constants, *words, **given)

    monkeypatch.setattr(Exact, "launch_blocks", launched)
    policy = {**PPO, "model": {"fc_dims": [64, 64], "activation": "tanh"}}
    taught("cartpole", policy, tmp_path)
    constants = {"N_AGENTS": 1, "EXACT": True, **LaunchShape.of(1).constants(), **asked[0]}
    assert cuda_c.compile_cubin(KERNELS / "exact_learn.cu", constants, architecture).read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    "name", ["A2C", "DDPG", "DDPG, normalised", "PPO, centralised critic", "PPO, GRU", "PPO, successes"]
)
def test_update_is_that_of_torch(name, tmp_path):
    """An exact update equals torch's within rounding.

    Both start from the same state; the moments of gradients are compared.
    """
    env, policy = RUNS[name]
    once = {"updates_per_iteration": 1} if "DDPG" in name else {"n_epochs": 1, "n_minibatches": 1}
    given, policy = TRAINERS.get(name, {}), {**policy, **({} if name == "A2C" else once)}
    runs = [made(env, policy, tmp_path / str(exact), exact=exact, **given) for exact in (True, False)]
    saved, header = runs[0].state()
    runs[1].load_state({key: tensor.clone() for key, tensor in saved.items()}, header, "the other run")
    for run in runs:
        run.train(2 if name in TRAINERS else 1)  # until some environments do not count
    assert name not in TRAINERS or 0 < runs[0].groups["shared"].algorithm.weights.mean() < 1
    got, want = (builders.everything(run) for run in runs)
    moments = [key for key in got if key.endswith(("exp_avg", "normaliser.mean", "normaliser.variance"))]
    assert len(moments) > ("critic" in name or "normalised" in name)
    for key in moments:
        assert got[key].abs().max() > 1e-4, "it learns"
        torch.testing.assert_close(got[key], want[key], rtol=1e-3, atol=1e-6)


POPULATION = {"lr": [0.01, 0.02, 0.01], "clip_param": [0.2, 0.2, 0.3], "max_grad_norm": [0.5, 0.1, 0.5]}
MEMBERS = {
    "A2C": ("cartpole", {**A2C, "normalize_return": True, "model": {**MODEL, **NORMALISED}}),
    "PPO": ("cartpole", {**PPO, "clip_param": 0.2, "max_grad_norm": 0.5, "clip_grad_norm": True, "lr": 0.01}),
    "PPO, continuous": ("pendulum", {**PPO, "clip_grad_norm": True, "normalize_rewards": True}),
}


def members(name, backend, folder):
    """Return a population of three after some iterations."""
    env, policy = MEMBERS[name]
    given = {} if name == "A2C" else {"population": POPULATION}
    run = (env, {"episode_length": 9}, {"shared": policy})
    made = make_population(3, run, backend, trainer={"exact": True, "max_rows": 48}, basedir=folder, **given)
    made.train(3)
    return made


@pytest.mark.parametrize("name", MEMBERS)
def test_populations_have_the_bits_of_single_runs(name, tmp_path):
    """A population's first member is bit-identical to an ordinary run.

    Draws around a mean are rounded otherwise: there it is so with another number of threads.
    """
    population = members(name, "host", tmp_path / "members")
    if name == "PPO, continuous":
        torch.set_num_threads(2)
        assert fingerprint(members(name, "host", tmp_path / "threads")) == fingerprint(population)
        return
    alone = made(*MEMBERS[name], tmp_path / "alone", max_rows=16)
    alone.train(3)
    assert not builders.differences(of_member(population, 0), builders.weights(alone))
    others = of_member(population, 1)
    assert not any(
        torch.equal(others[key], tensor) for key, tensor in of_member(population, 0).items() if "weight" in key
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", MEMBERS)
def test_populations_have_the_same_bits_on_a_gpu(name, tmp_path):
    """Populations are bit-identical on a GPU."""
    assert fingerprint(members(name, "pycuda", tmp_path / "gpu")) == fingerprint(
        members(name, "host", tmp_path / "cpu")
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86")
@pytest.mark.nightly
def test_runs_have_the_same_bits_for_every_instruction_set(tmp_path, monkeypatch):
    """A run has the same bits without FMA and AVX."""
    want = trained("PPO, continuous", "host", tmp_path / "here")
    monkeypatch.setattr(host, "TARGET", "-march=x86-64")
    assert trained("PPO, continuous", "host", tmp_path / "old") == want


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("mode", "name"),
    [*(("auto", name) for name in RUNS), *(("eager", name) for name in ("A2C", "DDPG"))]
    + [by_night("eager", name) for name in RUNS if name not in ("A2C", "DDPG")],
)
def test_runs_have_the_same_bits_on_a_gpu(name, mode, tmp_path):
    """On a GPU, runs are bit-identical, also as CUDA graphs."""
    assert trained(name, "pycuda", tmp_path / "gpu", 5, mode=mode) == trained(name, "host", tmp_path / "cpu", 5)


@needs_cuda_compiler
@pytest.mark.parametrize("name", ["exact.cu", "exact_loss.cu", "exact_network.cu"])
def test_kernels_compile_for_the_gpu(name):
    """The sources give machine code for an H100 and an H200."""
    constants = {"N_AGENTS": 1, "EXACT": True, **LaunchShape.of(1).constants()}
    if name == "exact_network.cu":
        constants |= {
            "THREADS": 128,
            "OF_INPUTS": True,
            "IS_TANH": True,
            **exact_layers.Layers((10, 64, 64, 1)).constants(),
        }
    if name == "exact_loss.cu":
        constants |= {"DISCRETE": True, "N_TYPES": 2, "N_OUTPUTS": 5, "SIZES": [3, 2], "MASKED": True}
        constants |= {"IS_CLIPPED": True, "CLIP_PARAM": 0.2, "VALUE_CLIPPED": True, "VALUE_CLIP": 0.5}
    assert cuda_c.compile_cubin(KERNELS / name, constants, "sm_90").read_bytes()[:4] == b"\x7fELF"


# ------------------------------------------------------------------ errors


def test_backends_and_environments_must_be_exact_too(tmp_path):
    """Exact training needs exact kernels and environments.

    NumPy has no such kernels, and a wrapper must have been made so.
    """
    run = ("cartpole", {"episode_length": 9}, {"shared": A2C})
    with refused("run config trainer.exact", "cpu"):
        make_run(run, "cpu", trainer={"exact": True}, wrapper={"exact": True}, basedir=tmp_path)
    with refused("run config trainer.exact", True):
        make_run(run, "host", trainer={"exact": True}, basedir=tmp_path)
