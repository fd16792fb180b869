"""COVID-19 economy: US governors set stringency, the government subsidies."""

from .env import Covid19Economy, Covid19EconomyConfig

__all__ = ["Covid19Economy", "Covid19EconomyConfig"]
