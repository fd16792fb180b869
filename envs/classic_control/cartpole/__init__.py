"""CartPole: balance a pole on a cart."""

from .env import CartPole, CartPoleConfig

__all__ = ["CartPole", "CartPoleConfig"]
