"""A2C and PPO of narrow networks on a GPU: loss and gradients of a minibatch in one pass over its rows.

No output and no hidden layer of a row leaves the chip, and rows of a minibatch are not gathered first: that takes half
the time of a pass forward, one over the loss and one back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import Precision
from warpdrive_min.training.fused import narrow
from warpdrive_min.training.fused.activations import in_kernels
from warpdrive_min.training.fused.cpu import Network, offset_of
from warpdrive_min.training.fused.loss import N_TERMS, LossRule, RolloutArrays

Tensor = torch.Tensor

ROWS: Final = 64
"""Rows of a block."""
WARPS: Final = 4
PROGRAMS_PER_PROCESSOR: Final = 2
"""Programs, each with sums of its own."""
COLUMNS: Final = 32
"""Numbers of the gradient that a program adds up."""


def network_of(model: Any) -> Network | None:
    """Return the layers of a model that the kernels can do; None: they cannot."""
    network: Network | None = model.as_network() if hasattr(model, "as_network") else None
    return network if network is not None and _fits(network) else None


def _fits(network: Network) -> bool:
    """Return whether hidden layers are narrow, the first one stays on the chip, and outputs are logits."""
    sizes = network.sizes
    n_padded = narrow.block_of(sizes["n_features"]) * narrow.block_of(sizes["n_first"])
    widest = max(sizes["n_first"], sizes["n_second"], sizes["n_outputs"] + 1)
    return not network.is_box and widest <= narrow.WIDEST and n_padded <= narrow.MOST_RESIDENT


class Learning:
    """Finds the loss of A2C and PPO, and its gradients, of minibatches of a rollout, in one pass over their rows.

    Args:
        network: Its parameters have become views of ``parameters``, as `network_of` gives it.
        parameters: All of them, (n,) float32.
        gradient: Gets the gradient, (n,).
        space: Of the actions.
        rollout: Arrays with its rows.
        rule: Terms and weights of the loss.
        precision: Of products.
        n_rows: Rows of a minibatch.
    """

    def __init__(
        self,
        network: Network,
        parameters: Tensor,
        gradient: Tensor,
        space: ActionSpace,
        rollout: RolloutArrays,
        rule: LossRule,
        *,
        precision: Precision,
        n_rows: int,
    ) -> None:
        observations = rollout["observations"]
        assert observations is not None
        device, n_agents = observations.device, observations.shape[-2]
        self.terms = torch.zeros(N_TERMS, device=device)
        self._gradient, self._n_items = gradient, n_rows * n_agents
        self._total = torch.full((), float(self._n_items), device=device)
        is_shared, sizes = network.policy[0] is network.value[0], network.sizes
        heads: list[Sequence[Tensor | None]] = [(*network.value[:4], None, None, *network.value[4:])]
        heads.append((*network.policy, None, None))  # after the value, which its advantages may be of
        if is_shared:
            heads = [(*network.policy, *network.value[4:])]
        self._passes = [_Pass(head, space, parameters) for head in heads]
        n_programs = narrow.n_programs(self._n_items, ROWS, PROGRAMS_PER_PROCESSOR, device)
        places = [each.places for each in self._passes]
        self._places = torch.cat(places).to(device)
        partial = torch.zeros(n_programs, len(self._places), device=device)
        self._parts = partial.split([len(each) for each in places], 1)
        self._partial = partial
        self._arrays = {name: rollout[name] for name in ("observations", "actions", "log_probs", "returns", "masks")}
        self._arrays["old_values"] = None if rule.value_clip is None else rollout["old_values"]
        self._given_advantages, self._values = rollout["advantages"], rollout["old_values"]
        self._numbers = {"vf_loss_coeff": rule.vf_loss_coeff, "entropy_coeff": rule.entropy_coeff}
        activation = in_kernels("tanh" if network.is_tanh else "relu", precision, device)
        self._constants: dict[str, Any] = {
            "F": sizes["n_features"],
            "H1": sizes["n_first"],
            "H2": sizes["n_second"],
            "BLOCK_F": narrow.block_of(sizes["n_features"]),
            "BLOCK_H1": narrow.block_of(sizes["n_first"]),
            "BLOCK_H2": narrow.block_of(sizes["n_second"]),
            "N_AGENTS": n_agents,
            "SIZES": space.categories,
            "CLIP_PARAM": rule.clip_param,
            "IS_CLIPPED": rule.is_clipped,
            "VALUE_CLIP": rule.value_clip,
            "ROWS": ROWS,
            "ACTIVATION": activation,
            "PRODUCT": narrow.PRODUCTS[precision],
            "num_warps": WARPS,
        }

    def find(
        self,
        indices: Tensor | None,
        values: Tensor | None = None,
        *,
        advantages: Tensor | None = None,
        weights: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """Write the gradient, and `terms`, as `loss.Learning.find`; enqueues."""
        from warpdrive_min.training.fused import learning_kernels

        total = self._total if total is None else total
        is_taken = advantages is not None
        for each, partial in zip(self._passes, self._parts, strict=True):
            learning_kernels.learn[(len(partial),)](
                **self._arrays,
                **each.arguments,
                advantages=advantages if is_taken else self._given_advantages,
                values=self._values,
                weights=weights,
                indices=indices,
                total=total,
                **self._numbers,
                partial=partial,
                partial_stride=partial.stride(0),
                n_rows=self._n_items,
                IS_TAKEN=is_taken,
                STORES=values is not None and each.has_value,
                **self._constants,
            )
        n_programs, n_columns = self._partial.shape
        learning_kernels.add_up[(-(-n_columns // COLUMNS),)](
            self._partial,
            self._places,
            total,
            self._gradient,
            self.terms,
            n_programs,
            n_columns,
            self._gradient.numel(),
            ROWS=128,
            COLUMNS=COLUMNS,
        )


class _Pass:
    """Arguments of one launch: a network, and the loss on its outputs."""

    def __init__(self, layers: Sequence[Tensor | None], space: ActionSpace, parameters: Tensor) -> None:
        names = ("w1", "b1", "w2", "b2", "w3", "b3", "v3", "c3")
        self.arguments: dict[str, Any] = dict(zip(names, layers, strict=True))
        has_policy, self.has_value = layers[4] is not None, layers[6] is not None
        self.arguments["N_TYPES"] = space.n_types if has_policy else 0
        self.arguments["N_OUTPUTS"] = space.n_outputs if has_policy else 0
        self.arguments["BLOCK_O"] = narrow.block_of(self.arguments["N_OUTPUTS"] + self.has_value)
        parts = [part for part in (layers[k] for k in (0, 1, 2, 3, 4, 6, 5, 7)) if part is not None]
        ranges = [torch.arange(part.numel()) + offset_of(part, parameters) for part in parts]
        terms = [parameters.numel() + k if (self.has_value if k == 1 else has_policy) else -1 for k in range(N_TERMS)]
        self.places = torch.cat([*ranges, torch.tensor(terms)]).int()
        """Places of a program's numbers, (n,) int32: in the gradient, behind it in the terms; -1: in neither."""
