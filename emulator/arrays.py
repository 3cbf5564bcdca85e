"""The type of the emulator's arrays, and arrays that take memory only where they are written."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""A NumPy array. What its elements are, where that is fixed, is said beside it."""


def sparse(count: int, dtype: Any = np.uint8) -> Array:
    """`count` zeros that take memory only where they are written: for buffers of many GiB."""
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(1, count * itemsize)), dtype, count)
