"""What the parts of a machine offer each other: memory, the asynchronous engine, and who may watch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from emulator.instruction import Array, Instruction
from emulator.threads import Group

if TYPE_CHECKING:
    from emulator.machine import Machine
    from emulator.regions import Region


@dataclass
class Access:
    """Bytes of one region that threads of one instruction touch.

    kind: "load", "store", "atomic", "async read" or "async write". space: "global", "shared" or "local".
    region: whose bytes (`region.data`: uint8 [bytes]; `region.name`). All CTAs of a wave share one region
    "shared": CTA c owns bytes [c * machine.shared_window, (c + 1) * machine.shared_window). offsets: int64
    [group.size], where in the region; size: bytes a thread. group: the threads, of asynchronous writes those
    that issued them.
    """

    kind: str
    space: str
    region: Region
    offsets: Array
    size: int
    group: Group
    instruction: Instruction


class Memory(Protocol):
    """What operations may do with memory: `machine.memory` (module `memory`).

    Spaces are "global", "shared::cta", "shared::cluster", "local" and "generic". Both raise MemoryFault, with
    thread and address, for what is out of bounds or misaligned (`size` is the alignment too).
    """

    def resolve(
        self, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[tuple[Region, Array, Array | None]]:
        """Where addresses (integers [group.size]) point: (region, offsets int64, elements).

        elements: the indices of the group that the entry is for, None for all. With `shared::cta` and
        `shared::cluster` the region is the one of all CTAs and the offset already holds the owner's window:
        owner = offset // machine.shared_window.
        """

    def access(
        self, kind: str, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[tuple[Region, Array, Array | None]]:
        """`resolve`, and tell the observers."""

    def load(self, space: str, addresses: Array, size: int, group: Group, instruction: Instruction) -> Array:
        """Read uint8 [group.size, size]; tells the observers."""

    def store(
        self, space: str, addresses: Array, values: Array, group: Group, instruction: Instruction
    ) -> None:
        """Write uint8 [group.size, size]; tells the observers. Of several threads the last one wins."""


class AsynchronousEngine(Protocol):
    """`machine.asynchronous`: what is in flight (module `asynchronous`, class Asynchronous(machine)).

    Randomness comes from `machine.random` (numpy Generator), which is None without a seed: then everything
    lands at the latest allowed moment, in order of issue.
    """

    def deliver(self) -> bool:
        """Land at least one thing, because nothing can run; False if nothing is in flight."""

    def step(self) -> None:
        """Maybe land something, between two blocks; only called with a seed."""

    def exit(self, group: Group) -> None:
        """These threads have ended."""

    def finish(self) -> None:
        """All threads have ended. Raises UnfinishedAsync for what nobody waited for."""

    def pending(self) -> list[str]:
        """For a deadlock report: a line for each mbarrier that threads wait for or bytes are missing at."""


class Observer:
    """Sees what happens; does nothing by default. The checker and the counters derive from it.

    Hooks may raise EmulatorError. Only overridden hooks cost time. `begin` is called for each wave.
    """

    def begin(self, machine: Machine) -> None:
        """A wave of clusters is about to run on this machine; keep it."""

    def block(self, block: Any, group: Group) -> None:
        """A block is about to run. block.instructions: list of Instruction; block.index."""

    def access(self, access: Access) -> None:
        """Memory is about to be read or written."""

    def barrier_arrive(self, kind: str, group: Group, instruction: Instruction) -> None:
        """Threads arrive at a barrier. kind: "cta", "cluster" or "warp"."""

    def barrier_complete(self, kind: str, arrived: Array, waiting: Array, instruction: Instruction) -> None:
        """All have arrived: thread numbers that arrived, and that go on ordered behind all of those.

        A thread that only arrives (bar.arrive) is in `arrived` alone. For "cluster" it is called when
        waiting threads go on, possibly several times a phase; `instruction` is the waiting one.
        """

    def warp_sync(self, group: Group, instruction: Instruction) -> None:
        """Lanes meet in a warp-synchronous instruction (shfl, vote, mma, bar.warp.sync ...)."""

    def fence(self, group: Group, instruction: Instruction) -> None:
        """A fence or griddepcontrol; look at instruction.parts."""

    def mbarrier_arrive(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """Threads arrive at mbarriers: offset of each in the region "shared"."""

    def mbarrier_complete(self, barrier: int, phase: int) -> None:
        """A phase (0, 1, 2, ...) of the mbarrier at this offset is complete."""

    def mbarrier_wait(self, group: Group, barriers: Array, phases: Array, instruction: Instruction) -> None:
        """Threads have seen a phase of an mbarrier complete (called when they go on)."""

    def async_issued(self, write: Any) -> None:
        """An asynchronous copy or store has been issued; the object is the asynchronous module's own."""

    def async_landed(self, write: Any) -> None:
        """Its bytes have landed."""

    def async_waited(self, group: Group, writes: Sequence[Any], instruction: Instruction) -> None:
        """These threads have waited for these writes of their own (cp.async groups)."""

    def exit(self, group: Group) -> None:
        """Threads have ended."""

    def end(self) -> None:
        """The wave is over."""


@dataclass
class Report:
    """What a launch did.

    kernel: entry name. threads, waves: how many. blocks: basic blocks run (each by a group of threads).
    instructions: executed, summed over threads, all kinds together. seconds: without compiling. observers:
    those that watched, with what they found (`counts` and `checker`).
    """

    kernel: str
    threads: int
    waves: int
    blocks: int = 0
    instructions: int = 0
    seconds: float = 0.0
    observers: list[Observer] = field(default_factory=list)
