"""FP32 arithmetic as the device does it: add, sub, mul, fma, max, min, neg, abs, and comparisons.

Whole arrays of float32 in, arrays of their shape out; operands may share memory with registers and are never
written to. Run under `np.errstate(all="ignore")`. ftz: subnormal operands count as zeros of their sign, and
results below the normal numbers become zeros of theirs. Every NaN result is the canonical 0x7fffffff.

Formulas: PTX ISA 8.8, "Floating Point Instructions". What it leaves open was recorded on an H200
(`tests/golden`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.arrays import Array
from emulator.numerics import environment, rounding
from emulator.numerics.environment import MAGNITUDE, SIGN, bits_of, canonical, from_bits


def _software(operation: str, round_to: str, ftz: bool, a: Array, b: Array) -> Array:
    """add, sub or mul without the processor's help."""
    if ftz:
        a, b = environment.flushed(a), environment.flushed(b)
    if round_to == "rn" and not ftz:
        return _ufunc(operation)(a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    exact = x * y if operation == "mul" else rounding.odd_sum(x, y if operation == "add" else -y, round_to)
    return _finish(exact, round_to, ftz)


def _finish(exact: Array, round_to: str, ftz: bool) -> Array:
    """FP32 of float64 numbers that are exact, or rounded to odd."""
    result = rounding.to_f32(exact, round_to)
    return rounding.flush_exact(result, exact, round_to) if ftz else result


def _ufunc(operation: str) -> Callable[..., Array]:
    return {"add": np.add, "sub": np.subtract, "mul": np.multiply}[operation]


def _binary(operation: str, round_to: str, ftz: bool, a: Array, b: Array) -> Array:
    processor = environment.processor
    if round_to == "rn" and not ftz:
        return canonical(_ufunc(operation)(a, b))
    if processor is None:
        return canonical(_software(operation, round_to, ftz, a, b))
    result = processor.run(round_to, ftz, _ufunc(operation), a, b)
    return canonical(result)


def add(a: Array, b: Array, *, rounding: str = "rn", ftz: bool = True) -> Array:
    """`add{.rnd}{.ftz}.f32`: a + b, rounded once."""
    return _binary("add", rounding, ftz, a, b)


def sub(a: Array, b: Array, *, rounding: str = "rn", ftz: bool = True) -> Array:
    """`sub{.rnd}{.ftz}.f32`: a - b, rounded once."""
    return _binary("sub", rounding, ftz, a, b)


def mul(a: Array, b: Array, *, rounding: str = "rn", ftz: bool = True) -> Array:
    """`mul{.rnd}{.ftz}.f32`: a * b, rounded once."""
    return _binary("mul", rounding, ftz, a, b)


def fma(a: Array, b: Array, c: Array, *, rounding: str = "rn", ftz: bool = True) -> Array:
    """`fma.rnd{.ftz}.f32`: a * b + c, rounded once."""
    return canonical(_fma(a, b, c, rounding, ftz))


def _fma(a: Array, b: Array, c: Array, round_to: str, ftz: bool) -> Array:
    processor = environment.processor
    if round_to == "rn" and ftz and processor is not None:
        fused: Array = processor.run("rn", True, _fused_f32, a, b, c)
        return fused
    if ftz:
        a, b, c = (environment.flushed(x) for x in (a, b, c))
    if round_to == "rn":
        exact = rounding.fused(a, b, c, small=True)
        result = exact.astype(np.float32)
    else:
        exact = rounding.odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64), round_to)
        result = rounding.to_f32(exact, round_to)
    return rounding.flush_exact(result, exact, round_to) if ftz else result


def _fused_f32(a: Array, b: Array, c: Array) -> Array:
    """To be run with the processor flushing: conversions flush FP32 operands and results."""
    return rounding.fused(a, b, c, small=False).astype(np.float32)


def saturated(x: Array) -> Array:
    """`.sat`: clamped to [+0, 1]; NaN becomes +0."""
    return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0))


def _ordered(x: Array) -> Array:
    """Integers (int32) in the order of FP32 numbers, -0 below +0; NaN anywhere."""
    bits = x.view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def _extremum(larger: bool, a: Array, b: Array, ftz: bool, nan: bool) -> Array:
    if ftz:
        a, b = environment.flushed(a), environment.flushed(b)
    result = np.fmax(a, b) if larger else np.fmin(a, b)
    # What the processor leaves open: which zero it takes, and which NaN.
    zero = result == 0
    if zero.any():
        order = (np.maximum if larger else np.minimum)(_ordered(a), _ordered(b))
        signed = from_bits((order ^ ((order >> 31) & np.int32(0x7FFFFFFF))).view(np.uint32))
        result = np.where(zero & (a == a) & (b == b), signed, result)
    if nan:
        return canonical(np.where((a != a) | (b != b), np.float32(np.nan), result))
    return canonical(result)


def maximum(a: Array, b: Array, *, ftz: bool = True, nan: bool = False) -> Array:
    """`max{.ftz}{.NaN}.f32`: +0 is larger than -0. One NaN loses to a number, or wins with `nan`."""
    return _extremum(True, a, b, ftz, nan)


def minimum(a: Array, b: Array, *, ftz: bool = True, nan: bool = False) -> Array:
    """`min{.ftz}{.NaN}.f32`: -0 is smaller than +0. One NaN loses to a number, or wins with `nan`."""
    return _extremum(False, a, b, ftz, nan)


def negative(x: Array, *, ftz: bool = True) -> Array:
    """`neg{.ftz}.f32`."""
    return canonical(from_bits(bits_of(environment.flushed(x) if ftz else x) ^ SIGN))


def absolute(x: Array, *, ftz: bool = True) -> Array:
    """`abs{.ftz}.f32`."""
    return canonical(from_bits(bits_of(environment.flushed(x) if ftz else x) & MAGNITUDE))


def _number(a: Array, b: Array) -> Array:
    both: Array = (a == a) & (b == b)
    return both


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": lambda a, b: (a != b) & _number(a, b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "num": _number,
    # The unordered forms deny the opposite ordered ones, so that a NaN makes them true.
    "equ": lambda a, b: (a == b) | ~_number(a, b),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~np.greater_equal(a, b),
    "leu": lambda a, b: ~np.greater(a, b),
    "gtu": lambda a, b: ~np.less_equal(a, b),
    "geu": lambda a, b: ~np.less(a, b),
    "nan": lambda a, b: ~_number(a, b),
}
"""What `setp` knows of floats: the ordered comparisons are false with a NaN, the unordered (..u) true."""


def compare(how: str, a: Array, b: Array, *, ftz: bool = True) -> Array:
    """`setp.how{.ftz}.f32`: bool."""
    if ftz:
        a, b = environment.flushed(a), environment.flushed(b)
    return COMPARISONS[how](a, b)
