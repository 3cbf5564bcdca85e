"""What the recordings are stored relative to: results that IEEE 754 fixes on every machine.

A table of a hardware function is mostly its correctly rounded values, so the differences in bits compress to
a tenth. Each function here takes the inputs of one kernel and gives its output's bits, rounded from float64;
only +, *, /, sqrt and whole powers of two are used, whose bits do not depend on SIMD level or library.
"""

import math

import numpy as np

from tests import layouts
from tests.numerics import f32_bits, flush, from_bf16
from tests.warpgroup import fold_sums, unfold_sums

CANONICAL_NAN = 0x7FFFFFFF


def _bits(exact: np.ndarray, flushed: bool = True) -> np.ndarray:
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
    bits = f32_bits(flush(rounded) if flushed else rounded)
    return np.where(np.isnan(rounded), np.uint32(CANONICAL_NAN), bits)


def exp2(x: np.ndarray) -> np.ndarray:
    """2**x of FP32 numbers, subnormals flushed, as FP32 bits."""
    with np.errstate(all="ignore"):
        x = np.clip(np.float64(flush(x)), -200.0, 200.0)
        n = np.round(x)
        n = np.where(np.isnan(n), 0.0, n)
        power = np.zeros_like(x)
        for degree in range(15, -1, -1):
            power = power * (x - n) + math.log(2.0) ** degree / math.factorial(degree)
        return _bits(np.ldexp(power, n.astype(np.int32)))


def reciprocal(x: np.ndarray) -> np.ndarray:
    """1 / x of FP32 numbers, subnormals flushed, as FP32 bits."""
    with np.errstate(all="ignore"):
        return _bits(1.0 / np.float64(flush(x)))


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1 / sqrt(x) of FP32 numbers, subnormals flushed, as FP32 bits."""
    with np.errstate(all="ignore"):
        return _bits(1.0 / np.sqrt(np.float64(flush(x))))


def unfold_tiles(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of register files: a [tiles, 16, k], b [tiles, k, 8], c [tiles, 16, 8].

    a, b: BF16 pairs [tiles, k / 4 and k / 8 registers, 32]. c: FP32 [tiles, 4, 32]. k is 16 or 8.
    """
    tiles, depth = len(a), 8 * b.shape[1]
    left = np.zeros((tiles, 16, depth), np.float32)
    right = np.zeros((tiles, depth, 8), np.float32)
    start = np.zeros((tiles, 16, 8), np.float32)
    g, t = layouts.G, layouts.T
    for half in range(2):
        for i in range(a.shape[1]):
            column = 8 * (i // 2) + 2 * t + half
            left[:, g + 8 * (i % 2), column] = from_bf16(a[:, i] >> 16 * half & 0xFFFF)
        for i in range(b.shape[1]):
            right[:, 8 * i + 2 * t + half, g] = from_bf16(b[:, i] >> 16 * half & 0xFFFF)
    for i in range(4):
        start[:, g + 8 * (i // 2), 2 * t + i % 2] = c[:, i]
    return left, right, start


def mma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b of register files as FP32 bits [tiles, 4, 32], summed in float64 in ascending order."""
    with np.errstate(all="ignore"):
        left, right, start = (x.astype(np.float64) for x in unfold_tiles(a, b, c))
        for k in range(left.shape[2]):
            start = start + left[:, :, k, None] * right[:, k, None, :]
    bits = _bits(start, flushed=False)
    g, t = layouts.G, layouts.T
    return np.stack([bits[:, g + 8 * (i // 2), 2 * t + i % 2] for i in range(4)], axis=1)


def wgmma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b^T as FP32 bits, summed in float64 in ascending order; c and the result register files.

    a, b: BF16 bits [tiles, 64, 64], [tiles, columns, 64]. c: FP32 [tiles, 4, columns / 2, 32].
    """
    with np.errstate(all="ignore"):
        left, right = (from_bf16(x).astype(np.float64) for x in (a, b))
        sums = np.stack([unfold_sums(tile) for tile in c]).astype(np.float64)
        for k in range(left.shape[2]):
            sums = sums + left[:, :, k, None] * right[:, None, :, k]
    return np.stack([fold_sums(tile) for tile in _bits(sums, flushed=False)])
