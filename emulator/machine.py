"""Runs one wave of clusters: which threads execute which block when, and who waits for what.

Contract
    Groups of threads wait at blocks. The lowest block goes first, with all threads that stand there, so
    threads that parted meet again. Threads are dealt into cohorts (one without a seed); a cohort runs until
    all its threads are parked or have ended, then another one, so that with a seed warps, CTAs and clusters
    are ahead of each other by whole phases. A block with a warp-synchronous instruction waits for the lanes
    of a warp that can still come; a block that polls runs when nothing else can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulator.asynchronous import Asynchronous
from emulator.blocks import STORAGE, compile_block
from emulator.geometry import Geometry
from emulator.instructions.barriers import Barriers
from emulator.interface import Array, Deadlock, Divergence, Group, Livelock, Observer
from emulator.memory import WaveMemory, poison
from emulator.program import Block, Program
from emulator.regions import Region

_IDLE_LIMIT = 2000
"""Blocks that only poll, run in a row with nothing else happening, before it is called a livelock."""

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
        self.cohort_of, self.cohorts = self._deal()
        self.ready: list[dict[int, list[Group]]] = [{} for _ in range(self.cohorts)]
        self.cohort = 0
        self.alive = count
        self.idle = 0
        self.desperate = False
        self.blocks_run = 0
        self.instructions_run = 0
        self.block: Block | None = None
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

    def _deal(self) -> tuple[Array | None, int]:
        """Cohort of each thread, and how many there are: by warps, CTAs or clusters, as the seed says."""
        if self.random is None or self.warp_count == 1:
            return None, 1
        random = self.random
        unit, count = [
            (self.warp_of, self.warp_count),
            (self.cta_of, self.cta_count),
            (self.cta_of // self.cluster_size, self.cta_count // self.cluster_size),
        ][int(random.choice(3, p=(0.5, 0.3, 0.2)))]
        if count == 1:
            unit, count = self.warp_of, self.warp_count
        cohorts = min(count, int(random.integers(2, 5)))
        return random.permutation(np.arange(count) % cohorts)[unit], cohorts

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

    # -- scheduling

    def _send(self, group: Group, block: int) -> None:
        """Let a group stand at a block, each thread in its cohort."""
        if block == self.end:
            self._exit(group)
            return
        if self.cohort_of is None:
            self.ready[0].setdefault(block, []).append(group)
            return
        cohorts = self.cohort_of[group.threads]
        first = int(cohorts[0])
        if (cohorts == first).all():
            self.ready[first].setdefault(block, []).append(group)
            return
        for cohort in np.unique(cohorts).tolist():
            self.ready[cohort].setdefault(block, []).append(group.take(cohorts == cohort))

    def _exit(self, group: Group) -> None:
        self.ended[group.threads] = True
        self.alive -= group.size
        self.warp_alive -= np.bincount(group.warp, minlength=self.warp_count)
        self.cta_alive -= np.bincount(group.cta, minlength=self.cta_count)
        self.asynchronous.exit(group)
        for hook in self.hooks_exit:
            hook(group)
        self.barriers.exit(group)

    def _pop(self, block: int, ready: dict[int, list[Group]]) -> Group:
        groups = ready.pop(block)
        if len(groups) == 1:
            return groups[0]
        return Group(self, np.sort(np.concatenate([group.threads for group in groups])))

    def _choose(self, ready: dict[int, list[Group]], last_resort: bool) -> tuple[int, Group] | None:
        """The lowest block of a cohort that may run, and the threads that run it."""
        blocks = self.program.blocks
        for number in sorted(ready):
            block = blocks[number]
            if block.polls and not last_resort:
                continue
            group = self._pop(number, ready)
            if not block.converged or last_resort or group.full_warps:
                return number, group
            present = np.bincount(group.warp, minlength=self.warp_count)
            whole = (present == self.warp_alive)[group.warp]
            if whole.all():
                return number, group
            if whole.any():
                ready[number] = [group.take(~whole)]
                return number, group.take(whole)
            ready[number] = [group]
        return None

    def _next(self) -> tuple[int, Group] | None:
        """The next block to run, or None if no thread is ready."""
        found = self._choose(self.ready[self.cohort], False)
        if found is not None:
            self.idle = 0
            return found
        order = [c for c in range(self.cohorts) if self.ready[c]]
        if self.random is not None and len(order) > 1:
            order = self.random.permutation(order).tolist()
        for cohort in order:
            found = self._choose(self.ready[cohort], False)
            if found is not None:
                self.cohort, self.idle = cohort, 0
                return found
        if not order:
            return None
        # Only polling blocks, and blocks whose warps are not whole: let pending writes land in between.
        self.idle += 1
        if self.idle % 8 == 0 and self.asynchronous.deliver():
            return self._next()
        polling = [c for c in order if any(self.program.blocks[b].polls for b in self.ready[c])]
        if self.idle > _IDLE_LIMIT:
            raise Livelock(
                self._report("threads poll, and nothing changes any more"), kernel=self.program.name
            )
        for cohort in (polling if self.idle < _IDLE_LIMIT // 2 else []) or order:
            ready = self.ready[cohort]
            if cohort in polling and self.idle < _IDLE_LIMIT // 2:
                number = min(b for b in ready if self.program.blocks[b].polls)
                self.cohort = cohort
                return number, self._pop(number, ready)
            if self.asynchronous.deliver():
                return self._next()
            found = self._choose(ready, True)
            if found is not None:
                self.cohort, self.desperate = cohort, True
                return found
        return None

    def run(self) -> None:
        """Run all threads to their end. Raises EmulatorError."""
        for observer in self.observers:
            observer.begin(self)
        everyone = Group(self, np.arange(self.thread_count))
        self._send(everyone, 0 if self.program.blocks else self.end)
        step = self.asynchronous.step if self.random is not None else None
        while self.alive:
            found = self._next()
            if found is None:
                if self.asynchronous.deliver():
                    continue
                raise Deadlock(self._report("no thread can go on"), kernel=self.program.name)
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
        if not self.desperate:
            return
        same = np.zeros(self.warp_count, bool)
        same[group.warp] = True
        if (self.parked & same[self.warp_of]).any():
            message = f"{error.message}, because they wait; no thread can go on"
            raise Deadlock(
                self._report(message), instruction=error.instruction, thread=error.thread
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

    # -- reports

    def _report(self, message: str) -> str:
        """What every thread that has not ended waits for."""
        lines = [message]
        for reason in np.unique(self.reason_of[self.parked]).tolist():
            threads = np.flatnonzero(self.parked & (self.reason_of == reason))
            instruction = self.parked_at[reason]
            where = f" (PTX line {instruction.line}: {instruction.text})" if instruction else ""
            lines.append(f"{self._names(threads)} wait for {self.reasons[reason]}{where}")
        for ready in self.ready:
            for number, groups in ready.items():
                threads = np.concatenate([group.threads for group in groups])
                first = self.program.blocks[number].instructions[0]
                lines.append(
                    f"{self._names(threads)} poll or wait for lanes of their warp at PTX line {first.line}"
                )
        lines += self.asynchronous.pending()
        ended = int(self.ended.sum())
        if ended:
            lines.append(f"{ended} of {self.thread_count} threads have ended")
        return "\n".join(lines)

    def _names(self, threads: Array) -> str:
        more = f" and {len(threads) - 1} more" if len(threads) > 1 else ""
        return f"{self.describe(int(threads[0]))}{more}"
