"""Regions: bytes of global, shared or local memory with the address of the first."""

from __future__ import annotations

from emulator.arrays import Array


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
