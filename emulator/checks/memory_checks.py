"""The checker's rules for one access: written, not in flight, ordered behind what it collides with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from emulator.arrays import Array, sparse
from emulator.asynchronous.engine import engine
from emulator.asynchronous.flights import Flight
from emulator.checks.clock_row import EARLIER_WAVE
from emulator.checks.faults import Faults
from emulator.checks.matrix_reads import MatrixReads
from emulator.checks.ordering import Ordering
from emulator.checks.scopes import CLUSTER, CTA
from emulator.checks.shadow import FOREIGN, MBARRIER, SERIAL, Rows, Shadow, collapse, strong_code
from emulator.checks.touch import Touch
from emulator.ptx.instruction import Instruction
from emulator.wave.regions import Region
from emulator.wave.threads import Group


class MemoryChecks:
    """The shadows of all memory. earlier: how many threads earlier waves had; they are numbered before."""

    def __init__(self, unwritten: Iterable[str]):
        self._unwritten = frozenset(unwritten)
        self._shadows: dict[str, Shadow] = {}
        self._ran = 0
        self.earlier = 0

    def begin(self, ordering: Ordering, faults: Faults) -> None:
        """Another wave: shared memory is unwritten again."""
        self._ordering, self._faults = ordering, faults
        self._clocks, self._machine = ordering.clocks, ordering.machine
        self._geometry = ordering.geometry
        self.earlier, self._ran = self._ran, self._ran + self._geometry.thread_count
        slots = self._clocks.per_cta + 1
        peers = self._geometry.cluster_size > 1
        self.shared = Shadow(self._machine.shared, True, slots, self._machine.shared_window, peers)
        self.matrix_reads = MatrixReads(self._geometry, faults)

    def shadow(self, region: Region) -> Shadow:
        """The shadow of a region."""
        if region.space == "shared":
            return self.shared
        found = self._shadows.get(region.name)
        if found is None:
            found = self._shadows[region.name] = Shadow(region, region.name in self._unwritten, 1)
        return found

    def touch(
        self, region: Region, offsets: Array, size: int, group: Group, instruction: Instruction, wide: int = 0
    ) -> Touch:
        """An access to a region."""
        shadow = self.shadow(region)
        rows = Rows.of(offsets + shadow.shift if shadow.shift else offsets, size)
        touch = Touch(shadow, rows, group, instruction, wide)
        if shadow is self.shared and self._geometry.cluster_size > 1:
            own = instruction.has("shared", "shared::cta") and not instruction.has("shared::cluster")
            away = None if own else offsets // self._machine.shared_window != group.cta
            touch.away = away if away is not None and away.any() else None
        return touch

    def _numbered(self, shadow: Shadow, threads: Array) -> Array:
        """Threads as owners in a shadow: global memory outlives the wave."""
        return threads if shadow is self.shared else threads + self.earlier

    def _present(self, shadow: Shadow, owners: Array) -> Array:
        """Owners as threads of this wave, or what is below 0."""
        owners = owners.astype(np.int64)
        if shadow is self.shared or not self.earlier:
            return owners
        return np.where(owners >= self.earlier, owners - self.earlier, EARLIER_WAVE)

    # ---- reads and writes --------------------------------------------------------------------------

    def check_read(self, touch: Touch) -> None:
        """Raise unless all has been written, and every write is ordered before."""
        shadow = touch.shadow
        if shadow.stamps is None:
            return
        stamps = shadow.take(shadow.stamps, touch.rows)
        # The barriers of a CTA say nothing of what it reads in a peer's memory.
        floor = 0 if touch.away is not None else self._floor(shadow)
        if int(stamps.max()) <= floor and not (shadow.unwritten and int(stamps.min()) == 0):
            return
        if shadow.unwritten and not stamps.all():
            row, column = (int(each[0]) for each in np.nonzero(stamps == 0))
            self._faults.unwritten(touch, row, column)
        if touch.instruction.has("nc"):
            row, column = (int(each[0]) for each in np.nonzero(stamps))
            other = int(self._present(shadow, shadow.take(shadow.owners, touch.rows)[row, column]))
            self._faults.constant_read(touch, row, column, other, int(stamps[row, column] & SERIAL))
        self._compare(touch, stamps, self._bounds(touch), "read")

    def log_read(self, touch: Touch, now: int) -> None:
        """Remember a read, for those who write there later."""
        shadow, group = touch.shadow, touch.group
        slots: Array | int = 0
        if shadow is self.shared:
            slots = group.warp % self._clocks.per_cta
            if touch.away is not None:
                slots = np.where(touch.away, self._clocks.per_cta, slots)
        shadow.log_read(now, touch.rows, self._numbered(shadow, group.threads), slots)
        if touch.instruction.has("nc"):
            if shadow.constant is None:
                shadow.constant = sparse(shadow.count, np.uint32)
            shadow.put(shadow.constant, touch.rows, np.uint32(now))

    def check_write(self, touch: Touch) -> None:
        """Raise unless every earlier write and read is ordered before."""
        shadow, bounds = touch.shadow, self._bounds(touch)
        lowest = int(bounds.min())
        if shadow.stamps is not None:
            stamps = shadow.take(shadow.stamps, touch.rows)
            if int(stamps.max()) > lowest:
                self._compare(touch, stamps, bounds, "write")
        if shadow.constant is not None:
            constant = shadow.take(shadow.constant, touch.rows)
            if constant.any():
                first, column = (int(each[0]) for each in np.nonzero(constant))
                self._faults.constant_write(touch, first, column, int(constant[first, column]))
        away = touch.away is not None
        for row, readers, serials in shadow.readers(touch.rows, bounds, self._floor(shadow), lowest, away):
            serials, readers = serials.astype(np.int64), self._present(shadow, readers)
            ok = self._clocks.ordered(touch.threads[row], readers, serials)
            if not ok.all():
                at = int(np.flatnonzero(~ok)[0])
                who, when = int(readers[at]), int(serials[at])
                self._faults.race(touch, int(row[at]), 0, "write", "read", who, when)
        if shadow is self.shared:
            self._check_sources(touch)
            self.matrix_reads.check_write(touch)

    def _check_sources(self, touch: Touch) -> None:
        """Raise if this overwrites what a bulk copy has still to read."""
        for flight in engine(self._machine).flights:
            if flight.source is not self.shared.region or flight.source_offsets is None:
                continue
            # Pieces of such copies are 16 bytes.
            pieces = flight.source_offsets[flight.left] // 16
            hit = np.isin(touch.rows.index * touch.rows.width * 2 // 16, pieces)
            if hit.any():
                self._faults.source(touch, int(np.flatnonzero(hit)[0]), flight)

    def check_each_other(self, touch: Touch, now: int) -> None:
        """Raise if warps wrote to one place in the instruction whose writers have just been noted."""
        shadow = touch.shadow
        found = shadow.take(shadow.owners, touch.rows)
        mine = self._numbered(shadow, touch.threads).astype(np.int32)
        if (found == mine[:, None]).all():
            return
        owners, threads = self._present(shadow, found), touch.threads[:, None]
        row, column = np.nonzero(self._geometry.warp_of[owners] != self._geometry.warp_of[threads])
        if len(row):
            other = int(owners[row[0], column[0]])
            self._faults.race(touch, int(row[0]), int(column[0]), "write", "written", other, now)

    def _floor(self, shadow: Shadow) -> int:
        """The serial up to which every CTA's last barrier orders what the CTA did."""
        return int(self._clocks.horizon.min()) if shadow is self.shared else 0

    def _bounds(self, touch: Touch) -> Array:
        """Of each row, the serial up to which its CTA's last barrier orders everything."""
        if touch.shadow is not self.shared:
            return np.zeros(len(touch.rows.index), np.int64)
        bounds = self._clocks.horizon[touch.group.warp].astype(np.int64)
        if touch.away is not None:
            bounds[touch.away] = 0
        return touch.rows.of_elements(bounds)

    def _compare(self, touch: Touch, stamps: Array, bounds: Array, what: str) -> None:
        """Raise unless the last writes of these rows are ordered before the access."""
        hit = stamps > bounds.astype(np.uint32)[:, None]
        if not hit.any():
            return
        shadow = touch.shadow
        owners = shadow.take(shadow.owners, touch.rows)
        row, column = collapse(hit, stamps, owners)
        stamp, owner = stamps[row, column], self._present(shadow, owners[row, column])
        if (stamp >= MBARRIER).any():
            at = int(np.flatnonzero(stamp >= MBARRIER)[0])
            self._faults.code(touch, int(row[at]), int(column[at]), int(stamp[at]), int(owner[at]), what)
        serials = (stamp & SERIAL).astype(np.int64)
        ok = self._clocks.ordered(touch.threads[row], owner, serials)
        if not ok.all() and touch.wide and shadow.strong is not None:
            strong = shadow.take(shadow.strong, touch.rows)[row, column]
            ok |= self._hold_each_other(touch, row, owner, strong)
        if not ok.all():
            at = int(np.flatnonzero(~ok)[0])
            where, other = (int(row[at]), int(column[at])), int(owner[at])
            self._faults.race(touch, *where, what, "written", other, int(serials[at]))

    def _hold_each_other(self, touch: Touch, row: Array, others: Array, codes: Array) -> Array:
        """Whether two strong accesses are morally strong: of the same bytes, with scopes that hold both.

        row: of the access; others, codes: the threads that wrote there, and `strong_code` of what they did.
        """
        real, geometry, wide = others >= 0, self._geometry, touch.wide
        same_bytes, strong = codes >> 4 == touch.word, codes & 15
        mine = geometry.cta_of[touch.threads[row]]
        their = geometry.cta_of[np.where(real, others, 0)]
        least = np.minimum(strong, wide)
        same = mine // geometry.cluster_size == their // geometry.cluster_size
        near = np.where(least == CTA, mine == their, np.where(least == CLUSTER, same, True))
        near = real & near | (others == EARLIER_WAVE) & (least > CLUSTER)
        held: Array = near & (strong > 0) & same_bytes
        return held

    # ---- who wrote ---------------------------------------------------------------------------------

    def stamp(self, touch: Touch, now: int) -> None:
        """Note the writers."""
        shadow, rows = touch.shadow, touch.rows
        stamp: Any = np.uint32(now)
        if touch.away is not None:
            stamp = rows.of_elements(np.where(touch.away, stamp | FOREIGN, stamp).astype(np.uint32))
        self.mark(touch, stamp, self._numbered(shadow, touch.group.threads))
        if touch.wide and shadow.strong is None:
            shadow.strong = np.zeros(shadow.count, np.uint8)
        if shadow.strong is not None:
            shadow.strong.reshape(-1, rows.width)[rows.index] = strong_code(
                touch.wide, touch.word if touch.wide else 0
            )

    def mark(self, touch: Touch, stamp: Any, owners: Array) -> None:
        """Set stamps, one for all or one a row, and owners, one an element."""
        shadow, rows = touch.shadow, touch.rows
        shadow.materialise()
        shadow.put(shadow.stamps, rows, stamp)
        shadow.put(shadow.owners, rows, rows.of_elements(owners.astype(np.int32)))

    def touch_flight(self, flight: Flight, which: Array | None = None) -> Touch:
        """What an asynchronous write touches, or some elements of it."""
        offsets, group = flight.offsets, flight.group
        if which is not None:
            offsets, group = offsets[which], Group(self._geometry, group.threads[which])
        return self.touch(flight.region, offsets, flight.size, group, flight.instruction)
