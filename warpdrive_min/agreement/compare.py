"""Comparison of two arrays: which elements differ, where, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warpdrive_min.errors import require

Array = npt.NDArray[Any]
Arrays = Mapping[str, Any]
"""NumPy arrays, or tensors on the CPU, by name."""

SHOWN: Final = 5
"""Maximum number of elements that a comparison lists."""
TINY: Final = 1e-10
"""Constant that WarpDrive's rule adds to the reference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Error of one element of two arrays."""

    error: float
    """Absolute error, around the circle for an angle; infinite if a value is NaN."""
    index: tuple[int, ...]
    want: float
    got: float
    ulps: float = 0.0
    """Error in units in the last place of the reference's float32."""
    is_float: bool = True
    """The array has real numbers, which have last places."""

    @property
    def values(self) -> str:
        """Both values and the error, for a message."""
        shares = [f"{100 * self.error / abs(self.want):.3g} %"] if self.want else []
        shares += [f"{self.ulps:.3g} ulps"] if self.is_float else []
        share = f" ({', '.join(shares)})" if shares else ""
        return f"want {self.want:.9g}, got {self.got:.9g}, error {self.error:.3g}{share}"

    def __str__(self) -> str:
        return f"at {list(self.index)}: {self.values}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Elements of two arrays outside a tolerance."""

    n_elements: int
    n_wrong: int
    """Number of elements outside the tolerance."""
    first: Difference | None
    """First such element in the order of the array."""
    worst: tuple[Difference, ...]
    """Such elements, largest error first, at most `SHOWN`."""
    largest: Difference
    """Element with the largest error, inside the tolerance or not."""
    relative_error: float
    """Largest error; relative where the reference's magnitude is above 1."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest accepted error of an element; satisfying one bound suffices.

    Equal values always agree. The default is WarpDrive's rule for one per cent: ``|d| < 0.01`` or
    ``100 |d| / |1e-10 + want| < 1``. ``Tolerance(0)`` accepts equal values only; ``Tolerance(0, ulps=4)`` also accepts
    values that are a few roundings apart.

    Raises:
        ConfigError: A bound is negative or NaN.
    """

    relative_pct: float = 1.0
    """Bound on the error, per cent of the reference."""
    absolute: float | None = None
    """Bound on the error, in the array's unit; None: ``relative_pct / 100``."""
    ulps: float | None = None
    """Bound in units in the last place of the reference's float32; None: unused.

    Around 0 a unit is tiny, and only the absolute bound helps. An angle's unit is that of the larger value, because the
    other one may just have wrapped to 0.
    """

    def __post_init__(self) -> None:
        for name in ("relative_pct", "absolute", "ulps"):
            bound = getattr(self, name)
            require(bound is None or bound >= 0, "tolerance", f"{name} must be 0 or more", bound)

    def compare(self, want: Any, got: Any, period: Any = 0.0) -> Comparison:
        """Compare two arrays of one shape.

        Args:
            want: Values of the reference.
            got: Values to compare.
            period: Positive where values are angles (a scalar, or broadcast over the last axes); differences are taken
                modulo it.
        """
        want, got = np.asarray(want), np.asarray(got)
        error = _errors(want, got, period)
        ulps, is_float = _ulps(want, got, error, period), want.dtype.kind == "f"
        wrong = np.flatnonzero(~self._agrees(want, got, error, ulps))
        largest_first = wrong[np.argsort(-error.flat[wrong], kind="stable")]
        with np.errstate(invalid="ignore"):  # infinities
            relative = np.where(np.isinf(error), np.inf, error / np.maximum(1.0, np.abs(np.asarray(want, np.float64))))

        def element(place: int) -> Difference:
            at = tuple(int(i) for i in np.unravel_index(place, error.shape))
            return Difference(float(error[at]), at, float(want[at]), float(got[at]), float(ulps[at]), is_float)

        return Comparison(
            n_elements=error.size,
            n_wrong=wrong.size,
            first=element(wrong[0]) if wrong.size else None,
            worst=tuple(map(element, largest_first[:SHOWN])),
            largest=element(int(np.argmax(error))) if error.size else Difference(0.0, (), 0.0, 0.0),
            relative_error=float(np.max(relative, initial=0.0)),
        )

    def _agrees(self, want: Array, got: Array, error: Array, ulps: Array) -> Array:
        agrees: Array = error == 0
        agrees |= error < (self.relative_pct / 100 if self.absolute is None else self.absolute)
        with np.errstate(invalid="ignore"):  # infinities
            agrees |= 100 * error < self.relative_pct * np.abs(TINY + np.asarray(want, np.float64))
        return agrees if self.ulps is None else agrees | (ulps <= self.ulps)


class _Bits(Tolerance):
    """Tolerance for equal bits: -0 is not 0, and a NaN agrees with itself."""

    def _agrees(self, want: Array, got: Array, error: Array, ulps: Array) -> Array:
        agrees: Array = bits(want) == bits(got)
        return agrees


EQUAL: Final = Tolerance(0)
BITS: Final[Tolerance] = _Bits(0)


def difference(want: Any, got: Any, period: Any = 0.0) -> Difference:
    """Return the element with the largest error; see `Tolerance.compare`."""
    return EQUAL.compare(want, got, period).largest


def errors(want: Arrays, got: Arrays, periods: Arrays | None = None) -> dict[str, float]:
    """Return the largest error of each array.

    Infinite if an array is missing or has another shape.

    Args:
        want: Arrays of the reference.
        got: Arrays to compare.
        periods: Periods of arrays of angles, by name.
    """
    return {
        name: difference(array, got[name], (periods or {}).get(name, 0.0)).error
        if name in got and np.shape(got[name]) == np.shape(array)
        else float("inf")
        for name, array in want.items()
    }


def differing(want: Arrays, got: Arrays, names: Iterable[str] | None = None) -> list[str]:
    """Return names of arrays whose shape, type or bits differ; None: all shared."""
    both = [name for name in (want if names is None else names) if name in want and name in got]
    return [name for name in both if not same_bits(want[name], got[name])]


def same_bits(want: Any, got: Any) -> bool:
    """True if shapes, types and bits of two arrays are equal."""
    one, other = np.asarray(want), np.asarray(got)
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def bits(array: Array) -> Array:
    """Return an array's bits, as unsigned integers of its size."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def _errors(want: Array, got: Array, period: Any) -> Array:
    """Return absolute errors, modulo a positive period; infinite for NaN."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if np.array_equal(want, got):  # the common case; the rest takes ten times as long
        return np.zeros(want.shape)
    with np.errstate(invalid="ignore"):  # infinities
        error = np.where(want == got, 0.0, np.abs(got - want))
        periods = np.broadcast_to(np.asarray(period, np.float64), error.shape)
        wrapped = np.fmod(error, np.where(periods > 0, periods, np.inf))
        error = np.where(periods > 0, np.minimum(wrapped, periods - wrapped), error)
    return np.where(np.isnan(error), np.inf, error)


def _ulps(want: Array, got: Array, error: Array, period: Any) -> Array:
    """Return errors in units in the last place; infinite if float32 overflows."""
    if not error.any():
        return np.zeros(error.shape)
    want, got = np.abs(np.asarray(want, np.float64)), np.abs(np.asarray(got, np.float64))
    is_angle = np.broadcast_to(np.asarray(period) > 0, error.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.spacing(np.where(is_angle, np.maximum(want, got), want).astype(np.float32)).astype(np.float64)
        ulps = np.where(np.isfinite(units), error / units, np.inf)
    return np.where(error == 0, 0.0, ulps)
