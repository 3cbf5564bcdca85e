"""The processor's own flushing and directed rounding, where they can be had, and bits of floats.

NumPy's arithmetic obeys the x86 control register MXCSR. Setting its FTZ, DAZ and rounding bits around an
operation costs under 2 µs; doing the same in software costs some 20 µs at 8,192 threads. glibc's `fesetenv`
is the way there from Python. Elsewhere, or with `STAGEWRIGHT_SOFTWARE_FLUSH=1`, everything is done in
software, with the same bits.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.arrays import Array

CANONICAL_NAN = np.uint32(0x7FFFFFFF)
"""What the device's FP32 arithmetic gives for every NaN."""

SIGN = np.uint32(0x80000000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
SMALLEST_NORMAL = np.uint32(0x00800000)
TINY = np.float32(2.0**-126)
"""The smallest normal FP32 number."""

ROUNDINGS = {"rn": 0x0000, "rm": 0x2000, "rp": 0x4000, "rz": 0x6000}
"""PTX's rounding modifiers and MXCSR's rounding bits."""

_FLUSH = 0x8040  # FTZ: results; DAZ: operands
_MXCSR_WORD = 7  # of fenv_t on x86-64 glibc: 28 bytes of x87 state come first
_Environment = ctypes.c_uint32 * 8


class Processor:
    """MXCSR by way of the C library. Raises OSError where that is not possible."""

    def __init__(self) -> None:
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise OSError("only known on x86-64 Linux")
        library = ctypes.CDLL("libm.so.6")
        self._get, self._set = library.fegetenv, library.fesetenv
        for function in (self._get, self._set):
            function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
        plain = _Environment()
        self._get(plain)
        self._wanted: dict[tuple[str, bool], Any] = {}
        for rounding, bits in ROUNDINGS.items():
            for flush in (False, True):
                wanted = _Environment(*plain)
                wanted[_MXCSR_WORD] = plain[_MXCSR_WORD] & ~(0x6000 | _FLUSH) | bits | (_FLUSH * flush)
                self._wanted[rounding, flush] = wanted
        self._check()

    def run(self, rounding: str, flush: bool, operation: Callable[..., Any], *operands: Any) -> Any:
        """operation(*operands) with this rounding and flushing; whatever was set before is set again."""
        before = _Environment()
        self._get(before)
        self._set(self._wanted[rounding, flush])
        try:
            return operation(*operands)
        finally:
            self._set(before)

    def _check(self) -> None:
        """Raise OSError unless NumPy obeys: vectors long enough for every SIMD path, and single numbers."""
        third, tiny = np.full(67, 1 / 3, np.float32), np.full(67, 1e-40, np.float32)
        exact = np.float64(third) * np.float64(third)
        up, down = (np.float64(self.run(r, False, np.multiply, third, third)) for r in ("rp", "rm"))
        if not (np.all(up > exact) and np.all(down < exact)):
            raise OSError("rounding does not obey MXCSR")
        for operation, other in ((np.multiply, np.float32(1.0)), (np.add, np.float32(0.0))):
            if self.run("rn", True, operation, tiny, other).any():
                raise OSError("flushing does not obey MXCSR")
        if not np.multiply(tiny, np.float32(1.0)).all():
            raise OSError("MXCSR was not restored")


def _find_processor() -> Processor | None:
    if os.environ.get("STAGEWRIGHT_SOFTWARE_FLUSH") == "1":
        return None
    try:
        return Processor()
    except (OSError, AttributeError):
        return None


processor: Processor | None = _find_processor()
"""None where everything is done in software."""


def bits_of(x: Array) -> Array:
    """The bits of FP32 numbers (uint32), without a copy."""
    return x.view(np.uint32)


def from_bits(bits: Array) -> Array:
    """FP32 numbers with these bits (uint32), without a copy."""
    return bits.view(np.float32)


_ONE = np.float32(1)


def flushed(x: Array) -> Array:
    """FP32 numbers with subnormals replaced by zeros of their sign; the bits of a NaN may change."""
    if processor is not None:
        product: Array = processor.run("rn", True, np.multiply, x, _ONE)
        return product
    bits = bits_of(x)
    small = (bits & MAGNITUDE) < SMALLEST_NORMAL
    return from_bits(np.where(small, bits & SIGN, bits)) if small.any() else x


def canonical(x: Array) -> Array:
    """FP32 numbers with every NaN replaced by the canonical one."""
    nan = x != x
    return from_bits(np.where(nan, CANONICAL_NAN, bits_of(x))) if nan.any() else x
