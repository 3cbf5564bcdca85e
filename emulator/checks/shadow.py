"""Shadow memory: for each 2 bytes of a region the last write, and the reads since.

Contract
    A granule is 2 aligned bytes. `stamps` holds the serial of the last write, 0 if there was none; bit 31
    marks writes that a barrier of the own CTA alone does not order (by other CTAs, and asynchronous ones),
    so that one comparison with the CTA's last barrier tells for nearly every access that it is in order. The
    codes above all serials mark granules in flight and mbarriers. `owners`: the writing thread, or what
    `clocks` says about writers below 0.

    Reads are written down when someone writes: until then an entry of a list is enough, and most are
    forgotten at the next barrier, or, where a CTA has peers, set aside for their writes, which the CTA's own
    barrier does not order. There is one slot a warp of the CTA, one more for readers of other CTAs; in
    global memory one for all. A slot keeps the last reader of each granule. Strong reads (ld.acquire,
    ld.relaxed, ld.volatile) are not kept.

    `strong`: scope of the last write if it was strong, and its width, as `strong_code` has them. `constant`:
    serial of the last ld.global.nc, 0 if there was none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.arrays import Array, sparse
from emulator.wave.regions import Region

GRANULE = 2
FOREIGN = np.uint32(1 << 31)
SERIAL = np.uint32((1 << 31) - 1)
IN_FLIGHT = np.uint32(0xFFFFFFFF)
MBARRIER = np.uint32(0xFFFFFFFE)

_LOG_LIMIT = 4_000_000
"""Reads in the list before they are written down anyway, or forgotten if nobody writes to the region."""


def strong_code(wide: int, word: int) -> int:
    """The scope and the bytes a word of a strong access in one number; 0 for a weak one (wide 0)."""
    return wide | word << 4 if wide else 0


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
    """A read in the list. slots: of each element, or of all; foreign: some are of other CTAs' threads.

    reach: what `Shadow._reach` says of it, once somebody has asked.
    """

    serial: int
    rows: Rows
    threads: Array
    slots: Array | int
    foreign: bool
    reach: tuple[int, int] | None = None


class Shadow:
    """The shadow of one region.

    unwritten: whether its bytes count as never written at first. slots: of readers. window: bytes of a CTA in
    the region of all CTAs, 0 for memory that is not divided. peers: whether other CTAs may write there.
    """

    def __init__(self, region: Region, unwritten: bool, slots: int, window: int = 0, peers: bool = False):
        self.region = region
        self._window = window
        self.unwritten = unwritten
        # Accesses are aligned as addresses, which need not be multiples of 16 where the region begins.
        self.shift = 0 if window else region.base % 16
        count = -(-(region.nbytes + self.shift) // 16) * 8
        self.count = count
        self.stamps: Array | None = None
        self.owners: Array | None = None
        self.strong: Array | None = None
        self.constant: Array | None = None
        if unwritten:
            self.materialise()
        self._reads: list[_Read] = []
        self._logged = 0
        self._peers = peers
        self._aside: list[_Read] = []
        self._foreign = False
        self._slots: list[tuple[Array, Array] | None] = [None] * slots
        self._high = [0] * slots

    def materialise(self) -> None:
        """Make the tables; a region that is never written needs none."""
        if self.stamps is None:
            self.stamps = sparse(self.count, np.uint32)
            self.owners = sparse(self.count, np.int32)

    def take(self, table: Array | None, rows: Rows) -> Array:
        """A table's values [rows, width]; the table has to be there."""
        assert table is not None
        return np.take(table.reshape(-1, rows.width), rows.index, axis=0)

    def put(self, table: Array | None, rows: Rows, values: Any) -> None:
        """Set a table's values: one for all, or one a row."""
        assert table is not None
        if rows.width == 1:
            table[rows.index] = values
            return
        # Two or four granules at once: whole rows are several times slower. A complex number is only a word
        # of 16 bytes here.
        each, word = (4, np.complex128) if rows.width % 4 == 0 else (2, np.uint64)
        words = table.view(word)
        value = np.repeat(np.asarray(values, table.dtype).reshape(-1, 1), each, axis=1).view(word)[:, 0]
        count = rows.width // each
        first = rows.index * count if count > 1 else rows.index
        for i in range(count):
            words[first + i if i else first] = value if np.ndim(values) else value[0]

    # ---- reads -------------------------------------------------------------------------------------

    def log_read(self, serial: int, rows: Rows, threads: Array, slots: Array | int) -> None:
        """Remember a read by these threads, one an element."""
        last = len(self._slots) - 1
        foreign = slots == last if isinstance(slots, int) else bool((slots == last).any())
        self._reads.append(_Read(serial, rows, threads, slots, foreign))
        self._foreign |= foreign
        self._logged += len(rows.index)
        if self._logged > _LOG_LIMIT:
            if self.stamps is None:
                # An input, most likely: it may be huge, and tables for it too.
                self._reads = self._reads[len(self._reads) // 2 :]
                self._logged = sum(len(read.rows.index) for read in self._reads)
            else:
                self._write_down(0, None)

    def _reach(self, rows: Rows) -> tuple[int, int]:
        """The first and the last granule that some rows touch, within a CTA's window."""
        first = rows.index * rows.width
        if self._window:
            first = first % (self._window // GRANULE)
        return int(first.min()), int(first.max()) + rows.width - 1

    def _write_down(self, floor: int, near: tuple[int, int] | None) -> None:
        """Write reads from the list into the slots: those near some granules, None for all.

        Those up to serial `floor` are ordered before any access of their CTA by now and are forgotten or set
        aside, but for readers of other CTAs.
        """
        reads = [read for read in self._reads if read.serial > floor or read.foreign]
        if self._peers and len(reads) < len(self._reads):
            self._aside += [read for read in self._reads if read.serial <= floor and not read.foreign]
            if sum(len(read.rows.index) for read in self._aside) > _LOG_LIMIT:
                self._recall(None)
        chosen = reads if near is None else self._near(reads, near)
        # In order, and all that overlap together, so that a slot ends with the last reader.
        for read in chosen:
            self._put_read(read)
        taken = {id(read) for read in chosen}
        self._reads = [read for read in reads if id(read) not in taken]
        self._logged = sum(len(read.rows.index) for read in self._reads)

    def _recall(self, near: tuple[int, int] | None) -> None:
        """Write down reads that were set aside: those that reach some granules, None for all."""
        left = []
        for read in self._aside:
            read.reach = read.reach or self._reach(read.rows)
            if near is None or (read.reach[0] <= near[1] and read.reach[1] >= near[0]):
                self._put_read(read, late=True)
            else:
                left.append(read)
        self._aside = left

    def _near(self, reads: list[_Read], near: tuple[int, int]) -> list[_Read]:
        """Those that reach some granules, or what others of them reach."""
        low, high = near
        count = -1
        found: list[_Read] = []
        while len(found) > count:
            count, found = len(found), []
            for read in reads:
                read.reach = read.reach or self._reach(read.rows)
                if read.reach[0] <= high and read.reach[1] >= low:
                    found.append(read)
            low = min([low, *(read.reach[0] for read in found if read.reach)])
            high = max([high, *(read.reach[1] for read in found if read.reach)])
        return found

    def _put_read(self, read: _Read, late: bool = False) -> None:
        """Write a read into its slots. late: where the slot has no later one."""
        slots = None if isinstance(read.slots, int) else read.rows.of_elements(read.slots)
        threads = read.rows.of_elements(read.threads)
        present = [read.slots] if slots is None else np.flatnonzero(np.bincount(slots)).tolist()
        for slot in present:
            entry = self._slots[slot]
            if entry is None:
                entry = self._slots[slot] = (sparse(self.count, np.uint32), sparse(self.count, np.int32))
            which = slice(None) if slots is None else slots == slot
            part, readers = Rows(read.rows.index[which], read.rows.width, None), threads[which]
            if late:
                index = (part.index[:, None] * part.width + np.arange(part.width)).ravel()
                last = entry[0][index] <= read.serial
                part, readers = Rows(index[last], 1, None), np.repeat(readers, part.width)[last]
            self.put(entry[0], part, read.serial)
            self.put(entry[1], part, readers)
            self._high[slot] = max(self._high[slot], read.serial)

    def readers(
        self, rows: Rows, thresholds: Array, floor: int, lowest: int, away: bool = False
    ) -> list[tuple[Array, Array, Array]]:
        """Reads of these rows that a barrier does not order: (row, reader, serial) of each, by slot.

        thresholds: of each row, the serial up to which reads of the own CTA are in order. floor: the least of
        any warp of the wave; lowest: of the thresholds. away: whether some rows are another CTA's.
        """
        if not self._reads and not self._aside and not any(self._high):
            return []
        if self._reads and (self._foreign or self._reads[-1].serial > min(floor, lowest)):
            self._write_down(floor, self._reach(rows))
        if away and self._aside:
            self._recall(self._reach(rows))
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
