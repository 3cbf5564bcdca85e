"""Runs one wave of clusters: which threads execute which block when, and who waits for what.

Contract
    `schedule` says which threads run which block next. The machine runs it, parks and wakes threads, follows
    branches, and lets asynchronous writes land when nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulator import reports
from emulator.asynchronous import Asynchronous
from emulator.barriers import Barriers
from emulator.blocks import compile_block
from emulator.geometry import Geometry
from emulator.interface import Array, Deadlock, Divergence, Group, Livelock, Observer
from emulator.memory import WaveMemory, poison
from emulator.program import Block, Program
from emulator.regions import Region
from emulator.schedule import Schedule
from emulator.storage import STORAGE

_PATIENCE = 1 << 20
"""Blocks that may run without any thread ending, before it is called a livelock."""

HOOKS = (
    "block",
    "access",
    "barrier_arrive",
    "barrier_complete",
    "warp_sync",
    "fence",
    "exit",
)


class Machine:
    """A wave of clusters and all its state. See `interface` for who uses what of it.

    thread_count, cta_count, cluster_size: of the wave, of the wave, in CTAs. cta_of, lane_of, warp_of: int64
    [thread_count]. warp_lanes: threads of each warp, cta_alive: threads of each CTA that have not ended.
    """

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        buffers: Sequence[Region],
        parameters: dict[str, Any],
        shared_bytes: int,
        random: np.random.Generator | None,
        observers: Sequence[Observer],
    ):
        self.program = program
        self.geometry = geometry
        self.parameters = parameters
        self.random = random
        self.observers = list(observers)
        for name in HOOKS:
            hooks = [
                getattr(o, name) for o in observers if getattr(type(o), name) is not getattr(Observer, name)
            ]
            setattr(self, f"hooks_{name}", hooks)
        self.thread_count = geometry.thread_count
        self.cta_count = geometry.cta_count
        self.cluster_size = geometry.cluster_size
        self.block_size = geometry.block_size
        self.cta_of, self.lane_of, self.warp_of = geometry.cta_of, geometry.lane_of, geometry.warp_of
        self.warp_count = geometry.warp_count
        self.warp_alive = geometry.warp_lanes.copy()
        self.cta_alive = np.full(self.cta_count, self.block_size)
        self.memory = WaveMemory(self, buffers, shared_bytes, program.layout.local_bytes)
        self.shared_window = self.memory.window
        self.registers = self._registers()

        count = self.thread_count
        self.end = len(program.blocks)
        self.parked = np.zeros(count, bool)
        self.ended = np.zeros(count, bool)
        self.resume = np.full(count, -1)
        self.reason_of = np.full(count, -1)
        self.reasons: list[Any] = []
        self.parked_at: list[Any] = []
        self.some_parked = False
        self.alive = count
        self.blocks_run = 0
        self.patience = _PATIENCE
        self.instructions_run = 0
        self.block: Block | None = None
        self.schedule = Schedule(self)
        self.barriers = Barriers(self)
        self.asynchronous = Asynchronous(self)

    hooks_block: list[Callable[..., None]]
    hooks_access: list[Callable[..., None]]
    hooks_barrier_arrive: list[Callable[..., None]]
    hooks_barrier_complete: list[Callable[..., None]]
    hooks_warp_sync: list[Callable[..., None]]
    hooks_fence: list[Callable[..., None]]
    hooks_exit: list[Callable[..., None]]

    def _registers(self) -> list[Any]:
        """One row a register that lives across blocks, poisoned; None for the others."""
        rows: list[Any] = [None] * len(self.program.kinds)
        for kind, dtype in STORAGE.items():
            numbers = [n for n in self.program.across if self.program.kinds[n] == kind]
            if numbers:
                table = poison(len(numbers) * self.thread_count, dtype).reshape(len(numbers), -1)
                for number, row in zip(numbers, table, strict=True):
                    rows[number] = row
        return rows

    # -- what operations use

    def special(self, name: str, group: Group) -> Array:
        """A special register of a group's threads."""
        values = self.geometry.special(name, self.memory.shared_bytes)
        return values if group.everyone else values[group.threads]

    def describe(self, thread: int) -> str:
        """A thread of the wave in words."""
        return self.geometry.describe(thread)

    def park(self, group: Group, reason: Any) -> None:
        """These threads, which execute a blocking instruction now, wait until `wake`."""
        self.parked[group.threads] = True
        self.reason_of[group.threads] = len(self.reasons)
        self.reasons.append(reason)
        self.parked_at.append(self.block.instructions[-1] if self.block else None)
        self.some_parked = True

    def wake(self, threads: Array) -> None:
        """These parked threads go on behind the instruction that they wait at."""
        threads = threads[self.parked[threads]]
        self.parked[threads] = False
        blocks = self.resume[threads]
        self.resume[threads] = -1
        for block in np.unique(blocks).tolist():
            if block >= 0:
                self._send(Group(self, np.sort(threads[blocks == block])), block)

    # -- running

    def _send(self, group: Group, block: int) -> None:
        """Let a group stand at a block, or end."""
        if block == self.end:
            self._exit(group)
        else:
            self.schedule.send(group, block)

    def _exit(self, group: Group) -> None:
        self.ended[group.threads] = True
        self.alive -= group.size
        self.patience = self.blocks_run + _PATIENCE
        self.warp_alive -= np.bincount(group.warp, minlength=self.warp_count)
        self.cta_alive -= np.bincount(group.cta, minlength=self.cta_count)
        self.asynchronous.exit(group)
        for hook in self.hooks_exit:
            hook(group)
        self.barriers.exit(group)

    def run(self) -> None:
        """Run all threads to their end. Raises EmulatorError."""
        for observer in self.observers:
            observer.begin(self)
        everyone = Group(self, np.arange(self.thread_count))
        self._send(everyone, 0 if self.program.blocks else self.end)
        step = self.asynchronous.step if self.random is not None else None
        while self.alive:
            found = self.schedule.next()
            if found is None:
                if self.asynchronous.deliver():
                    continue
                raise Deadlock(reports.deadlock(self, "no thread can go on"), kernel=self.program.name)
            if self.blocks_run > self.patience:
                message = f"{_PATIENCE} blocks ran, and no thread has ended"
                raise Livelock(reports.deadlock(self, message), kernel=self.program.name)
            try:
                self._run_block(*found)
            except Divergence as error:
                self._explain(error, found[1])
                raise
            if step is not None:
                step()
        self.asynchronous.finish()
        for observer in self.observers:
            observer.end()

    def _explain(self, error: Divergence, group: Group) -> None:
        """Raise Deadlock instead if the lanes that are missing wait for something that never comes."""
        if not self.schedule.desperate:
            return
        same = np.zeros(self.warp_count, bool)
        same[group.warp] = True
        if (self.parked & same[self.warp_of]).any():
            message = f"{error.message}, because they wait; no thread can go on"
            raise Deadlock(
                reports.deadlock(self, message), instruction=error.instruction, thread=error.thread
            ) from error

    def _run_block(self, number: int, group: Group) -> None:
        block = self.block = self.program.blocks[number]
        for hook in self.hooks_block:
            hook(block, group)
        self.blocks_run += 1
        self.instructions_run += len(block.instructions) * group.size
        function = block.full if group.size == self.thread_count else block.part
        if function is None:
            function = block.part = compile_block(self.program, block, False)
        condition = function(group, self.registers, group.threads)
        following = number + 1
        if block.branch is not None:
            if condition is None:
                following = block.branch
            else:
                taken = int(np.count_nonzero(condition))
                if taken == group.size:
                    following = block.branch
                elif taken:
                    self._send(group.take(condition), block.branch)
                    group = group.take(~condition)
        elif self.some_parked:
            self.some_parked = False
            waiting = self.parked[group.threads]
            if waiting.any():
                self.resume[group.threads[waiting]] = following
                if waiting.all():
                    return
                group = group.take(~waiting)
        self._send(group, following)
