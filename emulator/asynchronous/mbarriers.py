"""Mbarriers: phases, arrivals and transaction bytes of one wave.

Contract
    A phase is complete when no arrival is pending and the transaction count is zero; the next phase then
    begins with the same number of arrivals. Every mbarrier of the wave is a row of a table; operations name
    it by its number there.

    Faults (`BarrierFault`): an mbarrier that is not there; one that is initialised or invalidated while it
    is in use; arrivals beyond the phase's number; more bytes than the phase expects, once all arrivals have
    come (before that, bytes may come ahead of their announcement); counts out of range.

    `test_wait` waits like `try_wait`: neither ever says false. A kernel that looks at an mbarrier once and,
    on false, does what lets the phase complete is outside the coverage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Array
from emulator.errors import BarrierFault
from emulator.ptx.instruction import Instruction
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

LIMIT = (1 << 20) - 1
"""Most arrivals of a phase, and most transaction bytes, up or down, in the PTX ISA."""


@dataclass(frozen=True)
class Waiting:
    """Why threads stand still at an mbarrier; its str() is taken when a deadlock is reported."""

    table: Mbarriers
    barrier: int
    phase: int

    def __str__(self) -> str:
        return f"waits for phase {self.phase} of {self.table.state(self.barrier)}"


class Mbarriers:
    """The mbarriers of a wave.

    Arrays by an mbarrier's number. offset: in the region "shared". count: arrivals of a phase. pending: those
    still to come. bytes: transaction count, expected minus arrived. phase: number of the present one, from 0.
    """

    def __init__(self, machine: Machine, shared_bytes: int):
        self._machine = machine
        self._number = np.zeros(shared_bytes // 8 + 1, np.int32)
        self._waiters: dict[int, list[tuple[int, Array, Instruction]]] = {}
        self.size = 0
        self.offset = np.zeros(64, np.int64)
        self.count = np.zeros(64, np.int64)
        self.pending = np.zeros(64, np.int64)
        self.bytes = np.zeros(64, np.int64)
        self.phase = np.zeros(64, np.int64)
        self.in_flight = np.zeros(64, np.int64)
        """Bytes issued and not landed."""

    # ---- names -------------------------------------------------------------------------------------

    def cta(self, barrier: int) -> int:
        """The CTA in whose memory an mbarrier is."""
        return int(self.offset[barrier]) // self._machine.shared_window

    def name(self, offset: int) -> str:
        """An mbarrier in words."""
        window = self._machine.shared_window
        return f"the mbarrier at shared byte {offset % window} of CTA {offset // window}"

    def state(self, barrier: int) -> str:
        """What an mbarrier is waiting for, in words."""
        missing = (
            f"{self.pending[barrier]} of {self.count[barrier]} arrivals and {self.bytes[barrier]} "
            f"transaction bytes are pending, {self.in_flight[barrier]} bytes in flight"
        )
        return f"{self.name(int(self.offset[barrier]))}: phase {self.phase[barrier]}, {missing}"

    def numbers(self, offsets: Array) -> Array:
        """The numbers of the mbarriers at these offsets; -1 where there is none."""
        numbers: Array = self._number[offsets // 8].astype(np.int64) - 1
        return numbers

    def find(self, offsets: Array, group: Group, instruction: Instruction) -> Array:
        """The numbers of the mbarriers at these offsets."""
        if (offsets % 8).any():
            self._refuse(
                "an mbarrier has to be aligned to 8 bytes", offsets, offsets % 8 != 0, group, instruction
            )
        numbers = self.numbers(offsets)
        if (numbers < 0).any():
            self._refuse("no mbarrier has been initialised here", offsets, numbers < 0, group, instruction)
        return numbers

    def _refuse(self, why: str, offsets: Array, bad: Array, group: Group, instruction: Instruction) -> None:
        at = int(np.flatnonzero(bad)[0])
        raise BarrierFault(
            why,
            place=instruction.place,
            thread=group.describe(at),
            address=self.name(int(offsets[at])),
        )

    # ---- begin and end -----------------------------------------------------------------------------

    def start(self, offsets: Array, counts: Array, group: Group, instruction: Instruction) -> None:
        """mbarrier.init."""
        bad = offsets % 8 != 0
        if bad.any():
            self._refuse("an mbarrier has to be aligned to 8 bytes", offsets, bad, group, instruction)
        bad = (counts < 1) | (counts > LIMIT)
        if bad.any():
            self._refuse(f"an mbarrier takes 1 to {LIMIT} arrivals", offsets, bad, group, instruction)
        for element, (offset, count) in enumerate(zip(offsets.tolist(), counts.tolist(), strict=True)):
            if self._number[offset // 8]:
                barrier = int(self._number[offset // 8]) - 1
                raise BarrierFault(
                    f"initialised again without mbarrier.inval; {self.state(barrier)}",
                    place=instruction.place,
                    thread=group.describe(element),
                    address=self.name(offset),
                )
            if self.size == len(self.offset):
                for field in ("offset", "count", "pending", "bytes", "phase", "in_flight"):
                    old = getattr(self, field)
                    setattr(self, field, np.concatenate((old, np.zeros_like(old))))
            barrier, self.size = self.size, self.size + 1
            self._number[offset // 8] = barrier + 1
            self.offset[barrier] = offset
            self.count[barrier] = self.pending[barrier] = count
        self._machine.hooks.mbarrier_init(group, offsets, instruction)

    def end(self, offsets: Array, group: Group, instruction: Instruction) -> None:
        """mbarrier.inval."""
        for element, barrier in enumerate(self.find(offsets, group, instruction).tolist()):
            if self._waiters.get(barrier) or self.bytes[barrier] or self.in_flight[barrier]:
                raise BarrierFault(
                    f"invalidated in use; {self.state(barrier)}",
                    place=instruction.place,
                    thread=group.describe(element),
                    address=self.name(int(offsets[element])),
                )
            self._number[int(self.offset[barrier]) // 8] = 0
        self._machine.hooks.mbarrier_inval(group, offsets, instruction)

    # ---- phases ------------------------------------------------------------------------------------

    def expect(self, barriers: Array, amounts: Array, group: Group, instruction: Instruction) -> None:
        """Announce transaction bytes."""
        np.add.at(self.bytes, barriers, amounts)
        self._check_range(barriers, group, instruction)

    def arrive(self, barriers: Array, counts: Array, group: Group, instruction: Instruction) -> Array:
        """Arrivals; returns the phase that each of them is for."""
        phases = self.phase[barriers].copy()
        self._machine.hooks.mbarrier_arrive(group, self.offset[barriers], instruction)
        arrivals = np.bincount(barriers, weights=counts, minlength=1).astype(np.int64)
        for barrier in np.flatnonzero(arrivals).tolist():
            left = int(arrivals[barrier])
            while left:
                now = min(left, int(self.pending[barrier]))
                if now == 0:
                    bad = barriers == barrier
                    why = f"an arrival too many; {self.state(barrier)}"
                    self._refuse(why, self.offset[barriers], bad, group, instruction)
                self.pending[barrier] -= now
                left -= now
                self.settle(barrier, group, instruction)
        return phases

    def more_arrivals(self, barriers: Array) -> None:
        """Raise the present phase's pending arrivals by one each."""
        np.add.at(self.pending, barriers, 1)

    def complete_bytes(self, barriers: Array, sizes: Array, group: Group, instruction: Instruction) -> None:
        """Bytes have landed. group: the threads that issued them."""
        np.subtract.at(self.bytes, barriers, sizes)
        np.subtract.at(self.in_flight, barriers, sizes)
        self._check_range(barriers, group, instruction)
        for barrier in np.flatnonzero(np.bincount(barriers)).tolist():
            self.settle(barrier, group, instruction)

    def settle(self, barrier: int, group: Group, instruction: Instruction) -> None:
        """Complete the phase if nothing is missing."""
        if self.pending[barrier]:
            return
        if self.bytes[barrier] < 0:
            raise BarrierFault(
                f"{-self.bytes[barrier]} bytes more than the phase expects; {self.state(barrier)}",
                place=instruction.place,
                thread=group.describe(0),
                address=self.name(int(self.offset[barrier])),
            )
        if self.bytes[barrier]:
            return
        done = int(self.phase[barrier])
        self.phase[barrier] += 1
        self.pending[barrier] = self.count[barrier]
        self._machine.hooks.mbarrier_complete(int(self.offset[barrier]), done)
        waiting = self._waiters.pop(barrier, [])
        for phase, threads, waiter in waiting:
            woken = Group(self._machine.geometry, threads)
            self._machine.wake(threads)
            self._saw(woken, np.full(len(threads), barrier), np.full(len(threads), phase), waiter)

    def _check_range(self, barriers: Array, group: Group, instruction: Instruction) -> None:
        bad = np.abs(self.bytes[barriers]) > LIMIT
        if bad.any():
            why = f"a transaction count beyond {LIMIT} bytes"
            self._refuse(why, self.offset[barriers], bad, group, instruction)

    def wait(self, barriers: Array, phases: Array, group: Group, instruction: Instruction) -> None:
        """Park those threads whose phase is not complete; the others have seen it.

        phases: numbers; one that is neither the present phase nor the one before can never be told from them
        by its parity, so only these two occur.
        """
        ready = self.phase[barriers] > phases
        if ready.any():
            self._saw(group.take(ready), barriers[ready], phases[ready], instruction)
        if ready.all():
            return
        for barrier in np.flatnonzero(np.bincount(barriers[~ready])).tolist():
            which = ~ready & (barriers == barrier)
            sub = group.take(which)
            phase = int(self.phase[barrier])
            self._waiters.setdefault(barrier, []).append((phase, sub.threads, instruction))
            self._machine.park(sub, Waiting(self, barrier, phase))

    def _saw(self, group: Group, barriers: Array, phases: Array, instruction: Instruction) -> None:
        self._machine.hooks.mbarrier_wait(group, self.offset[barriers], phases, instruction)

    # ---- what is missing ---------------------------------------------------------------------------

    @property
    def awaited(self) -> Array:
        """Which mbarriers threads are waiting at (bool)."""
        found = np.zeros(len(self.offset), bool)
        found[[barrier for barrier, waiters in self._waiters.items() if waiters]] = True
        return found

    def unsettled(self) -> list[int]:
        """The mbarriers that threads wait at, or whose bytes do not add up."""
        used = (self.awaited | (self.bytes != 0) | (self.in_flight != 0))[: self.size]
        return [int(barrier) for barrier in np.flatnonzero(used)]
