"""Gated recurrent units in CUDA C on a GPU's matrix units.

They are evaluated, and learn by A2C and PPO from whole sequences in one pass. A block takes 32 sequences through all
their steps, through the loss, and back through time; see `kernels/gated.cuh` and `kernels/gated_learn.cuh`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from warpdrive_min.function_manager import KERNELS
from warpdrive_min.perceptron import ACTIVATIONS
from warpdrive_min.training.config import present
from warpdrive_min.training.paths.constants import N_TERMS, constants_of_launch, constants_of_loss
from warpdrive_min.training.paths.cuda_c.one_pass import OnePass, processors
from warpdrive_min.training.paths.facts import Facts, misfit, rule
from warpdrive_min.training.paths.fused.loss import Learned
from warpdrive_min.training.paths.fused.network import offset_of
from warpdrive_min.training.paths.triton.launch import compiled_ahead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpdrive_min.backends.base import Backend, Constant, Program
    from warpdrive_min.training.config import Precision

Tensor = torch.Tensor

WIDEST: Final = 64
"""Largest number of units of the hidden layer and of gated units; with more, gradients do not fit into registers."""
MOST_FEATURES: Final = 31
MOST_OUTPUTS: Final = 16
SEQUENCES: Final = 32
"""Sequences that a block takes at a time."""
GATES: Final = 4
"""Derivatives of a gated unit: of r, z and the two parts of n."""
LAYERS: Final = ("w1", "b1", "wi", "bi", "wh", "bh", "w3", "b3")


class GatedNetwork(NamedTuple):
    """Policy and value networks with gated units, possibly shared."""

    policy: Sequence[Tensor]
    """Weights and biases of the hidden layer, of the units' inputs and states, and of the head.

    Shapes are as in `torch.nn.Linear` and `torch.nn.GRU`.
    """
    value: Sequence[Tensor]
    """The same for the value; empty if there is none."""
    is_tanh: bool
    """True if the hidden layer uses tanh, else relu."""


class Sizes(NamedTuple):
    """Sizes of gated units on one hidden layer, and their memory on the chip."""

    n_features: int
    n_hidden: int
    n_units: int
    n_outputs: int
    n_types: int
    is_shared: bool

    @classmethod
    def of(cls, layers: Sequence[Tensor], *, n_types: int = 1, is_shared: bool = False) -> Sizes:
        """Return the sizes of a network's layers."""
        w1, _, _, _, wh, _, w3, _ = layers
        return cls(w1.shape[1], len(w1), wh.shape[1], len(w3), n_types, is_shared)

    @property
    def n_warps(self) -> int:
        """Warps of a block, one for 8 units."""
        return self._tiles[0]

    def n_bytes(self, *, learns: bool) -> int:
        """Return the shared memory of a block, bytes; the kernels check it."""
        units, features, outputs = self._tiles
        row, of_state = 8 * features + 4, SEQUENCES * (8 * units + 8)
        first = 2 * SEQUENCES * row + SEQUENCES + 8 * outputs
        forward = 4 * of_state + 2 * units * SEQUENCES * 8 * outputs
        if not learns:
            return 4 * (first + forward)
        back = SEQUENCES * (GATES * 8 * units + 8) + 2 * of_state + 2 * SEQUENCES * (8 * outputs + 4)
        back += units * SEQUENCES * 12
        loss = units * max(2 * (5 + self.n_types) * 16, 8 * outputs + N_TERMS)
        return 4 * (6 * (8 * units) ** 2 + first + max(forward, back, loss))

    @property
    def n_kept(self) -> int:
        """Floats that a block keeps of each step."""
        units, _, outputs = self._tiles
        return SEQUENCES * ((GATES + 1) * 8 * units + 8 * outputs)

    def constants(self, *, learns: bool, is_tanh: bool, is_tf32: bool, n_agents: int) -> dict[str, Constant]:
        """Return the constants of `gated.cuh` and `core.cuh`."""
        return {
            "N_SEEN": self.n_features,
            "HIDDEN1": self.n_hidden,
            "UNITS": self.n_units,
            "N_OUTPUTS": self.n_outputs,
            "N_TYPES": self.n_types,
            "IS_SHARED": self.is_shared,
            "IS_TANH": is_tanh,
            "TF32": is_tf32,
            "LEARNS": learns,
            "WARPS": self.n_warps,
            "SHARED_BYTES": self.n_bytes(learns=learns),
            "N_AGENTS": n_agents,
            **constants_of_launch(self.n_warps),
        }

    @property
    def _tiles(self) -> tuple[int, int, int]:
        """Tiles of 8 units, in pairs, of features and of outputs."""
        units = 2 * -(-max(self.n_hidden, self.n_units) // 16)
        return units, -(-(self.n_features + 1) // 8), -(-(self.n_outputs + self.is_shared) // 8)


@rule(f"gated units on one hidden layer of {' or '.join(f'`{name}`' for name in ACTIVATIONS)}")
def one_layer(facts: Facts) -> str | None:
    """Refuse networks that the kernels do not support."""
    return misfit(facts.gated, 1, "one hidden layer below the gated units", n_units=1)


@rule(
    f"up to {WIDEST} units in each, {MOST_FEATURES} features and {MOST_OUTPUTS} outputs, the value among them if layers"
    " are shared; weights and a tile of sequences fit into shared memory"
)
def fits(facts: Facts) -> str | None:
    """Refuse layers that do not fit on the chip."""
    layers = facts.gated
    assert not isinstance(layers, str)
    if max(layers.hidden) > WIDEST or layers.n_features > MOST_FEATURES or layers.n_columns > MOST_OUTPUTS:
        return f"needs up to {WIDEST} units, {MOST_FEATURES} features and {MOST_OUTPUTS} outputs (got {layers})"
    hidden, units = layers.hidden
    sizes = Sizes(layers.n_features, hidden, units, layers.n_outputs, facts.n_types, layers.is_shared)
    if (needed := sizes.n_bytes(learns=True)) > facts.shared_bytes:
        return f"needs {needed:,} bytes of a block's shared memory (the GPU has {facts.shared_bytes:,})"
    return None


def places(network: GatedNetwork, parameters: Tensor) -> list[int]:
    """Return the first number of each layer among the parameters.

    Layers are w1, b1, wi, bi, wh, bh, w3, b3, v3 and c3 of the value's network, then of the policy's.
    """
    hidden, policy, value = 6, *([offset_of(each, parameters) for each in of] for of in (network.policy, network.value))
    return [*value[:hidden], 0, 0, *value[hidden:], *policy, *value[hidden:]]


class Evaluation:
    """Steps of a network's gated units, and the outputs, by a backend's programs.

    Args:
        backend: Backend that makes the programs.
        network: Policy's and value's networks.
        of_value: Evaluate the value's network; else the policy's.
    """

    def __init__(self, backend: Backend, network: GatedNetwork, *, of_value: bool = False) -> None:
        layers = network.value if of_value else network.policy
        is_apart = bool(network.value) and network.value[0] is not network.policy[0]
        self._backend, self._sizes, self._is_tanh = backend, Sizes.of(layers), network.is_tanh
        self._layers = dict(zip(LAYERS, layers, strict=True))
        self._offset = self._sizes.n_units if of_value and is_apart else 0
        self._other = Evaluation(backend, network, of_value=True) if is_apart and not of_value else None
        """The value's network, whose states are in the same array."""
        self._programs: dict[tuple[bool, int], Program] = {}
        """Programs by precision and number of agents."""

    def step(self, observations: Tensor, state: Tensor, outputs: Tensor) -> None:
        """Advance the state of all networks by a step, and write the outputs; enqueues.

        ``observations``, ``state`` and ``outputs`` are ``(n_envs, n_agents, ...)``.
        """
        self(observations, state, next_states=state, outputs=outputs)
        if self._other is not None:
            self._other(observations, state, next_states=state)

    def __call__(
        self,
        observations: Tensor,
        states: Tensor,
        *,
        next_states: Tensor | None = None,
        outputs: Tensor | None = None,
        begins: Tensor | None = None,
        rows: Tensor | None = None,
        length: int = 1,
    ) -> None:
        """Write the states after each step and the outputs; enqueues.

        Args:
            observations: ``(n_envs, n_agents, n_features)``; with ``rows`` those of the rollout, with an axis of steps.
            states: State before the first step, ``(n_envs, n_agents, state_size)``; with ``rows`` of each part.
            next_states: Gets the states, ``(sequences, length, n_agents, state_size)``; may be ``states``.
            outputs: Gets the outputs, in the order of observations.
            begins: 1 if an episode begins with a step, ``(n_steps, n_envs)`` int32.
            rows: Rows (step, environment) by sequence and step, int32; None: one step of each environment.
            length: Steps of a sequence.
        """
        *_, n_envs, n_agents, _ = observations.shape
        key = present(observations.device) == "tf32", n_agents
        if key not in self._programs:
            given: dict[str, Any] = {"learns": False, "is_tanh": self._is_tanh, "is_tf32": key[0], "n_agents": n_agents}
            n_bytes = {"evaluate": self._sizes.n_bytes(learns=False)}
            constants = self._sizes.constants(**given)
            self._programs[key] = self._backend.program(KERNELS / "gated_evaluate.cu", constants, n_bytes)
        program = self._programs[key]
        if compiled_ahead(program.load):
            return
        n = (n_envs if rows is None else len(rows) // length) * n_agents
        program.launch(
            "evaluate",
            (min(-(-n // SEQUENCES), processors(observations.device)), 1, 1),
            **self._layers,
            observations=observations,
            states=states,
            begins=begins,
            indices=rows,
            next_states=next_states,
            outputs=outputs,
            n=n,
            length=length,
            n_envs=n_envs,
            state_size=states.shape[-1],
            offset=self._offset,
        )


class Learning(OnePass):
    """Loss of A2C and PPO and its gradients, in one pass over sequences.

    Args:
        backend: Backend that makes the program.
        network: Network whose parameters are views of those learned.
        learned: Parameters, rows and loss; the rollout has ``states`` and ``begins``, too.
        precision: Precision of products, "fp32" or "tf32".
        length: Steps of a sequence.
    """

    def __init__(
        self, backend: Backend, network: GatedNetwork, learned: Learned, *, precision: Precision, length: int
    ) -> None:
        parameters, _, space, rollout, rule, n_rows = learned
        observations, states = rollout["observations"], rollout["states"]
        assert observations is not None
        assert states is not None
        n_envs, n_agents = observations.shape[1:3]
        is_shared = network.policy[0] is network.value[0]
        sizes = Sizes.of(network.policy, n_types=space.n_types, is_shared=is_shared)
        given: dict[str, Any] = {"is_tanh": network.is_tanh, "is_tf32": precision == "tf32", "n_agents": n_agents}
        of_loss = constants_of_loss(space, rule.clipping, is_masked=rollout["masks"] is not None)
        of_kernel = sizes.constants(learns=True, **given) | of_loss
        n_bytes = {"learn": sizes.n_bytes(learns=True)}
        n, n_networks = n_rows // length * n_agents, 1 if is_shared else 2
        n_blocks = min(-(-n // SEQUENCES), -(-processors(parameters.device) // n_networks))
        n_kept = n_networks * n_blocks * length * sizes.n_kept
        super().__init__(
            backend.program(KERNELS / "gated_learn.cu", of_kernel, n_bytes),
            learned,
            places(network, parameters),
            n_blocks=n_blocks,
            n_networks=n_networks,
            arrays=("states", "begins"),
            kept=torch.empty(n_kept, device=parameters.device, dtype=torch.float32),
            n=n,
            length=length,
            n_envs=n_envs,
            state_size=states.shape[-1],
        )
