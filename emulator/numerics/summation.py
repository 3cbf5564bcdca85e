"""How tensor cores of sm_90 sum an mma: all products and the addend at once, cut off below the largest.

    e = the largest exponent among c and the products, of a product the sum of its factors' exponents
    d = sum of (each term cut off, toward zero, below 2**(e - 25)), exactly; rounded toward zero to FP32

So a product counts as one exponent lower than it is where its mantissas multiply to 2 and more. Zeros have no
exponent; subnormals are neither flushed nor normalised. What is too large becomes infinity. The model is that
of MMA-Sim (Microsoft, 2025) for Hopper; on an H200 it gave the bits of all 3,072 recorded tiles.
`plain_sum` sums in float64 instead, for comparison.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emulator.arrays import Array
from emulator.numerics import rounding
from emulator.numerics.environment import CANONICAL_NAN, bits_of, from_bits

KEPT = 25
"""Bits that are kept below the largest exponent."""

_AT_ONCE = 256
"""Warps whose intermediate results fit a processor's cache."""

_NONE = np.int16(-4096)
"""The exponent of zero: lower than any sum of exponents."""

_SAFE = (-90, 120)
"""Largest exponents for which FP32 holds products, scales and results: no subnormal matters."""


def exponents(x: Array) -> Array:
    """Exponents of FP32 numbers as int16: of subnormals -126, of zeros lower than any, 128 if not finite."""
    fields = (bits_of(x) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int16)
    return np.where(x == 0, _NONE, np.maximum(fields, 1) - np.int16(127)).astype(np.int16)


@dataclass
class Operand:
    """A [k, 16, warps] or B [k, 8, warps] as FP32 numbers."""

    numbers: Array

    @cached_property
    def exponents(self) -> Array:
        """Their exponents."""
        return exponents(self.numbers)

    def part(self, warps: slice) -> Operand:
        """The operand of some of the warps."""
        part = Operand(self.numbers[..., warps])
        part.exponents = self.exponents[..., warps]
        return part

    @cached_property
    def largest(self) -> int:
        """The largest exponent of all."""
        return int(self.exponents.max())


def plain_sum(a: Operand, b: Operand, c: Array) -> Array:
    """c + a @ b in float64 in ascending order, rounded to nearest: FP32 [16, 8, warps]."""
    total = c.astype(np.float64)
    for left, right in zip(a.numbers.astype(np.float64), b.numbers.astype(np.float64), strict=True):
        total += left[:, None] * right
    return total.astype(np.float32)


def fused_sum(a: Operand, b: Operand, c: Array) -> Array:
    """c + a @ b as the tensor cores sum it: FP32 [16, 8, warps], NaN canonical."""
    warps = c.shape[-1]
    if warps > _AT_ONCE:
        parts = [slice(first, first + _AT_ONCE) for first in range(0, warps, _AT_ONCE)]
        sums = [fused_sum(a.part(p), b.part(p), np.ascontiguousarray(c[..., p])) for p in parts]
        return np.concatenate(sums, axis=-1)
    exponents_c = exponents(c)
    largest_c = int(exponents_c.max())
    # Sums of zeros alone have no exponent: any will do for them.
    top = np.maximum(exponents_c, np.int16(-300))
    one = np.empty_like(top)
    for left, right in zip(a.exponents, b.exponents, strict=True):
        np.add(left[:, None], right, out=one)
        np.maximum(top, one, out=top)
    if max(a.largest + b.largest, largest_c) <= _SAFE[1]:
        low = top < _SAFE[0]
        # Terms that are all below FP32's safe range, and not all of them zero, need the wider one.
        if not low.any() or not (low & (top > -300)).any():
            return _narrow_sum(a, b, c, np.maximum(top, np.int16(_SAFE[0]), out=top))
    total = _wide_sum(a, b, c, top)
    if max(a.largest, b.largest, largest_c) < 128:
        return total
    # An operand that is not finite makes its sums so, as no sum of finite ones is infinite in float64.
    left, right = ((operand.exponents == 128).any(axis=0) for operand in (a, b))
    total = np.where(left[:, None] | right | ~np.isfinite(c), plain_sum(a, b, c), total)
    return from_bits(np.where(total != total, CANONICAL_NAN, bits_of(total)))


class _Workspace(threading.local):
    """Arrays for `_narrow_sum` to write to, a set a thread: fresh ones cost more than the sum itself."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], tuple[Array, ...]] = {}

    def __call__(self, shape: tuple[int, ...]) -> tuple[Array, ...]:
        if shape not in self.kept:
            if len(self.kept) == _WORKSPACES:
                self.kept.clear()
            kinds = (np.int32, np.float32, np.int32, np.float32, np.int32, np.float64)
            self.kept[shape] = tuple(np.empty(shape, kind) for kind in kinds)
        return self.kept[shape]


_WORKSPACES = 8
_workspace = _Workspace()


def _narrow_sum(a: Operand, b: Operand, c: Array, top: Array) -> Array:
    """The sum cut off at the exponents `top` - KEPT, where FP32 and int32 can hold all terms.

    16 products of at most 2**27, less what their factors' 8 bits lack, stay below 2**31.
    """
    wide, term, cut, scale, products, total = _workspace(top.shape)
    # Powers of two, from their exponent fields.
    np.copyto(wide, top)
    np.subtract(np.int32(127 + KEPT), wide, out=cut)
    np.left_shift(cut, np.int32(23), out=scale.view(np.int32))
    products[...] = 0
    for left, right in zip(a.numbers, b.numbers, strict=True):
        np.multiply(left[:, None], right, out=term)
        np.multiply(term, scale, out=term)
        np.copyto(cut, term, casting="unsafe")  # a conversion to integers cuts off toward zero
        np.add(products, cut, out=products)
    np.multiply(c, scale, out=term)
    np.copyto(cut, term, casting="unsafe")
    np.copyto(total, products)
    np.add(total, cut, out=total)
    # Toward zero to 24 bits: float64 holds the sum exactly, and its lower bits are dropped.
    np.bitwise_and(total.view(np.int64), np.int64(-1 << 29), out=total.view(np.int64))
    np.copyto(term, total, casting="same_kind")
    np.add(wide, np.int32(127 - KEPT), out=cut)
    np.left_shift(cut, np.int32(23), out=scale.view(np.int32))
    return term * scale


def _wide_sum(a: Operand, b: Operand, c: Array, top: Array) -> Array:
    """The same in float64, where nothing overflows, and with subnormal and infinite results."""
    shift = KEPT - top.astype(np.int32)
    scale = np.ldexp(1.0, shift)
    total = np.trunc(c * scale)
    for left, right in zip(a.numbers.astype(np.float64), b.numbers, strict=True):
        total += np.trunc(left[:, None] * right * scale)
    exact = np.ldexp(total, -shift)
    result = rounding.to_f32(exact, "rz")
    return np.where(np.abs(exact) >= 2.0**128, np.copysign(np.float32(np.inf), result), result)
