"""The checker: an observer that raises an error for memory used before it is written, in flight, or in a race.

Contract
    Raises at the instruction that completes the fault:
    - `UninitialisedRead`: shared memory starts unwritten, and so do the buffers named in `unwritten`; other
      buffers were written by the host.
    - `Race`: two accesses to the same granule of 2 bytes, one of them a write, of different threads, with nothing
      that orders them by the rules of `ordering`. Two strong accesses whose scopes hold both threads are
      no race. Lanes that store to one place in the same instruction are not compared.
    - `UnfinishedAsync`: a read or a write where an asynchronous write is under way, which for cp.async lasts
      until its thread waits for it, whenever the bytes land.
    - `BarrierFault`: mbarriers used as data, or by threads that do not come after their initialisation.
    - `MemoryFault`: a CTA that ends though nothing says that its peers are done with its shared memory.

    It finds what no order of execution would excuse: that a run happened to come out right does not matter.
    What it cannot see: paths that the run did not take; faults among bytes of one granule; lanes of a warp
    that a bar.warp.sync of fewer lanes leaves out; a missing proxy fence between ordinary and bulk accesses; strong
    reads against later weak writes.

    Cost: about 50 microseconds for an ordinary load of 8,192 threads, 200 for a store, 200 to 400 where a
    barrier of the CTA does not explain the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.clocks import EARLIER_WAVE
from emulator.faults import Faults
from emulator.flights import Flight, Part
from emulator.interface import Access, Array, Group, Instruction, Observer
from emulator.ordering import Ordering
from emulator.scopes import CLUSTER, CTA
from emulator.shadow import FOREIGN, IN_FLIGHT, MBARRIER, SERIAL, Rows, Shadow, collapse
from emulator.word_ordering import Words, coming_order, strength

if TYPE_CHECKING:
    from emulator.machine import Machine


class Checker(Observer):
    """Checks one launch. unwritten: names of the buffers whose bytes nobody has written before it."""

    def __init__(self, unwritten: Iterable[str] = ()):
        self.unwritten = frozenset(unwritten)
        self.events: list[Instruction | None] = [None]
        self.checked = 0
        """Accesses looked at, of a group of threads each."""
        self._words = Words()
        self._shadows: dict[str, Shadow] = {}
        self._earlier = 0
        self._threads = 0

    def begin(self, machine: Machine) -> None:
        """Another wave."""
        self.machine = machine
        self.ordering = Ordering(machine)
        self.clocks = self.ordering.clocks
        self.mbarriers = self.ordering.mbarriers
        self.faults = Faults(self)
        self._words.begin(self.ordering)
        # Threads are numbered on from wave to wave, so that those of earlier waves are below `_earlier`.
        self._earlier, self._threads = self._threads, self._threads + machine.thread_count
        region = machine.memory.shared
        self._shared = Shadow(region, True, machine.warp_count // machine.cta_count + 1)
        # By CTA, what other CTAs last did in its memory: warp to serial, thread and instruction.
        self.visits: dict[int, dict[int, tuple[int, int, Instruction]]] = {}

    def _tick(self, instruction: Instruction | None = None) -> int:
        self.events.append(instruction)
        return len(self.events) - 1

    def _shadow(self, region: Any) -> Shadow:
        if region.space == "shared":
            return self._shared
        found = self._shadows.get(region.name)
        if found is None:
            found = self._shadows[region.name] = Shadow(region, region.name in self.unwritten, 1)
        return found

    # ---- memory ------------------------------------------------------------------------------------

    def access(self, access: Access) -> None:
        """Bytes are touched."""
        if access.space == "local" or access.kind == "async write" or access.group.size == 0:
            return
        self.checked += 1
        shadow = self._shadow(access.region)
        reads = access.kind in ("load", "async read")
        if reads and not access.region.writable and not shadow.unwritten:
            return
        now = self._tick(access.instruction)
        wide = strength(access)
        rows = Rows.of(access.offsets, access.size)
        if wide and access.kind != "store":
            order = coming_order(access)
            self._words.synchronise(access, wide, now, order)
        if reads:
            self._check_read(shadow, rows, access.group, access.instruction, wide)
            if not wide:
                slots = self._slots(access.group, access.offsets) if access.space == "shared" else 0
                shadow.log_read(now, rows, access.group.threads + self._offset(shadow), slots)
        else:
            if access.kind == "atomic":
                self._check_read(shadow, rows, access.group, access.instruction, wide)
            self._check_write(shadow, rows, access.group, access.instruction, wide)
            threads, offsets = access.group.threads, access.offsets
            if access.kind == "atomic" and self.machine.random is not None:
                # The last one served is the last writer.
                rows, threads, offsets = Rows.of(offsets[order], access.size), threads[order], offsets[order]
            self._stamp(shadow, rows, threads, now, offsets, wide)
            if not wide:
                self._check_each_other(shadow, rows, access.group, access.instruction, now)
        if wide and access.kind == "store":
            self._words.synchronise(access, wide, now, np.arange(access.group.size))
        if access.space == "shared" and self.machine.cluster_size > 1:
            self._visit(access.group, access.offsets, access.instruction, now)

    def _offset(self, shadow: Shadow) -> int:
        return 0 if shadow is self._shared else self._earlier

    def _present(self, shadow: Shadow, owners: Array) -> Array:
        """Owners as threads of this wave, or what is below 0."""
        owners = owners.astype(np.int64)
        if shadow is self._shared or not self._earlier:
            return owners
        return np.where(owners >= self._earlier, owners - self._earlier, EARLIER_WAVE)

    def _away(self, group: Group, offsets: Array) -> Array:
        """Which elements touch another CTA's shared memory."""
        away: Array = offsets // self.machine.shared_window != group.cta
        return away

    def _slots(self, group: Group, offsets: Array) -> Array:
        per_cta = self.clocks.per_cta
        slots = group.warp % per_cta
        if self.machine.cluster_size > 1:
            slots = np.where(self._away(group, offsets), per_cta, slots)
        return slots

    def _visit(self, group: Group, offsets: Array, instruction: Instruction, now: int) -> None:
        away = self._away(group, offsets)
        if not away.any():
            return
        owners = offsets // self.machine.shared_window
        warps = group.warp
        for at in np.flatnonzero(away).tolist():
            visits = self.visits.setdefault(int(owners[at]), {})
            visits[int(warps[at])] = (now, int(group.threads[at]), instruction)

    def _thresholds(self, shadow: Shadow, rows: Rows, group: Group, foreign: Array | None) -> Array:
        """Of each row, the serial up to which its CTA's last barrier orders everything."""
        if shadow is not self._shared:
            return np.zeros(len(rows.index), np.int64)
        bounds = self.clocks.horizon[group.warp].astype(np.int64)
        if foreign is not None:
            bounds[foreign] = 0
        return rows.of_elements(bounds)

    def _check_read(
        self, shadow: Shadow, rows: Rows, group: Group, instruction: Instruction, wide: int
    ) -> None:
        if shadow.stamps is None:
            return
        stamps = shadow.take(shadow.stamps, rows)
        top = int(stamps.max())
        floor = int(self.clocks.horizon.min()) if shadow is self._shared else 0
        if top <= floor and not (shadow.unwritten and int(stamps.min()) == 0):
            return
        if shadow.unwritten and not stamps.all():
            row, column = (int(each[0]) for each in np.nonzero(stamps == 0))
            self.faults.unwritten(shadow, rows, group, instruction, row, column)
        foreign = self._away(group, rows.index * rows.width * 2) if self._foreign_possible(rows, shadow) else None
        bounds = self._thresholds(shadow, rows, group, foreign)
        self._compare(shadow, rows, stamps, bounds, group, instruction, wide, "read")

    def _foreign_possible(self, rows: Rows, shadow: Shadow) -> bool:
        return shadow is self._shared and self.machine.cluster_size > 1 and rows.element is None

    def _compare(
        self,
        shadow: Shadow,
        rows: Rows,
        stamps: Array,
        bounds: Array,
        group: Group,
        instruction: Instruction,
        wide: int,
        what: str,
    ) -> None:
        """Raise unless the last writes of these rows are ordered before the access."""
        hit = stamps > bounds.astype(np.uint32)[:, None]
        if not hit.any():
            return
        owners = shadow.take(shadow.owners, rows)
        row, column = collapse(hit, stamps, owners)
        stamp, owner = stamps[row, column], self._present(shadow, owners[row, column])
        threads = rows.of_elements(group.threads)[row]
        if (stamp >= MBARRIER).any():
            at = int(np.flatnonzero(stamp >= MBARRIER)[0])
            self.faults.code(
                shadow, rows, group, instruction, int(row[at]), int(column[at]), int(stamp[at]), int(owner[at]), what
            )
        serials = (stamp & SERIAL).astype(np.int64)
        ok = self.clocks.ordered(threads, owner, serials)
        if not ok.all() and wide and shadow.strong is not None:
            strong = shadow.take(shadow.strong, rows)[row, column]
            ok |= self._hold_each_other(threads, owner, wide, strong)
        if ok.all():
            return
        at = int(np.flatnonzero(~ok)[0])
        self.faults.race(
            shadow,
            rows,
            group,
            instruction,
            int(row[at]),
            int(column[at]),
            what,
            "written",
            int(owner[at]),
            int(serials[at]),
        )

    def _hold_each_other(self, threads: Array, others: Array, wide: int, strong: Array) -> Array:
        """Whether the scopes of two strong accesses hold both threads."""
        real = others >= 0
        mine = self.machine.cta_of[threads]
        their = self.machine.cta_of[np.where(real, others, 0)]
        least = np.minimum(strong, wide)
        same = mine // self.machine.cluster_size == their // self.machine.cluster_size
        near = np.where(least == CTA, mine == their, np.where(least == CLUSTER, same, True))
        held: Array = real & (strong > 0) & near
        return held

    def _check_write(
        self, shadow: Shadow, rows: Rows, group: Group, instruction: Instruction, wide: int
    ) -> None:
        foreign = self._away(group, rows.index * rows.width * 2) if self._foreign_possible(rows, shadow) else None
        bounds = self._thresholds(shadow, rows, group, foreign)
        if shadow.stamps is not None:
            stamps = shadow.take(shadow.stamps, rows)
            if int(stamps.max()) > int(bounds.min()):
                self._compare(shadow, rows, stamps, bounds, group, instruction, wide, "write")
        floor = int(self.clocks.horizon.min()) if shadow is self._shared else 0
        for row, readers, serials in shadow.readers(rows, bounds, floor, int(bounds.min())):
            threads = rows.of_elements(group.threads)[row]
            serials, readers = serials.astype(np.int64), self._present(shadow, readers)
            ok = self.clocks.ordered(threads, readers, serials)
            if not ok.all():
                at = int(np.flatnonzero(~ok)[0])
                who, when = int(readers[at]), int(serials[at])
                self.faults.race(
                    shadow, rows, group, instruction, int(row[at]), 0, "write", "read", who, when
                )

    def _check_each_other(
        self, shadow: Shadow, rows: Rows, group: Group, instruction: Instruction, now: int
    ) -> None:
        """Raise if different warps wrote to one place in the instruction whose writers have just been noted."""
        owners = self._present(shadow, shadow.take(shadow.owners, rows))
        threads = rows.of_elements(group.threads)[:, None]
        if (owners == threads).all():
            return
        row, column = np.nonzero(self.machine.warp_of[owners] != self.machine.warp_of[threads])
        if len(row):
            at, where = int(row[0]), int(column[0])
            other = int(owners[at, where])
            self.faults.race(shadow, rows, group, instruction, at, where, "write", "written", other, now)

    def _stamp(
        self, shadow: Shadow, rows: Rows, writers: Array, now: int, offsets: Array, wide: int
    ) -> None:
        """Note the writers, one an element."""
        shadow.materialise()
        stamp: Any = np.uint32(now)
        if shadow is self._shared and self.machine.cluster_size > 1:
            away = self.machine.cta_of[writers] != offsets // self.machine.shared_window
            if away.any():
                stamp = rows.of_elements(np.where(away, stamp | FOREIGN, stamp).astype(np.uint32))
        shadow.put(shadow.stamps, rows, stamp)
        shadow.put(shadow.owners, rows, rows.of_elements((writers + self._offset(shadow)).astype(np.int32)))
        if wide and shadow.strong is None:
            shadow.strong = np.zeros(shadow.count, np.uint8)
        if shadow.strong is not None:
            rows_of_table = shadow.strong.reshape(-1, rows.width)
            rows_of_table[rows.index] = wide

    # ---- asynchronous writes -----------------------------------------------------------------------

    def async_issued(self, write: Flight) -> None:
        """Its destination is its thread's to write, and out of bounds until it has landed."""
        shadow, rows = self._shadow(write.region), Rows.of(write.offsets, write.size)
        if write.barriers is not None:
            self._initialised(write.group, write.barriers, write.instruction)
        self._check_write(shadow, rows, write.group, write.instruction, 0)
        shadow.materialise()
        shadow.put(shadow.stamps, rows, IN_FLIGHT)
        shadow.put(shadow.owners, rows, rows.of_elements((write.group.threads + self._offset(shadow)).astype(np.int32)))

    def async_landed(self, write: Part) -> None:
        """Bytes have landed that the phase of an mbarrier counts."""
        assert write.barriers is not None
        self.async_tracked(write, write.barriers)

    def async_tracked(self, write: Part, barriers: Array) -> None:
        """Bytes have landed that the phases of these mbarriers, by number, order."""
        flight = write.flight
        now = self._tick(flight.instruction)
        shadow, rows = self._shadow(flight.region), Rows.of(write.offsets, flight.size)
        writers = self.mbarriers.writers(barriers, write.group.threads, flight.instruction)
        shadow.put(shadow.stamps, rows, np.uint32(now) | FOREIGN)
        shadow.put(shadow.owners, rows, rows.of_elements(writers))

    def async_waited(self, group: Group, writes: Sequence[Part], instruction: Instruction) -> None:
        """Threads have waited for their own copies, which are theirs from now on."""
        for write in writes:
            shadow = self._shadow(write.flight.region)
            rows = Rows.of(write.offsets, write.flight.size)
            now = self._tick(write.flight.instruction)
            self._stamp(shadow, rows, write.group.threads, now, write.offsets, 0)

    # ---- mbarriers ---------------------------------------------------------------------------------

    def mbarrier_init(self, group: Group, offsets: Array, instruction: Instruction) -> None:
        """Their bytes are no data from now on."""
        now = self._tick(instruction)
        rows = Rows.of(offsets, 8)
        self._check_write(self._shared, rows, group, instruction, 0)
        self._stamp(self._shared, rows, group.threads, now, offsets, 0)
        self._shared.put(self._shared.stamps, rows, MBARRIER)
        self.mbarriers.init(group, offsets, now)

    def mbarrier_inval(self, group: Group, offsets: Array, instruction: Instruction) -> None:
        """Their bytes are memory again, which nobody has written."""
        self._shared.put(self._shared.stamps, Rows.of(offsets, 8), np.uint32(0))

    def _initialised(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """Raise unless the threads come after the initialisation of these mbarriers, by number."""
        element = self.mbarriers.uninitialised(group.threads, barriers)
        if element is not None:
            offset = int(self.machine.asynchronous.mbarriers.offset[barriers[element]])
            self.faults.uninitialised_mbarrier(group, instruction, element, offset)

    def _numbers(self, offsets: Array) -> Array:
        numbers: Array = self.machine.asynchronous.mbarriers.numbers(offsets)
        return numbers

    def mbarrier_arrive(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """Arrivals release, unless they are relaxed or made by copies."""
        now = self._tick(instruction)
        self._initialised(group, self._numbers(barriers), instruction)
        copied = instruction.parts[0] == "cp"
        wide = CLUSTER if instruction.has("cluster", "gpu", "sys") else CTA
        for offset in np.unique(barriers).tolist():
            threads = group.threads[barriers == offset]
            for cta in np.unique(self.machine.cta_of[threads]).tolist():
                part = threads[self.machine.cta_of[threads] == cta]
                released = None
                if not copied and not instruction.has("relaxed"):
                    released = self.clocks.export(part, now)
                elif not copied and all(self.ordering.fence_of(p, wide) for p in self.clocks.by_warp(part)):
                    released = self.clocks.empty(cta // self.machine.cluster_size)
                    for each in self.clocks.by_warp(part):
                        fenced = self.ordering.fence_of(each, wide)
                        assert fenced is not None
                        self.clocks.absorb(released, fenced)
                self.mbarriers.arrive(part, offset, instruction, released, now)

    def mbarrier_complete(self, barrier: int, phase: int) -> None:
        """A phase ends."""
        self.mbarriers.complete(barrier, phase, self._tick())

    def mbarrier_wait(self, group: Group, barriers: Array, phases: Array, instruction: Instruction) -> None:
        """Threads have seen phases end."""
        self._initialised(group, self._numbers(barriers), instruction)
        keys = barriers * (1 << 20) + phases + 1
        for key in np.unique(keys).tolist():
            which = keys == key
            at = int(np.argmax(which))
            part = group if which.all() else group.take(which)
            self.mbarriers.wait(part, int(barriers[at]), int(phases[at]), instruction)

    # ---- the rest ----------------------------------------------------------------------------------

    def barrier_arrive(self, kind: str, group: Group, instruction: Instruction) -> None:
        """Threads arrive at a barrier."""
        self.ordering.arrive(kind, group, instruction, self._tick(instruction))

    def barrier_complete(self, kind: str, arrived: Array, waiting: Array, instruction: Instruction) -> None:
        """Threads go on behind a barrier."""
        self.ordering.complete(kind, arrived, waiting, self._tick(instruction))

    def warp_sync(self, group: Group, instruction: Instruction) -> None:
        """Lanes meet."""
        if instruction.parts[0] in ("bar", "barrier"):
            self.ordering.warp_sync(group, instruction, self._tick(instruction))

    def fence(self, group: Group, instruction: Instruction) -> None:
        """A fence."""
        self.ordering.fence(group, instruction, self._tick(instruction))

    def exit(self, group: Group) -> None:
        """Threads end; if they are a CTA's last, its peers have to be done with its memory."""
        self.clocks.end(group.threads)
        if self.machine.cluster_size > 1:
            for cta in np.unique(group.cta).tolist():
                if self.machine.cta_alive[cta] == 0:
                    self.faults.early_exit(cta, group)

    def end(self) -> None:
        """Whatever this wave wrote to global memory, an earlier wave wrote from now on."""
        self._words.end(self._tick())
