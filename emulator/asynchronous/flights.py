"""Asynchronous writes between their issue and their landing.

Contract
    A `Flight` is what one instruction issued: one write an element, all of one size. It holds the values, or
    where they are to be read when they land. `land` moves bytes and does nothing else: who completes what,
    and who is told, is the engine's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from emulator.arrays import Array
from emulator.ptx.instruction import Instruction
from emulator.wave.regions import Region
from emulator.wave.threads import Group

POISON = 0xFF
"""What destinations hold in flight: NaN in every floating-point type, and no address."""


@dataclass
class Flight:
    """Asynchronous writes of one instruction, element by element.

    kind: "st.async", "cp.async" or "bulk". group: the issuing threads; a thread may occur several times.
    space: "shared" or "global", of the destination. region, offsets, size: the destination, in bytes.
    values: uint8 [n, size], or None: then they are the first `source_bytes` bytes from `source_offsets` in
    `source`, and zeros behind. barriers: numbers of the mbarriers on which the bytes complete, or None.
    turns: number of the thread's cp.async or bulk group, or None. serial: in order of issue, set by the
    engine.
    """

    kind: str
    group: Group
    instruction: Instruction
    space: str
    region: Region
    offsets: Array
    size: int
    values: Array | None = None
    source: Region | None = None
    source_offsets: Array | None = None
    source_bytes: Array | None = None
    barriers: Array | None = None
    turns: Array | None = None
    serial: int = field(init=False)
    left: Array = field(init=False)
    """Which elements are still in flight."""
    open: Array = field(init=False)
    """Which elements nobody has waited for: those in flight, and cp.async that landed before its wait."""

    def __post_init__(self) -> None:
        self.left = np.ones(len(self.offsets), bool)
        self.open = np.ones(len(self.offsets), bool)

    def poison(self) -> None:
        """Make the destination useless until the bytes land."""
        self._write(self.offsets, np.full((len(self.offsets), self.size), POISON, np.uint8))

    def land(self, which: Array) -> None:
        """Move the bytes of these elements (bool), and strike them off."""
        self._write(self.offsets[which], self._read(which))
        self.left &= ~which

    def _read(self, which: Array) -> Array:
        if self.values is not None:
            return self.values[which]
        assert self.source_offsets is not None and self.source_bytes is not None
        offsets, valid = self.source_offsets[which], self.source_bytes[which]
        found = np.zeros((len(offsets), self.size), np.uint8)
        for size in sorted(set(valid.tolist()) - {0}):
            assert self.source is not None
            rows = valid == size
            found[rows, :size] = _gather(self.source.data, offsets[rows], size)
        return found

    def _write(self, offsets: Array, values: Array) -> None:
        words, first = _words(self.region.data, offsets, self.size)
        rows = np.ascontiguousarray(values).view(words.dtype)
        for i in range(rows.shape[1]):
            words[first + i] = rows[:, i]


def _words(data: Array, offsets: Array, size: int) -> tuple[Array, Array]:
    """Memory as the widest words in which `size` bytes at these offsets are whole, and where they begin."""
    # Where a region begins inside a word, aligned addresses are odd offsets.
    width = math.gcd(8, size, int(np.bitwise_or.reduce(offsets, initial=0)))
    words = data[: data.size // width * width].view(f"u{width}")
    return words, offsets // width


def _gather(data: Array, offsets: Array, size: int) -> Array:
    """Bytes [n, size] at these offsets."""
    words, first = _words(data, offsets, size)
    rows = np.empty((len(offsets), size // words.dtype.itemsize), words.dtype)
    for i in range(rows.shape[1]):
        rows[:, i] = words[first + i]
    return rows.view(np.uint8)


@dataclass(frozen=True)
class Part:
    """Some elements of a flight, as observers get them."""

    flight: Flight
    which: Array
    """Their indices."""

    @property
    def group(self) -> Group:
        """The threads that issued them."""
        return Group(self.flight.group.geometry, self.flight.group.threads[self.which])

    @property
    def offsets(self) -> Array:
        """Where they write, in `flight.region`."""
        return self.flight.offsets[self.which]

    @property
    def barriers(self) -> Array | None:
        """Their mbarriers' numbers."""
        return None if self.flight.barriers is None else self.flight.barriers[self.which]
