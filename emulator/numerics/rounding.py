"""Correct rounding by way of float64: sums rounded to odd first, then once to FP32, in any direction.

The product of two FP32 numbers is exact in float64. A sum rounded to odd there keeps what a second rounding
needs to know, because float64 has more than two bits more than FP32 (Boldo and Melquiond, "Emulation of a FMA
and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57, 2008).
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.numerics.environment import SIGN, bits_of, from_bits

_BELOW_FP32 = np.int64((1 << 29) - 1)
"""The bits of a float64 below the last of a normal FP32 number."""

_MIDPOINT = np.int64(1 << 28)


def odd_sum(x: Array, y: Array, rounding: str = "rn") -> Array:
    """x + y of float64 numbers, rounded to odd: truncated, and the last bit set if that lost anything.

    rounding: to be used next; it decides the sign of an exact zero.
    """
    total = x + y
    if rounding == "rm":
        total = np.where((total == 0) & (np.signbit(x) | np.signbit(y)), -0.0, total)
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = total.view(np.int64)
    adjust = np.isfinite(total) & (error != 0) & (bits & 1 == 0) & np.isfinite(error)
    # An even total that is not exact: its neighbour on the side of the exact sum is odd.
    step = np.where((error > 0) == (total > 0), np.int64(1), np.int64(-1))
    return (bits + np.where(adjust, step, np.int64(0))).view(np.float64)


def fused(a: Array, b: Array, c: Array, *, small: bool) -> Array:
    """a * b + c of FP32 numbers as float64 that round to FP32 as the exact value does, to nearest even.

    The float64 sum does by itself, except beside a midpoint of FP32 numbers. small: FP32 subnormal results
    matter too, whose midpoints are elsewhere.
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    unsafe = (total.view(np.int64) & _BELOW_FP32) == _MIDPOINT
    if small:
        unsafe |= np.abs(total) < 2.0**-125
    if unsafe.any():
        where = np.flatnonzero(unsafe)
        total.reshape(-1)[where] = odd_sum(product.reshape(-1)[where], addend.reshape(-1)[where])
    return total


def to_f32(x: Array, rounding: str) -> Array:
    """float64 numbers, exact or rounded to odd, rounded to FP32 in a direction: "rn", "rz", "rm" or "rp"."""
    nearest = x.astype(np.float32)
    if rounding == "rn":
        return nearest
    back = nearest.astype(np.float64)
    if rounding == "rz":
        wrong = np.abs(back) > np.abs(x)
    else:
        wrong = back > x if rounding == "rm" else back < x
    if not wrong.any():
        return nearest
    bits = bits_of(nearest)
    if rounding == "rz":
        return from_bits(np.where(wrong, bits - np.uint32(1), bits))
    # Downwards: a smaller magnitude if positive, a larger one if negative; past a zero lies the other sign.
    shrink = (bits & SIGN == 0) == (rounding == "rm")
    moved = np.where(shrink, bits - np.uint32(1), bits + np.uint32(1))
    moved = np.where(nearest == 0, (SIGN if rounding == "rm" else np.uint32(0)) | np.uint32(1), moved)
    return from_bits(np.where(wrong, moved, bits))


_FLUSHED_BELOW = {
    "rn": 2.0**-126 - 2.0**-151,
    "rz": 2.0**-126,
    "rm": 2.0**-126,
    "rp": 2.0**-126,
}


def flush_exact(rounded: Array, exact: Array, rounding: str) -> Array:
    """FP32 results as the device flushes them: what is below the normal numbers after rounding is zero.

    exact: float64, exact or rounded to odd. Rounded means to 24 bits, as if exponents had no end: so an exact
    value just below 2**-126 may become 2**-126.
    """
    size = np.abs(exact)
    small = size < _FLUSHED_BELOW[rounding]
    if not small.any():
        return rounded
    if rounding in ("rm", "rp"):
        away = (exact < 0) == (rounding == "rm")
        small &= ~away | (size <= 2.0**-126 - 2.0**-150)
    return from_bits(np.where(small, bits_of(rounded) & SIGN, bits_of(rounded)))
