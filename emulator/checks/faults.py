"""The checker's errors in words: the access, its thread and address, and what it collides with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn, TypedDict

import numpy as np

from emulator.asynchronous.engine import engine
from emulator.asynchronous.flights import Flight
from emulator.checks.clock_row import EARLIER_WAVE
from emulator.checks.ordering import Ordering
from emulator.checks.shadow import IN_FLIGHT, Rows, Shadow
from emulator.checks.touch import Touch
from emulator.errors import BarrierFault, MemoryFault, Place, Race, UnfinishedAsync, UninitialisedRead
from emulator.ptx.instruction import Instruction
from emulator.wave.threads import Group

Visits = Mapping[int, tuple[int, int, Instruction]]
"""What each warp of other CTAs last did in a CTA's shared memory: serial, thread and instruction."""


_NOT_COHERENT = "no barrier or fence orders such a load behind a write"


class _Where(TypedDict):
    """Where a fault is, as `EmulatorError` takes it."""

    place: Place
    thread: str
    address: str


def in_words(instruction: Instruction | None) -> str:
    """An instruction and its place."""
    if instruction is None:
        return "an unknown place"
    source = f", {instruction.source}" if instruction.source else ""
    return f"PTX line {instruction.line}{source}: `{instruction.text}`"


class Faults:
    """Raises the errors of a checker. events: the instruction of each serial number."""

    def __init__(self, ordering: Ordering, events: Sequence[Instruction | None]):
        self._machine, self._clocks, self._mbarriers = ordering.machine, ordering.clocks, ordering.mbarriers
        self._geometry, self._events = ordering.geometry, events

    # ---- words -------------------------------------------------------------------------------------

    def _address(self, shadow: Shadow, rows: Rows, row: int, column: int) -> str:
        offset = (int(rows.index[row]) * rows.width + column) * 2 - shadow.shift
        if shadow.region.space == "shared":
            window = self._machine.shared_window
            return f"shared byte {offset % window} of CTA {offset // window} of the wave"
        return f"byte {offset} of {shadow.region.name} ({shadow.region.base + offset:#x})"

    def _who(self, other: int, serial: int) -> str:
        where = in_words(self._events[serial] if serial < len(self._events) else None)
        if other >= 0:
            return f"by {self._geometry.describe(other)} at {where}"
        if other == EARLIER_WAVE:
            return f"by a CTA that ran before, at {where}"
        return f"asynchronously, and only a wait for the mbarrier's phase orders it: {where}"

    def _where(self, touch: Touch, row: int, column: int) -> _Where:
        """Place, thread and address of one granule of an access."""
        element = row if touch.rows.element is None else int(touch.rows.element[row])
        return {
            "place": touch.instruction.place,
            "thread": touch.group.describe(element),
            "address": self._address(touch.shadow, touch.rows, row, column),
        }

    # ---- errors ------------------------------------------------------------------------------------

    def unwritten(self, touch: Touch, row: int, column: int) -> NoReturn:
        """Memory that nobody has written."""
        space = touch.shadow.region.space
        raise UninitialisedRead(
            f"a read of {space} memory that nothing has written", **self._where(touch, row, column)
        )

    def code(self, touch: Touch, row: int, column: int, code: int, owner: int, what: str) -> NoReturn:
        """Memory in flight, or an mbarrier."""
        where = self._where(touch, row, column)
        if code != int(IN_FLIGHT):
            raise BarrierFault(f"a {what} of an mbarrier as if it were data", **where)
        offset = (int(touch.rows.index[row]) * touch.rows.width + column) * 2 - touch.shadow.shift
        found = None
        for flight in engine(self._machine).flights:
            inside = (flight.offsets <= offset) & (offset < flight.offsets + flight.size) & flight.open
            if flight.region is touch.shadow.region and inside.any():
                found = flight.instruction
        raise UnfinishedAsync(
            f"a {what} where an asynchronous write is in flight, issued by {self._geometry.describe(owner)} "
            f"at {in_words(found)}; nobody has waited for it",
            **where,
        )

    def source(self, touch: Touch, row: int, flight: Flight) -> NoReturn:
        """Memory that a copy in flight has still to read."""
        raise UnfinishedAsync(
            f"a write to the source of a copy that is in flight: {in_words(flight.instruction)}",
            **self._where(touch, row, 0),
        )

    def still_read(self, touch: Touch, row: int, read: Touch, piece: int) -> NoReturn:
        """Memory that a wgmma may still read."""
        raise UnfinishedAsync(
            "a write to the operand of a wgmma that may still read it, issued by "
            f"{read.group.describe(piece)} at {in_words(read.instruction)}; no wgmma.wait_group has waited "
            "for its group",
            **self._where(touch, row, 0),
        )

    def unfenced(self, touch: Touch, row: int, column: int, other: int, serial: int) -> NoReturn:
        """A read by the async proxy of what the generic proxy wrote."""
        raise Race(
            "a read through the async proxy of what was written through the generic proxy, with no "
            f"fence.proxy.async in between; written {self._who(other, serial)}",
            **self._where(touch, row, column),
        )

    def race(
        self, touch: Touch, row: int, column: int, what: str, did: str, other: int, serial: int
    ) -> NoReturn:
        """Two accesses that nothing orders."""
        raise Race(
            f"a race: this {what} and an earlier access are not ordered; {did} {self._who(other, serial)}",
            **self._where(touch, row, column),
        )

    def constant_read(self, touch: Touch, row: int, column: int, other: int, serial: int) -> NoReturn:
        """A non-coherent load of what this launch has written."""
        raise Race(
            f"a race: ld.global.nc is for memory that the launch does not write; {_NOT_COHERENT}; "
            f"written {self._who(other, serial)}",
            **self._where(touch, row, column),
        )

    def constant_write(self, touch: Touch, row: int, column: int, serial: int) -> NoReturn:
        """A write to what this launch has read by a non-coherent load."""
        raise Race(
            f"a race: a write to memory that the launch reads by ld.global.nc; {_NOT_COHERENT}; "
            f"read at {in_words(self._events[serial])}",
            **self._where(touch, row, column),
        )

    def uninitialised_mbarrier(
        self, group: Group, instruction: Instruction, element: int, offset: int
    ) -> NoReturn:
        """An mbarrier whose initialisation may not have happened yet."""
        known = self._mbarriers.known[offset]
        raise BarrierFault(
            "nothing orders this behind the mbarrier's initialisation by "
            f"{self._geometry.describe(known.thread)} at {in_words(self._events[known.serial])}",
            place=instruction.place,
            thread=group.describe(element),
            address=engine(self._machine).mbarriers.name(offset),
        )

    def early_exit(self, cta: int, group: Group, visits: Visits) -> None:
        """Raise if other CTAs may still use the memory of a CTA that has ended."""
        geometry = self._geometry
        last = group.threads[group.cta == cta][-1:]
        for _, (serial, thread, instruction) in sorted(visits.items()):
            if not self._any_knows(cta, thread, serial):
                raise MemoryFault(
                    "a CTA ends and nothing says that its peer has done with its shared memory: "
                    f"used by {geometry.describe(thread)} at {in_words(instruction)}",
                    place=instruction.place,
                    thread=geometry.describe(int(last[0])),
                )
        for known in self._mbarriers.of_cta.get(cta, ()):
            if known.from_far is not None and known.from_far[0] > known.seen:
                phase, thread, instruction, arrival = known.from_far
                if arrival is not None and self._any_knows(cta, thread, arrival):
                    continue
                raise MemoryFault(
                    f"a CTA ends without having waited for phase {phase} of its mbarrier, which "
                    f"{geometry.describe(thread)} completes or arrives at, {in_words(instruction)}",
                    place=instruction.place,
                    thread=geometry.describe(int(last[0])),
                )

    def _any_knows(self, cta: int, thread: int, serial: int) -> bool:
        block = self._geometry.block_size
        threads = np.arange(cta * block, (cta + 1) * block)
        count = len(threads)
        known = self._clocks.ordered(threads, np.full(count, thread), np.full(count, serial))
        return bool(known.any())
