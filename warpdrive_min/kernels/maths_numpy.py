"""NumPy versions of `maths.cuh`: float32, same operations in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Function = Callable[[FloatArray], FloatArray]

_PI: Final = np.float32(np.pi)
_ROUNDER: Final = np.float32(12582912)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_EXP: Final = np.array(
    [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1], np.float32
)
_LOG: Final = np.array(
    [
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ],
    np.float32,
)
_SIN: Final = np.array([-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1], np.float32)
_COS: Final = np.array([2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2], np.float32)
_HALF_PI: Final = np.array([1.5703125, 4.837512969970703e-4, 7.549533620476723e-8, 2.5633440682570896e-12], np.float32)


class Maths(NamedTuple):
    """Sine and cosine of float32 arrays."""

    sin: Function
    cos: Function


def maths(exact: bool) -> Maths:
    """Return our own sine and cosine, bit-identical in all languages, or NumPy's."""
    if not exact:
        return Maths(np.sin, np.cos)
    return Maths(lambda x: _sincos(x)[0], lambda x: _sincos(x)[1])


def exp(x: FloatArray) -> FloatArray:
    """Return e^x; 0 below -87 and for NaN, infinite above 88."""
    x = np.asarray(x, np.float32)
    inside = np.where(x >= np.float32(-87), np.minimum(x, np.float32(88)), np.float32(0))
    shifted = inside * np.float32(1.44269504) + _ROUNDER  # its lowest bits are n
    n = shifted - _ROUNDER
    r = (inside - n * _LN2_HIGH) - n * _LN2_LOW
    y = (_polynomial(_EXP, r) * (r * r) + r) + np.float32(1)
    y = y * ((shifted.view(np.int32) << 23) + 0x3F800000).view(np.float32)
    finite: FloatArray = np.where(x >= np.float32(-87), y, np.float32(0))
    return np.where(x > np.float32(88), np.float32(np.inf), finite)


def log(x: FloatArray) -> FloatArray:
    """Return the natural logarithm of positive, normal, finite numbers."""
    half, exponent = np.frexp(np.asarray(x, np.float32))
    is_low = half < np.float32(0.707106781)
    e = (exponent - is_low).astype(np.float32)
    f: FloatArray = np.where(is_low, half + half, half) - np.float32(1)
    z = f * f
    y = (_polynomial(_LOG, f) * (f * z) + e * _LN2_LOW) - np.float32(0.5) * z
    total: FloatArray = (f + y) + e * _LN2_HIGH
    return total


def wrap(x: FloatArray, period: float) -> FloatArray:
    """Return x modulo period, in [0, period)."""
    single = np.float32(period)
    rest = np.fmod(np.asarray(x, np.float32), single)
    wrapped = np.where(rest < 0, rest + single, rest)
    return np.where(wrapped >= single, np.float32(0), wrapped)


def principal(angle: FloatArray) -> FloatArray:
    """Return the same angles within +-pi; angles in range keep their bits."""
    return np.where(np.abs(angle) <= _PI, angle, wrap(angle + _PI, 2 * np.pi) - _PI)


def _sincos(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    x = np.asarray(x, np.float32)
    j = _round(x * np.float32(0.636619772))
    r = x
    for part in _HALF_PI:
        r = r - j * part
    z = r * r
    s = r + (r * z) * _polynomial(_SIN, z)
    c = (np.float32(1) - np.float32(0.5) * z) + (z * z) * _polynomial(_COS, z)
    quadrant = j - np.float32(4) * _round(j * np.float32(0.25))
    is_odd = np.abs(quadrant) == 1
    is_opposite = np.abs(quadrant) == 2
    sine, cosine = np.where(is_odd, c, s), np.where(is_odd, s, c)
    return (
        np.where(is_opposite | (quadrant == -1), -sine, sine),
        np.where(is_opposite | (quadrant == 1), -cosine, cosine),
    )


def _round(x: FloatArray) -> FloatArray:
    return (x + _ROUNDER) - _ROUNDER


def _polynomial(coefficients: FloatArray, x: FloatArray) -> FloatArray:
    value: FloatArray = np.asarray(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
