"""Inputs of the golden cases: the same bits on any machine, with any version of anything.

The source of randomness is SplitMix64 over an index, integer arithmetic alone (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014). What is made from it takes exact FP32 operations only.
"""

import numpy as np

from tests.numerics import from_bits, to_bf16


def hashes(seed: int, *shape: int) -> np.ndarray:
    """Evenly distributed 64-bit integers of this shape; other seeds give unrelated ones."""
    step = 0x9E3779B97F4A7C15
    start = np.uint64((seed + 1) * 0xD1342543DE82EF95 & (2**64 - 1))
    z = start + np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(step)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).reshape(shape)


def words(seed: int, *shape: int) -> np.ndarray:
    """Evenly distributed 32-bit words."""
    return (hashes(seed, *shape) >> np.uint64(32)).astype(np.uint32)


def whole(seed: int, low: int, high: int, *shape: int) -> np.ndarray:
    """Integers from low to high - 1, as int64, all but evenly distributed."""
    return low + (hashes(seed, *shape) >> np.uint64(32)).astype(np.int64) % (high - low)


def normal(seed: int, *shape: int) -> np.ndarray:
    """FP32 numbers, mean 0 and deviation 1 within 1%: the sum of 12 even numbers, cut off at 6 deviations."""
    parts = whole(seed, 0, 1 << 16, 12, *shape).sum(axis=0) - 6 * 65535
    return parts.astype(np.float32) * np.float32(2.0**-16)


def magnitudes(seed: int, low: int, high: int, *shape: int) -> np.ndarray:
    """FP32 numbers of either sign whose exponents are even over low .. high - 1 and mantissas over all."""
    mantissas = words(seed, *shape) & np.uint32(0x807FFFFF)
    exponents = whole(seed + 1, low + 127, high + 127, *shape).astype(np.uint32)
    return from_bits(mantissas | exponents << np.uint32(23))


def uniform(seed: int, low: float, high: float, *shape: int) -> np.ndarray:
    """FP32 numbers even over [low, high), both whole numbers below 2**20, in steps of 2**-23 of the span."""
    span = np.float64(high) - low
    return (low + span * (words(seed, *shape) >> np.uint32(9)) * 2.0**-23).astype(np.float32)


def normal_bf16(seed: int, *shape: int) -> np.ndarray:
    """BF16 bits of `normal`."""
    return to_bf16(normal(seed, *shape))
