"""Distance of two arrays, and the rule by which it is near enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warpdrive_min.errors import require

Array = npt.NDArray[Any]

SHOWN: Final = 5
"""Elements that a comparison keeps."""
TINY: Final = 1e-10
"""Number that WarpDrive's rule adds to the reference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One element of two arrays, and how far apart they are there."""

    error: float
    """Absolute, around the circle for an angle; infinite if either value is NaN."""
    index: tuple[int, ...]
    want: float
    got: float
    ulps: float = 0.0
    """The error in units in the last place of the reference's float32, as `Tolerance` has them."""

    @property
    def values(self) -> str:
        """Both values and the error, for a message."""
        percent = 100 * self.error / (TINY + abs(self.want))
        return (
            f"want {self.want:.9g}, got {self.got:.9g}, error {self.error:.3g} ({percent:.3g} %, {self.ulps:.3g} ulps)"
        )

    def __str__(self) -> str:
        return f"at {list(self.index)}: {self.values}"


def difference(want: Array, got: Array, period: Any = 0.0) -> Difference:
    """Find the largest difference.

    Args:
        want: What the reference has.
        got: What is compared with it, of the same shape.
        period: Where positive (scalar, or broadcast over the last axes), values are angles: differences are
            taken modulo it.
    """
    error = _errors(want, got, period)
    if error.size == 0:
        return Difference(0.0, (), 0.0, 0.0)
    return _element(int(np.argmax(error)), want, got, error, _ulps(want, got, error, period))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Elements of two arrays that do not agree within a tolerance."""

    n_elements: int
    n_wrong: int
    """Elements that do not agree."""
    worst: tuple[Difference, ...]
    """Elements that do not agree, the largest error first, `SHOWN` at most."""
    relative_error: float
    """Largest error, divided by the reference's magnitude where that is above 1."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest distance of an element from the reference's: one bound that holds is enough; equal values agree.

    The default is WarpDrive's rule for one per cent: ``|d| < 0.01`` or ``100 |d| / |1e-10 + want| < 1``. With
    ``Tolerance(0)`` only equal values agree, with ``Tolerance(0, ulps=4)`` those that are a few roundings apart.

    Raises:
        ConfigError: A bound is negative or NaN.
    """

    relative_pct: float = 1.0
    """The error is below so many per cent of the reference."""
    absolute: float | None = None
    """The error is below this, in the array's unit; None: ``relative_pct / 100``."""
    ulps: float | None = None
    """The error is at most so many units in the last place of the reference's float32; None: no such bound.

    Around 0 a unit is tiny, so there the absolute bound is what helps. An angle's unit is that of the larger of both
    values, of which one may just have wrapped to 0.
    """

    def __post_init__(self) -> None:
        for name in ("relative_pct", "absolute", "ulps"):
            bound = getattr(self, name)
            require(bound is None or bound >= 0, "tolerance", f"{name} must be 0 or more", bound)

    def compare(self, want: Array, got: Array, period: Any = 0.0) -> Comparison:
        """Compare two arrays; arguments as for `difference`."""
        error = _errors(want, got, period)
        ulps = _ulps(want, got, error, period)
        reference = np.asarray(want, np.float64)
        agrees = error == 0
        agrees |= error < (self.relative_pct / 100 if self.absolute is None else self.absolute)
        agrees |= 100 * error < self.relative_pct * np.abs(TINY + reference)
        if self.ulps is not None:
            agrees |= ulps <= self.ulps
        wrong = np.flatnonzero(~agrees)
        largest_first = wrong[np.argsort(-error.flat[wrong], kind="stable")]
        with np.errstate(invalid="ignore"):  # infinities
            relative = np.where(np.isinf(error), np.inf, error / np.maximum(1.0, np.abs(reference)))
        return Comparison(
            n_elements=error.size,
            n_wrong=wrong.size,
            worst=tuple(_element(int(place), want, got, error, ulps) for place in largest_first[:SHOWN]),
            relative_error=float(np.max(relative, initial=0.0)),
        )


def _errors(want: Array, got: Array, period: Any) -> Array:
    """Return absolute differences, modulo the period where it is positive; infinite where either value is NaN."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if np.array_equal(want, got):  # as nearly all arrays are; what follows takes ten times as long
        return np.zeros(want.shape)
    with np.errstate(invalid="ignore"):  # infinities
        error = np.where(want == got, 0.0, np.abs(got - want))
        periods = np.broadcast_to(np.asarray(period, np.float64), error.shape)
        wrapped = np.fmod(error, np.where(periods > 0, periods, np.inf))
        error = np.where(periods > 0, np.minimum(wrapped, periods - wrapped), error)
    return np.where(np.isnan(error), np.inf, error)


def _ulps(want: Array, got: Array, error: Array, period: Any) -> Array:
    """Return errors in units in the last place; infinite where no float32 holds the reference."""
    if not error.any():
        return np.zeros(error.shape)
    want, got = np.abs(np.asarray(want, np.float64)), np.abs(np.asarray(got, np.float64))
    is_angle = np.broadcast_to(np.asarray(period) > 0, error.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.spacing(np.where(is_angle, np.maximum(want, got), want).astype(np.float32)).astype(np.float64)
        ulps = np.where(np.isfinite(units), error / units, np.inf)
    return np.where(error == 0, 0.0, ulps)


def _element(place: int, want: Array, got: Array, error: Array, ulps: Array) -> Difference:
    """Return the element at a place of the flattened arrays."""
    index = tuple(int(i) for i in np.unravel_index(place, error.shape))
    return Difference(float(error[index]), index, float(want[index]), float(got[index]), float(ulps[index]))
