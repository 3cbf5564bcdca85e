"""The approximate functions, and the correctly rounded ones: float32 arrays in and out.

`exp2`, `reciprocal` and `rsqrt` give the bits of an H200 for every argument (`interpolation`). The others are
float64 results rounded to FP32; how far the device's are from those is in `tests/emulator/test_functions.py`.
Run under `np.errstate(all="ignore")`. Special values: PTX ISA 8.8, "Floating Point Instructions".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.arrays import Array
from emulator.numerics import arithmetic
from emulator.numerics.environment import canonical, flushed
from emulator.numerics.interpolation import interpolator

INFINITY = 0x7F800000
NAN = 0x7FFFFFFF
NORMAL = 0x00800000
MANTISSA = 0x007FFFFF
SIGN = np.int32(-(2**31))
SCALE = np.float32(2.0**24)
"""What the forms without ftz multiply a subnormal by, before the unit and after it."""


def _assembled(field: Array, result: Array) -> Array:
    """Bits (int32) of numbers with an exponent field and a result of 2**23 .. 2**24 of the unit.

    What has no normal exponent is zero; what is too large, infinity.
    """
    bits: Array = (np.minimum(np.maximum(field, -1), 254) << 23) + (result - NORMAL)
    bits[bits < NORMAL] = 0
    large = field > 254
    if large.any():
        bits[large] = INFINITY
    return bits


def _with_nan(bits: Array, nan: Array) -> Array:
    if nan.any():
        bits[nan] = NAN
    return bits.view(np.float32)


def exp2(x: Array, *, ftz: bool = True) -> Array:
    """`ex2.approx{.ftz}.f32`: 2**x; +0 at -inf, +inf at +inf."""
    if not ftz:
        # As compiled for the device: half the exponent where the result may be subnormal, then squared.
        low = x < np.float32(-126.0)
        if low.any():
            half = exp2(np.where(low, x * np.float32(0.5), x))
            return np.where(low, half * half, half)
    size = np.fmin(np.abs(x), np.float32(255.0))
    size *= np.float32(2.0**23)
    fixed = size.astype(np.int32)
    # As the device has it: a negative number is the complement of its size, one unit low, unless it is whole.
    negative = x < 0
    whole = (fixed & MANTISSA) == 0
    fixed ^= -negative.astype(np.int32)
    fixed += negative & whole
    bits = _assembled((fixed >> 23) + 127, interpolator("exp2")(fixed & MANTISSA))
    return _with_nan(bits, x != x)


def reciprocal(x: Array, *, ftz: bool = True) -> Array:
    """`rcp.approx{.ftz}.f32`: 1 / x; infinite at zeros, zero at infinities, each with x's sign."""
    if not ftz:
        return _rescaled_reciprocal(x)
    bits = x.view(np.int32)
    exponent = bits >> 23 & 0xFF
    result = _assembled(253 - exponent, interpolator("reciprocal")(bits & MANTISSA))
    result[exponent == 0] = INFINITY
    result |= bits & SIGN
    return _with_nan(result, x != x)


def _rescaled_reciprocal(x: Array) -> Array:
    """Without ftz: arguments and results that are subnormal are scaled into the unit's range."""
    size = np.abs(x)
    small, large = size < np.float32(2.0**-126), size > np.float32(2.0**125)
    factor = np.where(small, SCALE, np.where(large, 1 / SCALE, np.float32(1)))
    return canonical(reciprocal(x * factor) * factor)


def rsqrt(x: Array, *, ftz: bool = True) -> Array:
    """`rsqrt.approx{.ftz}.f32`: 1 / sqrt(x); infinite at zeros with x's sign, NaN below them."""
    if not ftz:
        small = np.abs(x) < np.float32(2.0**-126)
        result = rsqrt(np.where(small, x * SCALE, x))
        return np.where(small, canonical(result * np.float32(2.0**12)), result)
    bits = x.view(np.int32)
    exponent = bits >> 23 & 0xFF
    # The exponent field is odd where the exponent is even: the mantissa and its lowest bit, inverted.
    place = (bits & (2 * MANTISSA + 1)) ^ NORMAL
    unit = interpolator("rsqrt")(place)
    # At powers of four the table is one unit low, and the device is not.
    unit[place == 0] = 1 << 24
    result = _assembled(126 - (exponent - 127 >> 1), unit)
    result[exponent == 255] = 0
    zero = exponent == 0
    if zero.any():
        result = np.where(zero, INFINITY | bits & SIGN, result)
    return _with_nan(result, (x != x) | (x < 0) & ~zero)


def _approximate(function: Callable[[Array], Array], x: Array, ftz: bool) -> Array:
    """function of float64 numbers at FP32 ones, rounded; ftz flushes operand and result."""
    result = function((flushed(x) if ftz else x).astype(np.float64)).astype(np.float32)
    return canonical(flushed(result) if ftz else result)


def sqrt(x: Array, *, ftz: bool = True) -> Array:
    """`sqrt.approx{.ftz}.f32`: the rounded root, in place of the device's errors of 1 ulp."""
    return _approximate(np.sqrt, x, ftz)


def log2(x: Array, *, ftz: bool = True) -> Array:
    """`lg2.approx{.ftz}.f32`: -inf at both zeros, NaN below them."""
    return _approximate(lambda y: np.where(y == 0, -np.inf, np.log2(y)), x, ftz)


def _turns(x: Array, ftz: bool) -> Array:
    """x radians as turns (float64), cut off to FP32 as the device does before it looks sines up."""
    turn = np.array(1 / (2 * np.pi), np.float32)
    return arithmetic.mul(x, turn, rounding="rz", ftz=ftz).astype(np.float64)


def sin(x: Array, *, ftz: bool = True) -> Array:
    """`sin.approx{.ftz}.f32`: of radians; NaN at infinities; a zero has x's sign."""
    result = _approximate(lambda turns: np.sin(2 * np.pi * (turns - np.rint(turns))), _turns(x, ftz), False)
    return np.where(result == 0, np.copysign(result, x), result)


def cos(x: Array, *, ftz: bool = True) -> Array:
    """`cos.approx{.ftz}.f32`: of radians; NaN at infinities."""
    return _approximate(lambda turns: np.cos(2 * np.pi * (turns - np.rint(turns))), _turns(x, ftz), False)


def tanh(x: Array) -> Array:
    """`tanh.approx.f32`: subnormals are kept."""
    return _approximate(np.tanh, x, ftz=False)


def quotient(a: Array, b: Array, *, ftz: bool = True) -> Array:
    """`div.approx{.ftz}.f32`: a times the approximate reciprocal of b, so 0 for b above 2**126."""
    return arithmetic.mul(a, reciprocal(b), ftz=ftz)


def exact_quotient(a: Array, b: Array, *, ftz: bool = True) -> Array:
    """`div.rn{.ftz}.f32`: a / b rounded once; float64 has bits enough for a second rounding not to matter."""
    if ftz:
        a, b = flushed(a), flushed(b)
    return _once(np.divide(a.astype(np.float64), b.astype(np.float64)), ftz)


def exact_reciprocal(x: Array, *, ftz: bool = True) -> Array:
    """`rcp.rn{.ftz}.f32`: 1 / x rounded once."""
    return exact_quotient(np.ones_like(x), x, ftz=ftz)


def exact_sqrt(x: Array, *, ftz: bool = True) -> Array:
    """`sqrt.rn{.ftz}.f32`: the root rounded once."""
    return _once(np.sqrt((flushed(x) if ftz else x).astype(np.float64)), ftz)


def _once(exact: Array, ftz: bool) -> Array:
    result = exact.astype(np.float32)
    return canonical(flushed(result) if ftz else result)
