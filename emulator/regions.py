"""Pieces of memory and the arguments of a launch that become them.

Contract
    A `Region` is bytes with an address. Buffers given to a launch keep their alignment, lie far from each
    other and far above 2^32, and straddle a multiple of 2^32, so that an address cut to 32 bits or a carry
    that is lost misses all of them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np

from emulator.interface import Array, LaunchError

GUARD_SHIFT = 44
"""Buffers are a multiple of 2^44 bytes apart."""


class Region:
    """Bytes at an address.

    data: uint8 [bytes], the caller's own memory for buffers. base: the address of byte 0. writable: whether
    the kernel may store to it.
    """

    __slots__ = ("_views", "base", "data", "name", "nbytes", "space", "writable")

    def __init__(self, name: str, space: str, base: int, data: Array, writable: bool = True):
        self.name = name
        self.space = space
        self.base = base
        self.data = data
        self.nbytes = len(data)
        self.writable = writable
        self._views: dict[int, Array] = {}

    def words(self, size: int) -> Array:
        """The bytes as unsigned words of 1, 2, 4 or 8 bytes; what is left at the end is cut off."""
        view = self._views.get(size)
        if view is None:
            whole = self.data[: self.nbytes // size * size]
            view = self._views[size] = whole.view(f"u{size}")
        return view


def sparse(count: int, dtype: Any = np.uint8) -> Array:
    """`count` zeros that take memory only where they are written: for buffers of many GiB."""
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(1, count * itemsize)), dtype, count)


def place(number: int, name: str, data: Array, writable: bool, misaligned: int = 0) -> Region:
    """The region of the launch's buffer `number` (0, 1, ...); `misaligned`: its address modulo 256."""
    half = min(len(data) // 2, 1 << 31) & ~255
    base = ((number + 1) << GUARD_SHIFT) + (1 << 32) - half + misaligned
    return Region(name, "global", base, data, writable)


def is_array(argument: Any) -> bool:
    """Whether an argument is memory: a NumPy array or a torch tensor."""
    return isinstance(argument, np.ndarray) or hasattr(argument, "untyped_storage")


def extent(argument: Any, name: str) -> tuple[Array, int, bool, int]:
    """The memory of an array, strided or not, from its first to its last byte.

    Returns (uint8 [bytes], byte of the first element in it, writable, address modulo 256). Raises
    LaunchError for what is not in the CPU's memory.
    """
    if isinstance(argument, np.ndarray):
        return _numpy_extent(argument)
    if argument.device.type != "cpu":
        raise LaunchError(f"{name} is on {argument.device}; the emulator takes tensors on the CPU")
    torch = sys.modules["torch"]
    storage = torch.empty(0, dtype=torch.uint8).set_(argument.untyped_storage()).numpy()
    size = argument.element_size()
    first = argument.storage_offset() * size
    last = first
    if argument.numel():
        steps = zip(argument.shape, argument.stride(), strict=True)
        last += size * (1 + sum((n - 1) * stride for n, stride in steps))
    return storage[first:last], 0, True, first & 255


def _numpy_extent(array: Array) -> tuple[Array, int, bool, int]:
    writable = bool(array.flags.writeable)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if array.flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        return data, 0, writable, (array.ctypes.data - owner.ctypes.data) & 255
    low, high = np.lib.array_utils.byte_bounds(array)
    data = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    return data, array.ctypes.data - low, writable, (low - owner.ctypes.data) & 255
