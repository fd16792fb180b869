"""Paths that each part of a training run may take, fastest first, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from warpdrive_min.training.paths.available import cpp, triton
from warpdrive_min.training.paths.exact import learning as exact_learning
from warpdrive_min.training.paths.facts import Facts, Rule, first_reason, rule, two_layers, where
from warpdrive_min.training.paths.fused import adam, cpu, kept, learning, narrow, wide

if TYPE_CHECKING:
    from torch import Tensor

    from warpdrive_min.training.actions import ActionSpace
    from warpdrive_min.training.paths.exact.exact import Exact
    from warpdrive_min.training.paths.fused.loss import Learning, LossRule, RolloutArrays


@dataclass(frozen=True)
class Path:
    """A way to do a part of a run."""

    name: str
    rules: tuple[Rule, ...] = ()
    """All must hold; the last path of a part has none."""
    build: Callable[..., Any] | None = None
    """Makes what does the part; None: who asks does it."""

    def why_not(self, facts: Facts) -> str | None:
        """Return why a run does not take the path, in one sentence; None: it may."""
        return first_reason(self.rules, facts)


@dataclass(frozen=True)
class Choice:
    """Path that a part of a run takes, and the faster ones that it does not take."""

    path: Path
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons why faster paths are not taken, by name."""

    @property
    def is_fast(self) -> bool:
        """A path with rules is taken."""
        return bool(self.path.rules)

    @property
    def why(self) -> str:
        """Return why no fast path is taken; empty: one is."""
        return "" if self.is_fast else "; ".join(dict.fromkeys(self.refused.values()))


def choose(part: str, facts: Facts) -> Choice:
    """Return the first path of a part that nothing speaks against."""
    refused = dict[str, str]()
    for path in PATHS[part]:
        reason = path.why_not(facts)
        if reason is None:
            return Choice(path, refused)
        refused[path.name] = reason
    raise AssertionError(f"the last path of {part!r} has no rules")


def explain(choices: Mapping[str, Choice]) -> Iterator[str]:
    """Yield a line for the path of each part, and below it a line for each faster one, with the reason."""
    order = list(PATHS)
    for part in sorted(choices, key=lambda part: order.index(part.partition(" of ")[0])):
        yield f"{part}: {choices[part].path.name}"
        for name, reason in choices[part].refused.items():
            yield f"  not {name}: {reason}"


# ------------------------------------------------------------------ rules of more than one path


def wished(name: str) -> Rule:
    """Make the rule that a setting of the trainer is not false."""
    return where(f"`trainer.{name}` not false", lambda of: getattr(of, name) is not False, f"trainer.{name} is false")


EXACT: Final = where("exact training", lambda of: of.is_exact, "trainer.exact is false")
NOT_EXACT: Final = where("training that is not exact", lambda of: not of.is_exact, "it trains exactly")
ALONE: Final = where("no population", lambda of: not of.is_population, "it is of a population")
ALL_ROWS: Final = where("all environments", lambda of: not of.leaves_out, "it learns from some environments alone")
NO_CRITIC: Final = where("no centralised critic", lambda of: not of.has_critic, "it has a centralised critic")
ONE_POLICY: Final = where("one policy", lambda of: of.n_policies == 1, "several policies act")
LEARNS: Final = where("a policy that learns", lambda of: of.learns, "it does not learn from the rollout")
ON_POLICY: Final = where("A2C or PPO", lambda of: of.is_on_policy, "it does not learn by the rule of A2C or PPO")
STATELESS: Final = where("no recurrent network", lambda of: not of.is_recurrent, "it is recurrent")
DISCRETE: Final = where("discrete actions", lambda of: not of.is_box, "its actions are those of a Box")
DRAWN: Final = where("no `use_argmax`", lambda of: not of.is_greedy, "sampler.params.use_argmax is true")
OUR_RULE: Final = where("no `trainer.compat`", lambda of: not of.is_compat, "it learns by WarpDrive's rule")
BOUND: Final = where("a step with other arrays", lambda of: of.is_bound, "its step writes to its own arrays")
IS_DIRECT: Final = where("steps into the rollout", lambda of: of.is_direct, "its steps do not write observations there")
HAS_GRAPHS: Final = where("a GPU", lambda of: of.has_graphs, "backend {facts.backend!r} has no CUDA graphs")
NOT_EAGER: Final = where("`trainer.mode` not eager", lambda of: not of.is_eager, "trainer.mode is 'eager'")
NO_DEBUG: Final = where("no `debug`", lambda of: not of.is_debug, "the wrapper checks every step, as debug has it")
UNMASKED: Final = where("no action masks", lambda of: not of.is_masked, "actions are masked")
ONCE: Final = where("one update a rollout", lambda of: of.n_updates == 1, "it learns from a rollout more than once")
STEPWISE: Final = where("rollouts step by step", lambda of: not of.is_at_once, "it acts in one launch a rollout")
SHARES_LAYERS: Final = where(
    "shared hidden layers", lambda of: of.layers.is_shared, "needs hidden layers that actions and values share"
)
OWN_ROWS: Final = where(
    "a row of observations for each agent", lambda of: of.own_columns is None, "agents share its observations"
)
TELLS_ENDS: Final = where(
    "last observations of truncated episodes", lambda of: of.tells_ends, "nothing tells of the ends of episodes"
)
FUSED: Final = where("`model.fused` not false", lambda of: of.fused is not False, "model.fused is false")
NOT_BF16: Final = where("`fp32` or `tf32`", lambda of: of.precision != "bf16", "no such kernel computes in bf16")


@rule("one array of float32 observations, seen whole")
def sees_whole(facts: Facts) -> str | None:
    """Return why it does not see the environment's array of observations as it is."""
    return facts.observes or None


@rule("an environment with [`own_columns`](authoring.md#write)")
def has_own_columns(facts: Facts) -> str | None:
    """Return why agents see more than one row and who they are."""
    return "its agents see more of their own than who they are" if facts.own_columns is None else None


@rule("a network that learns in one pass")
def has_kernels(facts: Facts) -> str | None:
    """Return why no kernels of a GPU nor of a CPU learn on shared rows."""
    if first_reason(IN_CPP, facts) is None:
        return None
    reason = first_reason((two_layers, learning.is_narrow), facts)
    return None if reason is None else f"there are no kernels for its network: {reason}"


@rule("a network that is not narrow")
def is_large(facts: Facts) -> str | None:
    """Return why another pass forward is as fast."""
    is_narrow = narrow.fits.why_not(facts) is None
    return "its network is narrow, so that another pass costs less than keeping one" if is_narrow else None


@rule("a first layer too large for the chip, or `trainer.shared_observations: true`")
def is_worth_sharing(facts: Facts) -> str | None:
    """Return why rows of each agent are as fast."""
    if facts.shared_observations or not learning.first_layer_is_small(facts.layers):
        return None
    return f"trainer.shared_observations is null, and the first layer is small (got {facts.layers})"


@rule("a GPU or exact training, or `trainer.fused_rollout: true`")
def is_at_once_wished(facts: Facts) -> str | None:
    """Return why a run does not play rollouts in one launch by itself."""
    if facts.fused_rollout or facts.has_graphs or facts.is_exact:
        return None
    return f"trainer.fused_rollout is null, and backend {facts.backend!r} is none of a GPU"


@rule("a kernel of the environment with the network, as `EnvWrapper.rollout_mode_of` tells")
def has_rollout_kernel(facts: Facts) -> str | None:
    """Return why the environment and the network have no kernel of a rollout."""
    return facts.rollout_kernel or None


# ------------------------------------------------------------------ rules of a path

IN_CPP: Final = (cpp, NOT_BF16, NOT_EXACT, ALONE, two_layers)
"""Rules of the kernels in C++."""
IN_TRITON: Final = (FUSED, NOT_EXACT, triton)
"""Rules of the kernels in Triton, for whatever network."""
PLAIN: Final = (NO_CRITIC, ALONE, NOT_EXACT)
SEEN: Final = (sees_whole, UNMASKED)
SHARED: Final = (
    *(wished("shared_observations"), ONE_POLICY, has_own_columns, *SEEN, TELLS_ENDS),
    *(LEARNS, ON_POLICY, OUR_RULE, *PLAIN, has_kernels, is_worth_sharing),
)
DIRECT: Final = (ONE_POLICY, LEARNS, *SEEN, BOUND)
AT_ONCE: Final = (
    *(wished("fused_rollout"), is_at_once_wished, ONE_POLICY, OWN_ROWS, NOT_BF16, DRAWN, LEARNS, IS_DIRECT),
    *(DISCRETE, STATELESS, ALONE, TELLS_ENDS, has_rollout_kernel),
)
KEPT: Final = (
    *(LEARNS, ON_POLICY, wished("kept_passes"), triton, ONCE, STATELESS, STEPWISE),
    *(*PLAIN, OWN_ROWS, two_layers, SHARES_LAYERS, is_large),
)
"""Rules of kept passes, whatever computes them."""

# ------------------------------------------------------------------ learning


class Update(NamedTuple):
    """Minibatches that a policy learns from."""

    model: Any
    parameters: Tensor
    gradient: Tensor
    space: ActionSpace
    rollout: RolloutArrays
    rule: LossRule
    n_rows: int
    """Rows of a minibatch, of one member."""
    at_once: int
    """Rows that go through the network together."""
    normalises: bool
    """Advantages of a minibatch are shifted and scaled."""
    facts: Facts
    exact: Exact | None


def _in_triton(update: Update) -> Learning:
    facts, model = update.facts, update.model
    network = (model.as_first_network if facts.is_population else model.as_network)()
    given: dict[str, Any] = {"n_rows": update.n_rows, "own_columns": facts.own_columns}
    return learning.Learning(network, *update[1:6], precision=facts.precision, **given)


def _in_cpp(update: Update) -> Learning:
    given: dict[str, Any] = {"n_rows": update.n_rows, "own_columns": update.facts.own_columns}
    return cpu.Learning(update.model.as_network(), *update[1:6], normalises=update.normalises, **given)


def _exactly(update: Update) -> Learning:
    given: dict[str, Any] = {"n_rows": update.n_rows, "at_once": update.at_once}
    assert update.exact is not None
    network = update.model.as_perceptron()
    return exact_learning.ExactLearning(update.exact, update.model, network, *update[1:6], **given)


ON_CHIP: Final = (learning.is_narrow, learning.first_layer_stays)
LOSS_KERNEL: Final = Path("kernel of the loss, in Triton", (*IN_TRITON, ALONE))
EXACTLY: Final = Path("kernels of exact training", (EXACT,))
TORCH: Final = Path("torch")

PATHS: Final[dict[str, tuple[Path, ...]]] = {
    "observations": (Path("one row for all agents", SHARED), Path("a row for each agent")),
    "steps": (Path("into the rollout", DIRECT), Path("copied to the rollout")),
    "rollout": (Path("one launch", AT_ONCE), Path("step by step")),
    "acting": (Path("kernel in C++", IN_CPP, cpu.Evaluation), Path("the network itself")),
    "network": (
        Path("kernel for narrow networks", (*IN_TRITON, two_layers, narrow.fits), narrow.narrow),
        Path("kernel for wide networks", (*IN_TRITON, ALONE, two_layers, wide.fits), wide.wide),
        EXACTLY,
        TORCH,
    ),
    "forward passes": (
        Path("kept by kernels", (*KEPT, wide.fits, wide.keeps_by_row, kept.have_room), kept.by_kernels),
        Path("kept by torch", (*KEPT, kept.in_fp32, kept.have_room), kept.by_torch),
        Path("not kept"),
    ),
    "learning": (
        Path("one pass, in Triton", (NO_CRITIC, NOT_EXACT, triton, two_layers, *ON_CHIP), _in_triton),
        Path("one pass, in C++", (NO_CRITIC, *IN_CPP), _in_cpp),
        Path("one pass, exactly", (EXACT, NO_CRITIC, ALL_ROWS, exact_learning.fits), _exactly),
        LOSS_KERNEL,
        EXACTLY,
        TORCH,
    ),
    "minibatch rows": (Path("kernel in Triton", IN_TRITON), TORCH),
    "Adam": (
        Path("kernels in Triton", (NOT_EXACT, triton), adam.adam),
        Path("kernel in C++", (NOT_EXACT, cpp, ALONE), cpu.adam),
        EXACTLY,
        TORCH,
    ),
    "iteration": (Path("CUDA graphs", (HAS_GRAPHS, NOT_EAGER, NO_DEBUG)), Path("launch by launch")),
}
"""Paths of each part of a run, fastest first; the last one has no rules."""
