"""Shared by model tests: small models, observations, a user's model."""

from __future__ import annotations

import torch
from torch import nn

from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import ModelConfig

N_FEATURES = 5
LEADING = (2, 3, 4)
DISCRETE = ActionSpace((3, 4), 2)
BOX = ActionSpace((), 2, (-2.0, -2.0), (2.0, 2.0))


def config(**given) -> ModelConfig:
    """Return the settings of a small model."""
    return ModelConfig(**({"fc_dims": (8, 6)} | given))


def observations(*leading: int) -> torch.Tensor:
    """Return random observations, (*leading, N_FEATURES)."""
    return torch.randn(*(leading or LEADING), N_FEATURES)


def in_torch(x, weights, activation) -> torch.Tensor:
    """Return the outputs of torch's own layers."""
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        x = x @ weight.to(x.dtype).T + bias.to(x.dtype)
        x = x if bias is weights[-1] else getattr(torch, activation)(x)
    return x


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


class Bare(nn.Module):
    """User's model with only ``forward``."""

    def __init__(self, n_features, space, config):
        super().__init__()
        self.layer = nn.Linear(n_features, space.n_outputs + 1)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout()

    def forward(self, observations):
        outputs = self.dropout(self.layer(observations))
        if observations.dim() == 3:
            outputs = self.norm(outputs)
        return outputs[..., :-1], outputs[..., -1]
