"""Rollouts with a policy in one launch equal network and steps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.core.test_rollouts import assert_same, made
from tests.support import BACKENDS_HERE, by_night, is_simulated, needs_cuda_compiler, on_every_backend
from tests.training.models_support import in_torch
from warpdrive_min import BACKENDS, CUDASampler, EnvWrapper
from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.base import FLAGS
from warpdrive_min.backends.cuda_rollouts import entries_constant
from warpdrive_min.backends.host import HostBackend
from warpdrive_min.environment import environment_constants
from warpdrive_min.errors import BackendUnavailable, CompileError, ConfigError
from warpdrive_min.function_manager import BLOCKS_PER_WORKER, LANES, LaunchShape
from warpdrive_min.perceptron import Packed, Perceptron
from warpdrive_min.rng import STREAM_ACTIONS, philox, uniform
from warpdrive_min.rollouts import POLICY_DRAW_CONSTANTS, Episodes, Steps
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import ModelConfig, precision
from warpdrive_min.training.models.fully_connected import FullyConnected
from warpdrive_min.training.models.gru import GRU
from warpdrive_min.training.paths.constants import Sizes
from warpdrive_min.training.paths.exact.exact import Exact

SEED = 5
N_STEPS = 9
NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("cartpole", {"fc_dims": (64, 64), "activation": "tanh", "shared": False}),
    ("cartpole, pool", {"fc_dims": (20,), "activation": "relu"}),
    ("acrobot", {"fc_dims": (33, 128), "activation": "tanh"}),
    ("tag_gridworld", {"fc_dims": (32, 32), "activation": "relu", "shared": False}),
    ("tag_gridworld, partial, pool", {"fc_dims": (16,), "activation": "tanh"}),
]
TOLERANCE = 1e-5
"""Rounding of sums of up to 128 products of float32."""


def model_of(wrapper: EnvWrapper, **config: Any) -> FullyConnected:
    """Return a network whose initial logits are unequal."""
    space = ActionSpace.of(next(iter(wrapper.env.action_space.values())))
    n_features = wrapper.cuda_data_manager.tensor("observations").shape[-1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = FullyConnected(n_features, space, ModelConfig(init_method="xavier", **config))
    return model.to(wrapper.cuda_data_manager.device)


def evaluated(model: FullyConnected, steps: Steps) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return torch's logits and values for a rollout, and its log-probabilities."""
    with torch.no_grad():
        logits, values = model(torch.cat([steps.first_observations[None], steps.observations[:-1]]))
    return logits, values, torch.log_softmax(logits, -1).gather(-1, steps.sampled_actions.long()).squeeze(-1)


def assert_drawn(actions: torch.Tensor, logits: torch.Tensor, first_draw: int) -> None:
    """Assert that actions are the sampler's draws for these logits.

    Up to rounding. Shape: (steps, environments, agents, 1).
    """
    n_steps, n_envs, n_agents = actions.shape[:3]
    ends = torch.softmax(logits.double(), -1).cumsum(-1).cpu().numpy()
    got = actions[..., 0].cpu().numpy()
    env, agent = np.indices((n_envs, n_agents))
    n_in_doubt = 0
    for step in range(n_steps):
        draw = first_draw + step
        words = philox(draw // 4, env, agent, STREAM_ACTIONS, SEED, 0)
        threshold = uniform(words[draw % 4])[..., None]
        want = (ends[step] > threshold).argmax(-1)
        is_clear = (np.abs(ends[step] - threshold) > TOLERANCE).all(-1)
        n_in_doubt += (~is_clear).sum()
        np.testing.assert_array_equal(got[step][is_clear], want[is_clear])
    assert n_in_doubt <= 0.01 * got.size


@pytest.mark.parametrize(
    ("backend", "network"),
    [
        pytest.param(*each.values, network, marks=[*each.marks, *([pytest.mark.nightly] * (network in (1, 2)))])
        for each in BACKENDS_HERE
        for network in range(len(NETWORKS) if each.values[0] in ("host", "pycuda") else 1)
    ],
)
def test_policy_acts_as_its_network_says(backend, network):
    """A rollout has its network's log-probabilities, values and draws.

    Next states are bit-identical.
    """
    form, config = NETWORKS[network]
    check_acting(backend, form, 3 if is_simulated(backend) else 135, **config)


@pytest.mark.gpu
@pytest.mark.parametrize("n_envs", [2_051, 3_100])
def test_environments_that_share_a_warp_act_as_their_network_says(n_envs):
    """Blocks of one warp have several environments, and fewer in the last one."""
    form, config = NETWORKS[3]
    check_acting("pycuda", form, n_envs, **config)


def check_acting(backend, form, n_envs, **config):
    """Check a rollout against its network, and its steps against given actions."""
    n_steps = 2 if is_simulated(backend) else N_STEPS
    acted, told = made(form, backend, n_envs), made(form, backend, n_envs)
    model = model_of(acted, **config)
    is_fused = backend in ("host", "pycuda")
    assert acted.rollout_mode_of(model).name == ("fused" if is_fused else "stepwise")
    for first in (0, n_steps):
        steps = acted.rollout(n_steps, model, keep="all")
        logits, values, of_actions = evaluated(model, steps)
        torch.testing.assert_close(steps.log_probs, of_actions, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(steps.values, values, rtol=0, atol=TOLERANCE)
        assert_drawn(steps.sampled_actions, logits, first)
        assert torch.equal(steps.first_observations, told.cuda_data_manager.tensor("observations"))
        want = told.rollout(n_steps, steps.sampled_actions.clone(), keep="all")
        for name in ("observations", "rewards", "terminated", "truncated", "done"):
            assert torch.equal(getattr(steps, name), getattr(want, name)), name
        ended = steps.done != 0
        assert torch.equal(steps.final_observations[ended], want.final_observations[ended])
    assert is_simulated(backend) or (ended.any() and steps.sampled_actions.float().std() > 0.1)
    for name in set(told.cuda_data_manager.array_names()) - {"final_observations"}:
        assert torch.equal(acted.cuda_data_manager.tensor(name), told.cuda_data_manager.tensor(name)), name


def test_policy_acts_in_wide_blocks(monkeypatch):
    """A policy also acts in wide blocks of one CPU thread."""
    monkeypatch.setattr(HostBackend, "threads", 1)
    n_envs = LANES * BLOCKS_PER_WORKER
    acted = made("cartpole", "host", n_envs)
    model = model_of(acted, fc_dims=(8,))
    steps = acted.rollout(3, model, keep="all")
    assert_drawn(steps.sampled_actions, evaluated(model, steps)[0], 0)


def only_biases(model: FullyConnected) -> FullyConnected:
    """Set all weights to 0, so that sums have one order."""
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            torch.nn.init.zeros_(parameter)
    return model


@on_every_backend
def test_equal_logits_give_the_same_rollout_one_by_one(backend):
    """Equal logits give the same rollout as single steps.

    Bit-equal logits make all draws equal, with a used sampler too.
    """
    n_envs, n_steps = (3, 2) if is_simulated(backend) else (70, 6)
    wrappers, steps = [made("cartpole", backend, n_envs) for _ in range(2)], list[Steps]()
    for wrapper in wrappers:
        model = only_biases(model_of(wrapper, fc_dims=(64, 64), activation="tanh"))
        data, sampler = wrapper.cuda_data_manager, CUDASampler(wrapper.cuda_function_manager)
        sampler.register_actions(data, "sampled_actions", 2)
        sampler.init_random(11)
        even = torch.ones(n_envs, 1, 2, device=data.device)
        sampler.sample(data, even)
        acting = model if wrapper is wrappers[0] else lambda seen, model=model: model(seen)
        wrapper.rollout(n_steps, acting, sampler=sampler)
        steps.append(wrapper.rollout(n_steps, acting, keep="all", sampler=sampler))
        sampler.sample(data, even)
    assert_same(*wrappers, keep="all")
    for name in ("sampled_actions", "observations", "rewards", "done", "values", "first_observations"):
        assert torch.equal(*(getattr(each, name) for each in steps)), name
    torch.testing.assert_close(steps[0].log_probs, steps[1].log_probs, rtol=0, atol=1e-6)
    assert 0 < steps[0].sampled_actions.float().mean() < 1


def test_each_launch_sees_the_weights_as_they_are():
    """Each launch uses the parameters' current values.

    They may be views of a vector.
    """
    wrapper = made("cartpole", "host", 70)
    model = only_biases(model_of(wrapper, fc_dims=(16,)))
    launch, steps = wrapper.bound_rollout(3, model)
    for choice in (0, 1):
        vector = torch.zeros(2)
        vector[choice] = 100.0
        model.policy_head.bias.data = vector[:]
        model.vf_head.bias.data.fill_(choice + 0.5)
        launch()
        assert (steps.sampled_actions == choice).all()
        assert torch.equal(steps.values, torch.full((70, 1), choice + 0.5))
        assert torch.equal(steps.log_probs, torch.zeros(70, 1))


@pytest.mark.parametrize("backend", ["cpu", "host"])
def test_a_policy_without_a_value_acts_alone(backend):
    """An actor without a critic has log-probabilities but no values."""
    wrapper = made("cartpole", backend, 3)
    model = model_of(wrapper, fc_dims=(64, 64), activation="tanh")
    model.delete_value_head()
    first = wrapper.cuda_data_manager.tensor("observations").clone()
    steps = wrapper.rollout(1, model)
    assert steps.values is None
    said = torch.log_softmax(model.act(first), -1).gather(-1, steps.sampled_actions.long()).squeeze(-1)
    torch.testing.assert_close(steps.log_probs, said.detach(), rtol=0, atol=TOLERANCE)


def test_mode_says_why_a_policy_steps_one_by_one():
    """The mode has a reason for each step-by-step case."""
    wrapper = made("cartpole", "host", 2)
    for config, why in (
        ({"fc_dims": (129, 8)}, "a hidden layer has 129 units"),
        ({"fc_dims": (8, 8, 8)}, "it has 3 hidden layers"),
        ({"activation": "elu"}, "its activation is 'elu'"),
        ({"normalize_observations": True}, "it normalises observations"),
        ({"fused": False}, "model.fused is false"),
    ):
        mode = wrapper.rollout_mode_of(model_of(wrapper, **config))
        assert mode.name == "stepwise"
        assert why in mode.reason
    assert "as_perceptron" in wrapper.rollout_mode_of(lambda seen: (seen[..., :2], seen[..., 0])).reason
    for form, backend, why in (
        ("cartpole", "cpu", "has no launches"),
        ("tag_continuous", "host", "one discrete action each"),
        ("rice, negotiation", "host", "one discrete action each"),
    ):
        other = made(form, backend, 2)
        assert why in other.rollout_mode_of(model_of(other)).reason


def test_the_kernel_that_is_tried_is_the_one_that_acts(monkeypatch):
    """A rollout compiles one kernel with a policy."""
    wrapper = made("cartpole", "host", 2)
    compiled_with = compiled_by(wrapper, monkeypatch)
    model = model_of(wrapper, fc_dims=(8,))
    assert wrapper.rollout_mode_of(model).name == "fused"
    wrapper.rollout(2, model)
    assert [each["KEEP_ALL"] for each in compiled_with if "HIDDEN1" in each] == [False]


def compiled_by(wrapper: EnvWrapper, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list that collects the constants of all later kernels."""
    compiled_with, compile_it = list[dict[str, Any]](), wrapper.backend.compile

    def counted(source: Any, constants: Any) -> Any:
        compiled_with.append(constants)
        return compile_it(source, constants)

    monkeypatch.setattr(wrapper.backend, "compile", counted)
    return compiled_with


@pytest.mark.parametrize("backend", [each for each in BACKENDS_HERE if each.values[0] in ("host", "pycuda")])
def test_products_are_of_tf32_where_those_of_torch_may_be(backend, monkeypatch):
    """Kernels use TF32 only if torch's products may.

    It is float32 before and after; exact networks always are.
    """
    wrapper = made("cartpole", backend, 135)
    model, exact = model_of(wrapper, fc_dims=(64, 64)), model_of(wrapper, fc_dims=(8,))
    exact.fc.exact = Exact(BACKENDS[backend])
    compiled_with = compiled_by(wrapper, monkeypatch)
    said = []
    for name in ("fp32", "tf32", "fp32"):
        with precision(name, wrapper.cuda_data_manager.device):
            steps = wrapper.rollout(N_STEPS, model, keep="all")
            wrapper.rollout(2, exact)
        said.append((steps.log_probs - evaluated(model, steps)[2]).abs().max().item())
    assert max(said[0], said[2]) <= TOLERANCE
    assert said[1] <= TOLERANCE if backend == "host" else TOLERANCE < said[1] <= 5e-3
    of_policy = [each for each in compiled_with if "HIDDEN1" in each]
    assert sorted((each["HIDDEN1"], each["TF32"]) for each in of_policy) == [(8, False), (64, False), (64, True)]


def test_several_agents_and_masks_act_one_by_one():
    """Several agents, types and masks act step by step.

    Log-probabilities cover the allowed choices.
    """
    wrapper = made("rice, negotiation", "host", 3)
    model = only_biases(model_of(wrapper, fc_dims=(4,)))
    torch.nn.init.zeros_(model.policy_head.bias)
    mask = wrapper.cuda_data_manager.tensor("action_mask")
    before = mask.clone()
    steps = wrapper.rollout(1, model)
    space = ActionSpace.of(next(iter(wrapper.env.action_space.values())))
    n_allowed = torch.stack([part.sum(-1) for part in before.split(list(space.categories), -1)], -1)
    torch.testing.assert_close(steps.log_probs, -n_allowed.double().log().sum(-1).float(), rtol=1e-5, atol=1e-5)


def test_rollout_refuses_policies_that_need_more():
    """A rollout refuses boxes and recurrent models.

    They are for a Trainer.
    """
    pendulum = made("pendulum", "host", 2)
    with pytest.raises(ConfigError, match="actions of a policy must be discrete"):
        pendulum.rollout(2, model_of(pendulum))
    cartpole = made("cartpole", "host", 2)
    with pytest.raises(ConfigError, match="current observation only"):
        cartpole.rollout_mode_of(GRU(4, ActionSpace((2,), 1), ModelConfig(type="gru")))


def layers(*sizes: int) -> list[torch.Tensor]:
    """Return random weights and biases of layers of these sizes."""
    return [torch.randn(*shape) / 4 for pair in itertools.pairwise(sizes) for shape in (pair[::-1], pair[1:])]


@pytest.mark.parametrize(
    ("hidden", "is_tf32", "tolerance"),
    [by_night((20,), False, 3e-6), ((72, 9), False, 3e-6), ((9, 12), True, 3e-3)],
    ids=str,
)
def test_warp_evaluates_the_network(hidden, is_tf32, tolerance):
    """A warp's lanes compute torch's results, with units in registers.

    Fibres simulate the lanes of a GPU.
    """
    torch.manual_seed(SEED)
    n_features, n_outputs = 10, 3
    policy = layers(n_features, *hidden, n_outputs)
    perceptron, row = Perceptron(policy, (), "tanh"), 18
    weights = Packed(perceptron.parameters, perceptron.order("tiles"))
    weights.pack()
    sizes = {"N_OUTPUTS": n_outputs, "ROW": row, "SIDE_BY_SIDE": 2 if is_tf32 else 1}
    constants = {**perceptron.constants("tiles"), **sizes, "TF32": is_tf32}
    source = Path(__file__).with_name("perceptron_warp.cu")
    shape = {"N_AGENTS": 1, "EXACT": False, **LaunchShape.of(32).constants()}
    kernel = BACKENDS["host"].compile(source, {**constants, **shape})["evaluate"]
    inputs, out = torch.zeros(32, row), torch.zeros(32, row)
    inputs[:, :n_features] = torch.randn(32, n_features)
    kernel.prepare([weights.numbers, inputs, out], 1, 32)()
    want = in_torch(inputs[:, :n_features].double(), policy, "tanh")
    torch.testing.assert_close(out[:, :n_outputs], want.float(), rtol=0, atol=tolerance)
    assert ((out[:, :n_outputs] - want).abs().max() > 1e-5) == is_tf32


@pytest.mark.parametrize(
    ("hidden", "activation"),
    [
        ((20,), "relu"),
        ((72, 9), "tanh"),
        by_night((32, 32), "relu"),
        by_night((20,), "tanh"),
        by_night((72, 9), "relu"),
        by_night((32, 32), "tanh"),
    ],
    ids=str,
)
def test_lane_evaluates_the_network_as_exact_kernels_do(hidden, activation):
    """A single thread's network is bit-identical to the exact kernels."""
    torch.manual_seed(SEED)
    n_features, n_outputs = 10, 3
    policy = layers(n_features, *hidden, n_outputs)
    perceptron = Perceptron(policy, (), activation)
    weights = Packed(perceptron.parameters, perceptron.order("columns"))
    weights.pack()
    source = Path(__file__).with_name("perceptron_lane.cu")
    shape = {"N_AGENTS": 1, "EXACT": True, "N_OUTPUTS": n_outputs, **LaunchShape.of(32).constants()}
    kernel = BACKENDS["host"].compile(source, {**perceptron.constants("columns"), **shape})["evaluate"]
    inputs, out = torch.randn(32, n_features), torch.zeros(32, n_outputs)
    kernel.prepare([weights.numbers, inputs, out], 1, 32)()
    assert torch.equal(out, Exact(BACKENDS["host"]).perceptron(inputs, policy, activation))


def compiled(form: str, perceptron: Perceptron, own: LaunchShape | None = None, **flags: bool) -> Path:
    """Compile a rollout with a policy for a GPU; ``own`` is another shape."""
    wrapper = made(form, "host", 70)
    env, entries = wrapper.env, {entries_constant(name): 1 for name in ("draws", "running_steps", *FLAGS)}
    n_agents = len(env.action_space)
    shape = (own or LaunchShape.of(n_agents, n_envs=2_000)).constants()
    built = environment_constants(env, auto_reset=True, exact=perceptron.in_order)
    constants = built | shape | POLICY_DRAW_CONSTANTS | flags | {"N_AGENTS": n_agents}
    n_words = wrapper.cuda_data_manager.tensor("final_observations")[0].numel()
    entries[entries_constant("final_observations")] = n_words
    source = Path(env.kernel_sources["cuda_c"])
    layout = "columns" if perceptron.in_order else "tiles"
    return cuda_c.compile_cubin(source, constants | entries | perceptron.constants(layout), "sm_90")


@needs_cuda_compiler
@pytest.mark.parametrize(
    ("form", "hidden", "is_shared", "in_order"),
    [
        ("cartpole", (64, 64), True, False),
        ("acrobot", (40,), False, True),
        by_night("cartpole", (64, 64), True, True),
        by_night("acrobot", (40,), False, False),
        *(
            by_night("tag_gridworld", hidden, hidden == (32, 32), order)
            for hidden in ((32, 32), (9,))
            for order in (0, 1)
        ),
    ],
)
def test_rollouts_with_a_policy_compile_for_the_gpu(form, hidden, is_shared, in_order):
    """Rollouts with a policy compile, for each form of network."""
    n_features, n_choices = {"cartpole": (4, 2), "acrobot": (6, 3), "tag_gridworld": (21, 5)}[form]
    policy = layers(n_features, *hidden, n_choices)
    below = policy[:-2] if is_shared else layers(n_features, *hidden)
    perceptron = Perceptron(policy, [*below, *layers(hidden[-1], 1)], "tanh", in_order)
    flags = {"KEEP_ALL": is_shared, "RECORDS": is_shared, "TF32": is_shared and not in_order}
    assert b"rollout_with_policy" in compiled(form, perceptron, **flags).read_bytes()


@needs_cuda_compiler
@pytest.mark.parametrize("hidden", [(32, 32), by_night((64, 64)), by_night((9,))])
@pytest.mark.parametrize("in_order", [False, by_night(True)])
def test_blocks_of_one_warp_compile_for_the_gpu(hidden, in_order):
    """Small environments with a policy compile in blocks of one warp."""
    policy = layers(21, *hidden, 5)
    perceptron = Perceptron(policy, [*policy[:-2], *layers(hidden[-1], 1)], "tanh", in_order)
    flags = {"KEEP_ALL": True, "RECORDS": True, "TF32": False}
    assert compiled("tag_gridworld", perceptron, LaunchShape(32, 2), **flags).stat().st_size > 0


@pytest.mark.skipif(cuda_c.gpu_compiler() is None, reason="found neither NVRTC nor nvcc")
@pytest.mark.parametrize(("form", "hidden"), [("cartpole", 64), by_night("tag_gridworld", 32)])
def test_episodes_compile_for_the_gpu(form, hidden):
    """Whole episodes of a network compile, and only their kernel is built."""
    n_features, n_choices = {"cartpole": (4, 2), "tag_gridworld": (21, 5)}[form]
    network = Sizes(n_features, hidden, hidden, n_choices, 1, False).layers(is_tanh=True, is_tf32=False)
    wrapper = made(form, "host", 3, exact=False)
    assert wrapper.episodes(network) == "backend 'host' does not run CUDA C on a GPU"
    kernel = Episodes(wrapper._subject(AUTO_RESET=False), network).kernel
    constants = kernel.functions.with_defaults(kernel.constants)
    source = Path(wrapper.env.kernel_sources["cuda_c"])
    assert list(cuda_c.declared(source, constants)) == ["play_episodes"]
    assert b"play_episodes" in cuda_c.compile_cubin(source, constants, "sm_90").read_bytes()


def test_episodes_compile_only_on_a_gpu():
    """The error names the backend, and one that compiles them."""
    network = Sizes(4, 8, 8, 2, 1, False).layers(is_tanh=True, is_tf32=False)
    episodes = Episodes(made("cartpole", "host", 3, exact=False)._subject(AUTO_RESET=False), network)
    with pytest.raises(BackendUnavailable, match=r"'host': must run CUDA C on a GPU .*; use pycuda"):
        episodes.kernel.build()


def test_step_that_no_policy_can_act_between_says_so(tmp_path):
    """The error names the part that a step with a policy lacks."""
    source = tmp_path / "env.cu"
    source.write_text("WD_KERNEL(step)(int* sampled_actions, float* rewards, int n_envs) {}\n")
    with pytest.raises(CompileError, match=r"the step: must take .*none of .*observations.*use single steps"):
        cuda_c.declared(source, {"HIDDEN1": 8, "KEEP_ALL": True, "N_AGENTS": 1})
