"""Environments written for `warp_drive` only load, step and reset unchanged.

`towns` is one class for all backends with two policies of their own arrays. `treaties` is a Python class with a
subclass for the kernels; see their folders.
"""

from __future__ import annotations

import ast
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

if importlib.util.find_spec("gymnasium") is None:
    pytest.skip("the environments take their action spaces from gymnasium", allow_module_level=True)

from example_envs.tag_continuous.tag_continuous import TagContinuous
from warp_drive.env_cpu_gpu_consistency_checker import EnvironmentCPUvsGPU, generate_random_actions
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.managers.function_manager import CUDALogController, CUDASampler

from tests.compat.builders import FOLDER, FOUR, SMALL, THREADED, push_placeholders, start
from tests.compat.environments.towns.towns import Towns
from tests.compat.environments.treaties.treaties import ACCEPTANCE, MITIGATION, PROPOSAL, CUDATreaties, Treaties
from tests.support import TAG_CONFIGS, needs_cuda_compiler
from warpdrive_min.backends import cuda_c, cuda_source
from warpdrive_min.function_manager import LaunchShape


def pull(wrapper: EnvWrapper, name: str) -> np.ndarray:
    """Return a copy of an array."""
    return wrapper.cuda_data_manager.pull_data_from_device(name)


def act(wrapper: EnvWrapper, actions: Any, name: str = "sampled_actions") -> None:
    """Write actions into their array, repeated for every copy."""
    target = wrapper.cuda_data_manager.data_on_device_via_torch(name)
    target.copy_(torch.as_tensor(np.asarray(actions, np.int32)))


# ------------------------------------------------------------------ Python and kernels, step by step


@pytest.mark.parametrize("backend", THREADED)
def test_kernels_agree_with_python_beside_other_environments(backend, registrar):
    """Kernels agree with Python while other environments share the process.

    Five towns have the agents on the last axis of their observations.
    """
    earlier = start(Towns(**SMALL), backend)
    tag = EnvWrapper(TagContinuous(**TAG_CONFIGS["full, exits"]), num_envs=2, env_backend=backend)
    tag.reset_all_envs()
    five = {"num_towns": 5, "episode_length": 2, "agents_last": True, "seed": 4}
    two = {"num_regions": 2, "episode_length": 2, "seed": 5}
    assert towns_checker(SMALL, backend, registrar).test_env_reset_and_step(seed=0) < 1e-4
    assert towns_checker(five, backend, registrar).test_env_reset_and_step(seed=0) < 1e-4
    treaties = treaties_checker({"four": FOUR, "two": two}, backend, registrar, num_episodes=1)
    assert treaties.test_env_reset_and_step(seed=0) < 1e-4
    tag.step_all_envs()
    assert pull(tag, "_timestep_").tolist() == [1, 1]
    follow(earlier, 2)


def towns_checker(config: dict[str, Any], backend: str, registrar: Any, **arguments: Any) -> EnvironmentCPUvsGPU:
    """Return the checker of the class for all backends."""
    return EnvironmentCPUvsGPU(
        dual_mode_env_class=Towns,
        env_configs={"towns": config},
        num_envs=2,
        gpu_env_backend=backend,
        env_registrar=registrar,
        policy_tag_to_agent_id_map=Towns(**config).policy_tag_to_agent_id_map,
        create_separate_placeholders_for_each_policy=True,
        obs_dim_corresponding_to_num_agents="last" if config.get("agents_last") else "first",
        **arguments,
    )


def treaties_checker(
    configs: dict[str, dict[str, Any]], backend: str, registrar: Any, **arguments: Any
) -> EnvironmentCPUvsGPU:
    """Return the checker of both classes."""
    return EnvironmentCPUvsGPU(
        cpu_env_class=Treaties,
        cuda_env_class=CUDATreaties,
        env_configs=configs,
        num_envs=2,
        gpu_env_backend=backend,
        env_registrar=registrar,
        **arguments,
    )


def follow(wrapper: EnvWrapper, n_steps: int) -> None:
    """Step towns and a Python object equally; compare states and rewards."""
    reference = Towns(**SMALL)
    reference.reset()
    np.random.seed(3)  # noqa: NPY002  (WarpDrive's draws)
    for _ in range(n_steps):
        (actions,) = generate_random_actions(reference, 1)
        act(wrapper, [[actions[0]], [actions[1]], [actions[2]]], "sampled_actions_town")
        act(wrapper, [[actions[3]]], "sampled_actions_council")
        wrapper.step_all_envs()
        _, rewards, _, _ = reference.step(actions)
        for env in range(wrapper.n_envs):
            for name in ("wealth", "paid"):
                np.testing.assert_allclose(pull(wrapper, name)[env], getattr(reference, name), rtol=1e-4, atol=1e-5)
            got = np.append(pull(wrapper, "rewards_town")[env], pull(wrapper, "rewards_council")[env])
            np.testing.assert_allclose(got, list(rewards.values()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", THREADED)
@pytest.mark.parametrize(("parameter", "array"), [("grant", "observations_town"), ("cost", "rewards_council")])
def test_checker_finds_a_planted_difference(parameter, array, backend, registrar):
    """The checker catches a changed parameter in observations and rewards."""

    class Other(Towns):
        def __init__(self, **config):
            super().__init__(**config)
            setattr(self, parameter, np.float32(0.5))

    checker = EnvironmentCPUvsGPU(
        cpu_env_class=Other,
        cuda_env_class=Towns,
        env_configs={"towns": SMALL},
        num_envs=2,
        gpu_env_backend=backend,
        env_registrar=registrar,
        policy_tag_to_agent_id_map={"town": [0, 1, 2], "council": [3]},
        create_separate_placeholders_for_each_policy=True,
    )
    with pytest.raises(AssertionError, match=array):
        checker.test_env_reset_and_step(seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("backend", "blocks"), [("numba", 1), ("pycuda", 1), ("pycuda", 2)])
def test_full_size_agrees_with_python(backend, blocks, registrar):
    """Full-size environments agree with Python, on one block or two."""
    arguments = {"blocks_per_env": blocks, "num_episodes": 2}
    assert (
        towns_checker({"seed": 1, "agents_last": True}, backend, registrar, **arguments).test_env_reset_and_step(seed=1)
        < 0.01
    )
    assert (
        treaties_checker({"full": {"seed": 1}}, backend, registrar, **arguments).test_env_reset_and_step(seed=1) < 0.01
    )


# ------------------------------------------------------------------ a whole run


@pytest.mark.parametrize(("name", "config"), [("Towns", SMALL), ("Treaties", FOUR)])
def test_python_classes_run_in_the_wrapper(name, config, registrar):
    """Python classes step in the wrapper, one environment by agent."""
    with pytest.warns(DeprecationWarning, match="use_cuda"):
        wrapper = EnvWrapper(env_name=name, env_registrar=registrar, env_config=config, use_cuda=False)
    first = wrapper.reset()
    assert list(first) == list(wrapper.env.action_space)
    (actions,) = generate_random_actions(wrapper.env, 1, seed=0)
    for step in range(1, wrapper.episode_length + 1):
        observations, rewards, done, _ = wrapper.step(actions)
        assert observations.keys() == rewards.keys() == first.keys()
        assert done == {"__all__": step == 4}
    again = wrapper.reset()
    for agent, observation in first.items():
        np.testing.assert_equal(again[agent], observation)


@pytest.mark.parametrize("backend", THREADED)
def test_towns_run_from_sampler_to_log(backend, registrar):
    """A sampled and logged run equals Python's result."""
    wrapper = EnvWrapper(env_name="Towns", env_registrar=registrar, env_config=SMALL, num_envs=2, env_backend=backend)
    first = wrapper.reset_all_envs()
    data = wrapper.cuda_data_manager
    sampler = CUDASampler(wrapper.cuda_function_manager)
    sampler.init_random(seed=3)
    push_placeholders(wrapper, action_sampler=sampler, training_batch_size_per_env=4)
    assert data.get_shape("processed_observations_batch_town") == (4, 2, 3, 5)
    assert data.get_shape("processed_observations_batch_council") == (4, 2, 1, 7)
    assert data.get_shape("sampled_actions_batch_council") == (4, 2, 1, 1)
    logger = CUDALogController(wrapper.cuda_function_manager)
    reference = Towns(**SMALL)
    reference.reset()
    want = [(reference.wealth, reference.paid)]
    chances = {
        "town": torch.full((2, 3, 10), 0.1, device=data.device),
        "council": torch.full((2, 1, 20), 0.05, device=data.device),
    }
    seen = set()

    logger.reset_log(data, env_id=1)
    for step in range(1, 5):
        for policy, distribution in chances.items():
            sampler.sample(data, distribution, action_name=f"sampled_actions_{policy}")
        actions = [*pull(wrapper, "sampled_actions_town")[1, :, 0], *pull(wrapper, "sampled_actions_council")[1, :, 0]]
        seen.update(actions)
        wrapper.step_all_envs()
        logger.update_log(data, step)
        reference.step(dict(enumerate(actions)))
        want.append((reference.wealth, reference.paid))
    assert len(seen) > 5, "the sampler drew many levels"
    log = logger.fetch_log(data, names=["wealth", "paid"])
    assert log["wealth_for_log"].shape == (5, 4)
    for name, values in zip(("wealth", "paid"), zip(*want, strict=True), strict=True):
        np.testing.assert_allclose(log[f"{name}_for_log"], values, rtol=1e-4, atol=1e-5)
    assert log["paid_for_log"][-1, 3] > 0

    assert pull(wrapper, "_done_").tolist() == [1, 1]
    wrapper.reset_only_done_envs()
    assert pull(wrapper, "_done_").tolist() == pull(wrapper, "_timestep_").tolist() == [0, 0]
    assert not pull(wrapper, "closing").any()
    np.testing.assert_array_equal(pull(wrapper, "observations_town"), [[first[town] for town in range(3)]] * 2)
    np.testing.assert_array_equal(pull(wrapper, "observations_council"), [[first[3]]] * 2)


@pytest.mark.parametrize("backend", THREADED)
def test_treaties_are_stepped_by_torchrl(backend):
    """TorchRL steps treaties, and its ActionMask respects their masks."""
    pytest.importorskip("torchrl")
    from torchrl.envs import TransformedEnv
    from torchrl.envs.transforms import ActionMask

    from warpdrive_min.bridges.torchrl import TorchRLEnv

    env = TorchRLEnv(start(CUDATreaties(**FOUR), backend))
    env.wrapper.cuda_data_manager.tensor("observations_action_mask_at_reset")[:, :, 1:9] = (
        0  # of ten choices two are left
    )
    masked = TransformedEnv(env, ActionMask(("agents", "action"), ("agents", "action_mask")))
    data = masked.rollout(2, break_when_any_done=False)["agents"]
    assert data["observation", "features"].shape == (2, 2, 4, 5)
    assert not data["action_mask"][:, 0, :, 1:9].any()
    nvec = Treaties(**FOUR).action_nvec
    for mask, action in zip(data["action_mask"].split(nvec, -1), data["action"].unbind(-1), strict=True):
        assert mask.gather(-1, action[..., None]).all()


@pytest.mark.parametrize("backend", THREADED)
def test_treaties_run_with_masks_and_their_own_reset(backend):
    """Sampled actions respect treaties; only finished copies restart."""
    wrapper = EnvWrapper(env_obj=CUDATreaties(**FOUR), num_envs=2, env_backend=backend)
    first = wrapper.reset_all_envs()
    assert set(first[0]) == {"features", "action_mask"}
    data = wrapper.cuda_data_manager
    sampler = CUDASampler(wrapper.cuda_function_manager)
    sampler.init_random(seed=7)
    push_placeholders(wrapper, action_sampler=sampler, training_batch_size_per_env=4)
    assert data.get_shape("processed_observations_batch_shared") == (4, 2, 4, 5), "the mask does not count"
    assert data.is_data_on_device_via_torch("reward_weight")
    data.data_on_device_via_torch("reward_weight").fill_(2)
    actions = data.data_on_device_via_torch("sampled_actions")
    reference = Treaties(**FOUR)
    reference.reset()

    n_bound = 0
    for step in range(2):
        mask = data.data_on_device_via_torch("observations_action_mask")
        floor = pull(wrapper, "mitigation_floor")
        n_bound += (floor > 0).sum()
        for kind, allowed in enumerate(mask.float().split(reference.action_nvec, dim=-1)):
            sampler.sample(data, allowed / allowed.sum(-1, keepdim=True), action_name=f"sampled_actions_{kind}")
            actions[:, :, kind] = data.data_on_device_via_torch(f"sampled_actions_{kind}")[:, :, 0]
        if step == 0:
            actions[:, :2, PROPOSAL], actions[:, :2, ACCEPTANCE] = 7, 1  # so that there is a treaty
        chosen = pull(wrapper, "sampled_actions")
        assert (chosen[:, :, MITIGATION] >= floor).all()
        wrapper.step_all_envs()
        observations, rewards, _, _ = reference.step(dict(enumerate(chosen[0])))
        got = pull(wrapper, "observations_features")[0]
        np.testing.assert_allclose(got, [observations[region]["features"] for region in range(4)], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(pull(wrapper, "rewards")[0], 2 * np.array(list(rewards.values())), rtol=1e-3)
    assert n_bound >= 4, "two regions of each copy were bound"

    data.data_on_device_via_torch("_timestep_")[1] = 3
    wrapper.step_all_envs()
    assert pull(wrapper, "_done_").tolist() == [0, 1]
    warm = pull(wrapper, "temperature")
    wrapper.reset_only_done_envs()
    np.testing.assert_array_equal(pull(wrapper, "temperature"), [warm[0], [1.0, np.float32(0.1)]])
    assert pull(wrapper, "_timestep_").tolist() == [3, 0]

    data.data_on_device_via_torch("reward_weight").fill_(3)
    wrapper.custom_reset_all_envs(args=CUDATreaties.reset_arguments())
    assert (pull(wrapper, "reward_weight") == 3).all(), "this reset leaves the weights alone"
    assert pull(wrapper, "_timestep_").tolist() == [0, 0]
    names = [name for name in data.reset_data_list if name != "reward_weight"]
    restored = {name: pull(wrapper, name) for name in names}
    np.testing.assert_array_equal(
        restored["observations_features"][0], [first[region]["features"] for region in range(4)]
    )
    wrapper.reset_all_envs()
    assert (pull(wrapper, "reward_weight") == 1).all()
    assert {"capital", "treaties", "temperature", "observations_action_mask"} <= set(names)
    for name in names:
        np.testing.assert_array_equal(pull(wrapper, name), restored[name], err_msg=name)


# ------------------------------------------------------------------ sources


@needs_cuda_compiler
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(
    ("name", "n_agents", "kernels"),
    [
        ("towns", 51, {"CudaTownsStep": 16, "CudaTownsRewards": 5}),
        ("treaties", 27, {"CudaTreatiesStep": 13, "CudaTreatiesStepNegotiate": 7, "CudaTreatiesReset": 17}),
    ],
)
def test_cuda_sources_compile_for_the_gpu(name, n_agents, kernels, blocks):
    """Each CUDA source compiles unchanged, with all parameters read."""
    source = FOLDER / name / f"{name}_step.cu"
    text = source.read_text()
    declared = cuda_source.signatures(text, {}, source.name)
    assert {each.name: len(each.parameters) for each in declared.values()} == kernels
    sizes = cuda_source.warp_drive_sizes(text, n_envs=3, n_agents=n_agents, blocks_per_env=blocks)
    constants = {"N_AGENTS": n_agents, "EXACT": False, **LaunchShape.of(n_agents).constants(), **sizes}
    cubin = cuda_c.compile_cubin(source, constants, "sm_90").read_bytes()
    assert cubin[:4] == b"\x7fELF"
    assert all(kernel.encode() in cubin for kernel in kernels)


def test_environments_know_warp_drive_only():
    """No file of these environments imports this project."""
    imported = set()
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert imported == {"gymnasium", "math", "numba", "numpy", "warp_drive"}
