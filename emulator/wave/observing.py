"""Watching a wave: what observers are told, and what they may ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from emulator.arrays import Array
from emulator.ptx.instruction import Instruction
from emulator.ptx.program import Block
from emulator.wave.geometry import Geometry
from emulator.wave.regions import Region
from emulator.wave.threads import Group


class Wave(Protocol):
    """What an observer may ask of the machine that runs a wave of clusters."""

    @property
    def geometry(self) -> Geometry:
        """The numbers of its threads, warps, CTAs and clusters."""

    @property
    def cta_alive(self) -> Array:
        """Threads of each CTA that have not ended (int64 [CTAs])."""

    @property
    def shared(self) -> Region:
        """Shared memory of all CTAs: CTA c owns bytes [c * shared_window, (c + 1) * shared_window)."""

    @property
    def shared_window(self) -> int:
        """Bytes of one CTA in the region `shared`."""

    @property
    def random(self) -> np.random.Generator | None:
        """The launch's source of randomness; None without a seed."""

    @property
    def asynchronous(self) -> object:
        """The asynchronous engine; `emulator.asynchronous.engine.engine` gives it its type."""


@dataclass
class Access:
    """Bytes of one region that threads of one instruction touch.

    kind: "load", "store", "atomic", "async read" or "async write". space: "global", "shared" or "local".
    region: whose bytes; all CTAs of a wave share one region "shared", see `Wave.shared`. offsets: int64
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


class Observer:
    """Sees what happens; does nothing by default. The checker and the counters derive from it.

    Hooks may raise EmulatorError. Only overridden hooks cost time. `begin` is called for each wave.
    """

    def begin(self, machine: Wave) -> None:
        """A wave of clusters is about to run on this machine; keep it."""

    def block(self, block: Block, group: Group) -> None:
        """A block is about to run."""

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

    def mbarrier_init(self, group: Group, offsets: Array, instruction: Instruction) -> None:
        """Threads have initialised mbarriers: offset of each in the region "shared"."""

    def mbarrier_inval(self, group: Group, offsets: Array, instruction: Instruction) -> None:
        """Threads have invalidated mbarriers, by the same offsets."""

    def mbarrier_arrive(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """Threads arrive at mbarriers: offset of each in the region "shared"."""

    def mbarrier_complete(self, barrier: int, phase: int) -> None:
        """A phase (0, 1, 2, ...) of the mbarrier at this offset is complete."""

    def mbarrier_wait(self, group: Group, barriers: Array, phases: Array, instruction: Instruction) -> None:
        """Threads have seen a phase of an mbarrier complete (called when they go on)."""

    # The asynchronous engine gives its own records: `emulator.asynchronous.flights`, which build on this
    # module's package.

    def async_issued(self, write: Any) -> None:
        """An asynchronous copy or store (`Flight`) has been issued."""

    def async_landed(self, write: Any) -> None:
        """Bytes of a `Part` of one have landed that the phase of an mbarrier counts."""

    def async_tracked(self, write: Any, barriers: Array) -> None:
        """A `Part` of a cp.async has landed, and arrivals at these mbarriers, by number, follow it."""

    def async_waited(self, group: Group, writes: Sequence[Any], instruction: Instruction) -> None:
        """These threads have waited for these writes (`Part`) of their own (cp.async and bulk groups)."""

    def exit(self, group: Group) -> None:
        """Threads have ended."""

    def end(self) -> None:
        """The wave is over."""
