"""Words of CUDA C with an example each, for `docs/cuda-words.md`."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from fractions import Fraction
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np


class Use(NamedTuple):
    """Use of a word: statements, expression and its value."""

    word: str
    expression: str
    value: float
    before: str = ""


F: Final = [np.float32(each) for each in (0.6, -1.75, 2.25)]
"""Inputs ``a``, ``b`` and ``c``, float."""
D: Final = [0.6, -1.75, 2.25]
"""Inputs ``p``, ``q`` and ``r``, double."""
I: Final = [-1234567, 89, 16909060]  # noqa: E741
"""Inputs ``i``, ``j`` and ``k``, int."""
L: Final = [-(2**40) - 12345, 2**35 + 77]
"""Inputs ``l`` and ``m``, long long."""
INPUTS: Final = """
  const float a = f[0], b = f[1], c = f[2];
  const double p = d[0], q = d[1], r = d[2];
  const int i = n[0], j = n[1], k = n[2];
  const unsigned u = static_cast<unsigned>(i), v = static_cast<unsigned>(k);
  const long long l = ll[0], m = ll[1];
  const unsigned long long ul = static_cast<unsigned long long>(l), um = static_cast<unsigned long long>(m);
"""
U32, U64 = 2**32, 2**64
U, V, (UL, UM) = I[0] % U32, I[2], (each % U64 for each in L)
A, B, C = (float(each) for each in F)

ROUNDED: Final = ("rn", "rz", "rd", "ru")


def rounded(exact: Fraction, how: str, single: bool) -> float:
    """Round an exact number to float or double."""
    kind = np.float32 if single else np.float64
    near = kind(float(exact))  # within one step of it, which is enough here
    steps = [np.nextafter(near, kind(-np.inf)), near, np.nextafter(near, kind(np.inf))]
    below = max(float(each) for each in steps if Fraction(float(each)) <= exact)
    above = min(float(each) for each in steps if Fraction(float(each)) >= exact)
    toward_zero = below if exact > 0 else above
    left, right = exact - Fraction(below), Fraction(above) - exact
    nearest = float(near) if left == right else below if left < right else above  # NumPy rounds ties to even
    return {"rn": nearest, "rz": toward_zero, "rd": below, "ru": above}[how]


def whole(number: float, how: str, low: int, high: int) -> int:
    """Round a number to an integer as a GPU does."""
    near = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}[how](number)
    return min(max(near, low), high)


def _maths() -> Iterator[Use]:
    one = {
        "acos": math.acos, "acosh": lambda x: math.acosh(1 + x), "asin": math.asin, "asinh": math.asinh,
        "atan": math.atan, "atanh": math.atanh, "cbrt": lambda x: x ** (1 / 3), "ceil": math.ceil, "cos": math.cos,
        "cosh": math.cosh, "cospi": lambda x: math.cos(math.pi * x), "erf": math.erf, "erfc": math.erfc,
        "erfcinv": lambda x: -NormalDist().inv_cdf(x / 2) / math.sqrt(2),
        "erfcx": lambda x: math.exp(x * x) * math.erfc(x),
        "erfinv": lambda x: NormalDist().inv_cdf((1 + x) / 2) / math.sqrt(2), "exp": math.exp,
        "exp10": lambda x: 10**x, "exp2": lambda x: 2**x, "expm1": math.expm1, "fabs": abs, "floor": math.floor,
        "lgamma": math.lgamma, "log": math.log, "log10": math.log10, "log1p": math.log1p, "log2": math.log2,
        "logb": lambda x: math.frexp(x)[1] - 1, "nearbyint": round, "normcdf": NormalDist().cdf,
        "normcdfinv": NormalDist().inv_cdf, "rcbrt": lambda x: x ** (-1 / 3), "rint": round,
        "round": lambda x: math.floor(x + 0.5), "rsqrt": lambda x: x**-0.5, "sin": math.sin, "sinh": math.sinh,
        "sinpi": lambda x: math.sin(math.pi * x), "sqrt": math.sqrt, "tan": math.tan, "tanh": math.tanh,
        "tgamma": math.gamma, "trunc": math.trunc,
    }  # fmt: skip
    two = {
        "atan2": math.atan2, "copysign": math.copysign, "fdim": lambda x, y: max(x - y, 0.0),
        "fdivide": lambda x, y: x / y, "fmax": max, "fmin": min,
        "fmod": math.fmod, "hypot": math.hypot, "pow": lambda x, y: x**y,
        "remainder": math.remainder, "rhypot": lambda x, y: 1 / math.hypot(x, y),
    }  # fmt: skip
    for name, function in one.items():
        shift = ("1.f + ", "1. + ") if name == "acosh" else ("", "")
        yield Use(f"{name}f", f"{name}f({shift[0]}a)", function(A))
        yield Use(name, f"{name}({shift[1]}p)", function(D[0]))
        yield Use(name, f"{name}({shift[0]}a)", function(A))  # of a float
    for name, function in two.items():
        left, right = ("a", "b") if name != "pow" else ("c", "b")
        x, y = (A, B) if name != "pow" else (C, B)
        yield Use(f"{name}f", f"{name}f({left}, {right})", function(x, y))
        if name != "fdivide":
            yield Use(name, f"{name}({'p' if left == 'a' else 'r'}, q)", function(D[0] if left == "a" else D[2], D[1]))
    for suffix, x, y, z, t in (("f", "a", "b", "c", "float"), ("", "p", "q", "r", "double")):
        X, Y, Z = (A, B, C) if suffix else D
        values, ref = f"const {t} v4[3] = {{{x}, {y}, {z}}};", math.sqrt(X * X + Y * Y + Z * Z)
        yield Use(f"fma{suffix}", f"fma{suffix}({x}, {y}, {z})", X * Y + Z)
        yield Use(f"norm3d{suffix}", f"norm3d{suffix}({x}, {y}, {z})", ref)
        yield Use(f"rnorm3d{suffix}", f"rnorm3d{suffix}({x}, {y}, {z})", 1 / ref)
        yield Use(f"norm4d{suffix}", f"norm4d{suffix}({x}, {y}, {z}, {x})", math.hypot(X, Y, Z, X))
        yield Use(f"rnorm4d{suffix}", f"rnorm4d{suffix}({x}, {y}, {z}, {x})", 1 / math.hypot(X, Y, Z, X))
        yield Use(f"norm{suffix}", f"norm{suffix}(3, v4)", ref, values)
        yield Use(f"rnorm{suffix}", f"rnorm{suffix}(3, v4)", 1 / ref, values)
        yield Use(f"frexp{suffix}", "s + e", 0.5625 + 2, f"int e; const {t} s = frexp{suffix}({z}, &e);")
        yield Use(f"modf{suffix}", "s + 10 * w", -0.75 - 10, f"{t} w; const {t} s = modf{suffix}({y}, &w);")
        made = f"int e; const {t} s = remquo{suffix}({y}, {z}, &e);"
        yield Use(f"remquo{suffix}", "s + 10 * (e & 7)", 0.5 + 10 * 7, made)
        yield Use(f"ldexp{suffix}", f"ldexp{suffix}({z}, 3)", 18.0)
        yield Use(f"scalbn{suffix}", f"scalbn{suffix}({z}, -2)", 0.5625)
        yield Use(f"scalbln{suffix}", f"scalbln{suffix}({z}, 2l)", 9.0)
        yield Use(f"nextafter{suffix}", f"nextafter{suffix}({z}, {x}) < {z}", 1)
        yield Use(f"nan{suffix}", f'isnan(nan{suffix}(""))', 1)
        yield Use(f"ilogb{suffix}", f"ilogb{suffix}({z})", 1)
        for name, want in (("lrint", -2), ("llrint", -2), ("lround", -2), ("llround", -2)):
            yield Use(f"{name}{suffix}", f"{name}{suffix}({y})", want)
        for name in ("sincos", "sincospi"):
            scale = math.pi if name == "sincospi" else 1.0
            want_ = math.sin(scale * X) + 10 * math.cos(scale * X)
            yield Use(f"{name}{suffix}", "s + 10 * w", want_, f"{t} s, w; {name}{suffix}({x}, &s, &w);")
        for name, at in (("j0", 0.9120048634972114), ("j1", 0.2867009880639160), ("y0", -0.3085098701208516),
                         ("y1", -1.2603913471774598)):  # fmt: skip
            yield Use(f"{name}{suffix}", f"{name}{suffix}({x})", at)
        yield Use(f"jn{suffix}", f"jn{suffix}(1, {x})", 0.2867009880639160)
        yield Use(f"yn{suffix}", f"yn{suffix}(1, {x})", -1.2603913471774598)
    for name, want in (("isfinite", 1), ("isinf", 0), ("isnan", 0), ("signbit", 1)):
        yield Use(name, f"{name}(b) != 0", want)
        yield Use(name, f"{name}(q) != 0", want)
    fast = {"cosf": math.cos, "exp10f": lambda x: 10**x, "expf": math.exp, "log10f": math.log10, "log2f": math.log2,
            "logf": math.log, "sinf": math.sin, "tanf": math.tan}  # fmt: skip
    for name, function in fast.items():
        yield Use(f"__{name}", f"__{name}(a)", function(A))
    yield Use("__saturatef", '__saturatef(c) + 10.f * __saturatef(b) + 100.f * __saturatef(nanf(""))', 1.0)
    yield Use("__fdividef", "__fdividef(a, b)", A / B)
    yield Use("__powf", "__powf(c, b)", C**B)
    yield Use("__sincosf", "s + 10.f * w", math.sin(A) + 10 * math.cos(A), "float s, w; __sincosf(a, &s, &w);")
    yield Use("__frsqrt_rn", "__frsqrt_rn(c)", C**-0.5)
    for how in ROUNDED:
        for prefix, names, values in (("f", "abc", F), ("d", "pqr", D)):
            x, y, z = (Fraction(float(each)) for each in values)
            single = prefix == "f"
            for name, exact in (("add", x + y), ("sub", x - y), ("mul", x * y), ("div", x / y)):
                call = f"__{prefix}{name}_{how}"
                yield Use(call, f"{call}({names[0]}, {names[1]})", rounded(exact, how, single))
            call, fused = f"__{prefix}rcp_{how}", f"__{'fmaf' if single else 'fma'}_{how}"
            yield Use(call, f"{call}({names[0]})", rounded(1 / x, how, single))
            yield Use(fused, f"{fused}({', '.join(names)})", rounded(x * y + z, how, single))
            root = Fraction(math.isqrt(int(x * 4**200))) / 2**200
            yield Use(f"__{prefix}sqrt_{how}", f"__{prefix}sqrt_{how}({names[0]})", rounded(root, how, single))


def _least() -> Iterator[Use]:
    yield Use("min", "min(a, b)", B)
    yield Use("max", "max(a, b)", A)
    yield Use("max", 'max(nanf(""), a)', A)
    yield Use("min", 'min(a, nanf(""))', A)
    yield Use("min", "min(p, q)", D[1])
    yield Use("max", "max(p, q)", D[0])
    yield Use("max", "max(a, q)", A)
    yield Use("min", "min(i, j)", I[0])
    yield Use("max", "max(i, j)", I[1])
    yield Use("max", "max(u, v)", U)
    yield Use("min", "min(l, m)", L[0])
    yield Use("max", "max(ul, um)", UL)
    yield Use("max", "max(i, v)", U)  # both are unsigned
    yield Use("umin", "umin(u, v)", V)
    yield Use("umax", "umax(u, v)", U)
    yield Use("llmin", "llmin(l, m)", L[0])
    yield Use("llmax", "llmax(l, m)", L[1])
    yield Use("ullmin", "ullmin(ul, um)", UM)
    yield Use("ullmax", "ullmax(ul, um)", UL)
    yield Use("abs", "abs(b)", -B)
    yield Use("abs", "abs(q)", -D[1])
    yield Use("abs", "abs(i)", -I[0])
    yield Use("abs", "abs(l)", -L[0])
    yield Use("labs", "labs(static_cast<long>(l))", -L[0])
    yield Use("llabs", "llabs(l)", -L[0])


def _casts() -> Iterator[Use]:
    (bits,), (word,) = struct.unpack("<i", struct.pack("<f", B)), struct.unpack("<q", struct.pack("<d", D[0]))
    yield Use("__float_as_int", "__float_as_int(b)", bits)
    yield Use("__float_as_uint", "__float_as_uint(b)", bits % U32)
    yield Use("__int_as_float", "__int_as_float(__float_as_int(b))", B)
    yield Use("__uint_as_float", "__uint_as_float(__float_as_uint(b))", B)
    yield Use("__double_as_longlong", "__double_as_longlong(p)", word)
    yield Use("__longlong_as_double", "__longlong_as_double(__double_as_longlong(p))", D[0])
    yield Use("__double2hiint", "__double2hiint(p)", word >> 32)
    yield Use("__double2loint", "__double2loint(p)", (word & 0xFFFFFFFF) - (U32 if word & 0x80000000 else 0))
    yield Use("__hiloint2double", "__hiloint2double(__double2hiint(p), __double2loint(p))", D[0])
    ranges = {"int": (-(2**31), 2**31 - 1), "uint": (0, U32 - 1), "ll": (-(2**63), 2**63 - 1), "ull": (0, U64 - 1)}
    for how in ROUNDED:
        for kind, x, X in (("float", "b", B), ("double", "q", D[1])):
            big = "1e30f" if kind == "float" else "1e30"
            for to, (low, high) in ranges.items():
                name = f"__{kind}2{to}_{how}"
                yield Use(name, f"{name}({x})", whole(X, how, low, high))
                yield Use(name, f"{name}(-2.f * {x})", whole(-2 * X, how, low, high))
                yield Use(name, f"{name}({big} * static_cast<{kind}>(j))", high)
                is_wide = kind == "double" or to.endswith("ll")
                nothing = {"int": -(2**31), "uint": 2**31, "ll": -(2**63), "ull": 2**63}[to] if is_wide else 0
                yield Use(name, f'{name}(nan{"f" if kind == "float" else ""}(""))', nothing)
        for source, x, X in (("int", "i", I[0] * 99), ("uint", "u", U), ("ll", "l", L[0] * 9999), ("ull", "ul", UL)):
            scale = {"int": " * 99", "ll": " * 9999"}.get(source, "")
            yield Use(f"__{source}2float_{how}", f"__{source}2float_{how}({x}{scale})", rounded(Fraction(X), how, True))
            if source.endswith("ll"):
                name = f"__{source}2double_{how}"
                yield Use(name, f"{name}({x}{scale})", rounded(Fraction(X), how, False))
        yield Use(f"__double2float_{how}", f"__double2float_{how}(p)", rounded(Fraction(D[0]), how, True))
    yield Use("__int2double_rn", "__int2double_rn(i)", float(I[0]))
    yield Use("__uint2double_rn", "__uint2double_rn(u)", float(U))


def _integers() -> Iterator[Use]:
    def signed(x: int) -> int:
        return (x & 0x7FFFFFFF) - (x & 0x80000000)

    def permuted(low: int, high: int, choice: int) -> int:
        each = list((high << 32 | low).to_bytes(8, "little"))
        return int.from_bytes([each[(choice >> 4 * at) & 7] for at in range(4)], "little")

    yield Use("__popc", "__popc(u)", U.bit_count())
    yield Use("__popcll", "__popcll(ul)", UL.bit_count())
    yield Use("__clz", "__clz(j) + 100 * __clz(0)", 25 + 3200)
    yield Use("__clzll", "__clzll(m) + 100 * __clzll(0)", 28 + 6400)
    yield Use("__ffs", "__ffs(k) + 100 * __ffs(0)", 3)
    yield Use("__ffsll", "__ffsll(m << 7) + 100 * __ffsll(0)", 8)
    yield Use("__brev", "__brev(v)", int(f"{V:032b}"[::-1], 2))
    yield Use("__brevll", "__brevll(um)", int(f"{UM:064b}"[::-1], 2))
    for choice in (0x3210, 0x7531, 0x0A4B):
        yield Use("__byte_perm", f"__byte_perm(v, u, {choice:#x}u)", permuted(V, U, choice))
    for n in (0, 5, 32, 37):
        both = U << 32 | V
        yield Use("__funnelshift_l", f"__funnelshift_l(v, u, {n}u)", (both << n % 32 >> 32) % U32)
        yield Use("__funnelshift_lc", f"__funnelshift_lc(v, u, {n}u)", (both << min(n, 32) >> 32) % U32)
        yield Use("__funnelshift_r", f"__funnelshift_r(v, u, {n}u)", (both >> n % 32) % U32)
        yield Use("__funnelshift_rc", f"__funnelshift_rc(v, u, {n}u)", (both >> min(n, 32)) % U32)
    yield Use("__mul24", "__mul24(i, j)", I[0] * I[1])
    yield Use("__umul24", "__umul24(u, 3u)", U % 2**24 * 3)
    yield Use("__mulhi", "__mulhi(i, k)", I[0] * I[2] >> 32)
    yield Use("__umulhi", "__umulhi(u, v)", U * V >> 32)
    yield Use("__mul64hi", "__mul64hi(l, m)", L[0] * L[1] >> 64)
    yield Use("__umul64hi", "__umul64hi(ul, um)", UL * UM >> 64)
    yield Use("__hadd", "__hadd(i, j)", (I[0] + I[1]) >> 1)
    yield Use("__rhadd", "__rhadd(i, k)", (I[0] + I[2] + 1) >> 1)
    yield Use("__uhadd", "__uhadd(u, v)", (U + V) >> 1)
    yield Use("__urhadd", "__urhadd(u, v)", (U + V + 1) >> 1)
    yield Use("__sad", "__sad(i, j, 7u)", abs(I[0] - I[1]) + 7)
    yield Use("__usad", "__usad(u, v, 7u)", abs(U - V) + 7)
    assert signed(U) == I[0]


def _vectors() -> Iterator[Use]:
    sizes = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "long": 8, "ulong": 8, "longlong": 8,
             "ulonglong": 8, "float": 4, "double": 8}  # fmt: skip
    for kind, size in sizes.items():
        for n in (1, 2, 3, 4):
            name, fields = f"{kind}{n}", "xyzw"[:n]
            alignment = size if n in (1, 3) else min(n * size, 16)
            total = " + ".join(f"{10**at} * static_cast<int>(t.{field})" for at, field in enumerate(fields))
            made = f"const {name} t = make_{name}({', '.join(str(at + 1) for at in range(n))});"
            want = int("".join(str(at + 1) for at in reversed(range(n))))
            yield Use(f"make_{name}", total, want, made)
            yield Use(name, f"100 * sizeof({name}) + alignof({name})", 100 * n * size + alignment)


def _memory() -> Iterator[Use]:
    for name in ("__ldg", "__ldca", "__ldcg", "__ldcs", "__ldcv", "__ldlu"):
        yield Use(name, f"{name}(f + 1)", B)
    for name in ("__stcg", "__stcs", "__stwb", "__stwt"):
        yield Use(name, "si[0]", 41, f"{name}(si, 41);")
    for name in ("__threadfence", "__threadfence_block", "__threadfence_system", "__syncthreads", "__syncwarp"):
        yield Use(name, "si[0]", 42, f"si[0] = 42; {name}();")
    yield Use("__nanosleep", "si[0]", 43, "si[0] = 43; __nanosleep(1u);")
    yield Use("clock64", "clock64() - clock64() <= 0", 1)
    yield Use("clock", "clock() - clock() <= 0", 1)


def _atomics() -> Iterator[Use]:
    results = {"Add": (8, 3), "Sub": (2, 3), "Min": (3, 3), "Max": (5, 3), "And": (1, 3), "Or": (7, 3), "Xor": (6, 3),
               "Inc": (6, 9), "Dec": (4, 9), "Exch": (3, 3)}  # fmt: skip
    for name, (after, value) in results.items():
        for scope in ("", "_block", "_system"):
            call = f"atomic{name}{scope}"
            if name not in ("Inc", "Dec"):
                yield Use(call, "100 * old + si[0]", 500 + after, f"si[0] = 5; const int old = {call}(si, {value});")
            made = f"su[0] = 5u; const unsigned old = {call}(su, {value}u);"
            yield Use(call, "100u * old + su[0]", 500 + after, made)
            if name not in ("Sub", "Inc", "Dec"):
                made = f"sl[0] = 5ull; const unsigned long long old = {call}(sl, {value}ull);"
                yield Use(call, "100ull * old + sl[0]", 500 + after, made)
            if name in ("Add", "Exch"):
                made = f"sf[0] = 5.f; const float old = {call}(sf, 3.f);"
                yield Use(call, "100.f * old + sf[0]", 500.0 + after, made)
            if name == "Add":
                made = f"sd[0] = 5.; const double old = {call}(sd, 3.);"
                yield Use(call, "100. * old + sd[0]", 508.0, made)
    for scope in ("", "_block", "_system"):
        call = f"atomicCAS{scope}"
        made = f"si[0] = 5; int old = 10 * {call}(si, 4, 7); old += {call}(si, 5, 8);"
        yield Use(call, "100 * old + si[0]", 5508, made)
    yield Use("atomicInc", "su[0]", 0, "su[0] = 9u; atomicInc(su, 9u);")
    yield Use("atomicDec", "su[0]", 9, "su[0] = 0u; atomicDec(su, 9u);")


USES: Final = [*_least(), *_maths(), *_integers(), *_casts(), *_vectors(), *_memory(), *_atomics()]
"""Uses of the words that both styles of kernel have."""

PARAMETERS: Final = """(const float* f, const double* d, const int* n, const long long* ll, int* si, unsigned* su,
  unsigned long long* sl, float* sf, double* sd, double* y, long long* z)"""


def body(uses: list[Use], *, own: bool) -> str:
    """Return statements that write results to ``y`` (float) or ``z`` (integer)."""
    lines = [INPUTS]
    for at, use in enumerate(uses):
        cast = (
            "y[{}] = static_cast<double>({});"
            if isinstance(use.value, float)
            else "z[{}] = static_cast<long long>({});"
        )
        lines.append("  { " + use.before + " " + cast.format(at, use.expression) + " }")
    text = "\n".join(lines)
    if own:  # its parameters have no such type
        text = "unsigned long long* const sl = reinterpret_cast<unsigned long long*>(sl_);\n" + text
    return text


def own_source(uses: list[Use]) -> str:
    """Return a source whose blocks own environments."""
    parameters = PARAMETERS.replace("unsigned long long* sl", "long long* sl_")
    return (
        f"WD_KERNEL(words){parameters} {{\n if (WD_BLOCK != 0 || WD_THREAD != 0) return;\n{body(uses, own=True)}\n}}\n"
    )


def threads_source(uses: list[Use]) -> str:
    """Return a source with a thread for each agent."""
    entry = f'extern "C" __global__ void words{PARAMETERS}'
    return f"{entry} {{\n if (blockIdx.x != 0 || threadIdx.x != 0) return;\n{body(uses, own=False)}\n}}\n"
