"""Rounding of exact rational numbers to FP32 and BF16: what the emulator's arithmetic is checked against.

Nothing here uses floating-point arithmetic or NumPy's conversions.
"""

from fractions import Fraction

import numpy as np
import pytest

from emulator.numerics import environment

TINY = Fraction(1, 2**126)
NAN = 0x7FFFFFFF
INFINITY = 0x7F800000

EDGES = np.array(
    [
        # zero, subnormals, the smallest normals, near one, 2**23, 2**24, the largest, infinity, NaN
        *(0x00000000, 0x00000001, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x01000000, 0x3F7FFFFF),
        *(0x3F800000, 0x3F800001, 0x3FC00000, 0x3F7FFFFE, 0x4B000001, 0x4B800000, 0x7EFFFFFF, 0x7F000000),
        *(0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FC12345, 0x1F800000, 0x20000001, 0x33800000),
    ],
    np.uint32,
)
EDGES = np.concatenate([EDGES, EDGES | np.uint32(0x80000000)])
"""Bits of FP32 numbers at which arithmetic has something to decide, of both signs."""


@pytest.fixture(params=["processor", "software"])
def way(request, monkeypatch) -> str:
    """Flushing and directed rounding by the processor, where it can, and in software."""
    if request.param == "software":
        monkeypatch.setattr(environment, "processor", None)
    elif environment.processor is None:
        pytest.skip("this processor cannot be told to flush")
    return request.param


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edges, as FP32."""
    a, b = np.meshgrid(EDGES, EDGES)
    return a.ravel().view(np.float32), b.ravel().view(np.float32)


def value(bits: int) -> Fraction | None:
    """The number with these FP32 bits; None for infinity and NaN."""
    exponent, mantissa = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 255:
        return None
    size = Fraction(mantissa | 0x800000 if exponent else mantissa) * Fraction(2) ** (max(exponent, 1) - 150)
    return -size if bits >> 31 else size


def flush(bits: int) -> int:
    """FP32 bits with subnormals as zeros of their sign."""
    return bits & 0x80000000 if (bits & 0x7FFFFFFF) < 0x00800000 else bits


def exponent_of(x: Fraction) -> int:
    """The exponent e of x != 0: 2**e <= |x| < 2**(e + 1)."""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e if abs(x) >= Fraction(2) ** e else e - 1


def whole(x: Fraction, mode: str) -> int:
    """x rounded to an integer: to nearest even, toward zero, down or up."""
    down = x.numerator // x.denominator
    if mode == "rn":
        return round(x)
    if mode == "rz":
        return down if x >= 0 or x == down else down + 1
    return down if mode == "rm" or x == down else down + 1


def rounded(x: Fraction, mode: str = "rn", ftz: bool = False, bits: int = 24, least: int = -126) -> int:
    """x != 0 as FP32 bits; `bits` of precision and exponents from `least` on, so that BF16 fits too.

    ftz: as the device flushes, after rounding with exponents of any size.
    """
    sign = 0x80000000 if x < 0 else 0
    e = exponent_of(x)
    if ftz:
        unit = Fraction(2) ** (e - bits + 1)
        if abs(whole(x / unit, mode) * unit) < TINY:
            return sign
    unit = Fraction(2) ** (max(e, least) - bits + 1)
    result = abs(whole(x / unit, mode) * unit)
    if result >= 2**128:
        away = mode == "rn" or (mode == "rp" and not sign) or (mode == "rm" and sign)
        return sign | (INFINITY if away else 0x7F7FFFFF)
    if result == 0:
        return sign
    e = max(exponent_of(result), -126)
    mantissa = int(result * Fraction(2) ** (23 - e))
    return sign | ((e + 126 << 23) + mantissa)


def same_bits(got, expected) -> None:
    """Equal bits of FP32 arrays, or of FP32 and expected bits."""
    got = np.asarray(got).view(np.uint32).ravel()
    expected = np.asarray(expected).astype(np.uint32).ravel()
    wrong = np.flatnonzero(got != expected)
    assert not len(wrong), (
        f"{len(wrong)} of {got.size} wrong, first [{wrong[0]}]: {got[wrong[0]]:#010x}, "
        f"expected {expected[wrong[0]]:#010x}"
    )
