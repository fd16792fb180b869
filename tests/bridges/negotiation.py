"""RICE with negotiation and changing masks, with a bridge's reference."""

from __future__ import annotations

import numpy as np

from envs import Rice
from warpdrive_min import EnvWrapper

N_REGIONS = 3


def negotiating() -> Rice:
    """Return three negotiating regions, for two periods of three steps."""
    return Rice(num_regions=N_REGIONS, num_levels=4, negotiation=True, episode_length=6)


class Oracle:
    """NumPy reference of a bridge; ``n_bound`` counts rates limited by pledges."""

    def __init__(self, n_envs: int, auto_reset: bool = False) -> None:
        self.wrapper = EnvWrapper(negotiating(), num_envs=n_envs, auto_reset=auto_reset)
        self.wrapper.reset()
        self.sizes = self.wrapper.env.config.action_levels
        self.n_bound = 0

    def array(self, name: str):
        """Return an array of all copies."""
        return self.wrapper.cuda_data_manager.tensor(name).numpy()

    @property
    def masks(self):
        """Allowed choices, ``(n_envs, 3, n_choices)``."""
        return self.array("action_mask")

    def step(self, actions) -> None:
        """Step with allowed actions of shape ``(n_envs, 3, n_types)``."""
        actions, allowed = np.asarray(actions), self.masks.copy()
        chosen = actions + np.cumsum([0, *self.sizes[:-1]])
        assert np.take_along_axis(allowed, chosen, -1).all(), "actions that the mask forbids"
        rates, acts = allowed[..., : self.sizes[0]], allowed[..., self.sizes[0] : 2 * self.sizes[0]].all()
        self.array("sampled_actions")[:] = actions
        self.wrapper.step()
        if acts:  # so that actions are taken unchanged, not raised to a pledge
            self.n_bound += int((rates == 0).any(-1).sum())
            goes_on = self.array("_done_") == 0
            np.testing.assert_allclose(self.array("mitigation")[goes_on], actions[goes_on, :, 0] / 3, rtol=1e-6)
