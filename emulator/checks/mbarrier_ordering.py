"""Ordering through mbarriers: what was released into each phase, and what completed on it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from emulator.arrays import Array
from emulator.checks.clock_row import Row
from emulator.checks.clocks import Clocks
from emulator.checks.scopes import CLUSTER, CTA, scope
from emulator.ptx.instruction import Instruction
from emulator.wave.threads import Group


@dataclass
class Known:
    """What is known of one mbarrier.

    number: in its cluster. thread, serial: of its initialisation. near, far: what its own CTA's threads and,
    at cluster scope, other CTAs' have released into it so far. complete: for the last phases, both of them
    and the serial as they were at the phase's end. seen: the last phase that a thread has waited for.
    from_far: last arrival or write by another CTA: phase, thread, instruction, and of arrivals the serial.
    """

    number: int
    cta: int
    thread: int
    serial: int
    near: Row
    far: Row
    phase: int = 0
    complete: dict[int, tuple[Row, Row, int]] = field(default_factory=dict)
    seen: int = -1
    from_far: tuple[int, int, Instruction, int | None] | None = None
    row: tuple[int, bool, Row] | None = None


class MbarrierOrdering:
    """The mbarriers of a wave, by offset in the region "shared", where a CTA has `shared_window` bytes."""

    def __init__(self, clocks: Clocks, shared_window: int):
        self.clocks = clocks
        self.geometry = clocks.geometry
        self._window = shared_window
        self.known: dict[int, Known] = {}
        self.of_cta: dict[int, list[Known]] = {}
        self._count: dict[int, int] = {}
        # By number in the wave, as the asynchronous engine has them.
        self._cta = np.zeros(0, np.int64)
        self._column = np.zeros(0, np.int64)
        self._thread = np.zeros(0, np.int64)
        self._serial = np.zeros(0, np.int64)
        self._by_number: list[Known] = []
        self._public = np.zeros(0, bool)

    def init(self, group: Group, offsets: Array, now: int) -> None:
        """mbarrier.init."""
        window = self._window
        for thread, offset in zip(group.threads.tolist(), offsets.tolist(), strict=True):
            cta = offset // window
            cluster = cta // self.geometry.cluster_size
            number = self._count.get(cluster, 0)
            self._count[cluster] = number + 1
            self.clocks.grow(number + 1)
            empty = self.clocks.empty
            found = Known(number, cta, thread, now, empty(cluster), empty(cluster))
            self.known[offset] = found
            self.of_cta.setdefault(cta, []).append(found)
            self._by_number.append(found)
        self._cta = np.array([known.cta for known in self._by_number])
        self._column = np.array([2 * known.number for known in self._by_number])
        self._thread = np.array([known.thread for known in self._by_number])
        self._serial = np.array([known.serial for known in self._by_number])
        self._public = np.pad(self._public, (0, len(self._by_number) - len(self._public)))

    def uninitialised(self, threads: Array, numbers: Array) -> int | None:
        """The first of these threads that does not come after the initialisation of its mbarrier."""
        if self._public[numbers].all():
            return None
        fine = self._initialised_for(threads, numbers)
        if not fine.all():
            return int(np.flatnonzero(~fine)[0])
        if (threads == self._thread[numbers]).all():
            return None
        # Once a thread of each warp of the cluster knows it, nobody needs to be asked again.
        per_cluster, per_cta = self.clocks.per_cluster, self.clocks.per_cta
        asked = np.flatnonzero(np.bincount(numbers))
        asked = asked[~self._public[asked]]
        cluster = self._cta[asked] // self.geometry.cluster_size
        warps = cluster[:, None] * per_cluster + np.arange(per_cluster)
        first = warps // per_cta * self.geometry.block_size + warps % per_cta * 32
        known = self._initialised_for(first.ravel(), np.repeat(asked, per_cluster))
        self._public[asked] = known.reshape(-1, per_cluster).all(axis=1)
        return None

    def _initialised_for(self, threads: Array, numbers: Array) -> Array:
        ordered = self.clocks.ordered(threads, self._thread[numbers], self._serial[numbers])
        return ordered | self.clocks.knows_init(threads, self._column[numbers] // 2)

    def arrive(
        self, threads: Array, offset: int, instruction: Instruction, released: Row | None, now: int
    ) -> None:
        """Threads of one CTA arrive, releasing this."""
        known = self.known[offset]
        near = int(self.geometry.cta_of[threads[0]]) == known.cta
        if not near:
            known.from_far = (known.phase, int(threads[0]), instruction, now)
        if released is None:
            return
        if near:
            self.clocks.absorb(known.near, released)
        elif scope(instruction, CTA) >= CLUSTER:
            self.clocks.absorb(known.far, released)

    def complete(self, offset: int, phase: int, now: int) -> None:
        """A phase is complete."""
        known = self.known[offset]
        known.complete[phase] = (known.near.copy(), known.far.copy(), now)
        known.complete.pop(phase - 2, None)
        known.phase = phase + 1

    def wait(self, group: Group, offset: int, phase: int, instruction: Instruction) -> None:
        """Threads have seen a phase complete; the one before the first says nothing."""
        known = self.known[offset]
        known.seen = max(known.seen, phase)
        if phase not in known.complete:
            return
        wide = scope(instruction, CTA) >= CLUSTER
        if instruction.has("relaxed"):
            return
        # One object for all that wait for the phase, so that lanes that come one by one are put together.
        if known.row is None or known.row[:2] != (phase, wide):
            near, far, serial = known.complete[phase]
            row = self.clocks.empty(near.cluster)
            row.merge(near)
            row.bars[2 * known.number] = serial
            if wide:
                row.merge(far)
                row.bars[2 * known.number + 1] = serial
            known.row = (phase, wide, row)
        self.clocks.acquire(group.threads, known.row[2])

    def writers(self, numbers: Array, threads: Array, instruction: Instruction) -> Array:
        """Writer numbers of bytes that complete on these mbarriers, sent by these threads."""
        far = self.geometry.cta_of[threads] != self._cta[numbers]
        if far.any():
            last = np.full(len(self._by_number), -1)
            last[numbers[far]] = threads[far]
            for number in np.flatnonzero(last >= 0).tolist():
                known = self._by_number[number]
                known.from_far = (known.phase, int(last[number]), instruction, None)
        found: Array = (-2 - self._column[numbers] - far).astype(np.int32)
        return found
