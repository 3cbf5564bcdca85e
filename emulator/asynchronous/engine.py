"""What is in flight: st.async, cp.async and bulk copies, and the mbarriers that they complete on.

Contract
    Nothing lands before it has to, unless there is a seed: writes with an mbarrier land when threads wait at
    it and no thread can run, cp.async and bulk groups when their thread waits for them. With a seed, any of
    them may land earlier, in any order and in parts, as on a device. A part is what one thread stores with
    st.async or cp.async, or 16 bytes of a bulk copy.

    From the issue on the destination holds poison. The source of a copy is checked, and counted as read, when
    the copy is issued; its bytes are taken when they land.

    Faults: a write into a CTA that has exited, a destination or an mbarrier that is not there, and, at the
    end of a CTA, writes into its memory or copies of its own that nobody has waited for. A cp.async counts
    as waited for if an mbarrier tracks it (`cp.async.mbarrier.arrive`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.flights import Flight, Part
from emulator.asynchronous.mbarriers import Mbarriers
from emulator.errors import MemoryFault, Place, UnfinishedAsync
from emulator.ptx.instruction import Instruction
from emulator.wave.observing import Access, Wave
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

_EARLY = 0.25
"""With a seed: how likely something lands between two blocks."""


@dataclass
class Tracked:
    """An arrival that happens when the thread's earlier cp.async have landed (cp.async.mbarrier.arrive)."""

    group: Group
    instruction: Instruction
    barriers: Array
    serial: int
    left: Array


class Asynchronous:
    """The asynchronous engine of one wave."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self.mbarriers = Mbarriers(machine, machine.shared_window * machine.geometry.cta_count)
        self.flights: list[Flight] = []
        self._tracked: list[Tracked] = []
        self._serial = 0
        # Per thread: groups committed so far; elements in flight belong to the next one.
        self.committed = {
            kind: np.zeros(machine.geometry.thread_count, np.int64) for kind in ("cp.async", "bulk")
        }
        self._alive = np.bincount(machine.geometry.cta_of, minlength=machine.geometry.cta_count)

    # ---- issue -------------------------------------------------------------------------------------

    def issue(self, flight: Flight) -> None:
        """Take a flight. Raises MemoryFault if it goes to a CTA that has exited."""
        if flight.space == "shared":
            owner = flight.offsets // self._machine.shared_window
            gone = self._alive[owner] == 0
            if gone.any():
                at = int(np.flatnonzero(gone)[0])
                offset = int(flight.offsets[at]) % self._machine.shared_window
                raise MemoryFault(
                    "an asynchronous write into a CTA that has exited",
                    place=flight.instruction.place,
                    thread=flight.group.describe(at),
                    address=f"shared byte {offset} of CTA {owner[at]}",
                )
        flight.serial = self._serial
        self._serial += 1
        if flight.barriers is not None:
            np.add.at(self.mbarriers.in_flight, flight.barriers, flight.size)
        self._machine.hooks.async_issued(flight)
        self.flights.append(flight)
        flight.poison()

    def track(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """cp.async.mbarrier.arrive: an arrival once all earlier cp.async of each thread have landed."""
        left = np.ones(group.size, bool)
        self._tracked.append(Tracked(group, instruction, barriers, self._serial, left))

    # ---- landing -----------------------------------------------------------------------------------

    def _land(self, flight: Flight, which: Array) -> None:
        """Land some elements (bool)."""
        which = which & flight.left
        if not which.any():
            return
        flight.land(which)
        part = Part(flight, np.flatnonzero(which))
        group = part.group
        if flight.region is not None:
            access = Access(
                "async write",
                flight.space,
                flight.region,
                part.offsets,
                flight.size,
                group,
                flight.instruction,
            )
            self._machine.hooks.access(access)
        if flight.barriers is None:
            return
        flight.open &= ~which
        self._machine.hooks.async_landed(part)
        sizes = np.full(len(part.which), flight.size)
        self.mbarriers.complete_bytes(flight.barriers[which], sizes, group, flight.instruction)

    def _arrive(self, tracked: Tracked, which: Array) -> None:
        """Let some tracked arrivals happen: land what they wait for, then arrive."""
        which = which & tracked.left
        if not which.any():
            return
        threads = tracked.group.threads[which]
        # What they wait for is more than what the same threads' earlier arrivals do, which come first.
        for earlier in self._tracked:
            if earlier is tracked:
                break
            self._arrive(earlier, np.isin(earlier.group.threads, threads))
        tracked.left &= ~which
        barrier_of = np.full(self._machine.geometry.thread_count, -1, np.int64)
        barrier_of[threads] = tracked.barriers[which]
        for flight in self.flights:
            if flight.kind == "cp.async" and flight.serial < tracked.serial:
                mine = (barrier_of[flight.group.threads] >= 0) & flight.open
                self._land(flight, mine)
                flight.open &= ~mine
                if mine.any():
                    part = Part(flight, np.flatnonzero(mine))
                    self._machine.hooks.async_tracked(part, barrier_of[part.group.threads])
        group = tracked.group.take(which)
        ones = np.ones(group.size, np.int64)
        self.mbarriers.arrive(tracked.barriers[which], ones, group, tracked.instruction)

    def _some(self, wanted: Array) -> Array:
        """With a seed some of these elements, at least one; all without."""
        random = self._machine.random
        if random is None or not wanted.any():
            return wanted
        some = wanted & (random.random(len(wanted)) < random.random())
        if not some.any():
            some = np.zeros_like(wanted)
            some[random.choice(np.flatnonzero(wanted))] = True
        return some

    def deliver(self) -> bool:
        """Land something that threads are waiting for; False if nothing in flight would help."""
        awaited = self.mbarriers.awaited
        found = False
        for flight in list(self.flights):
            if flight.barriers is not None:
                wanted = flight.left & awaited[flight.barriers]
                if wanted.any():
                    self._land(flight, self._some(wanted))
                    found = True
                    if self._machine.random is not None:
                        break
        if not found:
            for tracked in list(self._tracked):
                wanted = tracked.left & awaited[tracked.barriers]
                if wanted.any():
                    self._arrive(tracked, self._some(wanted))
                    found = True
        self._sweep()
        return found

    def step(self) -> None:
        """With a seed: maybe land something."""
        random = self._machine.random
        if random is None or not (self.flights or self._tracked) or random.random() > _EARLY:
            return
        choice = int(random.integers(len(self.flights) + len(self._tracked)))
        if choice < len(self.flights):
            flight = self.flights[choice]
            self._land(flight, self._some(flight.left))
        else:
            tracked = self._tracked[choice - len(self.flights)]
            self._arrive(tracked, self._some(tracked.left))
        self._sweep()

    def _sweep(self) -> None:
        self.flights = [flight for flight in self.flights if flight.open.any()]
        self._tracked = [tracked for tracked in self._tracked if tracked.left.any()]

    # ---- groups ------------------------------------------------------------------------------------

    def commit(self, kind: str, group: Group) -> None:
        """Close each thread's group of "cp.async" or "bulk" copies."""
        self.committed[kind][group.threads] += 1

    def wait(self, kind: str, group: Group, pending: int | None, instruction: Instruction) -> None:
        """Wait until only each thread's `pending` youngest groups may be in flight; None: no copy at all."""
        limit = np.full(self._machine.geometry.thread_count, -1, np.int64)
        committed = self.committed[kind][group.threads]
        limit[group.threads] = committed + 1 if pending is None else committed - pending
        parts = []
        for flight in self.flights:
            if flight.kind != kind or flight.turns is None:
                continue
            done = flight.open & (flight.turns < limit[flight.group.threads])
            if done.any():
                self._land(flight, done)
                flight.open &= ~done
                parts.append(Part(flight, np.flatnonzero(done)))
        if parts:
            self._machine.hooks.async_waited(group, parts, instruction)
            self._sweep()

    # ---- the end -----------------------------------------------------------------------------------

    def exit(self, group: Group) -> None:
        """Threads end. Raises UnfinishedAsync when a CTA ends too early for what is in flight."""
        ended = np.bincount(group.cta, minlength=len(self._alive))
        self._alive -= ended
        gone = (self._alive == 0) & (ended > 0)
        if not self.flights or not gone.any():
            return
        tracked = np.full(self._machine.geometry.thread_count, -1, np.int64)
        for arrival in self._tracked:
            tracked[arrival.group.threads[arrival.left]] = arrival.serial
        leaving = np.zeros(self._machine.geometry.thread_count, bool)
        leaving[group.threads] = True
        for flight in self.flights:
            left = flight.open & gone[flight.group.cta]
            left &= flight.serial >= tracked[flight.group.threads]
            if flight.barriers is None and left.any():
                self._unfinished("the CTA ends and nobody has waited for this copy", flight, left)
            if flight.space == "shared":
                left = flight.left & gone[flight.offsets // self._machine.shared_window]
                if left.any():
                    why = "the CTA ends while this write into its shared memory is in flight"
                    self._unfinished(why, flight, left)

    def finish(self) -> None:
        """The wave has ended. Raises UnfinishedAsync for bytes that do not add up."""
        for flight in self.flights:
            if flight.open.any():
                self._unfinished("nobody has waited for this", flight, flight.open)
        for barrier in self.mbarriers.unsettled():
            raise UnfinishedAsync(
                f"the kernel ends and transaction bytes do not add up; {self.mbarriers.state(barrier)}",
                place=Place(kernel=self._machine.kernel),
            )

    def _unfinished(self, why: str, flight: Flight, which: Array) -> None:
        at = int(np.flatnonzero(which)[0])
        offset = int(flight.offsets[at])
        place = f"{flight.space} byte {offset} of {flight.region.name}"
        if flight.space == "shared":
            window = self._machine.shared_window
            place = f"shared byte {offset % window} of CTA {offset // window}"
        raise UnfinishedAsync(
            f"{why} ({int(which.sum())} of {len(which)} writes of the instruction)",
            place=flight.instruction.place,
            thread=flight.group.describe(at),
            address=place,
        )

    def pending(self) -> list[str]:
        """A line for each mbarrier that is waited for or whose bytes do not add up."""
        return [self.mbarriers.state(barrier) for barrier in self.mbarriers.unsettled()]


def engine(wave: Wave) -> Asynchronous:
    """The asynchronous engine of the machine that runs a wave."""
    found = wave.asynchronous
    assert isinstance(found, Asynchronous)
    return found
