"""A model as a user of WarpDrive writes it: a layer of its own, and a key of its own in the run config."""

import torch
from torch import nn
from warp_drive.training.models.model_base import ModelBaseFullyConnected, apply_logit_mask


class Gated(ModelBaseFullyConnected):
    """One hidden layer, scaled by a gate for each unit."""

    name = "gated"

    def __init__(self, env, model_config, policy, *arguments, **named):
        super().__init__(env, model_config, policy, *arguments, **named)
        width = self.fc_dims[0]
        self.fc["0"] = nn.Sequential(nn.Linear(self.flattened_obs_size, width), nn.ReLU())
        self.gate = nn.Parameter(torch.full((width,), float(model_config["gate"])))

    def forward(self, obs=None, action=None):
        hidden = self.fc["0"](obs) * self.gate
        probabilities = [apply_logit_mask(head(hidden), self.action_mask).softmax(-1) for head in self.policy_head]
        return probabilities, self.vf_head(hidden)[..., 0]
