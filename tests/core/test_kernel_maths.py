"""Functions that CUDA C, Numba and NumPy compute alike."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.core import kernel_runner
from tests.core.kernel_runner import probe
from tests.support import on_every_backend, on_every_other_backend

CONSTANTS = {"THREADS": 32, "ENVS_PER_BLOCK": 32, "BLOCKS_PER_ENV": 1, "N_AGENTS": 1}
TWO_PI = np.float32(6.2831855)


def _values() -> np.ndarray:
    generator = np.random.default_rng(0)
    corners = [0, -0.0, 1, -1, 87, -87, 88, -88, 89, -200, TWO_PI, -TWO_PI, -1e-9, np.nextafter(TWO_PI, np.float32(0))]
    multiples = np.arange(-6, 7) * np.float32(np.pi / 2)
    spread = generator.uniform(-1, 1, 120) * np.repeat([1e-3, 1, 10, 8192], 30)
    return np.concatenate([corners, multiples, [5000 * np.pi, 8192, -8192], spread]).astype(np.float32)


def _evaluate(backend: str, exact: bool, x: np.ndarray) -> np.ndarray:
    out = np.zeros((len(x), 7), np.float32)
    constants = {**CONSTANTS, "EXACT": exact}
    arguments = {"x": x, "out": out, "n_envs": len(x)}
    kernel_runner.run(backend, probe(), "functions", constants, arguments, -(-len(x) // 32))
    return out


def _ulp_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)))


@on_every_backend
@pytest.mark.parametrize("exact", [False, True])
def test_maths_is_accurate_in_every_language(backend: str, exact: bool) -> None:
    """Errors are within the documented ulps of the double-precision result."""
    x = _values()
    got = _evaluate(backend, exact, x).astype(np.float64)
    wide = x.astype(np.float64)
    inside = (x >= -87) & (x <= 88)
    assert _ulp_error(got[inside, 0], np.exp(wide[inside])) <= 1.0
    assert (got[x < -87, 0] == 0).all()
    assert (got[x > 88, 0] == np.inf).all()
    magnitude = np.clip(np.abs(x), np.float32(1e-30), np.float32(1e30)).astype(np.float64)
    positive = magnitude != 1
    assert _ulp_error(got[positive, 1], np.log(magnitude[positive])) <= 0.9
    assert (got[~positive, 1] == 0).all()
    assert _ulp_error(got[:, 2], np.sin(wide)) <= 2.4
    assert _ulp_error(got[:, 3], np.cos(wide)) <= 2.4
    assert (got[:, 5] == np.clip(wide, -1, 2)).all()


@on_every_backend
def test_wrap_stays_inside_the_period(backend: str) -> None:
    """Wrapped angles are in [0, period)."""
    x = np.float32([0, 1, TWO_PI, -TWO_PI, -1, -1e-9, 2 * TWO_PI, 7])
    got = _evaluate(backend, True, x)[:, 4]
    want = [0, 1, 0, 0, TWO_PI - np.float32(1), 0, 0, np.float32(7) - TWO_PI]
    assert got.tolist() == [float(value) for value in want]
    everywhere = _evaluate(backend, True, _values())[:, 4]
    assert ((everywhere >= 0) & (everywhere < TWO_PI)).all()


@on_every_backend
def test_principal_angle_is_within_half_a_turn(backend: str) -> None:
    """Principal angles are in +-pi, moved by full turns."""
    pi = np.float32(np.pi)
    inside = np.float32([0, -0.0, 1, -1e-9, pi, -pi])
    outside = np.float32([4, -4, TWO_PI, 7, -7, 2 * TWO_PI])
    got = _evaluate(backend, True, np.concatenate([inside, outside]))[:, 6]
    assert got[:6].view(np.int32).tolist() == inside.view(np.int32).tolist()
    want = [4 - TWO_PI, TWO_PI - 4, 0, 7 - TWO_PI, TWO_PI - 7, 0]
    np.testing.assert_allclose(got[6:], want, rtol=0, atol=np.spacing(np.float32(7)) + np.spacing(pi))  # two roundings
    everywhere = _evaluate(backend, True, _values())[:, 6]
    assert (np.abs(everywhere) <= pi).all()


@on_every_other_backend
def test_exact_maths_is_bit_identical_to_numpy(backend: str) -> None:
    """With EXACT every backend returns the same bits."""
    x = _values()
    got, want = _evaluate(backend, True, x), _evaluate("cpu", True, x)
    assert got.view(np.int32).tolist() == want.view(np.int32).tolist()


@on_every_backend
def test_exact_maths_of_nan_is_defined(backend: str) -> None:
    """With EXACT, e^NaN is 0 (a weight); sine and cosine are NaN."""
    got = _evaluate(backend, True, np.full(1, np.nan, np.float32))[0]
    assert got[0] == 0
    assert np.isnan(got[2:4]).all()


def test_four_floats_go_and_come_in_order() -> None:
    """`wd_load` and `wd_store` keep the order of a row's floats."""
    numbers, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    arguments = {"from": numbers, "to": out, "n_envs": 2}
    kernel_runner.run("host", probe(), "fours", {**CONSTANTS, "EXACT": True}, arguments, 1)
    assert out.tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


_COMPILE_TO_PTX = """
import _numba_cuda_redirector  # an install does so by a .pth file, which is read in site-packages alone
import types
from unittest import mock
from numba import cuda, float32
from numba.cuda import dispatcher
from warpdrive_min.kernels.core_numba import contraction_off, maths

sin, cos = maths(True)

def kernel(x, y):
    y[0] = x[0] * x[1] + sin(x[2]) * cos(x[2])

signature = (float32[::1], float32[::1])
device = types.SimpleNamespace(compute_capability=(9, 0))  # what device functions ask for; there may be none

def compiled():
    return cuda.compile(kernel, signature, device=False, abi="numba", cc=(9, 0), output="ptx")[0]

with mock.patch.object(dispatcher, "get_current_device", lambda: device):
    print(compiled())
    print("=====")
    with contraction_off():
        print(compiled())
    print("=====")
    print(compiled())
"""


def test_contraction_off_leaves_no_fma() -> None:
    """Without contraction, a kernel's PTX has no FMA and no double.

    It has neither FMA nor double.
    """
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILE_TO_PTX],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "DynamicLibNotFound" in run.stderr or "libNVVM cannot be found" in run.stderr:
        pytest.skip("found no libnvvm or no libnvrtc, which Numba compiles with")
    assert run.returncode == 0, run.stderr
    before, off, after = (_instructions(ptx) for ptx in run.stdout.split("====="))
    assert any("fma.rn.f32" in line for line in before)
    assert not any("fma" in line for line in off)
    assert sum("mul.rn.f32" in line for line in off) > 10
    assert sum("add.rn.f32" in line for line in off) > 10
    assert not any("f64" in line for line in off)
    assert any("fma.rn.f32" in line for line in after)


def _instructions(ptx: str) -> list[str]:
    return [line.strip() for line in ptx.splitlines() if re.match(r"\s+[@\w]", line)]
