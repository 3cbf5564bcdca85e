"""What the parts of a machine offer each other: memory, barriers, the asynchronous engine, the machine.

Contract
    Operations, barriers and the asynchronous engine know the machine by the protocol `Machine` alone; the
    package `emulator.machine` satisfies it, and `emulator.launch` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from emulator.arrays import Array
from emulator.ptx.instruction import Instruction
from emulator.wave.hooks import Hooks
from emulator.wave.observing import Wave
from emulator.wave.regions import Region
from emulator.wave.threads import Group

Resolved = tuple[Region, Array, "Array | None"]
"""Where addresses of a group point: a region, offsets in it (int64), and the elements of the group that the
entry is for, None for all."""


class Memory(Protocol):
    """What operations may do with memory.

    Spaces are "global", "shared::cta", "shared::cluster", "local" and "generic". All methods raise
    MemoryFault, with thread and address, for what is out of bounds or misaligned (`size`, the bytes of a
    thread, is the alignment too).
    """

    def resolve(
        self, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[Resolved]:
        """Where addresses (integers [group.size]) point.

        With `shared::cta` and `shared::cluster` the region is the one of all CTAs and the offset already
        holds the owner's window: owner = offset // machine.shared_window.
        """

    def access(
        self, kind: str, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[Resolved]:
        """`resolve`, and tell the observers."""

    def load_words(
        self, space: str, addresses: Array, width: int, count: int, group: Group, instruction: Instruction
    ) -> list[Array]:
        """Read `count` words of `width` bytes a thread: unsigned arrays [group.size]; tells the observers."""

    def store_words(
        self, space: str, addresses: Array, words: Sequence[Array], group: Group, instruction: Instruction
    ) -> None:
        """Write unsigned arrays [group.size], next to each other; tells the observers.

        Where several threads write to one place the last one wins.
        """


class Barriers(Protocol):
    """The barriers of threads. Threads that have to wait are parked."""

    def cta(self, number: int, wanted: int, waits: bool, group: Group, instruction: Instruction) -> None:
        """Threads of a group arrive at their CTAs' barrier, and wait for it or go on.

        wanted: how many threads it is for; 0 for all of the CTA, of which those that have ended count as
        arrived.
        """

    def cluster_arrive(self, group: Group, instruction: Instruction) -> None:
        """Threads arrive at the barrier of their cluster."""

    def cluster_wait(self, group: Group, instruction: Instruction) -> None:
        """Threads wait for the phase that they have arrived in."""

    def warp(self, group: Group, mask: Array, instruction: Instruction) -> None:
        """Lanes wait for the lanes of their member mask that have not ended."""


class AsynchronousEngine(Protocol):
    """What is in flight.

    Randomness comes from `machine.random`. Where that is None, everything lands at the latest allowed moment,
    in order of issue.
    """

    def deliver(self) -> bool:
        """Land at least one thing, because nothing can run; False if nothing in flight would help."""

    def step(self) -> None:
        """Maybe land something, between two blocks; only called with a seed."""

    def exit(self, group: Group) -> None:
        """These threads have ended."""

    def finish(self) -> None:
        """All threads have ended. Raises UnfinishedAsync for what nobody waited for."""

    def pending(self) -> list[str]:
        """For a deadlock report: a line for each mbarrier that threads wait for or bytes are missing at."""


class Machine(Wave, Protocol):
    """What operations, barriers and the asynchronous engine may use of the machine that runs a wave."""

    @property
    def kernel(self) -> str:
        """The entry's name."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The kernel's arguments, by the names of its parameters: unsigned NumPy scalars."""

    @property
    def warp_alive(self) -> Array:
        """Threads of each warp that have not ended (int64 [warps])."""

    @property
    def ended(self) -> Array:
        """Which threads have ended (bool [threads])."""

    @property
    def hooks(self) -> Hooks:
        """The observers."""

    @property
    def memory(self) -> Memory:
        """Memory, as the threads of the wave see it."""

    @property
    def barriers(self) -> Barriers:
        """The barriers of threads."""

    @property
    def asynchronous(self) -> AsynchronousEngine:
        """What is in flight."""

    def special(self, name: str, group: Group) -> Array:
        """A special register of a group's threads: uint32 [group.size]. Called by compiled blocks."""

    def park(self, group: Group, reason: object) -> None:
        """These threads, which execute a blocking instruction now, wait until `wake`."""

    def wake(self, threads: Array) -> None:
        """Those of these threads that are parked go on behind the instruction that they wait at."""
