"""Perceptrons with two wide hidden layers in CUDA C, by groups of warps.

Two groups of a block take rows through a whole pass, and a third copies weights; see `kernels/wide.cuh`. Sums of the
same rows are the same bits on every GPU with as many multiprocessors.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training.paths.available import programs
from warpdrive_min.training.paths.constants import constants_of_launch
from warpdrive_min.training.paths.cuda_c.one_pass import processors
from warpdrive_min.training.paths.facts import Facts, rule
from warpdrive_min.training.paths.fused.wide import Kernels, Layers, OfAgents, multiple
from warpdrive_min.training.paths.triton.launch import compiled_ahead

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Constant, Program
    from warpdrive_min.training.config import Precision
    from warpdrive_min.training.paths.fused.narrow import Weights

Tensor = torch.Tensor

WIDTH: Final = 256
"""Units to which layers are padded."""
LEAST_UNITS: Final = 129
"""Fewest units; Triton's kernels pad narrower layers less."""
MOST_FEATURES: Final[dict[Precision, int]] = {"tf32": 72, "bf16": 128}
"""Most numbers of a row that leave registers, and shared memory for weights."""
MOST_OUTPUTS: Final = 48
TILE: Final = 128
"""Rows that a block takes at a time."""
SLICE: Final = 16
"""Rows of the second weights that are copied at once."""
HELD: Final = 2 * 2 * 64 * 64
"""Kept units of a block in shared memory."""
N_WARPS: Final = 8
"""Warps of a block that take rows."""


NEEDS: Final = f"{LEAST_UNITS} to {WIDTH} units per layer, up to {MOST_OUTPUTS} outputs, and up to " + " or ".join(
    f"{most} features in `{precision}`" for precision, most in MOST_FEATURES.items()
)


@rule(NEEDS)
def fits(facts: Facts) -> str | None:
    """Refuse networks whose tiles do not fit on the chip."""
    layers, most = facts.layers, MOST_FEATURES.get(facts.precision, 0)
    is_small = layers.n_features <= most and layers.n_columns <= MOST_OUTPUTS and max(layers.hidden) <= WIDTH
    if is_small and min(layers.hidden) >= LEAST_UNITS:
        return None
    return f"needs {NEEDS.replace('`', '')} (got {layers}, in {facts.precision})"


class Pass(NamedTuple):
    """A pass's sizes, as in `kernels/wide.cuh`."""

    n_seen: int
    layer1: int
    layer2: int
    n_last: int
    """Outputs of a third product; 0 of a backward pass."""
    is_bf16: bool
    is_tanh: bool

    @property
    def n_sums(self) -> int:
        """Sums over rows of a warp of the backward pass."""
        return 2 * WIDTH + self._first

    @property
    def n_bytes_of_weights(self) -> int:
        """Size of the ordered weights, bytes."""
        return WIDTH * (self._first + WIDTH + self._last) * self._bytes

    @property
    def _bytes(self) -> int:
        return 2 if self.is_bf16 else 4

    @property
    def _first(self) -> int:
        """Numbers of a row, padded to whole products."""
        return multiple(self.n_seen, 32 // self._bytes)

    @property
    def _last(self) -> int:
        return MOST_OUTPUTS if self.n_last else 0

    def shared_bytes(self, n_stages: int) -> int:
        """Return the shared memory of a block, bytes."""
        weights = WIDTH * (self._first + self._last + SLICE * n_stages) * self._bytes
        barriers = 8 * (2 * n_stages + 1)
        if self.n_last:
            of_warp = 16 * max(multiple(self.n_seen, 8) * self._bytes, self.n_last * 4)
            return weights + N_WARPS * multiple(of_warp, 128) + 4 * (2 * WIDTH + self._last) + barriers
        return weights + HELD * self._bytes + 4 * TILE * self._first + 4 * N_WARPS * self.n_sums + barriers

    def constants(self, shared_bytes: int) -> dict[str, Constant]:
        """Return the constants of `wide.cuh`, for a GPU with some shared memory."""
        n_stages = next(n for n in range(WIDTH // SLICE, 1, -1) if self.shared_bytes(n) <= shared_bytes)
        return {
            **constants_of_launch(N_WARPS + 4),
            "N_AGENTS": 1,
            **{"N_SEEN": self.n_seen, "KEPT_SEEN": multiple(self.n_seen, 8), "N_LAST": self.n_last},
            **{"LAYER1": self.layer1, "LAYER2": self.layer2, "BF16": self.is_bf16, "IS_TANH": self.is_tanh},
            **{"STAGES": n_stages, "SHARED_BYTES": self.shared_bytes(n_stages), "IS_BACKWARD": not self.n_last},
        }

    @property
    def kernel(self) -> str:
        """Name of the pass's kernel; ``wide_<kernel>.cu`` is its source."""
        return "forward" if self.n_last else "backward"


class Ordered(NamedTuple):
    """A network's weights as they lie in shared memory, and its biases."""

    weights: Tensor
    b1: Tensor
    b2: Tensor
    b3: Tensor


def ordered(weights: Weights, activation: str, precision: Precision) -> Ordered:
    """Return a network's weights in the form that `evaluate` needs; enqueues."""
    w1, b1, w2, b2, w3, b3 = weights
    of = _pass((w1.shape[1], len(b1), len(b2), len(b3)), activation, precision)
    return Ordered(_ordered(of, w1=w1, w2=w2, w3=w3), b1.contiguous(), b2.contiguous(), b3.contiguous())


def evaluate(
    x: Tensor | OfAgents,
    weights: Ordered,
    activation: str,
    precision: Precision,
    out: Tensor,
    layers: Layers | None = None,
) -> None:
    """Write the outputs (n_rows, n_outputs), and the layers if passed; enqueues.

    ``x`` is (n_rows, n_features) float32, or some agents' rows of an array.
    """
    whole, agents = x if isinstance(x, OfAgents) else OfAgents(x[:, None], None)
    n_envs, n_all, n_features = whole.shape
    n_own = n_all if agents is None else len(agents)
    of = _pass((n_features, *map(len, weights[1:])), activation, precision)
    program = _program(of, whole.device.index)
    if compiled_ahead(program.load):
        return
    n_rows, n_kept = n_envs * n_own, 0 if layers is None else len(layers.x)
    kept_x, kept_1, kept_2 = layers or (None, None, None)
    grid = (_n_blocks(max(n_rows, n_kept), whole.device), 1, 1)
    rows = {"n_rows": n_rows, "n_kept": n_kept, "n_own": n_own, "n_all": n_all}
    kept = {"kept_x": kept_x, "kept_1": kept_1, "kept_2": kept_2}
    program.launch("forward", grid, x=whole.contiguous(), **weights._asdict(), out=out, **kept, agents=agents, **rows)


def slopes(
    slope: Tensor, layers: Layers, w2: Tensor, w3: Tensor, activation: str, precision: Precision
) -> list[Tensor]:
    """Return the gradient of each layer before its activation, and sums; enqueues.

    Gradients are padded; the first layer's comes first. The sums are over the rows of each warp.
    """
    (n_rows, n_outputs), n_kept = slope.shape, len(layers.x)
    of = _pass((n_outputs, *w2.shape, 0), activation, precision)
    program, n_blocks = _program(of, slope.device.index), _n_blocks(n_kept, slope.device)
    widths = (WIDTH, WIDTH, multiple(n_outputs, 8))
    found = [layers.hidden_1.new_empty(n_kept, width) for width in widths]
    sums = slope.new_empty(n_blocks * N_WARPS, of.n_sums)
    weights = _ordered(of, w3=w3, w2=w2)
    if not compiled_ahead(program.load):
        program.launch(
            "backward",
            (n_blocks, 1, 1),
            slope=slope.contiguous(),
            weights=weights,
            kept_1=layers.hidden_1,
            kept_2=layers.hidden_2,
            **dict(zip(("slope_1", "slope_2", "slope_3"), found, strict=True)),
            sums=sums,
            n_rows=n_rows,
            n_kept=n_kept,
        )
    return [*found, sums]


def _pass(sizes: tuple[int, ...], activation: str, precision: Precision) -> Pass:
    n_seen, layer1, layer2, n_last = sizes
    return Pass(n_seen, layer1, layer2, n_last, precision == "bf16", activation != "relu")


@cache
def _program(of: Pass, index: int) -> Program:
    """Return the kernels of a pass, for a GPU by its number."""
    constants = of.constants(programs().most_shared_bytes(index))
    n_bytes = constants["SHARED_BYTES"]
    assert isinstance(n_bytes, int)
    return programs().program(KERNELS / f"wide_{of.kernel}.cu", constants, {of.kernel: n_bytes})


def _ordered(of: Pass, **matrices: Tensor) -> Tensor:
    device = next(iter(matrices.values())).device
    program = _program(of, device.index)
    weights = torch.empty(of.n_bytes_of_weights, dtype=torch.uint8, device=device)
    if not compiled_ahead(program.load):
        contiguous = {name: matrix.contiguous() for name, matrix in matrices.items()}
        program.launch("order", (2 * processors(device), 1, 1), **contiguous, weights=weights)
    return weights


def _n_blocks(n_rows: int, device: torch.device) -> int:
    return max(1, min(processors(device), -(-n_rows // TILE)))


IN_CUDA_C: Final = Kernels(ordered, evaluate, slopes, reads_in_place=True)
