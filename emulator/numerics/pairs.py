"""Arithmetic on pairs of BF16 numbers (`.bf16x2`), held as words (uint32), the first in the low half.

Each half is rounded once, to nearest even; subnormals are kept; NaN results are 0x7fff. Run under
`np.errstate(all="ignore")`. Formulas: PTX ISA 8.8, "Half Precision Floating Point Instructions".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.arrays import Array
from emulator.numerics import arithmetic, conversion, functions, rounding


def _halves(operation: Callable[..., Array], *words: Array) -> Array:
    """Apply a function of FP32 arrays to both halves; it returns BF16 bits."""
    low = operation(*((word << 16).view(np.float32) for word in words))
    high = operation(*((word & np.uint32(0xFFFF0000)).view(np.float32) for word in words))
    return conversion.pack(low, high)


def _rounded(total: Array, relu: bool = False) -> Array:
    """BF16 of float64 numbers that are exact or rounded to odd: rounded to odd again at FP32, then once."""
    truncated = rounding.to_f32(total, "rz")
    inexact = (truncated.astype(np.float64) != total) & np.isfinite(total)
    bits = truncated.view(np.uint32)
    odd = np.where(inexact, bits | np.uint32(1), bits).view(np.float32)
    return conversion.to_bf16(odd, relu=relu)


def add(a: Array, b: Array) -> Array:
    """`add{.rn}.bf16x2`."""
    return _halves(lambda x, y: _rounded(rounding.odd_sum(x.astype(float), y.astype(float))), a, b)


def sub(a: Array, b: Array) -> Array:
    """`sub{.rn}.bf16x2`."""
    return _halves(lambda x, y: _rounded(rounding.odd_sum(x.astype(float), -y.astype(float))), a, b)


def mul(a: Array, b: Array) -> Array:
    """`mul{.rn}.bf16x2`."""
    return _halves(lambda x, y: _rounded(x.astype(float) * y.astype(float)), a, b)


def fma(a: Array, b: Array, c: Array, *, relu: bool = False) -> Array:
    """`fma.rn{.relu}.bf16x2`: relu clamps what is negative to +0."""

    def fused(x: Array, y: Array, z: Array) -> Array:
        return _rounded(rounding.odd_sum(x.astype(float) * y.astype(float), z.astype(float)), relu)

    return _halves(fused, a, b, c)


def _selected(operation: Callable[..., Array], nan: bool, a: Array, b: Array) -> Array:
    return _halves(lambda x, y: conversion.to_bf16(operation(x, y, ftz=False, nan=nan)), a, b)


def maximum(a: Array, b: Array, *, nan: bool = False) -> Array:
    """`max{.NaN}.bf16x2`: +0 is larger than -0; one NaN loses, or wins with `nan`."""
    return _selected(arithmetic.maximum, nan, a, b)


def minimum(a: Array, b: Array, *, nan: bool = False) -> Array:
    """`min{.NaN}.bf16x2`: -0 is smaller than +0; one NaN loses, or wins with `nan`."""
    return _selected(arithmetic.minimum, nan, a, b)


def negative(a: Array) -> Array:
    """`neg.bf16x2`."""
    return _halves(lambda x: conversion.to_bf16(-x), a)


def absolute(a: Array) -> Array:
    """`abs.bf16x2`."""
    return _halves(lambda x: conversion.to_bf16(np.abs(x)), a)


def exp2(a: Array) -> Array:
    """`ex2.approx.ftz.bf16x2`."""
    return _halves(lambda x: conversion.to_bf16(functions.exp2(x), rounding="rz"), a)


def tanh(a: Array) -> Array:
    """`tanh.approx.bf16x2`."""
    return _halves(lambda x: conversion.to_bf16(functions.tanh(x), rounding="rz"), a)
