"""Users' models: on WarpDrive's base, on torch, or copied."""

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


class Copied(nn.Module):
    """Network of WarpDrive 2.7 and earlier, without its base class.

    Its sizes come from wrapper and data manager.
    """

    def __init__(
        self,
        env,
        model_config,
        policy,
        policy_tag_to_agent_id_map,
        create_separate_placeholders_for_each_policy=False,
        obs_dim_corresponding_to_num_agents="first",
    ):
        super().__init__()
        assert isinstance(model_config["fc_dims"], list)
        self.env, self.policy, self.members = env, policy, policy_tag_to_agent_id_map[policy]
        data, agent = env.cuda_data_manager, self.members[0]
        self.shapes = {name: data.get_shape(name=f"{name}_batch_{policy}") for name in BATCHES}
        self.done_shape = data.get_shape("done_flags_batch")
        size = data.data_on_device_via_torch(f"processed_observations_batch_{policy}").shape[-1]
        widths = model_config["fc_dims"]
        layers = zip([size, *widths], widths, strict=False)
        self.fc = nn.Sequential(*[nn.Sequential(nn.Linear(*sizes), nn.ReLU()) for sizes in layers])
        self.policy_head = nn.ModuleList([nn.Linear(widths[-1], env.env.action_space[agent].n)])
        self.vf_head = nn.Linear(widths[-1], 1)

    def forward(self, obs=None, batch_index=None):
        hidden = self.fc(obs)
        return [head(hidden).softmax(-1) for head in self.policy_head], self.vf_head(hidden)[..., 0]


class CopiedFrom1(Copied):
    """Network of WarpDrive 1.2 to 2.0, with layer widths as arguments."""

    def __init__(self, env, fc_dims, policy, policy_tag_to_agent_id_map, *others, **more):
        super().__init__(env, {"fc_dims": fc_dims}, policy, policy_tag_to_agent_id_map, *others, **more)


BATCHES = ("processed_observations", "sampled_actions", "rewards")
