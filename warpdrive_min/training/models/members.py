"""Networks of a population, evaluated together by batched products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from warpdrive_min.training.models.parts import by_member, layers_of, trunks_and_heads
from warpdrive_min.training.paths.facts import Facts, Layers, first_reason, two_layers
from warpdrive_min.training.paths.fused import narrow
from warpdrive_min.training.paths.fused.network import Network

Tensor = torch.Tensor

BEST: Final = "best/"
"""Prefix, in a checkpoint, of each member's best weights so far."""
BEST_RETURNS: Final = "population/best_return"
"""Name of the best weights' mean returns, (members,)."""
PREFIX: Final = "members."


class Members(nn.Module):
    """Networks of a population's members, all of one structure.

    Weights have an additional first axis for the members, so a layer of all members is one batched product. Inputs
    ``(..., n_envs, n_agents, n_features)`` and outputs have the environments of each member in a block.

    Args:
        networks: The members' `ActorCritic` networks; only the code of the first one runs.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.n_members = len(networks)
        parameters, buffers = stack_module_state(list(networks))
        self.members = networks[0]
        trunks, heads = trunks_and_heads(self.members)
        n_outputs = sum(head.out_features for head in heads)
        for trunk in trunks:
            # Only the kernels for narrow networks support several sets of weights
            if first_reason((two_layers, narrow.fits), Facts(network=trunk.layers(n_outputs))) is not None:
                trunk.fused = False
        stacked = parameters | buffers
        for name, tensor in [*self.members.named_parameters(), *self.members.named_buffers()]:
            tensor.data = stacked[name].detach()
        self._method_call = (_MethodCall(self.members),)  # a tuple, so that torch does not register it as a submodule

    @property
    def log_std(self) -> Tensor | None:
        """Log standard deviation of continuous actions, (n_members, n_types), else None."""
        return getattr(self.members, "log_std", None)

    def as_layers(self) -> Layers | str:
        """Return a member's layer sizes, or a reason."""
        return layers_of(self.members)

    def as_first_network(self) -> Network:
        """Return the first member's layers; kernels compute the others' addresses."""
        members: Any = self.members
        network: Network = members.as_network()
        first = {id(layer): layer[0] for layer in (*network.policy, *network.value)}
        policy, value = ([first[id(layer)] for layer in layers] for layers in (network.policy, network.value))
        return network._replace(policy=policy, value=value)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return heads and values."""
        head, value = self._call("forward", observations)
        return head, value

    def act(self, observations: Tensor) -> Tensor:
        """Return the heads, ``(..., n_envs, n_agents, n_outputs)``."""
        (head,) = self._call("act", observations)
        return head

    def value(self, observations: Tensor) -> Tensor:
        """Return the values, ``(..., n_envs, n_agents)``."""
        (value,) = self._call("value", observations)
        return value

    @property
    def _numbers(self) -> range:
        return range(self.n_members)

    @property
    def _is_exact(self) -> bool:
        return any(trunk.exact is not None for trunk in trunks_and_heads(self.members)[0])

    def _call(self, method: str, observations: Tensor) -> tuple[Tensor, ...]:
        asked = self._method_call[0]
        state = {**dict(asked.named_parameters()), **dict(asked.named_buffers())}
        axis = observations.dim() - 3
        rows = by_member(observations, self.n_members, axis)

        def of_one(state: dict[str, Tensor], rows: Tensor) -> tuple[Tensor, ...]:
            outputs: tuple[Tensor, ...] = functional_call(asked, state, (method, rows))
            return outputs

        # Flatten to one axis of rows: with more axes, the product would be a batch of small ones
        rows_of_each = rows.flatten(1, -2)
        if self._is_exact:  # exact kernels take one network
            each = (of_one({name: tensor[m] for name, tensor in state.items()}, rows_of_each[m]) for m in self._numbers)
            outputs = tuple(map(torch.stack, zip(*each, strict=True)))
        else:
            outputs = vmap(of_one)(state, rows_of_each)
        shaped = (output.unflatten(1, rows.shape[1:-1]) for output in outputs)
        return tuple(output.movedim(0, axis).flatten(axis, axis + 1) for output in shaped)


def weights_of(tensors: Mapping[str, Tensor], member: int) -> dict[str, Tensor]:
    """Extract one member's weights from the state dict of `Members`.

    They have the names that the member's network uses.
    """
    return {name.removeprefix(PREFIX): tensor[member] for name, tensor in tensors.items()}


class _MethodCall(nn.Module):
    """Wrapper that calls a network's method by name and returns a tuple."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, method: str, rows: Tensor) -> tuple[Tensor, ...]:
        """Call the method and return its outputs as a tuple."""
        outputs = getattr(self.network, method)(rows)
        return outputs if isinstance(outputs, tuple) else (outputs,)
