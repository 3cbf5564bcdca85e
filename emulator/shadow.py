"""What is known about each 2 bytes of a region: who wrote them last and when, who has read them since.

Contract
    A granule is 2 aligned bytes. `stamps` holds the serial of the last write, 0 if there was none; bit 31 marks
    writes that a barrier of the own CTA alone does not order (by other CTAs, and asynchronous ones), so
    that one comparison with the CTA's last barrier tells for nearly every access that it is in order. The
    codes above all serials mark granules in flight and mbarriers. `owners`: the writing thread, or what
    `clocks` says about writers below 0.

    Reads are written down when someone writes: until then an entry of a list is enough, and most are
    forgotten at the next barrier. There is one slot a warp of the CTA, one more for readers of other CTAs; in
    global memory one for all. A slot keeps the last reader of each granule. Strong reads (ld.acquire,
    ld.relaxed, ld.volatile) are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.interface import Array
from emulator.regions import sparse

GRANULE = 2
FOREIGN = np.uint32(1 << 31)
SERIAL = np.uint32((1 << 31) - 1)
IN_FLIGHT = np.uint32(0xFFFFFFFF)
MBARRIER = np.uint32(0xFFFFFFFE)

_LOG_LIMIT = 4_000_000
"""Threads' reads in the list before they are written down anyway."""


@dataclass
class Rows:
    """The granules of some accesses: row i of a table with `width` columns is what element i touches."""

    index: Array
    width: int
    element: Array | None
    """The access's element of each row, None if there is one row an element."""

    @classmethod
    def of(cls, offsets: Array, size: int) -> Rows:
        """Those of accesses of `size` bytes; bytes count as the granule that they are in."""
        if size <= 2:
            return cls(offsets >> 1, 1, None)
        if size in (4, 8, 16):
            return cls(offsets >> (size.bit_length() - 1), size // 2, None)
        # Copies of other sizes, by their granules.
        count = -(-size // 2)
        index = (offsets[:, None] // 2 + np.arange(count)).ravel()
        return cls(index, 1, np.repeat(np.arange(len(offsets)), count))

    def of_elements(self, values: Array) -> Array:
        """A value an element as a value a row."""
        return values if self.element is None else values[self.element]


@dataclass
class _Read:
    serial: int
    rows: Rows
    threads: Array
    slots: Array | int


class Shadow:
    """The shadow of one region. unwritten: whether its bytes count as never written at first."""

    def __init__(self, region: Any, unwritten: bool, slots: int):
        self.region = region
        self.unwritten = unwritten
        count = -(-region.nbytes // 16) * 8
        self.count = count
        self.stamps: Array | None = None
        self.owners: Array | None = None
        self.strong: Array | None = None
        if unwritten:
            self.materialise()
        self._reads: list[_Read] = []
        self._logged = 0
        self._foreign = False
        self._slots: list[tuple[Array, Array] | None] = [None] * slots
        self._high = [0] * slots

    def materialise(self) -> None:
        """Make the tables; a region that is never written needs none."""
        if self.stamps is None:
            self.stamps = sparse(self.count, np.uint32)
            self.owners = sparse(self.count, np.int32)

    def take(self, table: Array, rows: Rows) -> Array:
        """A table's values [rows, width]."""
        return np.take(table.reshape(-1, rows.width), rows.index, axis=0)

    def put(self, table: Array, rows: Rows, values: Any) -> None:
        """Set a table's values: one for all, or one a row."""
        if rows.width == 1:
            table[rows.index] = values
            return
        # Pairs of granules at once: whole rows are several times slower.
        pairs = table.view(np.uint64)
        value = np.asarray(values, table.dtype)
        twice = np.repeat(value.reshape(-1, 1), 2, axis=1).view(np.uint64)[:, 0]
        first = rows.index * (rows.width // 2)
        for i in range(rows.width // 2):
            pairs[first + i] = twice if value.ndim else twice[0]

    # ---- reads -------------------------------------------------------------------------------------

    def log_read(self, serial: int, rows: Rows, threads: Array, slots: Array | int) -> None:
        """Remember a read by these threads, one an element."""
        self._reads.append(_Read(serial, rows, threads, slots))
        self._logged += len(rows.index)
        foreign = len(self._slots) - 1
        self._foreign |= slots == foreign if isinstance(slots, int) else bool((slots == foreign).any())
        if self._logged > _LOG_LIMIT:
            self._write_down(0)

    def _write_down(self, floor: int) -> None:
        """Write the list into the slots, but for what is ordered before any access of its CTA by now."""
        foreign = len(self._slots) - 1
        for read in self._reads:
            if read.serial <= floor and not isinstance(read.slots, int):
                keep = read.slots == foreign
                if not keep.any():
                    continue
            slots = read.rows.of_elements(read.slots) if not isinstance(read.slots, int) else None
            threads = read.rows.of_elements(read.threads)
            present = [read.slots] if slots is None else np.flatnonzero(np.bincount(slots)).tolist()
            for slot in present:
                entry = self._slots[slot]
                if entry is None:
                    entry = self._slots[slot] = (sparse(self.count, np.uint32), sparse(self.count, np.int32))
                which = slice(None) if slots is None else slots == slot
                part = Rows(read.rows.index[which], read.rows.width, None)
                self.put(entry[0], part, read.serial)
                self.put(entry[1], part, threads[which])
                self._high[slot] = read.serial
        self._reads.clear()
        self._logged, self._foreign = 0, False

    def readers(
        self, rows: Rows, thresholds: Array, floor: int, lowest: int
    ) -> list[tuple[Array, Array, Array]]:
        """Reads of these rows that a barrier does not order: (row, reader, serial) of each, by slot.

        thresholds: of each row, the serial up to which reads of the own CTA are in order. floor: the least of
        any warp of the wave; lowest: of the thresholds.
        """
        if not self._reads and not any(self._high):
            return []
        if self._reads and (self._foreign or self._reads[-1].serial > min(floor, lowest)):
            self._write_down(floor)
        found = []
        foreign = len(self._slots) - 1
        for slot, entry in enumerate(self._slots):
            if entry is None or (slot != foreign and self._high[slot] <= lowest):
                continue
            stamps = self.take(entry[0], rows)
            bound = np.uint32(0) if slot == foreign else thresholds.astype(np.uint32)[:, None]
            hit = stamps > bound
            if not hit.any():
                continue
            readers = self.take(entry[1], rows)
            row, column = collapse(hit, stamps, readers)
            found.append((row, readers[row, column], stamps[row, column]))
        return found


def collapse(hit: Array, *tables: Array) -> tuple[Array, Array]:
    """Which (row, column) to look at: one a row where a row's hits are all alike."""
    if hit.shape[1] > 1 and hit.all() and all((table == table[:, :1]).all() for table in tables):
        rows = np.arange(len(hit))
        return rows, np.zeros_like(rows)
    row, column = np.nonzero(hit)
    return row, column
