"""Tag GridWorld: config, arrays and spaces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from warpdrive_min.backends.base import Constant, Language
from warpdrive_min.config import AgentCount, Config, NonNegativeFloat, PoolSize, PositiveInt, Seed
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Environment, scene_in, sources_in, trainer_arrays
from warpdrive_min.errors import require
from warpdrive_min.function_manager import KernelCall
from warpdrive_min.spaces import Discrete

N_ACTIONS: Final = 5
"""Number of actions: stay, and a step along x or y, up or down."""
MAX_GRID_LENGTH: Final = 2**15 - 1
"""Largest grid: kernels store squared distances in 31 bits."""

COORDINATES: Final = ("starting_location_x", "starting_location_y")


class TagGridWorldConfig(Config):
    """Config of Tag GridWorld; positions are cells, 0 to ``grid_length`` inclusive."""

    PLACE: ClassVar[str] = "tag_gridworld"

    num_taggers: AgentCount = 10
    """Number of taggers; the last agent is the runner."""
    grid_length: Annotated[PositiveInt, Field(le=MAX_GRID_LENGTH)] = 10
    """Last cell along x and along y."""
    episode_length: PositiveInt = 100
    """Steps until truncation."""
    starting_location_x: Sequence[int] | None = None
    """Start cell along x of each agent.

    None: taggers at half of ``grid_length``, rounded down, the runner at 0.
    """
    starting_location_y: Sequence[int] | None = None
    """Start cell along y of each agent; None: as along x."""
    reset_pool_size: PoolSize = 0
    """Starts: 0, one; from 2, a row of a pool of this size per episode.

    A row is drawn for each environment and episode.
    """
    seed: Seed | None = None
    """Seed of the pool; None: 0."""
    wall_hit_penalty: NonNegativeFloat = 0.1
    """Penalty for running into the wall, subtracted from the reward."""
    tag_reward_for_tagger: NonNegativeFloat = 10.0
    """Reward of every tagger when the runner is tagged."""
    tag_penalty_for_runner: NonNegativeFloat = 2.0
    """Penalty of a tagged runner, subtracted from its reward."""
    step_cost_for_tagger: NonNegativeFloat = 0.01
    """Reward of the runner for a step without a tag, and cost of every tagger."""
    use_full_observation: bool = True
    """Observe all agents; else taggers observe the runner, it the nearest tagger."""

    def _check(self) -> None:
        has_pool, last = self.reset_pool_size > 0, self.grid_length
        self._require("reset_pool_size", self.reset_pool_size != 1, "must be 0 or at least 2")
        self._require(
            "grid_length", last >= 2 or not has_pool, "must be at least 2 with a pool, whose taggers stand off the edge"
        )
        for name in COORDINATES:
            given = getattr(self, name)
            if given is not None:
                self._require(name, not has_pool, "must be None with a pool", "drop it, or set reset_pool_size to 0")
                n_given, rule = len(given), f"must have one entry for each of n_agents = {self.n_agents}"
                require(n_given == self.n_agents, name, rule, n_given)
                on_grid = min(given) >= 0 and max(given) <= last
                self._require(name, on_grid, f"must be integers from 0 to grid_length = {last}")

    @property
    def n_agents(self) -> int:
        """Number of taggers and the runner."""
        return self.num_taggers + 1

    @property
    def n_features(self) -> int:
        """Number of features: four per agent and the time, or six."""
        return 4 * self.n_agents + 1 if self.use_full_observation else 6

    @property
    def n_starts(self) -> int:
        """Number of starts in the pool, at least 1."""
        return max(1, self.reset_pool_size)

    @property
    def initial_states(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Start cells along x and along y, each ``(n_starts, n_agents)``; runner last.

        In a pool the taggers are uniform over the cells from 1 to ``grid_length - 1``, and the runner is at (0, 0).
        """
        shape = (2, self.n_starts, self.num_taggers)
        if self.reset_pool_size:
            taggers = np.random.default_rng(self.seed or 0).integers(1, self.grid_length, shape)
        else:
            taggers = np.full(shape, self.grid_length // 2)
        x, y = np.concatenate([taggers, np.zeros((2, self.n_starts, 1), int)], axis=2).astype(np.int32)
        for cells, name in ((x, COORDINATES[0]), (y, COORDINATES[1])):
            if getattr(self, name) is not None:
                cells[:] = getattr(self, name)
        return x, y


class TagGridWorld(Environment):
    """Taggers chase a runner, the last agent, on a grid, one cell per step.

    | action | meaning |
    |---|---|
    | 0 | stay |
    | 1, 2 | x + 1, x - 1 |
    | 3, 4 | y + 1, y - 1 |

    All move at once. An agent that would leave the grid stays and hits the wall. The runner is tagged if a tagger is
    then on its cell.

    | full observation, N agents | unit |
    |---|---|
    | 0 to N-1: x of each agent | ``grid_length`` |
    | N to 2N-1: y of each agent | ``grid_length`` |
    | 2N to 3N-1: type of each agent | 0 tagger, 1 runner |
    | 3N to 4N-1: is it oneself | 0 or 1 |
    | 4N: steps done | ``episode_length`` |

    | partial observation | unit |
    |---|---|
    | 0, 1: own x and y | ``grid_length`` |
    | 2, 3: x and y of the runner; for the runner of the nearest tagger, the lowest id among equals | ``grid_length`` |
    | 4: own type | 0 tagger, 1 runner |
    | 5: steps done | ``episode_length`` |

    | reward | tagger | runner |
    |---|---|---|
    | runner tagged | ``tag_reward_for_tagger`` | -``tag_penalty_for_runner`` |
    | not tagged | -``step_cost_for_tagger`` | ``step_cost_for_tagger`` |
    | wall hit, in addition | -``wall_hit_penalty`` | -``wall_hit_penalty`` |

    Terminated when the runner is tagged, truncated at ``episode_length``.

    Starts: taggers at half the grid, the runner at (0, 0); or as given, or drawn from a pool.

    Source: Lan, Srinivasa, Wang, Zheng 2021, "WarpDrive: Extremely Fast End-to-End Deep Multi-Agent Reinforcement
    Learning on a GPU", and WarpDrive's TagGridWorld. Differences: one row of the pool is drawn for both coordinates,
    and observations after a restart are of the new state.
    """

    name = "TagGridWorld"
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    spread_sources = sources_in(__package__, "spread")
    """Kernels with several blocks per environment."""

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `TagGridWorldConfig` from keyword arguments."""
        super().__init__(env_backend)
        self.config = TagGridWorldConfig(**config)
        self.is_spread = False
        """True if several blocks share an environment."""
        self.seed = self.config.seed or 0
        self.num_agents = self.config.n_agents
        self.episode_length = self.config.episode_length
        self.action_space = {agent: Discrete(N_ACTIONS) for agent in range(self.num_agents)}

    @cached_property
    def taggers(self) -> dict[int, bool]:
        """Ids of taggers; all are True."""
        return dict.fromkeys(range(self.config.num_taggers), True)

    @cached_property
    def runners(self) -> dict[int, bool]:
        """The runner's id; it is True."""
        return {self.config.num_taggers: True}

    @property
    def bytes_per_step(self) -> int:
        """Bytes of a step, in words of 4, each counted once.

        An agent: 3 read (position, action), 3 written (position, reward) and the observation. An environment: 1 read
        (time), 4 written (time and three flags).
        """
        return 4 * (self.num_agents * (6 + self.config.n_features) + 5)

    @property
    def ops_per_step(self) -> int:
        """Operations of a step.

        An agent: 6 to move, 6 for its distance to the runner, 1 reward, 2 to observe.
        """
        return 15 * self.num_agents

    def settle_blocks(self, blocks_per_env: int | None, language: Language) -> int:
        """Choose one block for any number of agents, unless more are requested."""
        self.is_spread = (blocks_per_env or 1) > 1 and language != "numpy"
        own = type(self).kernel_sources
        self.kernel_sources = {**own, **self.spread_sources} if self.is_spread else own
        return blocks_per_env if blocks_per_env and self.is_spread else 1

    def kernel_sequences(self, auto_reset: bool) -> dict[str, list[KernelCall]]:
        """Return the kernels of a spread environment, split at block dependencies."""
        if not self.is_spread:
            return {}
        is_partial = not self.config.use_full_observation

        def name_nearest(restarted: int) -> list[KernelCall]:
            return [("name_nearest", {"restarted": restarted})] if is_partial else []

        def restart(clears_done: int, **force: int) -> list[KernelCall]:
            # Only moves can tag: the taggers' distances at the start only select the one that the runner observes.
            approach: list[KernelCall] = [("approach", {"restarted": 1})] if is_partial else []
            observe: KernelCall = ("observe", {"restarted": 1, "clears_done": clears_done})
            return [("start", force), *approach, *name_nearest(1), observe]

        observe: KernelCall = ("observe", {"restarted": 0, "clears_done": 0})
        step: list[KernelCall] = [("move", {}), ("approach", {"restarted": 0}), *name_nearest(0), observe]
        return {"step": step + (restart(0, force=0) if auto_reset else []), "reset": restart(1)}

    @property
    def own_columns(self) -> int | None:
        """First column that marks the agent itself, in full observations; else None."""
        return 3 * self.num_agents if self.config.use_full_observation and not self.is_spread else None

    def get_constants(self) -> dict[str, Constant]:
        """Return the compiled-in constants."""
        config = self.config
        return {
            "N_FEATURES": config.n_features,
            "N_ROWS": self.num_agents,
            "N_STARTS": config.n_starts,
            "GRID_LENGTH": config.grid_length,
            "USE_FULL_OBSERVATION": config.use_full_observation,
            "WALL_HIT_PENALTY": config.wall_hit_penalty,
            "TAG_REWARD": config.tag_reward_for_tagger,
            "TAG_PENALTY": config.tag_penalty_for_runner,
            "STEP_COST": config.step_cost_for_tagger,
        }

    def get_data_dictionary(self) -> DataFeed:
        """Return the positions; and the one start, if no pool is used."""
        feed = DataFeed()
        for name in ("loc_x", "loc_y"):
            cells = np.zeros(self.num_agents, np.int32)
            feed.add_data(name, cells, per_env=True, log_data_across_episode=True)
        if not self.config.reset_pool_size:
            for name, start in self._initial_states().items():
                feed.add_data(name, start)
        if self.is_spread:
            for name in ("nearest_distance", "nearest_tagger", "restarts"):
                feed.add_data(name, np.zeros((), np.int32), per_env=True, scratch=True)
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """Return the arrays that a trainer reads and writes."""
        return trainer_arrays(self.num_agents, self.config.n_features)

    def get_reset_pool_dictionary(self) -> DataFeed:
        """Return the pools of starts, with matching rows, if rows are drawn from them."""
        feed = DataFeed()
        if self.config.reset_pool_size:
            for name, pool in self._initial_states().items():
                feed.add_pool_for_reset(name, pool, reset_target=name.removesuffix("_reset_pool"))
        return feed

    def _initial_states(self) -> dict[str, NDArray[np.int32]]:
        x, y = self.config.initial_states
        return {"loc_x_reset_pool": x, "loc_y_reset_pool": y}
