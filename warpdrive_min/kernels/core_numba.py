"""Device functions of all Numba kernels, and compilation without contraction.

They are those of `philox.cuh` and `maths.cuh`, and run compiled or in Numba's simulator. Numba widens int32 and uint32
to 64 bits, and a Python float is float64. So all values are cast: random words to uint32, others to float32.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64
from numba.core import config

from warpdrive_min.rng import STREAM_POOL
from warpdrive_min.rng import STREAM_START as STREAM_START  # for the kernels of environments

_LOW: Final = np.uint64(0xFFFFFFFF)
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS: Final = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_PI, _TWO_PI = np.float32(math.pi), np.float32(2 * math.pi)
ONE: Final = np.float32(1)


# ------------------------------------------------------------------ random numbers


@cuda.jit(device=True)
def philox(step, env, agent, stream, seed_low, seed_high):
    """Return a block's four uint32 words; inputs count as uint32."""
    # A product of two widened uint32 is one instruction; of two uint64 it would be several.
    half = uint64(32)
    x, y, z, w = _uint32(step), _uint32(env), _uint32(agent), _uint32(stream)
    key_low, key_high = _uint32(seed_low), _uint32(seed_high)
    for _ in range(10):
        first = uint64(x) * _MULTIPLIERS[0]
        second = uint64(z) * _MULTIPLIERS[1]
        x, y = uint32(uint32(second >> half) ^ y ^ key_low), uint32(second & _LOW)
        z, w = uint32(uint32(first >> half) ^ w ^ key_high), uint32(first & _LOW)
        key_low = uint32((uint64(key_low) + _KEY_STEPS[0]) & _LOW)
        key_high = uint32((uint64(key_high) + _KEY_STEPS[1]) & _LOW)
    return x, y, z, w


@cuda.jit(device=True)
def _uint32(value):
    return uint32(int64(value) & int64(_LOW))


@cuda.jit(device=True)
def word(words, index):
    """Return the word of a run-time index, 0 to 3.

    It uses selects, as an array would be in local memory.
    """
    low = words[1] if index & 1 else words[0]
    high = words[3] if index & 1 else words[2]
    return high if index & 2 else low


@cuda.jit(device=True)
def uniform(word):
    """Return a float32 in [0, 1), from the upper 24 bits.

    So rounding cannot reach 1.
    """
    return float32(uint32(uint32(word) >> uint32(8))) * float32(2.0**-24)


@cuda.jit(device=True)
def below(word, n):
    """Return an int32 in [0, n), each with a probability within 2^-32 of 1 / n."""
    return int32((uint64(word) * uint64(n)) >> uint64(32))


@cuda.jit(device=True)
def pool_row(episode, env, seed_low, seed_high, n_rows):
    """Return an episode's reset pool row, equal for all arrays."""
    return below(philox(episode, env, 0, STREAM_POOL, seed_low, seed_high)[0], n_rows)


# ------------------------------------------------------------------ mathematics


class Maths(NamedTuple):
    """Sine and cosine as device functions on float32."""

    sin: Callable[[Any], Any]
    cos: Callable[[Any], Any]


def maths(exact: bool) -> Maths:
    """Return our sine and cosine, bit-identical in all languages, or the library's."""
    return Maths(_exact_sin, _exact_cos) if exact else Maths(_library_sin, _library_cos)


def sincos_of(exact: bool) -> Callable[[Any], Any]:
    """Return a device function for sine and cosine at once, as `maths`.

    Both use one range reduction.
    """
    return _exact_sincos if exact else _library_sincos


def quotient_of(exact: bool) -> Callable[[Any, Any], Any]:
    """Return a device function that divides.

    Exact: IEEE 754. Otherwise within 2 ulp, without a branch.
    """
    return _exact_quotient if exact else _fast_quotient


@cuda.jit(device=True)
def exp(x):
    """Return e^x; 0 below -87 and for NaN, infinite above 88."""
    if not (x >= float32(-87)):
        return float32(0)
    if x > float32(88):
        return float32(math.inf)
    shifted = x * float32(1.44269504) + float32(12582912)  # see _round; its lowest bits are n
    n = shifted - float32(12582912)
    r = (x - n * float32(0.693359375)) - n * float32(-2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    y = (p * (r * r) + r) + float32(1)
    return y * float_of_bits(int32((bits(shifted) << 23) + 0x3F800000))  # times 2^n


@cuda.jit(device=True)
def log(x):
    """Return the natural logarithm of a positive, normal, finite number."""
    pattern = bits(x)
    half = float_of_bits(int32((pattern & 0x007FFFFF) | 0x3F000000))
    e = float32(int32((pattern >> 23) - 126))
    m = half
    if half < float32(0.707106781):
        m = half + half
        e = e - float32(1)
    f = m - float32(1)
    z = f * f
    p = float32(7.0376836292e-2)
    p = p * f - float32(1.1514610310e-1)
    p = p * f + float32(1.1676998740e-1)
    p = p * f - float32(1.2420140846e-1)
    p = p * f + float32(1.4249322787e-1)
    p = p * f - float32(1.6668057665e-1)
    p = p * f + float32(2.0000714765e-1)
    p = p * f - float32(2.4999993993e-1)
    p = p * f + float32(3.3333331174e-1)
    y = (p * (f * z) + e * float32(-2.12194440e-4)) - float32(0.5) * z
    return (f + y) + e * float32(0.693359375)


if config.ENABLE_CUDASIM:

    def bits(x: np.float32) -> np.int32:
        return np.float32(x).view(np.int32)

    def float_of_bits(pattern: np.int32) -> np.float32:
        return np.int32(pattern).view(np.float32)

    def product(a: np.float32, b: np.float32) -> np.float32:
        return np.float32(a) * np.float32(b)

    def total(a: np.float32, b: np.float32) -> np.float32:
        return np.float32(a) + np.float32(b)

    def smaller(a: np.float32, b: np.float32) -> np.float32:
        return a if a < b else b

    def larger(a: np.float32, b: np.float32) -> np.float32:
        return a if a > b else b

    def _library_sincos(x: np.float32) -> tuple[np.float32, np.float32]:
        return np.float32(math.sin(x)), np.float32(math.cos(x))

    def _fast_quotient(a: np.float32, b: np.float32) -> np.float32:
        return np.float32(a) / np.float32(b)

else:
    from numba.cuda import libdevice

    bits, float_of_bits = libdevice.float_as_int, libdevice.int_as_float
    product, total = libdevice.fmul_rn, libdevice.fadd_rn  # never contracted to FMA
    smaller, larger = libdevice.fminf, libdevice.fmaxf  # one instruction, unlike `min` and `max`, which handle NaN
    _library_sincos, _fast_quotient = libdevice.sincosf, libdevice.fast_fdividef


@cuda.jit(device=True)
def clip(x, low, high):
    """Return the float32 of [low, high] nearest to x."""
    x = float32(x)
    return float32(low) if x < low else float32(high) if x > high else x


@cuda.jit(device=True)
def wrap(x, period):
    """Return x modulo period, in [0, period)."""
    rest = float32(math.fmod(x, period))
    if rest < float32(0):
        rest = rest + float32(period)
    return float32(0) if rest >= period else rest


@cuda.jit(device=True)
def principal(angle):
    """Return the angle within +-pi; one in range keeps its bits."""
    return angle if abs(angle) <= _PI else wrap(angle + _PI, _TWO_PI) - _PI


@cuda.jit(device=True)
def _exact_sin(x):
    quadrant, s, c = _reduced(x)
    is_odd = quadrant == float32(1) or quadrant == float32(-1)
    value = c if is_odd else s
    return -value if quadrant == float32(-1) or quadrant * quadrant == float32(4) else value


@cuda.jit(device=True)
def _exact_cos(x):
    quadrant, s, c = _reduced(x)
    is_odd = quadrant == float32(1) or quadrant == float32(-1)
    value = s if is_odd else c
    return -value if quadrant == float32(1) or quadrant * quadrant == float32(4) else value


@cuda.jit(device=True)
def _exact_sincos(x):
    return _exact_sin(x), _exact_cos(x)


@cuda.jit(device=True)
def _exact_quotient(a, b):
    return a / b


@cuda.jit(device=True)
def _reduced(x):
    """Return x's quadrant, -2 to 2, and the rest's sine and cosine."""
    j = _round(x * float32(0.636619772))
    r = x - j * float32(1.5703125)
    r = r - j * float32(4.837512969970703e-4)
    r = r - j * float32(7.549533620476723e-8)
    r = r - j * float32(2.5633440682570896e-12)
    z = r * r
    s_tail = (float32(-1.9515295891e-4) * z + float32(8.3321608736e-3)) * z - float32(1.6666654611e-1)
    c_tail = (float32(2.443315711809948e-5) * z - float32(1.388731625493765e-3)) * z + float32(4.166664568298827e-2)
    s = r + (r * z) * s_tail
    c = (float32(1) - float32(0.5) * z) + (z * z) * c_tail
    return j - float32(4) * _round(j * float32(0.25)), s, c


@cuda.jit(device=True)
def _round(x):
    return (x + float32(12582912)) - float32(12582912)


@cuda.jit(device=True)
def _library_sin(x):
    return float32(math.sin(x))


@cuda.jit(device=True)
def _library_cos(x):
    return float32(math.cos(x))


@cuda.jit(device=True)
def choice(word, n):
    """Return one of n choices, uniformly, as the sampler from equal weights."""
    if n == 2:  # the same, without a conversion
        return int32(uint32(word) >> uint32(31))
    return min(int32(uniform(word) * float32(n)), int32(n - 1))


@cuda.jit(device=True)
def between(least, most, weight):
    """Return a weighted mean that cannot overflow; not contracted.

    It is clipped, since rounding may exceed a bound.
    """
    return clip(product(ONE - weight, least) + product(weight, most), least, most)


@cuda.jit(device=True)
def squared(dx, dy):
    """Return a squared distance; not contracted, so bit-identical everywhere."""
    return total(product(dx, dx), product(dy, dy))


@cuda.jit(device=True)
def sort(a, b):
    return smaller(a, b), larger(a, b)


# ------------------------------------------------------------------ indices and rows


@cuda.jit(device=True)
def split(index, size):
    """Return quotient and remainder, by 32-bit division of uint32.

    Numba's own division is signed with 64 bits.
    """
    return int32(uint32(index) // uint32(size)), int32(uint32(index) % uint32(size))


@cuda.jit(device=True)
def natural(index):
    """Return an index as an int32 that LLVM knows to be non-negative.

    Numba's checks for negative indices then vanish.
    """
    return int32(uint32(index) & uint32(0x7FFFFFFF))


@cuda.jit(device=True)
def env_at(index, envs_per_block):
    """Return an environment's index in this block, and among all environments."""
    local = natural(index)
    return local, natural(cuda.blockIdx.x * envs_per_block + local)


@cuda.jit(device=True)
def agent_at(item, envs_per_block, n_agents):
    """Return an agent's environment, in the block and overall, and index."""
    local, agent = split(item, n_agents)
    return local, natural(cuda.blockIdx.x * envs_per_block + local), agent


SIMULATED: Final[bool] = bool(config.ENABLE_CUDASIM)
"""True in the simulator, whose shared arrays are not aligned."""

if config.ENABLE_CUDASIM:

    def sized(array: Any, sizes: tuple[int, ...]) -> Any:
        return array

    def load_row(array: Any, row: int, n: int) -> tuple[Any, ...]:
        return tuple(array[row, 0, :n])

    def store_row(array: Any, row: int, values: tuple[Any, ...]) -> None:
        array[row, 0, : len(values)] = values

    def load_four(array: Any, index: int) -> tuple[Any, ...]:
        return tuple(array.reshape(-1)[index : index + 4])

    def any_near(flag: bool, n: int) -> bool:
        return flag

else:
    from llvmlite import ir
    from numba.cuda import cgutils, types
    from numba.cuda.extending import intrinsic

    @intrinsic
    def sized(context, array, sizes):
        """Return a contiguous array with compile-time sizes except for the first axis."""

        def generate(context, builder, signature, arguments):
            kind = signature.args[0]
            made = context.make_array(kind)(context, builder, value=arguments[0])
            shape = [builder.extract_value(made.shape, 0), *cgutils.unpack_tuple(builder, arguments[1])]
            strides = [context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))]
            for size in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], size))
            made.shape, made.strides = (cgutils.pack_array(builder, each) for each in (shape, strides))
            return made._getvalue()  # noqa: SLF001  (there is no public way)

        return array(array, sizes), generate

    def _row(context, builder, kind, array, row, n):
        """Return a pointer to a row's widest vectors, and their number.

        The row has n float32 of a contiguous array.
        """
        lanes = 4 if n % 4 == 0 else 2 if n % 2 == 0 else 1
        made = context.make_array(kind)(context, builder, value=array)
        vector = ir.VectorType(ir.FloatType(), lanes)
        first = builder.mul(row, row.type(n // lanes))
        return builder.gep(builder.bitcast(made.data, vector.as_pointer()), [first]), n // lanes, lanes

    def _row_type(row):
        """Return the 64-bit type of a row's index, without a sign if it has none."""
        return types.int64 if row.signed else types.uint64

    @intrinsic
    def load_row(context, array, row, n):
        """Return a row of a contiguous float32 array ``[row, 1, n]``.

        The loads are as wide as the alignment allows.
        """
        if not isinstance(n, types.IntegerLiteral):
            return None  # Numba then calls again with its value
        n_values = n.literal_value

        def generate(context, builder, signature, arguments):
            pointer, n_vectors, lanes = _row(context, builder, signature.args[0], *arguments[:2], n_values)
            values = []
            for index in range(n_vectors):
                vector = builder.load(cgutils.gep_inbounds(builder, pointer, index), align=4 * lanes)
                values += [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(lanes)]
            return context.make_tuple(builder, signature.return_type, values)

        return types.UniTuple(types.float32, n_values)(array, _row_type(row), n), generate

    @intrinsic
    def store_row(context, array, row, values):
        """Write a row of a contiguous float32 array ``[row, 1, n]``.

        The stores are as wide as the alignment allows.
        """

        def generate(context, builder, signature, arguments):
            numbers = cgutils.unpack_tuple(builder, arguments[2])
            pointer, n_vectors, lanes = _row(context, builder, signature.args[0], *arguments[:2], len(numbers))
            for index in range(n_vectors):
                vector = ir.Constant(ir.VectorType(ir.FloatType(), lanes), ir.Undefined)
                for lane in range(lanes):
                    vector = builder.insert_element(vector, numbers[index * lanes + lane], ir.IntType(32)(lane))
                builder.store(vector, cgutils.gep_inbounds(builder, pointer, index), align=4 * lanes)
            return context.get_dummy_value()

        return types.void(array, _row_type(row), values), generate

    @intrinsic
    def load_four(context, array, index):
        """Return four float32 of a contiguous array aligned to 16 bytes.

        The index must be a multiple of 4.
        """

        def generate(context, builder, signature, arguments):
            made = context.make_array(signature.args[0])(context, builder, value=arguments[0])
            address = builder.gep(made.data, [arguments[1]])
            vector = builder.load(builder.bitcast(address, ir.VectorType(ir.FloatType(), 4).as_pointer()), align=16)
            values = [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(4)]
            return context.make_tuple(builder, signature.return_type, values)

        return types.UniTuple(types.float32, 4)(array, types.int64), generate

    @cuda.jit(device=True)
    def any_near(flag, n):
        """True if any of n adjacent threads has a flag set.

        All threads of the warp must call it together.
        """
        first = uint32(cuda.threadIdx.x) % uint32(32) // uint32(n) * uint32(n)
        return (uint32(cuda.ballot_sync(0xFFFFFFFF, flag)) >> first) & uint32((1 << n) - 1) != 0


# ------------------------------------------------------------------ episodes


@cuda.jit(device=True)
def conclude(env, is_terminal, out_of_time, clock, results):
    """Write whether and why an episode ended; termination precedes the time limit."""
    results.terminated[env] = is_terminal
    results.truncated[env] = out_of_time and not is_terminal
    clock.done[env] = is_terminal or out_of_time


@cuda.jit(device=True)
def take_ended(ended, clock, force, envs_per_block, threads, n_envs):
    """Mark the block's environments to restart and clear their flags; synchronise."""
    for each in range(cuda.threadIdx.x, envs_per_block, threads):
        local, env = env_at(each, envs_per_block)
        if env < n_envs:
            ended[local] = force != 0 or clock.done[env] != 0
            clock.done[env] = 0
    cuda.syncthreads()


@cuda.jit(device=True)
def any_ended(ended, n_envs):
    """True in all threads if an environment of the block ended."""
    found = False
    for local in range(len(ended)):
        if cuda.blockIdx.x * len(ended) + local < n_envs and ended[local] != 0:
            found = True
    return found


# ------------------------------------------------------------------ contraction


@contextlib.contextmanager
def contraction_off() -> Iterator[None]:
    """Compile kernels in this context without FMA contraction; not thread-safe.

    numba-cuda's decorators do not pass NVVM's option ``fma`` on, so its compiler call is wrapped. It would link LTO-IR
    with nvJitLink, which rejects cuda-core's spelling of the option, so PTX is linked. Machine code is compiled by
    ``kernel.compile(signature)`` or the first launch: call it in this context. Does nothing in the simulator, which
    never contracts.
    """
    if config.ENABLE_CUDASIM:
        yield
        return
    from numba.cuda.cudadrv import driver, nvvm  # not in the simulator

    compile_ir, linker = nvvm.compile_ir, driver._Linker  # noqa: SLF001  (there is no public way)

    def compile_without(ir: Any, **options: Any) -> bytes:
        return compile_ir(ir, **{**options, "fma": False})

    def link_ptx(*arguments: Any, **options: Any) -> Any:
        return linker(*arguments, **{**options, "lto": False})

    with (
        mock.patch.object(nvvm, "compile_ir", compile_without),
        mock.patch.object(driver, "_Linker", link_ptx),
    ):
        yield
