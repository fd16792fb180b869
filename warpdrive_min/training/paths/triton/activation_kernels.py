"""Activations in Triton, and their derivatives; ACTIVATION is a name as `activations.in_kernels` gives it."""

from __future__ import annotations

import triton
import triton.language as tl

FAR_TANH = tl.constexpr("""{
    .reg .f32 shrunk, over, under;
    abs.f32 shrunk, $1;
    mul.f32 shrunk, shrunk, 0fC038AA3B;
    ex2.approx.ftz.f32 shrunk, shrunk;
    sub.f32 over, 0f3F800000, shrunk;
    add.f32 under, 0f3F800000, shrunk;
    rcp.approx.ftz.f32 under, under;
    mul.f32 over, over, under;
    copysign.f32 $0, $1, over;
}""")
"""(1 - s) / (1 + s), s = exp(-2 |z|), with the sign of z, without the steps that exp and / take for tiny results."""


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """Return the activation of z, "tanh" within a few ulp; what is not a number stays so, as in torch."""
    if ACTIVATION == "tanh.approx":
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [z], tl.float32, is_pure=True, pack=1)
    if ACTIVATION == "tanh" or ACTIVATION == "tanh.ptx":
        if ACTIVATION == "tanh":
            shrunk = tl.exp(-2.0 * tl.abs(z))
            far = (1.0 - shrunk) / (1.0 + shrunk)
            far = tl.where(z < 0, -far, far)
        else:
            far = tl.inline_asm_elementwise(FAR_TANH, "=f,f", [z], tl.float32, is_pure=True, pack=1)
        square = z * z
        near = z * (1.0 + square * (-1.0 / 3 + square * (2.0 / 15 - square * (17.0 / 315))))
        return tl.where(tl.abs(z) < 0.15, near, far)
    return tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def derivative(hidden, ACTIVATION: tl.constexpr):
    """Return the derivative of the activation by what came out of it."""
    if ACTIVATION == "relu":
        return tl.where(hidden > 0, 1.0, 0.0)
    return 1.0 - hidden * hidden
