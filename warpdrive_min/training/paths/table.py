"""Table of fast paths for each part of training.

`choose` picks the first path whose rules all hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from warpdrive_min.backends import get
from warpdrive_min.training.paths import constants
from warpdrive_min.training.paths.available import cpp, cuda_c, has_warp_groups, triton
from warpdrive_min.training.paths.cuda_c import gated, matrix_units, warp_groups
from warpdrive_min.training.paths.exact import learning as exact_learning
from warpdrive_min.training.paths.facts import Facts, Rule, first_reason, rule, two_layers, where
from warpdrive_min.training.paths.fused import adam, cpu, kept, learning, narrow, wide

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Launch
    from warpdrive_min.training.paths.exact.exact import Exact
    from warpdrive_min.training.paths.fused.loss import Learned, Learning
    from warpdrive_min.training.paths.fused.network import Network


@dataclass(frozen=True)
class Path:
    """One implementation of a part of a run."""

    name: str
    rules: tuple[Rule, ...] = ()
    """Conditions that must all hold; the last path of a part has none."""
    build: Callable[..., Any] | None = None
    """Builds the implementation; None if the caller implements it."""

    def why_not(self, facts: Facts) -> str | None:
        """Return the reason against the path, or None."""
        return first_reason(self.rules, facts)

    @property
    def is_in_triton(self) -> bool:
        """True if the path has kernels in Triton."""
        return triton in self.rules


@dataclass(frozen=True)
class Choice:
    """Chosen path of a part, and the refused faster paths."""

    path: Path
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons against the faster paths, by name."""

    @property
    def is_fast(self) -> bool:
        """True if the path has rules, so is not the last of its part."""
        return bool(self.path.rules)

    @property
    def why(self) -> str:
        """Return the reasons against all fast paths; empty if one is taken."""
        return "" if self.is_fast else "; ".join(dict.fromkeys(self.refused.values()))


def choose(part: str, facts: Facts) -> Choice:
    """Return the first path of a part whose rules all hold."""
    refused = dict[str, str]()
    for path in PATHS[part]:
        reason = path.why_not(facts)
        if reason is None:
            return Choice(path, refused)
        refused[path.name] = reason
    raise AssertionError(f"the last path of {part!r} has no rules")


def explain(choices: Mapping[str, Choice]) -> Iterator[str]:
    """Yield a line for each part's path, then one for each faster path refused.

    A line of a refused path gives the reason.
    """
    order = list(PATHS)
    for part in sorted(choices, key=lambda part: order.index(part.partition(" of ")[0])):
        yield f"{part}: {choices[part].path.name}"
        for name, reason in choices[part].refused.items():
            yield f"  {name} not used: {reason}"


# ------------------------------------------------------------------ rules of more than one path


def not_disabled(name: str) -> Rule:
    """Make a rule: a setting of the trainer is not false."""
    return where(
        f"`trainer.{name}` is not false", lambda of: getattr(of, name) is not False, f"trainer.{name} is false"
    )


EXACT: Final = where("exact training is on", lambda of: of.is_exact, "trainer.exact is false")
NOT_EXACT: Final = where("exact training is off", lambda of: not of.is_exact, "exact training is on")
ALONE: Final = where("the run trains no population", lambda of: not of.is_population, "the run trains a population")
ALL_ROWS: Final = where(
    "the policy learns from all environments",
    lambda of: not of.selects_envs,
    "the policy learns from some environments only",
)
NO_CRITIC: Final = where(
    "the policy has no centralised critic", lambda of: not of.has_critic, "the policy has a centralised critic"
)
ONE_POLICY: Final = where("the run has one policy", lambda of: of.n_policies == 1, "the run has several policies")
LEARNS: Final = where("the policy learns", lambda of: of.learns, "the policy does not learn from the rollout")
ON_POLICY: Final = where(
    "the algorithm is A2C or PPO", lambda of: of.is_on_policy, "the algorithm is neither A2C nor PPO"
)
STATELESS: Final = where("the network is not recurrent", lambda of: not of.is_recurrent, "the network is recurrent")
DISCRETE: Final = where("actions are discrete", lambda of: not of.is_box, "actions are continuous (a Box)")
DRAWN: Final = where(
    "`sampler.params.use_argmax` is not true", lambda of: not of.is_greedy, "sampler.params.use_argmax is true"
)
OUR_RULE: Final = where("`trainer.compat` is null", lambda of: not of.is_compat, "trainer.compat is 'warpdrive'")
BOUND: Final = where(
    "the environment's step can write to the rollout's arrays",
    lambda of: of.is_bound,
    "the environment's step writes to its own arrays only",
)
IS_DIRECT: Final = where(
    "steps write into the rollout", lambda of: of.is_direct, "steps do not write observations into the rollout"
)
HAS_GRAPHS: Final = where(
    "the backend runs on a GPU", lambda of: of.has_graphs, "backend {facts.backend!r} has no CUDA graphs"
)
NOT_EAGER: Final = where("`trainer.mode` is not eager", lambda of: not of.is_eager, "trainer.mode is 'eager'")
NO_DEBUG: Final = where("`debug` is off", lambda of: not of.is_debug, "debug is on: the wrapper checks every step")
UNMASKED: Final = where("actions have no masks", lambda of: not of.is_masked, "actions have masks")
ONCE: Final = where("a rollout has one update", lambda of: of.n_updates == 1, "a rollout has several updates")
STEPWISE: Final = where("rollouts run step by step", lambda of: not of.is_one_launch, "a rollout is one launch")
SHARES_LAYERS: Final = where(
    "policy and value share their hidden layers",
    lambda of: of.layers.is_shared,
    "policy and value have separate hidden layers",
)
OWN_ROWS: Final = where(
    "each agent has its own row of observations",
    lambda of: of.own_columns is None,
    "agents share one row of observations",
)
LAST_OBSERVATIONS: Final = where(
    "the environment writes the last observations of truncated episodes",
    lambda of: of.writes_last_observations,
    "the environment does not write the last observations of truncated episodes",
)
FUSED: Final = where("`model.fused` is not false", lambda of: of.fused is not False, "model.fused is false")
ONE_CHOICE: Final = where(
    "each agent makes one choice", lambda of: of.n_types == 1, "each agent makes {facts.n_types} choices"
)
NOT_BF16: Final = where(
    "`trainer.precision` is `fp32` or `tf32`", lambda of: of.precision != "bf16", "this kernel does not compute in bf16"
)


@rule("the policy's observations are one complete float32 array")
def sees_whole_array(facts: Facts) -> str | None:
    """Refuse policies that do not see the whole array."""
    return facts.why_not_whole_array or None


@rule("the environment has [`own_columns`](authoring-advanced.md#observations-that-agents-share)")
def has_own_columns(facts: Facts) -> str | None:
    """Refuse agents whose rows differ in other columns."""
    return "the environment has no own_columns" if facts.own_columns is None else None


@rule("the network learns in one pass")
def has_kernels(facts: Facts) -> str | None:
    """Refuse networks without a kernel for shared rows."""
    if first_reason(IN_CPP, facts) is None:
        return None
    reason = first_reason((two_layers, learning.is_narrow), facts)
    return None if reason is None else f"no kernel learns with this network in one pass: {reason}"


@rule("the network does not fit the narrow kernels")
def is_large(facts: Facts) -> str | None:
    """Refuse networks for which a second pass is cheaper."""
    is_narrow = narrow.fits.why_not(facts) is None
    return "the network is narrow: a second forward pass costs less than keeping the first" if is_narrow else None


@rule("the first layer does not fit on the chip, or `trainer.shared_observations` is true")
def is_worth_sharing(facts: Facts) -> str | None:
    """Refuse first layers that gain nothing from shared rows."""
    if facts.shared_observations or not learning.first_layer_is_small(facts.layers):
        return None
    return f"trainer.shared_observations is null, and the first layer is small (got {facts.layers})"


@rule("the backend runs on a GPU, exact training is on, or `trainer.fused_rollout` is true")
def wants_one_launch(facts: Facts) -> str | None:
    """Refuse runs that use single steps by default."""
    if facts.fused_rollout or facts.has_graphs or facts.is_exact:
        return None
    return f"trainer.fused_rollout is null, and backend {facts.backend!r} does not run on a GPU"


@rule("the environment has a rollout kernel for the network (see `EnvWrapper.rollout_mode_of`)")
def has_rollout_kernel(facts: Facts) -> str | None:
    """Refuse runs without a rollout kernel."""
    return facts.rollout_kernel or None


@rule("`pycuda` takes the environment's step, one kernel whose blocks own environments")
def repeats_steps(facts: Facts) -> str | None:
    """Refuse environments whose steps a launch cannot repeat."""
    return facts.rollout_kernel or None


# ------------------------------------------------------------------ rules of a path

IN_CPP: Final = (cpp, NOT_BF16, NOT_EXACT, ALONE, two_layers)
"""Rules of the kernels in C++."""
IN_TRITON: Final = (FUSED, NOT_EXACT, triton)
"""Rules of the kernels in Triton, for any network."""
PLAIN: Final = (NO_CRITIC, ALONE, NOT_EXACT)
WHOLE_ARRAY: Final = (sees_whole_array, UNMASKED)
SHARED: Final = (
    *(not_disabled("shared_observations"), ONE_POLICY, has_own_columns, *WHOLE_ARRAY, LAST_OBSERVATIONS),
    *(LEARNS, ON_POLICY, OUR_RULE, *PLAIN, has_kernels, is_worth_sharing),
)
DIRECT: Final = (ONE_POLICY, LEARNS, *WHOLE_ARRAY, BOUND)
ONE_LAUNCH: Final = (
    *(not_disabled("fused_rollout"), wants_one_launch, ONE_POLICY, OWN_ROWS, NOT_BF16, DRAWN, LEARNS, IS_DIRECT),
    *(DISCRETE, STATELESS, ALONE, LAST_OBSERVATIONS, has_rollout_kernel),
)
SAVED_PASSES: Final = (
    *(LEARNS, ON_POLICY, not_disabled("kept_passes"), triton, ONCE, STATELESS, STEPWISE),
    *(*PLAIN, OWN_ROWS, two_layers, SHARES_LAYERS, is_large),
)
"""Rules of kept passes, by kernels or by torch."""

# ------------------------------------------------------------------ learning


class Update(NamedTuple):
    """Arguments to build the kernels that learn from minibatches."""

    model: Any
    learned: Learned
    at_once: int
    """Rows per pass through the network."""
    normalises: bool
    """True if advantages are normalised in each minibatch."""
    facts: Facts
    exact: Exact | None
    n_together: int = 1
    """Steps of a sequence."""


def _network(update: Update) -> Network:
    model = update.model
    network: Network = (model.as_first_network if update.facts.is_population else model.as_network)()
    return network


def _in_cuda_c(update: Update) -> Learning:
    backend, precision = get(update.facts.backend), update.facts.precision
    return matrix_units.Learning(backend, _network(update), update.learned, precision=precision)


def _in_triton(update: Update) -> Learning:
    given: dict[str, Any] = {"precision": update.facts.precision, "own_columns": update.facts.own_columns}
    return learning.Learning(_network(update), update.learned, **given)


def _in_cpp(update: Update) -> Learning:
    given: dict[str, Any] = {"normalises": update.normalises, "own_columns": update.facts.own_columns}
    return cpu.Learning(update.model.as_network(), update.learned, **given)


def _exactly(update: Update) -> Learning:
    assert update.exact is not None
    layers = update.model, update.model.as_perceptron()
    return exact_learning.ExactLearning(update.exact, *layers, update.learned, at_once=update.at_once)


def _of_sequences(update: Update) -> Learning:
    backend, network = get(update.facts.backend), update.model.as_network()
    how: dict[str, Any] = {"precision": update.facts.precision, "length": update.n_together}
    return gated.Learning(backend, network, update.learned, **how)


# ------------------------------------------------------------------ acting and Adam


def _evaluation_in_cuda_c(facts: Facts, network: Network, **given: Any) -> matrix_units.Evaluation:
    return matrix_units.Evaluation(get(facts.backend), network, **given)


def _evaluation_of_gated_units(facts: Facts, network: gated.GatedNetwork, **given: Any) -> gated.Evaluation:
    return gated.Evaluation(get(facts.backend), network, **given)


def _evaluation_in_cpp(_: Facts, network: Network, **given: Any) -> cpu.Evaluation:
    return cpu.Evaluation(network, **given)


def _adam_in_cuda_c(facts: Facts, **given: Any) -> Launch:
    return adam.adam(get(facts.backend), **given)


def _adam_in_cpp(_: Facts, **given: Any) -> Launch:
    return cpu.adam(**given)


# ------------------------------------------------------------------ the table

IN_CUDA_C: Final = (NOT_EXACT, cuda_c, NOT_BF16, OWN_ROWS, DISCRETE, two_layers, constants.fits)
"""Rules of the kernels in CUDA C for small networks."""
GATED: Final = (NOT_EXACT, cuda_c, NOT_BF16, OWN_ROWS, DISCRETE, gated.one_layer, gated.fits)
"""Rules of the kernels in CUDA C for gated recurrent units."""
BY_GROUPS: Final = (FUSED, NOT_EXACT, ALONE, two_layers, warp_groups.fits, has_warp_groups)
"""Rules of the kernels in CUDA C for wide networks."""
ON_CHIP: Final = (learning.is_narrow, learning.first_layer_stays)
LOSS_KERNEL: Final = Path("kernel of the loss, in Triton", (*IN_TRITON, ALONE))
EXACT_KERNELS: Final = Path("kernels of exact training", (EXACT,))
TORCH: Final = Path("torch")

PATHS: Final[dict[str, tuple[Path, ...]]] = {
    "observations": (Path("one row for all agents", SHARED), Path("a row for each agent")),
    "steps": (Path("into the rollout", DIRECT), Path("copied to the rollout")),
    "rollout": (Path("one launch", ONE_LAUNCH), Path("step by step")),
    "acting": (
        Path("kernel in CUDA C", (ALONE, *IN_CUDA_C), _evaluation_in_cuda_c),
        Path("kernel in C++", IN_CPP, _evaluation_in_cpp),
        Path("kernel of gated units, in CUDA C", (ALONE, *GATED), _evaluation_of_gated_units),
        Path("the network itself"),
    ),
    "network": (
        Path("kernel for narrow networks", (*IN_TRITON, two_layers, narrow.fits), narrow.narrow),
        Path("kernel for wide networks, in CUDA C", BY_GROUPS, partial(wide.wide, kernels=warp_groups.IN_CUDA_C)),
        Path("kernel for wide networks, in Triton", (*IN_TRITON, ALONE, two_layers, wide.fits), wide.wide),
        EXACT_KERNELS,
        TORCH,
    ),
    "forward passes": (
        Path(
            "kept by kernels, in CUDA C",
            (*SAVED_PASSES, warp_groups.fits, has_warp_groups, kept.fits_memory),
            partial(kept.by_kernels, kernels=warp_groups.IN_CUDA_C),
        ),
        Path(
            "kept by kernels, in Triton",
            (*SAVED_PASSES, wide.fits, wide.keeps_by_row, kept.fits_memory),
            kept.by_kernels,
        ),
        Path("kept by torch", (*SAVED_PASSES, kept.in_fp32, kept.fits_memory), kept.by_torch),
        Path("not kept"),
    ),
    "learning": (
        Path("one pass, in CUDA C", (NO_CRITIC, *IN_CUDA_C), _in_cuda_c),
        Path("one pass, in Triton", (NO_CRITIC, NOT_EXACT, triton, two_layers, *ON_CHIP), _in_triton),
        Path("one pass, in C++", (NO_CRITIC, *IN_CPP), _in_cpp),
        Path("one pass, exactly", (EXACT, NO_CRITIC, ALONE, ALL_ROWS, exact_learning.fits), _exactly),
        Path("one pass over sequences, in CUDA C", (NO_CRITIC, ALONE, *GATED), _of_sequences),
        LOSS_KERNEL,
        EXACT_KERNELS,
        TORCH,
    ),
    "minibatch rows": (Path("kernel in Triton", IN_TRITON), TORCH),
    "Adam": (
        Path("kernels in CUDA C", (NOT_EXACT, cuda_c), _adam_in_cuda_c),
        Path("kernel in C++", (NOT_EXACT, cpp, ALONE), _adam_in_cpp),
        EXACT_KERNELS,
        TORCH,
    ),
    "evaluation": (
        Path(
            "one launch",
            (NOT_EAGER, ONE_POLICY, ALONE, *IN_CUDA_C, ONE_CHOICE, *WHOLE_ARRAY, repeats_steps),
            matrix_units.in_episodes,
        ),
        Path("step by step"),
    ),
    "iteration": (Path("CUDA graphs", (HAS_GRAPHS, NOT_EAGER, NO_DEBUG)), Path("launch by launch")),
}
"""Paths by part, fastest first; the last has no rules."""
