"""Tensor maps: what the host tells the tensor copies about an array, and the memory that stands for one.

Contract
    `TensorMap` is an argument of a launch; the kernel gets the address of 128 bytes of global memory, which
    only tensor copies understand. Covered are tiled maps without interleaving, of steps of one element, that
    fill with zeros. What the driver's encoding refuses is a LaunchError, and so is an array that is too
    small.

Source: CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.errors import LaunchError
from emulator.wave.regions import Region

MAP_BYTES = 128
"""Bytes of a tensor map in memory."""


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tiled tensor map, in the order of the driver: the innermost dimension first.

    array: NumPy array or CPU tensor, whose first element is the tensor's and whose element size is its. dims:
    elements. strides: bytes, of all dimensions but the first. box: elements that a copy brings. swizzle: 0,
    32, 64 or 128 bytes.
    """

    array: Any
    dims: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    swizzle: int = 0

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return int(self.array.dtype.itemsize)

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy brings, those that are filled in too."""
        return self.element * int(np.prod(self.box))

    def check(self, name: str) -> None:
        """Raise LaunchError for what cannot be encoded, or is not covered."""

        def refuse(why: str) -> None:
            raise LaunchError(f"{name}: a tensor map {why}")

        rank = len(self.dims)
        if not 1 <= rank <= 5 or len(self.strides) != rank - 1 or len(self.box) != rank:
            refuse(f"of {rank} dims, {len(self.strides)} strides, a box of {len(self.box)}")
        if self.element not in (1, 2, 4, 8):
            refuse(f"of elements of {self.element} bytes")
        if not all(1 <= dim <= 1 << 32 for dim in self.dims):
            refuse(f"with dims {tuple(self.dims)}, not all from 1 to 2^32")
        if not all(stride % 16 == 0 and 0 < stride < 1 << 40 for stride in self.strides):
            refuse(f"with strides {tuple(self.strides)}, not all multiples of 16 below 2^40")
        if not all(1 <= extent <= 256 for extent in self.box):
            refuse(f"with a box {tuple(self.box)}, not all from 1 to 256")
        row = self.box[0] * self.element
        if row % 16:
            refuse(f"with rows of {row} bytes in its box, no multiple of 16")
        if self.swizzle not in (0, 32, 64, 128):
            refuse(f"with a swizzle of {self.swizzle} bytes")
        if self.swizzle and row != self.swizzle:
            refuse(f"with rows of {row} bytes in its box, which is only covered as wide as its swizzle")

    def reach(self) -> int:
        """Bytes from the tensor's first to its last."""
        steps = (self.element, *self.strides)
        return self.element + sum((dim - 1) * step for dim, step in zip(self.dims, steps, strict=True))


class TensorMapRegion(Region):
    """The memory of a tensor map. tensor: the region of its array; first: the byte there of its first."""

    __slots__ = ("first", "map", "tensor")

    def __init__(self, name: str, base: int, tensor_map: TensorMap, tensor: Region, first: int):
        super().__init__(name, "global", base, np.zeros(MAP_BYTES, np.uint8), writable=False)
        self.map = tensor_map
        self.tensor = tensor
        self.first = first
