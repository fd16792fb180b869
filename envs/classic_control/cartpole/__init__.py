"""CartPole: balance a pole on a cart."""

from envs.classic_control.cartpole.env import CartPole, CartPoleConfig

__all__ = ["CartPole", "CartPoleConfig"]
