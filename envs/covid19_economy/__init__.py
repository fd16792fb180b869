"""COVID-19 economy: governors of US states choose how stringent measures are, the government pays subsidies."""

from .env import Covid19Economy, Covid19EconomyConfig

__all__ = ["Covid19Economy", "Covid19EconomyConfig"]
