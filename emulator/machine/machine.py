"""Runs one wave of clusters: which threads execute which block when, and who waits for what.

Contract
    `schedule` says which threads run which block next. The machine runs it, parks and wakes threads, follows
    branches, and lets asynchronous writes land when nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.errors import Deadlock, Divergence, Livelock, Place
from emulator.machine import reports
from emulator.machine.barriers import WaveBarriers
from emulator.machine.memory import WaveMemory, poison
from emulator.machine.parking import Parking
from emulator.machine.schedule import Idle, Schedule
from emulator.ptx.blocks import compile_block
from emulator.ptx.program import Block, Program
from emulator.ptx.storage import STORAGE
from emulator.wave.geometry import Geometry
from emulator.wave.hooks import Hooks
from emulator.wave.protocols import AsynchronousEngine, Machine
from emulator.wave.regions import Region
from emulator.wave.threads import Group

_PATIENCE = 1 << 20
"""Blocks that may run without any thread ending, before it is called a livelock."""


class WaveMachine:
    """A wave of clusters and all its state: `wave.protocols.Machine`.

    asynchronous: makes the wave's asynchronous engine. warp_alive, cta_alive: threads of each that have not
    ended.
    """

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        buffers: Sequence[Region],
        parameters: dict[str, Any],
        shared_bytes: int,
        random: np.random.Generator | None,
        hooks: Hooks,
        asynchronous: Callable[[Machine], AsynchronousEngine],
    ):
        self.program = program
        self.kernel = program.name
        self.geometry = geometry
        self.parameters = parameters
        self.random = random
        self.hooks = hooks
        self.warp_alive = geometry.warp_lanes.copy()
        self.cta_alive = np.full(geometry.cta_count, geometry.block_size)
        self.ended = np.zeros(geometry.thread_count, bool)
        self.alive = geometry.thread_count
        local_bytes = program.layout.local_bytes
        self.memory = WaveMemory(geometry, self.cta_alive, hooks, buffers, shared_bytes, local_bytes)
        self.shared, self.shared_window = self.memory.shared, self.memory.window
        self.registers = self._registers()

        self.end = len(program.blocks)
        self.block: Block | None = None
        self.blocks_run = 0
        self.instructions_run = 0
        self.patience = _PATIENCE
        self.parking = Parking(geometry.thread_count)
        self.barriers = WaveBarriers(self)
        self.asynchronous = asynchronous(self)
        self.schedule = Schedule(geometry, program.blocks, self.warp_alive, random, self.asynchronous.deliver)

    def _registers(self) -> list[Any]:
        """One row a register that lives across blocks, poisoned; None for the others."""
        rows: list[Any] = [None] * len(self.program.kinds)
        for kind, dtype in STORAGE.items():
            numbers = [n for n in self.program.across if self.program.kinds[n] == kind]
            if numbers:
                table = poison(len(numbers) * self.geometry.thread_count, dtype).reshape(len(numbers), -1)
                for number, row in zip(numbers, table, strict=True):
                    rows[number] = row
        return rows

    # -- what operations use

    def special(self, name: str, group: Group) -> Array:
        """A special register of a group's threads."""
        values = self.geometry.special(name, self.memory.shared_bytes)
        return values if group.everyone else values[group.threads]

    def park(self, group: Group, reason: object) -> None:
        """These threads, which execute a blocking instruction now, wait until `wake`."""
        self.parking.park(group.threads, reason, self.block.instructions[-1] if self.block else None)

    def wake(self, threads: Array) -> None:
        """Those of these threads that are parked go on behind the instruction that they wait at."""
        for block, woken in self.parking.wake(threads):
            self._send(Group(self.geometry, woken), block)

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
        self.warp_alive -= np.bincount(group.warp, minlength=self.geometry.warp_count)
        self.cta_alive -= np.bincount(group.cta, minlength=self.geometry.cta_count)
        self.asynchronous.exit(group)
        self.hooks.exit(group)
        self.barriers.exit(group)

    def run(self) -> None:
        """Run all threads to their end. Raises EmulatorError."""
        self.hooks.begin(self)
        everyone = Group(self.geometry, np.arange(self.geometry.thread_count))
        self._send(everyone, 0 if self.program.blocks else self.end)
        step = self.asynchronous.step if self.random is not None else None
        while self.alive:
            try:
                found = self.schedule.next()
            except Idle:
                message = self._report("threads poll, and nothing changes any more")
                raise Livelock(message, place=Place(self.kernel)) from None
            if found is None:
                if self.asynchronous.deliver():
                    continue
                raise Deadlock(self._report("no thread can go on"), place=Place(self.kernel))
            if self.blocks_run > self.patience:
                message = self._report(f"{_PATIENCE} blocks ran, and no thread has ended")
                raise Livelock(message, place=Place(self.kernel))
            try:
                self._run_block(*found)
            except Divergence as error:
                self._explain(error, found[1])
                raise
            if step is not None:
                step()
        self.asynchronous.finish()
        self.hooks.end()

    def _report(self, message: str) -> str:
        """What each thread waits for, behind a message."""
        standing, pending = self.schedule.standing(), self.asynchronous.pending()
        return reports.deadlock(message, self.geometry, self.parking, standing, pending, self.ended)

    def _explain(self, error: Divergence, group: Group) -> None:
        """Raise Deadlock instead if the lanes that are missing wait for something that never comes."""
        if not self.schedule.desperate:
            return
        same = np.zeros(self.geometry.warp_count, bool)
        same[group.warp] = True
        if (self.parking.parked & same[self.geometry.warp_of]).any():
            message = f"{error.message}, because they wait; no thread can go on"
            raise Deadlock(self._report(message), place=error.place, thread=error.thread) from error

    def _run_block(self, number: int, group: Group) -> None:
        block = self.block = self.program.blocks[number]
        self.hooks.block(block, group)
        self.blocks_run += 1
        self.instructions_run += len(block.instructions) * group.size
        function = block.full if group.everyone else block.part
        if function is None:
            function = block.part = compile_block(self.program, block, False)
        condition = function(self, group, self.registers, group.threads)
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
        elif self.parking.some:
            self.parking.some = False
            waiting = self.parking.parked[group.threads]
            if waiting.any():
                self.parking.resume_at(group.threads[waiting], following)
                if waiting.all():
                    return
                group = group.take(~waiting)
        self._send(group, following)
