"""Facts of a run, and rules about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from warpdrive_min.perceptron import ACTIVATIONS

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision


class Layers(NamedTuple):
    """Sizes of a perceptron."""

    n_features: int
    hidden: tuple[int, ...]
    n_outputs: int
    """Logits or means, without the value."""
    activation: str = ACTIVATIONS[0]
    is_shared: bool = False
    """True if the value is one more output of the same hidden layers."""

    @property
    def n_columns(self) -> int:
        """Return the number of outputs, including a shared value."""
        return self.n_outputs + self.is_shared

    def __str__(self) -> str:
        units = " and ".join(map(str, self.hidden))
        return f"{self.n_features} features, {units} units, {self.n_columns} outputs"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a policy and its run.

    Each part of the table reads only some of them; the others may be left out.
    """

    device: str = "cpu"
    """Type of torch's device."""
    backend: str = ""
    """Backend that makes programs in CUDA C; on a CPU any."""
    precision: Precision = "fp32"
    is_exact: bool = False
    has_graphs: bool = False
    """True if the backend captures CUDA graphs."""
    is_eager: bool = False
    """True if ``trainer.mode`` is "eager"."""
    is_debug: bool = False
    """True if the wrapper checks every step."""
    is_compat: bool = False
    """True if it learns by WarpDrive's rule."""
    n_policies: int = 1

    fused: bool | None = None
    """``model.fused``; None lets the run choose, as in the next three."""
    fused_rollout: bool | None = None
    shared_observations: bool | None = None
    kept_passes: bool | None = None

    network: Layers | str = "the network's layers are unknown"
    """Layers of the acting network, or the reason they are unknown."""
    gated: Layers | str = "the network has no gated units"
    """Layers of a network with gated units, which are the last of them, or the reason they are unknown."""
    is_box: bool = False
    """True if actions are continuous."""
    is_masked: bool = False
    is_greedy: bool = False
    is_recurrent: bool = False
    is_population: bool = False
    has_critic: bool = False
    """True if it has a centralised critic."""
    own_columns: int | None = None
    """`AgentArrays.own_columns`, for observations with one row for all agents."""
    why_not_whole_array: str = ""
    """Reason it does not see the environment's whole array; empty if it does."""
    writes_last_observations: bool = True
    """True if the environment writes last observations of truncated episodes."""
    learns: bool = True
    is_on_policy: bool = True
    """True if the algorithm is A2C or PPO."""
    n_updates: int = 1
    """Minibatch updates per rollout."""
    selects_envs: bool = False
    """True if it learns from some environments only."""
    n_other_parameters: int = 0
    """Number of learned parameters outside its layers."""
    n_types: int = 1
    """Number of action types."""

    is_bound: bool = True
    """True if the environment's step can write to arrays other than its own."""
    is_direct: bool = False
    """True if steps write observations into the rollout."""
    rollout_kernel: str = ""
    """Reason the environment has no rollout kernel; empty if none is known."""
    is_one_launch: bool = False
    """True if a rollout is one launch."""
    n_rows: int = 0
    """Rows (step, environment, agent) of a rollout."""
    n_bytes: int = 0
    """Memory of its observations and of other policies' kept passes, bytes."""
    shared_bytes: int = 227 * 1024
    """Most shared memory of a block, bytes; by default an H100's."""
    gpu_bytes: int | None = None
    """Memory of the GPU, bytes; None on a CPU."""

    @property
    def layers(self) -> Layers:
        """Return the layers; an earlier rule checks that they are known."""
        assert isinstance(self.network, Layers), self.network
        return self.network


class Rule(NamedTuple):
    """A condition of a path."""

    needs: str
    """Condition, as printed in the documentation."""
    why_not: Callable[[Facts], str | None]
    """Function from facts to the reason they break the rule; None if they do not."""


def rule(needs: str) -> Callable[[Callable[[Facts], str | None]], Rule]:
    """Make a rule from a function that returns a reason."""
    return lambda why_not: Rule(needs, why_not)


def where(needs: str, holds: Callable[[Facts], bool], why_not: str) -> Rule:
    """Make a rule from a condition and the reason if it fails.

    The reason is a format string, which may refer to ``facts``.
    """
    return Rule(needs, lambda facts: None if holds(facts) else why_not.format(facts=facts))


def first_reason(rules: Iterable[Rule], facts: Facts) -> str | None:
    """Return the first broken rule's reason, or None."""
    return next((reason for each in rules if (reason := each.why_not(facts)) is not None), None)


def misfit(layers: Layers | str, n: int, needs: str, n_units: int = 0) -> str | None:
    """Return why these are not ``n`` supported hidden layers, or None.

    ``n_units`` of the layers are gated units, which do not count.
    """
    if isinstance(layers, str):
        return layers
    if layers.activation not in ACTIVATIONS:
        return f"the activation must be {' or '.join(ACTIVATIONS)} (got {layers.activation!r})"
    got = len(layers.hidden) - n_units
    return None if got == n else f"needs {needs} (got {got})"


@rule(f"two hidden layers of {' or '.join(f'`{name}`' for name in ACTIVATIONS)}")
def two_layers(facts: Facts) -> str | None:
    """Refuse layers that the kernels do not support."""
    return misfit(facts.network, 2, "two hidden layers")
