"""The model of a kernel's time: it finds what made the times, and says how far it is off on what it has not seen."""

from __future__ import annotations

import numpy as np
import pytest

from bench.core.errors import CompareError
from bench.core.record import Context
from bench.static.model import ALL, Launched, Measured, fitted, left_out, measured_points, predicted_ns

TRUE = (800.0, 2.0, 5.0, 0.5, 2_500.0)


def point(program: str, factor: float = 1.0, **facts: object) -> Measured:
    """Return a call whose time is that of the model, by a factor."""
    usual = {"launches": 1, "by_depth": (100, 200), "waves": 1, "warps": 4, "n_bytes": 0.0}
    kernels = (Launched(**{**usual, **facts}),)
    return Measured(program=program, backend="pycuda", ns=factor * predicted_ns(TRUE, kernels), kernels=kernels)


def test_a_time_worked_by_hand():
    """One launch of 100 instructions and 200 in a loop that counts twice, at 5 clocks each, and 2,500 bytes."""
    (kernel,) = point("a", n_bytes=2_500.0).kernels
    assert predicted_ns(TRUE, [kernel]) == pytest.approx(800 + 500 * 5 / 1.98 + 1)


def points() -> list[Measured]:
    random = np.random.default_rng(0)
    return [
        point(
            f"program {n % 2}",
            by_depth=tuple(int(each) for each in random.integers(50, 2_000, 3)),
            waves=int(random.integers(1, 50)),
            warps=int(random.integers(1, 64)),
            n_bytes=float(random.integers(1e3, 1e9)),
        )
        for n in range(14)
    ]


def test_fit_finds_the_parameters_that_made_the_times():
    """Times that follow the model are predicted, also of a program that was left out."""
    assert fitted(points()) == pytest.approx(TRUE, rel=0.05)
    assert [row.factor for row in left_out(points())] == pytest.approx([1] * 3, abs=0.05)


def test_a_program_that_does_not_follow_is_named():
    """What takes three times as long as its code says is off by three, and nothing hides it."""
    slow = [point("slow", factor=3.0, waves=waves) for waves in (1, 5, 20)]
    rows = {row.program: row for row in left_out([*points(), *slow])}
    assert rows["slow"].factor == pytest.approx(3, rel=0.05)
    assert rows["slow"].bias == pytest.approx(1 / 3, rel=0.05)
    assert rows[ALL].n == 17


def test_records_of_no_gpu_are_refused():
    """A fit needs times of the GPU that it is of."""
    with pytest.raises(CompareError, match="needs records of NVIDIA H200 of one commit"):
        measured_points([], Context("a run", "default", {}, {}, ""))
