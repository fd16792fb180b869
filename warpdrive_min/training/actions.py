"""Action spaces of policies, as models, losses and samplers use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdrive_min.errors import ConfigError, require
from warpdrive_min.spaces import action_bounds, category_counts


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """Discrete actions of one or several types, or bounded continuous ones.

    Raises:
        ConfigError: Categories and bounds are both given or both missing, or their number is not `n_types`. Or a type
            has no choice, or a lower bound is not below the upper one.
    """

    categories: tuple[int, ...]
    """Number of choices of each type; empty: continuous."""
    n_types: int
    """Number of values in one action."""
    low: tuple[float, ...] = ()
    """Lower bound of each continuous type; may be infinite."""
    high: tuple[float, ...] = ()
    """Upper bound of each continuous type; may be infinite."""

    def __post_init__(self) -> None:
        sizes = {len(values) for values in ((self.categories,) if self.categories else (self.low, self.high))}
        if self.n_types < 1 or sizes != {self.n_types} or (self.categories and (self.low or self.high)):
            rule = "must have n_types categories, or n_types lower and upper bounds, and at least one"
            raise ConfigError.of("action space", rule, self)
        has_choices = min(self.categories, default=1) >= 1
        require(has_choices, "action space", "every type needs at least one choice", self.categories)
        is_ordered = all(low < high for low, high in zip(self.low, self.high, strict=True))
        require(is_ordered, "action space", "low must be below high", (self.low, self.high))

    @property
    def is_continuous(self) -> bool:
        """True if the actions are continuous (a Box)."""
        return not self.categories

    @property
    def dtype(self) -> type[np.int32] | type[np.float32]:
        """Element type of action arrays."""
        return np.float32 if self.is_continuous else np.int32

    @property
    def n_outputs(self) -> int:
        """Width of the actor's head: logits of choices, or one mean per type."""
        return sum(self.categories) or self.n_types

    @classmethod
    def of(cls, space: Any) -> ActionSpace:
        """Read a Gymnasium space or an internal one; a Box is flattened.

        Raises:
            ConfigError: The space is no Discrete, MultiDiscrete or Box, or its bounds are in the wrong order.
        """
        if not hasattr(space, "low"):
            categories = category_counts(space)
            return cls(categories, len(categories))
        low, high = action_bounds([space])[:, 0]
        return cls((), np.size(low), tuple(low.tolist()), tuple(high.tolist()))
