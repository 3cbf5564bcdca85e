"""The special function unit of sm_90, bit for bit: 2**f, 1 / x and 1 / sqrt(x) by tabulated quadratics.

The unit cuts the interval of the mantissa into segments, and in each gives floor(C0 + C1 u + C2 square(u)),
where u is the place in the segment and `square` leaves out the partial products of the lower columns (the
scheme of Oberman and Siu, "A High-Performance Area-Efficient Multifunction Interpolator", ARITH-17, 2005).
The segments, the columns and the coefficients were found from an H200's results for every mantissa
(`tests.golden.survey`): they give all of them exactly, and C1 and C2 came out as whole numbers, C0 as whole
quarters but for one constant a function. Other architectures may have other coefficients.

All arithmetic is in integers, so the bits are the same on any machine.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.arrays import Array

FRACTION = 17
"""Bits below the unit of the result in all sums."""


def truncated_squares(bits: int, first_column: int) -> Array:
    """Squares of all numbers of some bits, without their partial products below a column: uint16, its units.

    Of the folded square: x_i in column 2 i, and x_i x_j for i < j in column i + j + 1.
    """
    x = np.arange(1 << bits, dtype=np.int64)
    total = np.zeros_like(x)
    for i in range(bits):
        # The partial products of bit i that stay: from the first j on whose column is high enough.
        first = max(i + 1, first_column - i - 1)
        total += (x >> i & 1) * ((x >> first) << (first + i + 1))
        if 2 * i >= first_column:
            total += (x >> i & 1) << 2 * i
    return (total >> first_column).astype(np.uint16)


@dataclass(frozen=True)
class Interpolator:
    """One function of a mantissa of 23 bits: its segments' coefficients, in units of 2**-FRACTION.

    rest: bits of the place in a segment.
    """

    rest: int
    c0: Array
    c1: Array
    c2: Array
    squares: Array

    def __call__(self, mantissa: Array) -> Array:
        """The results (int32), 2**23 .. 2**24, for mantissas (int32) 0 .. 2**23 - 1."""
        segment, place = mantissa >> self.rest, mantissa & ((1 << self.rest) - 1)
        # mode="clip" takes without checking first; no index is out of range.
        total = self.c0.take(segment, mode="clip")
        part = self.c1.take(segment, mode="clip")
        part *= place
        total += part
        part = self.c2.take(segment, mode="clip")
        part *= self.squares.take(place, mode="clip")
        total += part
        total >>= FRACTION
        return total.astype(np.int32)


@functools.cache
def _coefficients() -> dict[str, Array]:
    """[segment, 3] by function, from the file beside this one."""
    text = Path(__file__).with_name("coefficients.txt").read_text(encoding="ascii")
    found = {}
    for section in text.split("[")[1:]:
        name, numbers = section.split("]")
        found[name] = np.array(numbers.split(), np.int64).reshape(-1, 3)
    return found


@functools.cache
def interpolator(name: str) -> Interpolator:
    """One of "exp2", "reciprocal" and "rsqrt"; of "rsqrt" mantissas of odd exponents have bit 23 set."""
    quarters, c1, c2 = _coefficients()[name].T
    rest, first_column, bias = {
        "exp2": (17, 19, 24456),
        "reciprocal": (16, 17, 8092),
        "rsqrt": (17, 19, 32766),
    }[name]
    # C1 counts per segment, C2 per segment squared; a square's unit is 2**(first_column - 2 * rest).
    return Interpolator(
        rest,
        (quarters << (FRACTION - 2)) + bias,
        c1 << (FRACTION - rest),
        c2 << (FRACTION + first_column - 2 * rest),
        truncated_squares(rest, first_column),
    )
