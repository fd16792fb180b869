"""Networks of a population: one of each member, evaluated together by batched products."""

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
"""Start of the names, in a checkpoint, of the best weights that each member has had."""
BEST_RETURNS: Final = "population/best_return"
"""Name of their mean returns, (members,)."""
PREFIX: Final = "members."


class Members(nn.Module):
    """Networks of one structure side by side, whose weights are those of one with an axis of members before them.

    A layer of all members is one batched product. Inputs ``(..., n_envs, n_agents, n_features)`` have the environments
    of each member in a block; outputs likewise.

    Args:
        networks: The members, as `ActorCritic`; only the first one's own code runs.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.n_members = len(networks)
        parameters, buffers = stack_module_state(list(networks))
        self.members = networks[0]
        trunks, heads = trunks_and_heads(self.members)
        n_outputs = sum(head.out_features for head in heads)
        for trunk in trunks:
            # Of the kernels only those of narrow networks take several sets of weights
            if first_reason((two_layers, narrow.fits), Facts(network=trunk.layers(n_outputs))) is not None:
                trunk.fused = False
        stacked = parameters | buffers
        for name, tensor in [*self.members.named_parameters(), *self.members.named_buffers()]:
            tensor.data = stacked[name].detach()
        self._asked = (_Asked(self.members),)  # in a tuple, for it is no further part of the module

    @property
    def log_std(self) -> Tensor | None:
        """Logarithm of the standard deviation of continuous actions, (n_members, n_types); None of discrete ones."""
        return getattr(self.members, "log_std", None)

    def as_layers(self) -> Layers | str:
        """Return the sizes of a member's layers, or why they are not known."""
        return layers_of(self.members)

    def as_first_network(self) -> Network:
        """Return two hidden layers of the first member, for kernels that know where the others' are."""
        members: Any = self.members
        network: Network = members.as_network()
        first = {id(layer): layer[0] for layer in (*network.policy, *network.value)}
        policy, value = ([first[id(layer)] for layer in layers] for layers in (network.policy, network.value))
        return network._replace(policy=policy, value=value)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return heads and values."""
        head, value = self._ask("forward", observations)
        return head, value

    def act(self, observations: Tensor) -> Tensor:
        """Return the heads, ``(..., n_envs, n_agents, n_outputs)``."""
        (head,) = self._ask("act", observations)
        return head

    def value(self, observations: Tensor) -> Tensor:
        """Return the values, ``(..., n_envs, n_agents)``."""
        (value,) = self._ask("value", observations)
        return value

    def _ask(self, method: str, observations: Tensor) -> tuple[Tensor, ...]:
        asked = self._asked[0]
        state = {**dict(asked.named_parameters()), **dict(asked.named_buffers())}
        axis = observations.dim() - 3
        rows = by_member(observations, self.n_members, axis)

        def of_one(state: dict[str, Tensor], rows: Tensor) -> tuple[Tensor, ...]:
            outputs: tuple[Tensor, ...] = functional_call(asked, state, (method, rows))
            return outputs

        # One axis of rows: a product of more axes would be a batch of small ones
        outputs = vmap(of_one)(state, rows.flatten(1, -2))
        shaped = (output.unflatten(1, rows.shape[1:-1]) for output in outputs)
        return tuple(output.movedim(0, axis).flatten(axis, axis + 1) for output in shaped)


def weights_of(tensors: Mapping[str, Tensor], member: int) -> dict[str, Tensor]:
    """Return the weights of one member, as its network names them, out of the state dict of `Members`."""
    return {name.removeprefix(PREFIX): tensor[member] for name, tensor in tensors.items()}


class _Asked(nn.Module):
    """A network that is asked by a method's name, and always returns a tuple."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, method: str, rows: Tensor) -> tuple[Tensor, ...]:
        """Return what the method returns."""
        outputs = getattr(self.network, method)(rows)
        return outputs if isinstance(outputs, tuple) else (outputs,)
