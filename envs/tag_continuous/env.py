"""Tag Continuous: config, arrays and spaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from warpdrive_min.backends.base import Constant, Language
from warpdrive_min.config import (
    AgentCount,
    Config,
    Int,
    Levels,
    NonNegativeFloat,
    NonPositiveFloat,
    PositiveInt,
    UnitFloat,
)
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import Array, Arrays, Environment, scene_in, sources_in, trainer_arrays
from warpdrive_min.errors import require
from warpdrive_min.function_manager import SPREAD_THREADS, KernelCall
from warpdrive_min.spaces import MultiDiscrete

from .crowds import CROWD, PAIRS_AT_ONCE, Crowd

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Start = Literal["random", "fixed"]
NeighborSearch = Literal["auto", "all_pairs", "grid"]

ROUNDING_MARGIN: Final = 1e-5
"""Difference of lengths below which rounding may decide."""
EPSILON: Final = 1e-10
"""Offset of the top speed, which is a divisor and may be 0."""
MAX_AGENTS: Final = 2**20
"""Largest number of agents; kernels are checked against the reference up to it."""
MIN_GRID_LENGTH: Final = 1e-9
"""Smallest side: kernels divide by it, in float32."""
MAX_GRID_LENGTH: Final = 1e9
"""Largest side: kernels place agents out of the game far outside the square."""

CELLS_ABOVE_AGENTS: Final = 256
"""Agents above which kernels search neighbours in a grid of cells."""
ONE_BLOCK: Final = 1_024
"""Largest number of agents of one block and its shared memory."""
ONE_BLOCK_OBSERVED: Final = 10
"""Observed neighbours per agent, found in cells, that also fit the block."""
AGENTS_PER_CELL: Final = 6
"""Average number of agents per cell; a search covers nine cells or more."""
ONE_PART: Final = 4_096
"""Cells up to which one block adds up their counts: those of 24,576 agents."""
CELLS_OF_A_PART: Final = 512
"""Cells of a part, if there are more; parts have blocks of their own."""
N_SEEN: Final = 8
"""Values per agent that kernels gather for rows: seven, and the id."""
AGENTS_OF_OUT_CELL: Final = 1_024
"""Agents per cell for those out of the game.

With only one such cell, half a million agents would queue to be counted in it.
"""


class TagContinuousConfig(Config):
    """Config of Tag Continuous.

    Lengths are in the unit of ``grid_length``, speeds in this unit per step.
    """

    PLACE: ClassVar[str] = "tag_continuous"

    num_taggers: AgentCount = 1
    """Agents that tag."""
    num_runners: AgentCount = 10
    """Agents that are tagged."""
    grid_length: Annotated[float, Field(ge=MIN_GRID_LENGTH, le=MAX_GRID_LENGTH)] = 10.0
    """Side of the square, length."""
    episode_length: PositiveInt = 100
    """Steps until truncation."""
    starting_location_x: Sequence[float] | None = None
    """Start of each agent in the square, length; None: see ``start``."""
    starting_location_y: Sequence[float] | None = None
    """Start of each agent in the square, length; None: see ``start``."""
    starting_directions: Sequence[float] | None = None
    """Start direction of each agent, rad; None: see ``start``."""
    start: Start = "random"
    """Draw of starts.

    "random": one for every environment, agent and episode; "fixed": one by ``seed`` for all.
    """
    seed: Seed | None = None
    """Seed of the taggers' choice and fixed starts; None: 0."""
    max_speed: NonNegativeFloat = 1.0
    """Top speed of an agent of skill 1, length per step."""
    skill_level_runner: NonNegativeFloat = 1.0
    """Factor of the runners' top speed."""
    skill_level_tagger: NonNegativeFloat = 1.0
    """Factor of the taggers' top speed."""
    max_acceleration: float = 1.0
    """Largest change of the acceleration, length per step squared."""
    min_acceleration: float = -1.0
    """Smallest change of the acceleration, length per step squared."""
    max_turn: float = math.pi / 2
    """Largest turn in a step, rad."""
    min_turn: float = -math.pi / 2
    """Smallest turn in a step, rad."""
    num_acceleration_levels: Levels = 10
    """Number of acceleration choices other than none."""
    num_turn_levels: Levels = 10
    """Number of turn choices other than none."""
    edge_hit_penalty: NonPositiveFloat = -0.0
    """Reward for running into the edge, per step."""
    use_full_observation: bool = True
    """Observe all others; False: the nearest ones in the game."""
    num_other_agents_observed: Int = 2
    """Number of nearest agents observed, unless all are."""
    neighbor_search: NeighborSearch = "auto"
    """Kernels' neighbour search: "all_pairs", "grid" or "auto".

    "grid" searches nearby cells; "auto" does so above 256 agents.
    """
    tagging_distance: UnitFloat = 0.01
    """Reach of a tagger, as a share of ``grid_length``."""
    tag_reward_for_tagger: NonNegativeFloat = 1.0
    """Reward for each tagged runner."""
    step_penalty_for_tagger: NonPositiveFloat = -0.0
    """Reward of a tagger per step."""
    tag_penalty_for_runner: NonPositiveFloat = -1.0
    """Reward for being tagged."""
    step_reward_for_runner: NonNegativeFloat = 0.0
    """Reward of a runner in the game, per step."""
    end_of_game_reward_for_runner: NonNegativeFloat = 1.0
    """Reward of a runner that is still in the game at ``episode_length``."""
    runner_exits_game_after_tagged: bool = True
    """True if a tagged runner leaves the game."""

    def _check(self) -> None:
        n_agents = self.n_agents
        self._require("num_runners", n_agents <= MAX_AGENTS, f"must leave at most {MAX_AGENTS:,} agents in all")
        self._require(
            "num_other_agents_observed",
            self.use_full_observation or 1 <= self.num_other_agents_observed < n_agents,
            f"must be from 1 to n_agents - 1 = {n_agents - 1}, as an agent does not observe itself",
            "lower it, or set use_full_observation=True",
        )
        for name in ("starting_location_x", "starting_location_y", "starting_directions"):
            n_given = len(getattr(self, name) or [None] * n_agents)
            require(n_given == n_agents, name, f"must have one entry for each of n_agents = {n_agents}", n_given)
        for name in ("starting_location_x", "starting_location_y"):
            outside = [place for place in getattr(self, name) or () if not 0 <= place <= self.grid_length]
            require(not outside, name, f"must be from 0 to grid_length = {self.grid_length:g}", *outside[:1])

    @property
    def n_agents(self) -> int:
        """Number of taggers and runners."""
        return self.num_taggers + self.num_runners

    @property
    def n_observed(self) -> int:
        """Maximum number of agents in an observation."""
        return self.n_agents - 1 if self.use_full_observation else self.num_other_agents_observed

    @property
    def n_features(self) -> int:
        """Number of features of an observation: seven per other agent, and the time."""
        return 7 * self.n_observed + 1

    @property
    def reach(self) -> float:
        """Distance below which a tagger tags."""
        return self.tagging_distance * self.grid_length

    @property
    def acceleration_actions(self) -> NDArray[np.float32]:
        """Change of the acceleration by action; action 0 is no change."""
        levels = np.linspace(self.min_acceleration, self.max_acceleration, self.num_acceleration_levels)
        return np.concatenate([[0.0], levels]).astype(np.float32)

    @property
    def turn_actions(self) -> NDArray[np.float32]:
        """Turn by action, rad; action 0 is no turn."""
        levels = np.linspace(self.min_turn, self.max_turn, self.num_turn_levels)
        return np.concatenate([[0.0], levels]).astype(np.float32)


class TagContinuous(Environment):
    """Taggers chase runners on a square by changing acceleration and direction.

    | action | meaning |
    |---|---|
    | 0: acceleration | entry of ``[0, linspace(min_acceleration, max_acceleration, num_acceleration_levels)]`` |
    | 1: turn | entry of ``[0, linspace(min_turn, max_turn, num_turn_levels)]``, rad |

    One step adds action 0 to the acceleration, and the acceleration to the speed. The speed stays within 0 and
    ``max_speed`` times skill; at either bound the acceleration becomes 0. Action 1 is added to the direction, modulo
    2 pi. Then the agent moves by its speed and stops at the edge. Taggers have type 1, runners type 0.

    An observation has seven features of K others, ``observation[feature * K + k]``, and ends with the time. With
    ``use_full_observation``, K is ``n_agents - 1``, in the order of the ids. Else K is ``num_other_agents_observed``:
    the nearest in the game, nearest first, the lower id among equals, padded with 0.

    | feature | unit |
    |---|---|
    | 0, 1: x and y of the other minus one's own | diagonal of the square |
    | 2: speed of the other minus one's own | ``max_speed`` |
    | 3: acceleration of the other minus one's own | ``max_speed`` a step |
    | 4: direction of the other minus one's own | 2 pi |
    | 5: type of the other | 0 or 1 |
    | 6: the other is in the game | 0 or 1 |
    | last: steps done | ``episode_length`` |

    Agents out of the game observe zeros; with ``use_full_observation`` they still observe types and game flags.
    Observations have the positions after the move and the flags before the tags of the step.

    | reward, if in the game | to |
    |---|---|
    | ``step_penalty_for_tagger``, ``step_reward_for_runner`` | each, every step |
    | ``edge_hit_penalty`` | an agent that ran into the edge |
    | ``tag_penalty_for_runner`` | a runner nearer than ``tagging_distance * grid_length`` to its nearest tagger |
    | ``tag_reward_for_tagger`` | that tagger (the lower id among equals), for each such runner |
    | ``end_of_game_reward_for_runner`` | runners still in the game, at step ``episode_length`` |

    Terminated when no runner is left (only with ``runner_exits_game_after_tagged``), truncated at ``episode_length``.

    Starts: speed and acceleration 0, positions uniform on the square, directions one of 0, pi/2, pi, 3 pi/2. The
    taggers are drawn once, by ``seed``.

    Source: Lan, Srinivasa, Wang, Zheng 2021, "WarpDrive: Extremely Fast End-to-End Deep Multi-Agent Reinforcement
    Learning on a GPU", and WarpDrive's TagContinuous. Differences: starts are drawn for each environment and episode
    (``start="fixed"`` is WarpDrive's way), neighbours at equal distances are ordered by id, simultaneous tags all
    count, and a runner tagged in the last step gets no end-of-game reward.
    """

    name = "TagContinuous"
    tolerance = 2e-5
    kernel_sources = sources_in(__package__)
    scene = scene_in(__package__)
    spread_sources = sources_in(__package__, "spread")
    """Kernels for many agents; several blocks share an environment."""

    def __init__(self, *, env_backend: str = "cpu", **config: Any) -> None:
        """Set the fields of `TagContinuousConfig` from keyword arguments."""
        super().__init__(env_backend)
        self.config = TagContinuousConfig(**config)
        self.is_spread = False
        """True with the kernels for many agents."""
        self.uses_grid = False
        """True if kernels search neighbours in a grid of cells; full observations need no search."""
        self.seed = self.config.seed or 0
        self.num_agents = self.config.n_agents
        self.episode_length = self.config.episode_length
        n_choices = [len(self.config.acceleration_actions), len(self.config.turn_actions)]
        self.action_space = dict.fromkeys(range(self.num_agents), MultiDiscrete(n_choices))
        self.agent_types, self._start = self._draw()

    @cached_property
    def taggers(self) -> dict[int, bool]:
        """Ids of taggers; all are True."""
        return dict.fromkeys(np.flatnonzero(self.agent_types == 1).tolist(), True)

    @cached_property
    def runners(self) -> dict[int, bool]:
        """Ids of runners; all are True."""
        return dict.fromkeys(np.flatnonzero(self.agent_types == 0).tolist(), True)

    def _draw(self) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float32]]]:
        """Draw types and the fixed start in WarpDrive's order, for equal seeds."""
        config, n_agents = self.config, self.num_agents
        generator = np.random.RandomState(self.seed)
        types = np.zeros(n_agents, np.int32)
        types[generator.choice(np.arange(n_agents), config.num_taggers, replace=False)] = 1
        x: ArrayLike | None = config.starting_location_x
        y: ArrayLike | None = config.starting_location_y
        direction: ArrayLike | None = config.starting_directions
        if x is None or y is None:
            drawn_x = config.grid_length * generator.rand(n_agents)
            drawn_y = config.grid_length * generator.rand(n_agents)
            x, y = drawn_x if x is None else x, drawn_y if y is None else y
        if direction is None:
            direction = generator.choice([0, np.pi / 2, np.pi, 3 * np.pi / 2], n_agents, replace=True)
        start = {"start_x": x, "start_y": y, "start_direction": direction}
        return types, {name: np.array(values, np.float32) for name, values in start.items()}

    @property
    def bytes_per_step(self) -> int:
        """Bytes of a step, in words of 4, each counted once.

        An agent: 8 read (5 of state, the flag, 2 actions), 8 written (6 of state, the flag, the reward) and the
        observation. An environment: 2 read (time, runners), 5 written (these and three flags).
        """
        return 4 * (self.num_agents * (16 + self.config.n_features) + 7)

    @property
    def ops_per_step(self) -> int:
        """Operations of a step: float additions, multiplications and comparisons.

        An agent: 20 of its move, 40 of sine and cosine, 6 of its reward. A pair of runner and tagger: 6 (5 of the
        squared distance, 1 comparison); with nearest neighbours the same for every pair of agents. An observation: 2
        for each relative entry. Sorting the nearest is not counted, because it depends on the data. With a grid of
        cells only the observed pairs are counted.
        """
        config = self.config
        pairs = 0 if self.uses_grid else config.num_runners * config.num_taggers
        if not config.use_full_observation:
            pairs += self.num_agents * (config.n_observed if self.uses_grid else self.num_agents - 1)
        return self.num_agents * (66 + 2 * 5 * config.n_observed) + 6 * pairs

    def rounding_decides(self, before: Arrays, after: Arrays) -> tuple[Array, Array]:
        """Return environments and agents whose outcome rounding may decide.

        Environments: a tag or an edge is within rounding. Agents: neighbours are almost equally far. Bit-identical
        distances (two agents in one corner) are not reported: the lower id comes first.
        """
        config = self.config
        x, y = after["loc_x"].astype(np.float64), after["loc_y"].astype(np.float64)
        playing, is_tagger = before["still_in_the_game"] > 0, self.agent_types == 1
        to_tagger = nearest_first(x, y, playing & is_tagger, 2)
        close = np.abs(to_tagger[..., 0] - config.reach) < ROUNDING_MARGIN
        close |= (to_tagger[..., 0] < config.reach + ROUNDING_MARGIN) & _any_almost_equal(to_tagger)
        moved = after["speed"] * np.cos(after["direction"]), after["speed"] * np.sin(after["direction"])
        at_edge = np.zeros_like(playing)
        for position, step in zip((x, y), moved, strict=True):
            gap = np.minimum(np.abs(position), np.abs(position - config.grid_length))
            came = np.abs(step) > np.finfo(np.float32).eps * config.grid_length / 4  # else it was there before
            at_edge |= (gap < ROUNDING_MARGIN) & ((gap > 0) | came)
        at_edge &= (after["edge_hit_reward_penalty"] == 0) & (config.edge_hit_penalty != 0)
        envs = (playing & ((close & ~is_tagger) | at_edge)).any(-1)
        if config.use_full_observation:
            return envs, np.zeros_like(playing)
        return envs, _any_almost_equal(nearest_first(x, y, playing, config.num_other_agents_observed + 1))

    def settle_blocks(self, blocks_per_env: int | None, language: Language) -> int:
        """Choose one block or several, if requested or needed for many agents.

        Above `CELLS_ABOVE_AGENTS` agents, or if requested, neighbours are searched in a grid of cells. One block can do
        this for up to `ONE_BLOCK` agents that observe up to `ONE_BLOCK_OBSERVED` each.
        """
        config, n_agents = self.config, self.num_agents
        search = config.neighbor_search
        wants_grid = search == "grid" or (search == "auto" and n_agents > CELLS_ABOVE_AGENTS)
        has_room = config.n_observed <= ONE_BLOCK_OBSERVED and not config.use_full_observation
        fits = n_agents <= ONE_BLOCK and (not wants_grid or has_room)
        is_one = fits or (blocks_per_env == 1 and search != "grid")
        self.is_spread = language != "numpy" and ((blocks_per_env or 1) > 1 or not is_one)
        searches = language != "numpy" and not config.use_full_observation
        self.uses_grid = searches and (search != "all_pairs" if self.is_spread else wants_grid and fits)
        self.kernel_sources = {**type(self).kernel_sources, **(self.spread_sources if self.is_spread else {})}
        return (blocks_per_env or -(-n_agents // SPREAD_THREADS)) if self.is_spread else 1

    def kernel_sequences(self, auto_reset: bool) -> dict[str, list[KernelCall]]:
        """Return the kernels of a spread environment, split at block dependencies."""
        if not self.is_spread:
            return {}

        def cells(restarted: int) -> list[KernelCall]:
            if not self.uses_grid:
                return []
            sums = ["parts", "offsets"] if self.cell_parts > 1 else ["offsets"]
            return [(name, {"restarted": restarted}) for name in (*sums, "place")]

        def restart(clears_done: int, **force: int) -> list[KernelCall]:
            return [("start", force), *cells(1), ("observe", {"restarted": 1, "clears_done": clears_done})]

        observe: KernelCall = ("observe", {"restarted": 0, "clears_done": 0})
        step: list[KernelCall] = [("move", {}), *cells(0), ("tag", {}), observe, ("score", {})]
        return {"step": step + (restart(0, force=0) if auto_reset else []), "reset": restart(1)}

    @property
    def cells_per_side(self) -> int:
        """Cells along a side of the square."""
        return max(1, round(math.sqrt(self.num_agents / AGENTS_PER_CELL))) if self.uses_grid else 1

    @property
    def out_cells(self) -> int:
        """Number of cells for agents out of the game."""
        return -(-self.num_agents // AGENTS_OF_OUT_CELL)

    @property
    def cell_parts(self) -> int:
        """Number of parts of the cells, each summed by a block; 1 for few cells."""
        n_cells = self.cells_per_side**2
        return 1 if n_cells <= ONE_PART else -(-n_cells // CELLS_OF_A_PART)

    def get_constants(self) -> dict[str, Constant]:
        """Return the compiled-in constants.

        Kernels multiply by the reciprocals of the observations' units.
        """
        config, side = self.config, self.cells_per_side
        is_random = config.start == "random"
        return {
            "N_TAGGERS": config.num_taggers,
            "N_OBSERVED": config.n_observed,
            "N_FEATURES": config.n_features,
            "USE_FULL_OBSERVATION": config.use_full_observation,
            "GRID_LENGTH": config.grid_length,
            "MAX_SPEED": config.max_speed,
            "EDGE_HIT_PENALTY": config.edge_hit_penalty,
            "RUNNER_EXITS": config.runner_exits_game_after_tagged,
            "RANDOM_X": is_random and config.starting_location_x is None,
            "RANDOM_Y": is_random and config.starting_location_y is None,
            "RANDOM_DIRECTION": is_random and config.starting_directions is None,
            "REACH_SQUARED": float(np.float32(config.reach) * np.float32(config.reach)),
            "TAG_REWARD": config.tag_reward_for_tagger,
            "TAG_PENALTY": config.tag_penalty_for_runner,
            "END_OF_GAME_REWARD": config.end_of_game_reward_for_runner,
            "INV_DIAGONAL": 1 / (config.grid_length * math.sqrt(2)),
            "INV_MAX_SPEED": 1 / (config.max_speed + EPSILON),
            "INV_TWO_PI": 1 / (2 * math.pi),
            "TWO_PI": 2 * math.pi,
            "HALF_PI": math.pi / 2,
            "GRID_SEARCH": self.uses_grid,
            "N_CELLS": side * side,
            "OUT_CELLS": self.out_cells,
            "N_SEEN": N_SEEN,
            "CELLS_PER_SIDE": side,
            "CELL_PARTS": self.cell_parts,
            "CELL_LENGTH": config.grid_length / side,
            "INV_CELL_LENGTH": side / config.grid_length,
            "MARGIN": ROUNDING_MARGIN * config.grid_length,
            "REACH": config.reach,
        }

    def get_data_dictionary(self) -> DataFeed:
        """Return the arrays of each environment's state, and the shared ones."""
        config, n_agents = self.config, self.num_agents
        is_tagger = self.agent_types == 1
        skill = np.where(is_tagger, config.skill_level_tagger, config.skill_level_runner)
        step_reward = np.where(is_tagger, config.step_penalty_for_tagger, config.step_reward_for_runner)
        feed = DataFeed()
        for name in ("loc_x", "loc_y", "speed", "acceleration", "edge_hit_reward_penalty"):
            feed.add_data(name, np.zeros(n_agents, np.float32), per_env=True)
        feed.add_data("direction", np.zeros(n_agents, np.float32), per_env=True, period=2 * math.pi)
        feed.add_data("still_in_the_game", np.ones(n_agents, np.int32), per_env=True)
        feed.add_data("num_runners", np.array(config.num_runners, np.int32), per_env=True)
        feed.add_data("agent_types", self.agent_types)
        feed.add_data("tagger_ids", np.flatnonzero(is_tagger).astype(np.int32))
        feed.add_data("skill_levels", skill.astype(np.float32))
        feed.add_data("step_rewards", step_reward.astype(np.float32))
        feed.add_data("acceleration_actions", config.acceleration_actions)
        feed.add_data("turn_actions", config.turn_actions)
        for name, values in self._start.items():
            feed.add_data(name, values)
        if self.is_spread:
            n_cells = self.cells_per_side**2 + self.out_cells
            for name in ("is_tagged", "n_catches", "rank_in_cell"):
                feed.add_data(name, np.zeros(n_agents, np.int32), per_env=True, scratch=True)
            for name, columns in (("positions", 2), ("features", N_SEEN)):
                feed.add_data(name, np.zeros((n_agents, columns), np.float32), per_env=True, scratch=True)
            for name in ("cell_count", "cell_start"):
                feed.add_data(name, np.zeros(n_cells, np.int32), per_env=True, scratch=True)
            feed.add_data("part_count", np.zeros(self.cell_parts, np.int32), per_env=True, scratch=True)
            feed.add_data("restarts", np.zeros((), np.int32), per_env=True, scratch=True)
        return feed

    def get_tensor_dictionary(self) -> DataFeed:
        """Return the arrays that a trainer reads and writes."""
        n_observed, n_features = self.config.n_observed, self.config.n_features
        period = np.zeros(n_features)
        period[4 * n_observed : 5 * n_observed] = 1  # directions, in turns
        return trainer_arrays(self.num_agents, n_features, n_types=2, period=period)


def nearest_first(x: Array, y: Array, counts: Array, n: int) -> Array:
    """Return each agent's ``n`` smallest distances to others, ascending.

    Infinite if fewer others exist.

    Args:
        x: Positions, ``(n_envs, n_agents)``.
        y: As ``x``.
        counts: True for agents to search, of the same shape.
        n: Number of distances.
    """
    n_envs, n_agents = x.shape
    if n_agents > CROWD:
        distances = [
            Crowd(*env).nearest(n, lambda dx, dy, _: np.hypot(dx, dy), np.inf) for env in zip(x, y, counts, strict=True)
        ]
        return np.array(distances)
    smallest = np.full((n_envs, n_agents, n), np.inf)
    at_once = max(1, PAIRS_AT_ONCE // (n_envs * n_agents))
    for first in range(0, n_agents, at_once):
        selves = np.arange(first, min(first + at_once, n_agents))
        distance = np.hypot(x[:, selves, None] - x[:, None], y[:, selves, None] - y[:, None])
        distance[:, np.arange(len(selves)), selves] = np.inf
        distance[~np.broadcast_to(counts[:, None], distance.shape)] = np.inf
        n_found = min(n, n_agents)
        distance.partition(n_found - 1, axis=-1)
        smallest[:, selves, :n_found] = np.sort(distance[..., :n_found], axis=-1)
    return smallest


def _any_almost_equal(distances: Array) -> Array:
    """Return True where two ascending distances differ, but less than rounding may."""
    with np.errstate(invalid="ignore"):  # inf - inf, without any neighbour
        gaps = np.diff(distances, axis=-1)
        near: Array = np.any((gaps > 0) & (gaps < ROUNDING_MARGIN), axis=-1)
    return near
