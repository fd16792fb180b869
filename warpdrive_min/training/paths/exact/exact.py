"""Exact training: the same bits on a GPU and on a CPU.

Networks, losses and Adam run in kernels with one order of operations. Torch's products, sums, exponentials and initial
weights are not used, because their order and digits depend on the machine. Torch is used only for copies and for
elementwise operations that IEEE 754 rounds in one way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.errors import require
from warpdrive_min.function_manager import KERNELS, CUDAFunctionManager
from warpdrive_min.tracing import named
from warpdrive_min.training.paths.exact.layers import THREADS, Layers, Share, order, share_of
from warpdrive_min.training.paths.fused.loss import EPSILON, GivenGradients, LossRule, Minibatch
from warpdrive_min.training.ranks import World

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Argument, Backend, Constant
    from warpdrive_min.training.actions import ActionSpace

Tensor = torch.Tensor

ACTIVATIONS: Final = {"none": 0, "relu": 1, "tanh": 2}
"""Activations as numbered in the kernels."""


class Small(NamedTuple):
    """Network that fits the kernels for whole networks."""

    weights: Sequence[Tensor]
    """Weights and biases of each layer, (outputs, inputs) and (outputs,)."""
    packed: Tensor
    """The same numbers from `Exact.packed`."""
    activation: int


class Exact:
    """Kernels of exact training on one backend; all enqueue and none synchronises.

    Args:
        backend: `host` or `pycuda`.
        world: Ranks that share sums over rows.

    Raises:
        ConfigError: The backend does not run CUDA C.
    """

    def __init__(self, backend: Backend, world: World | None = None) -> None:
        rule, do = "exact training has kernels in CUDA C", "use backend host or pycuda"
        require(backend.language == "cuda_c", "run config trainer.exact", rule, backend.name, do)
        self._backend, self.world = backend, world or World()
        self._share: Share | None = None
        """This rank's rows of all sums over rows; None: it has all rows."""
        self._functions = self._load("exact.cu", {})
        self._managers: dict[tuple[Any, ...], CUDAFunctionManager] = {}
        self._orders: dict[Layers, Tensor | None] = {}

    @property
    def binaries(self) -> dict[str, Path]:
        """Compiled file of each kernel that is built at construction."""
        return self._functions.binaries

    def __deepcopy__(self, memo: dict[int, Any]) -> Exact:
        """Return itself: copies of a network share the kernels."""
        return self

    def _load(self, name: str, constants: Mapping[str, Constant]) -> CUDAFunctionManager:
        functions = CUDAFunctionManager(backend=self._backend)
        source: Path = KERNELS / name
        functions.load({"cuda_c": source}, {"EXACT": True, **constants})
        return functions

    def launch(self, name: str, n_items: int, /, **given: Argument) -> None:
        """Run a kernel over ``n_items`` items, with arguments by name."""
        self._run(self._functions, name, n_items, given)

    @staticmethod
    def _run(
        functions: CUDAFunctionManager,
        name: str,
        n_items: int,
        given: Mapping[str, Argument],
        shape: tuple[int, int] | None = None,
    ) -> None:
        if n_items == 0:  # of a rank without rows
            return
        rule, do = "an array has at most 2^31 - 1 numbers", "lower trainer.max_rows"
        require(n_items < 2**31, "exact", rule, n_items, do)
        kernel, values = functions.kernel(name), {**given, "n_envs": n_items}
        arguments = [values[parameter.name] for parameter in kernel.parameters]
        # Not `CUDAFunctionManager.prepare`: its checks take as long as a small kernel.
        assert all(not isinstance(each, torch.Tensor) or each.is_contiguous() for each in arguments), name
        launch = kernel.prepare(arguments, *(shape or (functions.shape.blocks(n_items), functions.shape.threads)))
        named(name, launch, given.items())()

    def launch_blocks(
        self, source: str, constants: Mapping[str, Constant], name: str, shape: tuple[int, int], **given: Argument
    ) -> None:
        """Run a kernel of another source with a shape of (blocks, threads).

        The source is compiled on first use.
        """
        self._run(self._manager(source, constants), name, shape[0], given, shape)

    # -------------------------------------------------------------- ranks

    def share(self, n_rows: int, together: int = 1) -> Share:
        """Return this rank's share of rows; ``together`` rows stay on one rank."""
        return share_of(n_rows, self.world.rank, self.world.size, together)

    @contextlib.contextmanager
    def sharing(self, share: Share) -> Iterator[None]:
        """Complete all sums over this rank's rows by those of the other ranks.

        Each rank sums fixed blocks of rows. Blocks of all ranks are gathered and added in their order, so that sums do
        not depend on the number of ranks.
        """
        self._share = share
        try:
            yield
        finally:
            self._share = None

    def whole(self, rows: Tensor, share: Share) -> Tensor:
        """Return all rows (rows, ...) from the ranks' shares; enqueues."""
        return self._gathered(rows, share.most_rows, share.n_rows)

    def _gathered(self, own: Tensor, most: int, total: int) -> Tensor:
        if self.world.size == 1:
            return own
        padded = own.new_zeros(most, *own.shape[1:])
        padded[: len(own)] = own
        return self.world.everyone(padded).flatten(0, 1)[:total]

    def _parts_of(self, n_rows: int) -> tuple[int, int]:
        """Return the number of this rank's parts of a sum over rows, and rows per part."""
        share = share_of(n_rows) if self._share is None else self._share
        assert share.stop - share.start == n_rows, "all sums are over the same rows"
        return share.n_parts, share.rows_of_a_part

    # -------------------------------------------------------------- networks

    def perceptron(self, inputs: Tensor, weights: Sequence[Tensor], activation: str) -> Tensor:
        """Return the outputs of a perceptron, ``(..., n_outputs)``.

        Each layer but the last is followed by the activation. The outputs can be differentiated once, with respect to
        the inputs and all weights.

        Args:
            inputs: ``(..., n_features)`` float32.
            weights: Weights and biases of each layer, (outputs, inputs) and (outputs,).
            activation: "relu" or "tanh".
        """
        rows = inputs.reshape(-1, inputs.shape[-1])
        outputs: Tensor = _Perceptron.apply(self, ACTIVATIONS[activation], rows, *weights)  # type: ignore[no-untyped-call]
        return outputs.view(*inputs.shape[:-1], outputs.shape[-1])

    def packed(self, weights: Sequence[Tensor]) -> Tensor | None:
        """Return a small network's packed weights, else None.

        They are weights and biases in the order of its kernels.
        """
        layers, device = Layers.of(weights), weights[0].device
        if layers not in self._orders:
            on_gpu, n = device.type == "cuda", sum(each.numel() for each in weights)
            fits = layers.fits(on_gpu=on_gpu)
            places = torch.from_numpy(order(layers.places, n, on_gpu=on_gpu)).to(device) if fits else None
            self._orders[layers] = places
        if (places := self._orders[layers]) is None:
            return None
        flat = [each.detach().reshape(-1) for each in weights]
        return torch.cat([*flat, flat[0].new_zeros(1)]).index_select(0, places)

    def evaluate(self, x: Tensor, network: Small) -> Tensor:
        """Return the outputs of a small network, (rows, outputs), for (rows, inputs)."""
        out = x.new_empty(len(x), len(network.weights[-1]))
        self._over_rows("evaluate", x, network, out=out)
        return out

    def network_gradients(
        self, x: Tensor, network: Small, d_out: Tensor, *, of_inputs: bool
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return a small network's gradients of weights, biases and optionally inputs."""
        weights = network.weights
        parts = x.new_empty(self._parts_of(len(x))[0], sum(each.numel() for each in weights))
        d_x = torch.empty_like(x) if of_inputs else None
        given = {"d_out": d_out, "parts": parts, "d_x": x if d_x is None else d_x}
        self._over_rows("pass_back", x, network, of_inputs=of_inputs, **given)
        gradients = self.sum_parts(parts).split([each.numel() for each in weights])
        return [each.view(like.shape) for each, like in zip(gradients, weights, strict=True)], d_x

    def _over_rows(self, name: str, x: Tensor, network: Small, *, of_inputs: bool = False, **given: Tensor) -> None:
        n_parts, of_a_part = self._parts_of(len(x))
        how = {"THREADS": THREADS, "OF_INPUTS": of_inputs, "IS_TANH": network.activation == ACTIVATIONS["tanh"]}
        constants = {**Layers.of(network.weights).constants(), **how}
        arguments: dict[str, Argument] = {"x": x, "weights": network.packed, **given}
        arguments |= {"n_rows": len(x), "rows_of_a_part": of_a_part}
        self.launch_blocks("exact_network.cu", constants, name, (n_parts, THREADS), **arguments)

    def tanh(self, x: Tensor) -> Tensor:
        """Return the hyperbolic tangents; it can be differentiated once."""
        y: Tensor = _Tanh.apply(self, x)  # type: ignore[no-untyped-call]
        return y

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor, activation: int) -> Tensor:
        """Return a layer's outputs, (rows, outputs)."""
        out = x.new_empty(len(x), len(weight))
        sizes = {"n_in": x.shape[1], "n_out": len(weight), "activation": activation}
        given = {"x": x, "weight_t": weight.detach().t().contiguous(), "bias": bias.detach().contiguous(), "out": out}
        self.launch("linear", out.numel(), **given, **sizes)
        return out

    def linear_inputs(self, d_out: Tensor, weight: Tensor, x: Tensor, activation: int) -> Tensor:
        """Return the gradient of a layer's inputs before their activation, (rows, inputs)."""
        d_x = torch.empty_like(x)
        sizes = {"n_in": x.shape[1], "n_out": len(weight), "activation": activation}
        self.launch(
            "linear_inputs", d_x.numel(), d_out=d_out, weight=weight.detach().contiguous(), x=x, d_x=d_x, **sizes
        )
        return d_x

    def linear_weights(self, d_out: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of a layer's weights, (outputs, inputs)."""
        n_rows, n_in, n_out = len(x), x.shape[1], d_out.shape[1]
        n_parts, of_a_part = self._parts_of(n_rows)
        parts = x.new_empty(n_parts, n_out, n_in)
        sizes = {"n_in": n_in, "n_out": n_out, "n_rows": n_rows, "rows_of_a_part": of_a_part}
        self.launch("linear_weights", parts.numel(), d_out=d_out, x=x, parts=parts, **sizes)
        return self.sum_parts(parts.flatten(1)).view(n_out, n_in)

    def column_sums(self, x: Tensor) -> Tensor:
        """Return the column sums of (rows, columns), (columns,)."""
        (n_rows, n_columns), (n_parts, of_a_part) = x.shape, self._parts_of(len(x))
        parts = x.new_empty(n_parts, n_columns)
        sizes = {"n_columns": n_columns, "n_rows": n_rows, "rows_of_a_part": of_a_part}
        self.launch("part_sums", parts.numel(), x=x, parts=parts, **sizes)
        return self.sum_parts(parts)

    def sum_parts(self, parts: Tensor) -> Tensor:
        """Return the sums of (parts, columns) in the order of the parts, (columns,).

        Parts are those of all ranks that share the rows.
        """
        if self._share is not None:
            parts = self._gathered(parts, self._share.most_parts, self._share.all_parts)
        n_parts, n_columns = parts.shape
        out = parts.new_empty(n_columns)
        self.launch("add_parts", n_columns, parts=parts, out=out, n_columns=n_columns, n_parts=n_parts)
        return out

    def activate(self, x: Tensor, activation: int) -> Tensor:
        """Apply an activation to each number."""
        out = torch.empty_like(x)
        self.launch("activate", x.numel(), x=x, out=out, activation=activation)
        return out

    def exp(self, x: Tensor) -> Tensor:
        """Return the exponentials, without a gradient."""
        x = x.contiguous()
        out = torch.empty_like(x)
        self.launch("exponentials", x.numel(), x=x, out=out)
        return out

    def activation_gradient(self, d_out: Tensor, y: Tensor, activation: int) -> Tensor:
        """Return the gradient before an activation.

        ``d_out`` is the gradient after it, and ``y`` its outputs.
        """
        d_x = torch.empty_like(y)
        self.launch("chain", y.numel(), d_out=d_out, y=y, d_x=d_x, activation=activation)
        return d_x

    # -------------------------------------------------------------- batches

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of all numbers, 0-d; it can be differentiated once."""
        mean: Tensor = _Mean.apply(self, x)  # type: ignore[no-untyped-call]
        return mean

    def squared_error(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared error to constants, 0-d, differentiable once."""
        error = x - target
        return self.mean(error * error)

    def normalise(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return ``(x - mean) / (std + 1e-10)`` over all numbers, with the unbiased std.

        A single number becomes 0. Weights of 0 exclude numbers from mean and std; they broadcast to ``x``.
        """
        if weights is not None:
            return self._normalise_some(x, weights.expand_as(x))
        _, deviation, sum_of_squares = self._deviations(x)
        n, out = x.numel(), torch.empty_like(deviation)
        given = {"deviation": deviation, "sum_of_squares": sum_of_squares, "out": out}
        self.launch("standardise", n, **given, n=float(n - min(1, n - 1)), epsilon=EPSILON)
        return out

    def _normalise_some(self, x: Tensor, weights: Tensor) -> Tensor:
        n = weights.sum(dtype=torch.float64).float()  # a sum of ones, in any order
        deviation = x - self.column_sums((weights * x).view(-1, 1)) / n.clamp(min=1)
        sum_of_squares = self.column_sums((weights * (deviation * deviation)).view(-1, 1))
        variance = sum_of_squares / (n - 1).clamp(min=1)
        return deviation / (variance.clamp(min=EPSILON**2).sqrt() + EPSILON)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of rows (n, ...), (...) each."""
        rows = x.reshape(len(x), -1).contiguous()
        n = torch.full((), float(len(rows)), device=x.device, dtype=torch.float32)
        mean = self.column_sums(rows) / n
        deviation = rows - mean
        variance = self.column_sums(deviation * deviation) / n
        return mean.view(x.shape[1:]), variance.view(x.shape[1:])

    def _deviations(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum, the deviations from the mean, and their sum of squares.

        Both sums are (1,).
        """
        x = x.contiguous()
        total, deviation, squares = self.column_sums(x.view(-1, 1)), torch.empty_like(x), torch.empty_like(x)
        given = {"x": x, "sum": total, "deviation": deviation, "squares": squares}
        self.launch("deviations", x.numel(), **given, n=float(x.numel()))
        return total, deviation, self.column_sums(squares.view(-1, 1))

    def loss(
        self,
        space: ActionSpace,
        head: Tensor,
        values: Tensor,
        rows: Minibatch,
        rule: LossRule,
        total: Tensor,
        log_std: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a minibatch, 0-d, and its terms, ``(5,)``.

        The loss itself must be differentiated, with respect to head, values and log_std.
        """
        assert rows.old_values is not None
        assert rows.advantages is not None
        actions, log_probs, returns, advantages, old_values = (
            each.contiguous() for each in (*rows[:3], rows.advantages, rows.old_values)
        )
        masks = rows.masks
        functions = self._manager("exact_loss.cu", loss_constants(space, rule, is_masked=masks is not None))
        none, no_ints = values.new_empty(1), torch.empty(1, dtype=torch.int32, device=values.device)

        def evaluate(
            head: Tensor, values: Tensor, log_std: Tensor | None
        ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
            head, values = head.contiguous(), values.contiguous()
            n = values.numel()
            d_head, d_values, terms = torch.empty_like(head), torch.empty_like(values), values.new_empty(n, 5)
            d_log_std = None if log_std is None else values.new_empty(n, space.n_types)
            given = {
                "head": head,
                "values": values,
                "choices": no_ints if space.is_continuous else actions,
                "drawn": actions if space.is_continuous else none,
                "log_probs": log_probs,
                "old_values": old_values,
                "returns": returns,
                "advantages": advantages,
                "mask": no_ints if masks is None else masks.contiguous(),
                "log_std": none if log_std is None else log_std.detach().contiguous(),
                "total": total,
                "value_weight": rule.vf_loss_coeff,
                "entropy_weight": rule.entropy_coeff,
                "d_head": d_head,
                "d_values": d_values,
                "terms": terms,
                "d_log_std": none if d_log_std is None else d_log_std,
            }
            self._run(functions, "loss", n, given)
            if rows.weights is not None:
                counted = rows.weights.view(len(values), *[1] * (values.dim() - 1)).expand_as(values)
                d_head.mul_(counted[..., None])
                d_values.mul_(counted)
                for each in (terms, *([] if d_log_std is None else [d_log_std])):
                    each.mul_(counted.reshape(-1, 1))
            means = self.column_sums(terms) / total
            loss = means[0] + rule.vf_loss_coeff * means[1] - rule.entropy_coeff * means[2]
            return loss, means, d_head, d_values, None if d_log_std is None else self.column_sums(d_log_std)

        outputs: tuple[Tensor, Tensor] = GivenGradients.apply(  # type: ignore[no-untyped-call]
            evaluate, True, head, values, log_std if space.is_continuous else None
        )
        return outputs

    def _manager(self, source: str, constants: Mapping[str, Constant]) -> CUDAFunctionManager:
        key = source, *((name, tuple(of) if isinstance(of, list) else of) for name, of in constants.items())
        if key not in self._managers:
            self._managers[key] = self._load(source, constants)
        return self._managers[key]


def loss_constants(space: ActionSpace, rule: LossRule, *, is_masked: bool) -> dict[str, Constant]:
    """Return the compile-time constants of a loss in `exact_loss.cuh`."""
    return {
        "DISCRETE": not space.is_continuous,
        "N_TYPES": space.n_types,
        "N_OUTPUTS": space.n_outputs,
        "SIZES": list(space.categories) or [1],
        "MASKED": is_masked,
        "IS_CLIPPED": rule.is_clipped,
        "CLIP_PARAM": float(rule.clip_param),
        "VALUE_CLIPPED": rule.value_clip is not None,
        "VALUE_CLIP": float(rule.value_clip or 0),
    }


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: Exact, activation: int, inputs: Tensor, *weights: Tensor) -> Tensor:
        ctx.exact, ctx.activation = exact, activation
        packed = exact.packed(weights)
        ctx.is_small = packed is not None
        if packed is not None:
            rows = inputs.contiguous()
            ctx.save_for_backward(rows, packed, *weights)
            return exact.evaluate(rows, Small(weights, packed, activation))
        seen = [inputs.contiguous()]
        last = len(weights) // 2 - 1
        for layer in range(last + 1):
            weight, bias = weights[2 * layer : 2 * layer + 2]
            seen.append(exact.linear(seen[-1], weight, bias, activation if layer < last else 0))
        ctx.save_for_backward(*seen[:-1], *weights[::2])
        return seen[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        exact: Exact = ctx.exact
        d_out = d_out.contiguous()
        if ctx.is_small:
            rows, packed, *weights = ctx.saved_tensors
            network, of_inputs = Small(weights, packed, ctx.activation), ctx.needs_input_grad[2]
            found, d_x = exact.network_gradients(rows, network, d_out, of_inputs=of_inputs)
            return None, None, d_x, *found
        gradients: list[Tensor] = []
        n_layers = len(ctx.saved_tensors) // 2
        seen, weights = ctx.saved_tensors[:n_layers], ctx.saved_tensors[n_layers:]
        for layer in reversed(range(n_layers)):
            gradients += [exact.column_sums(d_out), exact.linear_weights(d_out, seen[layer])]
            if layer or ctx.needs_input_grad[2]:
                d_out = exact.linear_inputs(d_out, weights[layer], seen[layer], ctx.activation if layer else 0)
        return None, None, d_out if ctx.needs_input_grad[2] else None, *reversed(gradients)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: Exact, x: Tensor) -> Tensor:
        y = exact.activate(x.contiguous(), ACTIVATIONS["tanh"])
        ctx.exact = exact
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor]:
        (y,) = ctx.saved_tensors
        return None, ctx.exact.activation_gradient(d_out.contiguous(), y, ACTIVATIONS["tanh"])


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: Exact, x: Tensor) -> Tensor:
        # A tensor on the device: for a Python number, torch would multiply by its reciprocal on a GPU.
        n = torch.full((), float(x.numel()), device=x.device, dtype=torch.float32)
        ctx.shape = x.shape
        ctx.save_for_backward(n)
        return exact.column_sums(x.contiguous().view(-1, 1))[0] / n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean: Tensor) -> tuple[None, Tensor]:
        (n,) = ctx.saved_tensors
        return None, (d_mean / n).expand(ctx.shape)
