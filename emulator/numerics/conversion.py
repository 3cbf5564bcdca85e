"""Conversions between FP32 and BF16, FP16, TF32 and integers, with the device's rounding and saturation.

BF16 and FP16 numbers travel as their bits (uint16), pairs of them as uint32 with the first in the low half.
NaN becomes the canonical NaN of the target; integers get 0. Run under `np.errstate(all="ignore")`.

Formulas: PTX ISA 8.8, "Data Movement and Conversion Instructions: cvt".
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.numerics import rounding as exact_rounding
from emulator.numerics.environment import CANONICAL_NAN, MAGNITUDE, SIGN, bits_of, flushed, from_bits

INFINITY = np.uint32(0x7F800000)
HALF_NAN = np.uint16(0x7FFF)
"""The canonical NaN of BF16 and of FP16."""

LIMITS = {
    f"{sign}{bits}": (-(1 << bits - 1) * (sign == "s"), (1 << bits - (sign == "s")) - 1)
    for sign in "su"
    for bits in (8, 16, 32, 64)
}
"""The least and the largest of each integer type, by its PTX name."""


def to_bf16(x: Array, *, rounding: str = "rn", relu: bool = False) -> Array:
    """`cvt.rn.bf16.f32`, `cvt.rz.bf16.f32`: subnormals are kept. relu: what is negative becomes +0."""
    bits = bits_of(x)
    rounded: Array
    if rounding == "rn":
        # Half a unit, less one if even; may carry into the exponent, and as far as infinity.
        rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> 16
    else:
        rounded = bits >> 16
    nan = x != x
    if relu:
        rounded = np.where(bits & SIGN != 0, np.uint32(0), rounded)
    if nan.any():
        rounded = np.where(nan, np.uint32(HALF_NAN), rounded)
    return rounded.astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    """`cvt.f32.bf16`: exact; the bits of a NaN are kept as they are."""
    return from_bits(bits.astype(np.uint32) << 16)


def to_f16(x: Array, *, rounding: str = "rn", relu: bool = False) -> Array:
    """`cvt.rn.f16.f32`, `cvt.rz.f16.f32`: subnormal results are kept. relu: what is negative becomes +0."""
    half = x.astype(np.float16)
    bits = half.view(np.uint16)
    if rounding == "rz":
        away = np.abs(half.astype(np.float32)) > np.abs(x)
        bits = np.where(away, bits - np.uint16(1), bits)
    if relu:
        bits = np.where(bits_of(x) & SIGN != 0, np.uint16(0), bits)
    return np.where(x != x, HALF_NAN, bits)


def from_f16(bits: Array) -> Array:
    """`cvt.f32.f16`: exact; NaN becomes the canonical one."""
    wide = bits.view(np.float16).astype(np.float32)
    return from_bits(np.where(wide != wide, CANONICAL_NAN, bits_of(wide)))


def pack(low: Array, high: Array) -> Array:
    """Two 16-bit halves as one word (uint32)."""
    return low.astype(np.uint32) | (high.astype(np.uint32) << 16)


def unpack(words: Array) -> tuple[Array, Array]:
    """The halves of words: (low, high), uint16."""
    return words.astype(np.uint16), (words >> 16).astype(np.uint16)


def pack_bf16(high: Array, low: Array, *, rounding: str = "rn", relu: bool = False) -> Array:
    """`cvt.rnd.bf16x2.f32 d, high, low`: the first operand goes to bits 16:32."""
    return pack(to_bf16(low, rounding=rounding, relu=relu), to_bf16(high, rounding=rounding, relu=relu))


def pack_f16(high: Array, low: Array, *, rounding: str = "rn", relu: bool = False) -> Array:
    """`cvt.rnd.f16x2.f32 d, high, low`: the first operand goes to bits 16:32."""
    return pack(to_f16(low, rounding=rounding, relu=relu), to_f16(high, rounding=rounding, relu=relu))


def to_tf32(x: Array) -> Array:
    """`cvt.rna.tf32.f32`: 10 bits of mantissa, ties away from zero, in the upper bits of a word (uint32).

    A NaN loses its lower bits.
    """
    bits = bits_of(x)
    finite = (bits & MAGNITUDE) < INFINITY
    return np.where(finite, bits + np.uint32(0x1000), bits) & np.uint32(0xFFFFE000)


_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integral(x: Array, rounding: str, *, ftz: bool = False) -> Array:
    """`cvt.rni.f32.f32` and its like (rzi, rmi, rpi): a whole number, as FP32."""
    whole = _INTEGRAL[rounding](flushed(x) if ftz else x)
    return from_bits(np.where(whole != whole, CANONICAL_NAN, bits_of(whole)))


def f32_to_f32(x: Array, *, rounding: str = "", ftz: bool = False, sat: bool = False) -> Array:
    """`cvt{.rni}{.ftz}{.sat}.f32.f32`: a whole number if rounded, clamped to [+0, 1] with sat."""
    if rounding:
        x = to_integral(x, rounding, ftz=ftz)
    elif ftz:
        x = flushed(x)
    if sat:
        return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0))
    return from_bits(np.where(x != x, CANONICAL_NAN, bits_of(x)))


def to_integer(x: Array, kind: str, rounding: str, *, ftz: bool = False) -> Array:
    """`cvt.rni.s32.f32` and its like: rounded, then clamped to the type; NaN becomes 0.

    x: FP32 or float64. Returns int64 or uint64 that hold the values of `kind` ("s32", "u8", ...).
    """
    low, high = LIMITS[kind]
    source = flushed(x) if ftz else x
    whole = _INTEGRAL[rounding](source.astype(np.float64))
    whole = np.where(whole != whole, 0.0, whole)
    wide = np.uint64 if kind == "u64" else np.int64
    # 2**63 - 1 and 2**64 - 1 are no float64 numbers: compare first, convert what fits.
    fits = np.where((whole >= low) & (whole < float(high)), whole, 0.0).astype(wide)
    return np.where(whole >= float(high), wide(high), np.where(whole < low, wide(low), fits))


def from_integer(x: Array, rounding: str = "rn") -> Array:
    """`cvt.rn.f32.s32` and its like: rounded once, in any direction. x: any integer type."""
    if x.dtype.itemsize < 8:
        return exact_rounding.to_f32(x.astype(np.float64), rounding)
    # 64 bits do not fit float64: keep the upper ones, and whether there were any others, in the last.
    negative = x < 0
    size = np.where(negative, np.uint64(0) - x.view(np.uint64), x.view(np.uint64))
    large = size >> np.uint64(53) != 0
    sticky = (size & np.uint64(0xFFF) != 0).astype(np.uint64) << np.uint64(12)
    kept = np.where(large, (size & ~np.uint64(0xFFF)) | sticky, size).astype(np.float64)
    return exact_rounding.to_f32(np.where(negative, -kept, kept), rounding)


def to_integer_bits(x: Array, *, kind: str, rounding: str, ftz: bool = False) -> Array:
    """`to_integer` as an array of the type's own width, unsigned."""
    return to_integer(x, kind, rounding, ftz=ftz).astype(f"u{int(kind[1:]) // 8}")
