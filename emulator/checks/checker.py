"""The checker, an observer: memory used before it is written, while it is in flight, or in a race.

Contract
    Raises at the instruction that completes the fault:
    - `UninitialisedRead`: shared memory starts unwritten, and so do the buffers named in `unwritten`; other
      buffers were written by the host.
    - `Race`: two accesses to the same granule of 2 bytes, one of them a write, of different threads, with
      nothing that orders them by the rules of `ordering`. Two strong accesses of the same bytes whose scopes
      hold both threads are no race. Lanes of a warp that store to one place in the same instruction are not
      compared. Nothing orders an ld.global.nc and a write of the same launch.
    - `UnfinishedAsync`: a read or a write where an asynchronous write is under way, which for cp.async lasts
      until its thread waits for it, whenever the bytes land; a write to what a bulk copy has still to read,
      or a wgmma (`matrix_reads`; for its registers `wgmma_registers`).
    - `BarrierFault`: mbarriers used as data, or by threads that do not come after their initialisation.
    - `MemoryFault`: a CTA that ends though nothing says that its peers are done with its shared memory.

    It finds what no order of execution would excuse: that a run happened to come out right does not matter.
    What it cannot see: paths that the run did not take; faults among bytes of one granule; a missing proxy
    fence between ordinary and bulk accesses (before wgmma it is seen: `proxies`); strong reads against later
    weak writes.

    Cost for 8,192 threads on one core: 20 to 100 microseconds for an ordinary load, 200 to 400 for a store,
    250 for a load whose order a barrier of the CTA does not explain: half of a plain run on top of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.engine import engine
from emulator.asynchronous.flights import Flight, Part
from emulator.checks.faults import Faults
from emulator.checks.memory_checks import MemoryChecks
from emulator.checks.ordering import Ordering
from emulator.checks.proxies import Proxies
from emulator.checks.scopes import CLUSTER, CTA, scope
from emulator.checks.shadow import FOREIGN, IN_FLIGHT, MBARRIER
from emulator.checks.touch import Touch
from emulator.checks.word_ordering import Words, coming_order, strength
from emulator.ptx.instruction import Instruction
from emulator.wave.observing import Access, Observer, Wave
from emulator.wave.threads import Group


class Checker(Observer):
    """Checks one launch. unwritten: names of the buffers whose bytes nobody has written before it.

    checked: accesses looked at, of a group of threads each.
    """

    def __init__(self, unwritten: Iterable[str] = ()):
        self.events: list[Instruction | None] = [None]
        self.checked = 0
        self.memory = MemoryChecks(unwritten)
        self._words = Words()

    def begin(self, machine: Wave) -> None:
        """Another wave."""
        self.machine = machine
        self.geometry = machine.geometry
        self.ordering = Ordering(machine)
        self.clocks = self.ordering.clocks
        self.mbarriers = self.ordering.mbarriers
        self.faults = Faults(self.ordering, self.events)
        self.memory.begin(self.ordering, self.faults)
        self.proxies = Proxies(self.clocks, self.faults, self.events)
        self._words.begin(self.ordering)
        # By CTA, what other CTAs last did in its memory: warp to serial, thread and instruction.
        self.visits: dict[int, dict[int, tuple[int, int, Instruction]]] = {}

    def _tick(self, instruction: Instruction | None = None) -> int:
        self.events.append(instruction)
        return len(self.events) - 1

    # ---- memory ------------------------------------------------------------------------------------

    def access(self, access: Access) -> None:
        """Bytes are touched."""
        if access.space == "local" or access.kind == "async write" or access.group.size == 0:
            return
        self.checked += 1
        memory, reads = self.memory, access.kind in ("load", "async read")
        if reads and not access.region.writable and not memory.shadow(access.region).unwritten:
            return
        now = self._tick(access.instruction)
        wide = strength(access)
        order = coming_order(access, self.machine.random) if wide else np.arange(0)
        if wide and access.kind != "store":
            self._words.synchronise(access, wide, now, order)
        group, offsets = access.group, access.offsets
        touch = memory.touch(access.region, offsets, access.size, group, access.instruction, wide)
        if access.kind != "store":
            memory.check_read(touch)
        if access.instruction.parts[0] == "wgmma":
            self.proxies.check_read(touch)
            memory.matrix_reads.begin(touch)
        elif not reads:
            memory.check_write(touch)
            if access.kind == "atomic":
                # The last one served is the last writer; served are also those of other warps.
                last = Group(self.geometry, group.threads[order])
                where = (access.region, offsets[order], access.size, last, access.instruction, wide)
                memory.stamp(memory.touch(*where), now)
            else:
                memory.stamp(touch, now)
                if not wide:
                    memory.check_each_other(touch, now)
        elif not wide:
            memory.log_read(touch, now)
        if wide and access.kind == "store":
            self._words.synchronise(access, wide, now, order)
        if touch.away is not None:
            self._visit(touch, offsets, now)

    def _visit(self, touch: Touch, offsets: Array, now: int) -> None:
        """Note who was in a peer's memory."""
        assert touch.away is not None
        away = np.flatnonzero(touch.away)
        owners, warps = offsets[away] // self.machine.shared_window, touch.group.warp[away]
        _, first = np.unique(owners * self.geometry.warp_count + warps, return_index=True)
        for at in first.tolist():
            visits = self.visits.setdefault(int(owners[at]), {})
            visits[int(warps[at])] = (now, int(touch.group.threads[away[at]]), touch.instruction)

    # ---- asynchronous writes -----------------------------------------------------------------------

    def async_issued(self, write: Flight) -> None:
        """Its destination is its thread's to write, and out of bounds until it has landed."""
        if write.barriers is not None:
            self._initialised(write.group, write.barriers, write.instruction)
        touch = self.memory.touch_flight(write)
        self.memory.check_write(touch)
        self.memory.stamp(touch, self._tick(write.instruction))
        self.memory.mark(touch, IN_FLIGHT, write.group.threads)

    def async_landed(self, write: Part) -> None:
        """Bytes have landed that the phase of an mbarrier counts."""
        assert write.barriers is not None
        self.async_tracked(write, write.barriers)

    def async_tracked(self, write: Part, barriers: Array) -> None:
        """Bytes have landed that the phases of these mbarriers, by number, order."""
        flight = write.flight
        now = self._tick(flight.instruction)
        writers = self.mbarriers.writers(barriers, write.group.threads, flight.instruction)
        touch = self.memory.touch_flight(flight, write.which)
        self.memory.mark(touch, np.uint32(now) | FOREIGN, writers)

    def async_waited(self, group: Group, writes: Sequence[Part], instruction: Instruction) -> None:
        """Threads have waited for their own copies, which are theirs from now on."""
        for write in writes:
            touch = self.memory.touch_flight(write.flight, write.which)
            self.memory.stamp(touch, self._tick(write.flight.instruction))

    # ---- mbarriers ---------------------------------------------------------------------------------

    def mbarrier_init(self, group: Group, offsets: Array, instruction: Instruction) -> None:
        """Their bytes are no data from now on."""
        now = self._tick(instruction)
        touch = self.memory.touch(self.machine.shared, offsets, 8, group, instruction)
        self.memory.check_write(touch)
        self.memory.mark(touch, MBARRIER, group.threads)
        self.mbarriers.init(group, offsets, now)

    def mbarrier_inval(self, group: Group, offsets: Array, instruction: Instruction) -> None:
        """Their bytes are memory again, which nobody has written."""
        touch = self.memory.touch(self.machine.shared, offsets, 8, group, instruction)
        self.memory.mark(touch, np.uint32(0), group.threads)

    def _initialised(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """Raise unless the threads come after the initialisation of these mbarriers, by number."""
        element = self.mbarriers.uninitialised(group.threads, barriers)
        if element is not None:
            offset = int(engine(self.machine).mbarriers.offset[barriers[element]])
            self.faults.uninitialised_mbarrier(group, instruction, element, offset)

    def _numbers(self, offsets: Array) -> Array:
        return engine(self.machine).mbarriers.numbers(offsets)

    def mbarrier_arrive(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """Arrivals release, unless they are relaxed or made by copies."""
        now = self._tick(instruction)
        self._initialised(group, self._numbers(barriers), instruction)
        copied = instruction.parts[0] == "cp"
        wide = min(scope(instruction, CTA), CLUSTER)
        for offset in np.unique(barriers).tolist():
            threads = group.threads[barriers == offset]
            for cta in np.unique(self.geometry.cta_of[threads]).tolist():
                part = threads[self.geometry.cta_of[threads] == cta]
                released = None
                if not copied and not instruction.has("relaxed"):
                    released = self.clocks.export(part, now)
                elif not copied and all(self.ordering.fence_of(p, wide) for p in self.clocks.by_warp(part)):
                    released = self.clocks.empty(cta // self.geometry.cluster_size)
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
        elif instruction.parts[0] == "wgmma":
            for touch in self.memory.matrix_reads.step(group, instruction):
                self.memory.log_read(touch, self._tick(touch.instruction))

    def fence(self, group: Group, instruction: Instruction) -> None:
        """A fence."""
        now = self._tick(instruction)
        self.ordering.fence(group, instruction, now)
        self.proxies.fence(group, instruction, now)

    def exit(self, group: Group) -> None:
        """Threads end; if they are a CTA's last, its peers have to be done with its memory."""
        self.clocks.end(group.threads)
        if self.geometry.cluster_size > 1:
            for cta in np.unique(group.cta).tolist():
                if self.machine.cta_alive[cta] == 0:
                    self.faults.early_exit(cta, group, self.visits.get(cta, {}))

    def end(self) -> None:
        """Whatever this wave wrote to global memory, an earlier wave wrote from now on."""
        self._words.end(self._tick())
