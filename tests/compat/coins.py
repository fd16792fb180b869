"""Coins, an environment that cannot be copied, and its wrappers."""

import math
import threading
from pathlib import Path

import numpy as np
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.managers.function_manager import CUDAEnvironmentReset, CUDAFunctionFeed
from warp_drive.managers.numba_managers.numba_data_manager import NumbaDataManager
from warp_drive.managers.numba_managers.numba_function_manager import NumbaFunctionManager
from warp_drive.managers.pycuda_managers.pycuda_data_manager import PyCUDADataManager
from warp_drive.managers.pycuda_managers.pycuda_function_manager import PyCUDAFunctionManager
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.env_registrar import EnvironmentRegistrar
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

from warpdrive_min.spaces import Discrete

ARGUMENTS = ["total", "sampled_actions", "observations", "rewards", "_done_", "_timestep_", ("episode_length", "meta")]
SOURCES = {"pycuda": str(Path(__file__).with_name("coin_step.cu")), "numba": "tests.compat.coin_step_numba"}


class World:
    """Stepper of the coins; it cannot be copied."""

    def __init__(self):
        self.cuda_data_manager = self.cuda_function_manager = self.cuda_step = self.feed = None

    def __copy__(self):
        raise TypeError("a world cannot be copied")

    def __deepcopy__(self, memo):
        raise TypeError("a world cannot be copied")

    def step(self, backend):
        """Launch the step with the latest managers."""
        arguments = self.feed(ARGUMENTS)
        block, grid = self.cuda_function_manager.block, self.cuda_function_manager.grid
        if backend == "numba":
            self.cuda_step[grid, block](*arguments)
        else:
            self.cuda_step(*arguments, block=block, grid=grid)


class Coins:
    """Agents choose heads (reward 1) or tails, and count heads."""

    name = "Coins"

    def __init__(self, num_agents=2, episode_length=3, env_backend="cpu"):
        self.num_agents, self.episode_length, self.env_backend = num_agents, episode_length, env_backend
        self.action_space = {agent: Discrete(2) for agent in range(num_agents)}
        self.observation_space = None
        self.world = World()
        self.module, self.lock = math, threading.Lock()

    def __deepcopy__(self, memo):
        raise TypeError("coins cannot be copied")

    __copy__ = __reduce_ex__ = __deepcopy__

    def reset(self):
        self.timestep = 0
        self.total = np.zeros(self.num_agents, np.int32)
        return self.observe()

    def observe(self):
        return {agent: np.array([self.total[agent], self.timestep], np.float32) for agent in self.action_space}

    def step(self, actions=None):
        if actions is None:
            self.timestep += 1
            return self.world.step(self.env_backend)
        self.timestep += 1
        self.total += [int(actions[agent]) for agent in self.action_space]
        rewards = {agent: float(actions[agent]) for agent in self.action_space}
        return self.observe(), rewards, {"__all__": self.timestep == self.episode_length}, {}

    def get_data_dictionary(self):
        feed = DataFeed()
        feed.add_data(name="total", data=self.total, save_copy_and_apply_at_reset=True)
        return feed


class CUDACoins(Coins, CUDAEnvironmentContext):
    """Coins in kernels; actions have no axis of types."""

    def __init__(self, *args, **kwargs):
        CUDAEnvironmentContext.__init__(self)
        Coins.__init__(self, *args, **kwargs)

    def get_tensor_dictionary(self):
        feed = DataFeed()
        actions = np.zeros(self.num_agents, np.int32)
        feed.add_data(name="sampled_actions", data=actions, save_copy_and_apply_at_reset=True)
        return feed

    def initialize_step_function_context(
        self, cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
    ):
        is_ready = super().initialize_step_function_context(
            cuda_data_manager, cuda_function_manager, cuda_step_function_feed, step_function_name
        )
        wire(self.world, cuda_data_manager, cuda_function_manager, step_function_name)
        return is_ready


def wire(world, data, functions, name):
    """Give a world its managers."""
    functions.initialize_functions([name])
    world.cuda_data_manager, world.cuda_function_manager = data, functions
    world.cuda_step, world.feed = functions.get_function(name), CUDAFunctionFeed(data)


def registrar():
    """Return the registrar with the sources of the coins."""
    found = EnvironmentRegistrar()
    for backend, source in SOURCES.items():
        found.add_cuda_env_src_path(Coins.name, source, env_backend=backend)
    return found


class WrapperByHand:
    """Class with the interface of WarpDrive's wrapper, but no subclass."""

    def __init__(self, env_obj=None, num_envs=1, env_backend="cpu", **others):
        self.env, self.n_envs, self.env_backend = env_obj, num_envs, env_backend
        self.n_agents, self.episode_length = env_obj.num_agents, env_obj.episode_length
        self.env.env_backend = env_backend
        self.reset_on_host = True
        numba = (NumbaDataManager, NumbaFunctionManager)
        data, functions = numba if env_backend == "numba" else (PyCUDADataManager, PyCUDAFunctionManager)
        self.cuda_data_manager = data(
            num_agents=self.n_agents, num_envs=self.n_envs, episode_length=self.episode_length
        )
        self.cuda_function_manager = functions(num_agents=self.n_agents, num_envs=self.n_envs)
        load = functions.dynamic_import_numba if env_backend == "numba" else functions.compile_and_load_cuda
        load(
            self.cuda_function_manager,
            env_name="Coins",
            template_header_file="template_env_config",
            template_runner_file="template_env_runner",
            customized_env_registrar=registrar(),
        )
        name = {"numba": "NumbaCoinsStep", "pycuda": "CudaCoinsStep"}[env_backend]
        wire(self.env.world, self.cuda_data_manager, self.cuda_function_manager, name)
        self.env_resetter = CUDAEnvironmentReset(self.cuda_function_manager)

    def reset_all_envs(self):
        self.env.timestep = 0
        if not self.reset_on_host:
            self.env_resetter.reset_when_done(self.cuda_data_manager, mode="force_reset")
            return {}
        observations = self.env.reset()
        feed = DataFeed()
        total = np.stack([self.env.total] * self.n_envs)
        feed.add_data(name="total", data=total, save_copy_and_apply_at_reset=True)
        self.cuda_data_manager.push_data_to_device(feed)
        actions = DataFeed()
        actions.add_data(name="sampled_actions", data=np.zeros((self.n_envs, self.n_agents), np.int32))
        self.cuda_data_manager.push_data_to_device(actions, torch_accessible=True)
        self.reset_on_host = False
        return observations

    def reset_only_done_envs(self):
        self.env_resetter.reset_when_done(self.cuda_data_manager, mode="if_done")
        return {}

    def step_all_envs(self, actions=None):
        return self.env.step()


class NumberedCoins(Coins):
    """Coins with numbered agents; actions use the names of ``action_space``."""

    def observe(self):
        return {agent: np.array([self.total[agent], self.timestep], np.float32) for agent in range(self.num_agents)}

    def step(self, actions=None):
        if actions is None:
            return super().step()
        self.timestep += 1
        chosen = [int(actions[str(agent)]) for agent in range(self.num_agents)]
        self.total += chosen
        is_last = self.timestep == self.episode_length
        return self.observe(), {agent: float(chosen[agent]) for agent in range(2)}, {"__all__": is_last}, {}


class NamingWrapper(WrapperByHand):
    """WarpDrive 1 wrapper: ``use_cuda``, text as ids, and CPU support."""

    def __init__(self, env_obj=None, env_name=None, env_config=None, num_envs=1, use_cuda=False, env_registrar=None):
        if use_cuda:
            super().__init__(env_obj, num_envs, "pycuda")
        self.env, self.reset_on_host = env_obj, True
        env_obj.action_space = {str(agent): Discrete(2) for agent in range(env_obj.num_agents)}

    def obs_at_reset(self):
        return {str(agent): seen for agent, seen in self.env.reset().items()}

    def reset(self):
        return self.obs_at_reset()

    def step(self, actions):
        observations, rewards, done, info = self.env.step(actions)
        observations, rewards = ({str(agent): each for agent, each in row.items()} for row in (observations, rewards))
        return observations, rewards, done, info


class WrapperWithOtherArguments(EnvWrapper):
    """WarpDrive wrapper's subclass with another constructor."""

    def __init__(self, env_obj=None, num_envs=1, env_backend="cpu", **others):
        self.others = others
        super().__init__(env_obj, num_envs=num_envs, env_backend=env_backend, env_registrar=registrar())
