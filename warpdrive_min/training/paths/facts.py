"""Facts of a policy and its run from which paths are chosen, and rules about them."""

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
    """The value comes from the same hidden layers, as one more output."""

    @property
    def n_columns(self) -> int:
        """Return the outputs on top of the hidden layers."""
        return self.n_outputs + self.is_shared

    def __str__(self) -> str:
        units = " and ".join(map(str, self.hidden))
        return f"{self.n_features} features, {units} units, {self.n_columns} outputs"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a policy and its run; a part of the table looks at some of them, and others may be left out."""

    device: str = "cpu"
    """Type of torch's device."""
    backend: str = ""
    precision: Precision = "fp32"
    is_exact: bool = False
    has_graphs: bool = False
    """The backend captures CUDA graphs."""
    is_eager: bool = False
    """``trainer.mode`` is "eager"."""
    is_debug: bool = False
    """The wrapper checks every step."""
    is_compat: bool = False
    """It learns by WarpDrive's rule."""
    n_policies: int = 1

    fused: bool | None = None
    """``model.fused``; None, as of the next three: the run chooses."""
    fused_rollout: bool | None = None
    shared_observations: bool | None = None
    kept_passes: bool | None = None

    network: Layers | str = "its layers are not known"
    """Layers of the network that acts, or why they are not known."""
    is_box: bool = False
    """Actions are continuous."""
    is_masked: bool = False
    is_greedy: bool = False
    is_recurrent: bool = False
    is_population: bool = False
    has_critic: bool = False
    """It has a centralised critic."""
    own_columns: int | None = None
    """As `AgentArrays.own_columns`, of observations that have one row for all agents."""
    observes: str = ""
    """Reason why it does not see the environment's array of observations whole; empty: it does."""
    tells_ends: bool = True
    """The environment gives the last observations of truncated episodes."""
    learns: bool = True
    is_on_policy: bool = True
    """It learns as A2C or PPO."""
    n_updates: int = 1
    """Minibatches that one rollout is learned from."""
    leaves_out: bool = False
    """It learns from some environments alone."""
    n_other_parameters: int = 0
    """Learned numbers beside those of its layers."""
    n_types: int = 1
    """Types of actions."""

    is_bound: bool = True
    """Steps of the environment can write to other arrays than its own."""
    is_direct: bool = False
    """Steps write observations where they are learned from."""
    rollout_kernel: str = ""
    """Reason why the environment has no kernel of a rollout; empty: nothing is known."""
    is_at_once: bool = False
    """Rollouts are one launch."""
    n_rows: int = 0
    """Rows (step, environment, agent) of a rollout."""
    n_bytes: int = 0
    """Memory of its observations, and of what other policies keep."""
    gpu_bytes: int | None = None
    """Memory of the GPU; None: of a CPU."""

    @property
    def layers(self) -> Layers:
        """Return the layers, which an earlier rule has found to be known."""
        assert isinstance(self.network, Layers), self.network
        return self.network


class Rule(NamedTuple):
    """A condition of a path."""

    needs: str
    """Condition, as the documentation words it."""
    why_not: Callable[[Facts], str | None]
    """Return why facts break it, in one sentence; None: they do not."""


def rule(needs: str) -> Callable[[Callable[[Facts], str | None]], Rule]:
    """Make a rule of the function that says why facts break it."""
    return lambda why_not: Rule(needs, why_not)


def where(needs: str, holds: Callable[[Facts], bool], why_not: str) -> Rule:
    """Make a rule of a condition, and the reason where it does not hold, which may name ``facts``."""
    return Rule(needs, lambda facts: None if holds(facts) else why_not.format(facts=facts))


def first_reason(rules: Iterable[Rule], facts: Facts) -> str | None:
    """Return why facts break the first rule that they break; None: they break none."""
    return next((reason for each in rules if (reason := each.why_not(facts)) is not None), None)


@rule(f"two hidden layers of {' or '.join(f'`{name}`' for name in ACTIVATIONS)}")
def two_layers(facts: Facts) -> str | None:
    """Return why the layers are not those that kernels know."""
    layers = facts.network
    if isinstance(layers, str):
        return layers
    if layers.activation not in ACTIVATIONS:
        return f"knows the activations {' and '.join(ACTIVATIONS)} (got {layers.activation!r})"
    if len(layers.hidden) != 2:
        return f"needs two hidden layers (got {len(layers.hidden)})"
    return None
