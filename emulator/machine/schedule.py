"""The scheduler: which threads run which block next.

Contract
    Groups of threads wait at blocks. The lowest block goes first, with all threads that stand there, so
    threads that parted meet again. Threads are dealt into cohorts (one without a seed); a cohort runs until
    all its threads are parked or have ended, then another one, so that with a seed warps, CTAs and clusters
    are ahead of each other by whole phases. A block with a warp-synchronous instruction waits for the lanes
    of a warp that can still come; a block that polls runs when nothing else can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from emulator.arrays import Array
from emulator.ptx.instruction import Instruction
from emulator.ptx.program import Block
from emulator.wave.geometry import Geometry
from emulator.wave.threads import Group

_IDLE_LIMIT = 2000
"""Blocks that only poll, run in a row with nothing else happening, before it is called a livelock."""


class Idle(Exception):
    """Threads only poll, and nothing has changed in the last _IDLE_LIMIT blocks."""


class Schedule:
    """The threads of a machine that can run. ready: for each cohort, the groups that stand at each block.

    blocks: the kernel's. warp_alive: threads of each warp that have not ended, as the machine keeps it.
    deliver: lands pending writes, `AsynchronousEngine.deliver`. desperate: whether the last block was chosen
    although lanes of its warps are missing.
    """

    def __init__(
        self,
        geometry: Geometry,
        blocks: Sequence[Block],
        warp_alive: Array,
        random: np.random.Generator | None,
        deliver: Callable[[], bool],
    ):
        self.geometry = geometry
        self.blocks = blocks
        self.warp_alive = warp_alive
        self.random = random
        self.deliver = deliver
        self.cohort_of, self.cohorts = self._deal()
        self.ready: list[dict[int, list[Group]]] = [{} for _ in range(self.cohorts)]
        self.cohort = 0
        self.idle = 0
        self.desperate = False

    def _deal(self) -> tuple[Array | None, int]:
        """Cohort of each thread, and how many there are: by warps, CTAs or clusters, as the seed says."""
        geometry, random = self.geometry, self.random
        if random is None or geometry.warp_count == 1:
            return None, 1
        unit, count = [
            (geometry.warp_of, geometry.warp_count),
            (geometry.cta_of, geometry.cta_count),
            (geometry.cta_of // geometry.cluster_size, geometry.cta_count // geometry.cluster_size),
        ][int(random.choice(3, p=(0.5, 0.3, 0.2)))]
        if count == 1:
            unit, count = geometry.warp_of, geometry.warp_count
        cohorts = min(count, int(random.integers(2, 5)))
        return random.permutation(np.arange(count) % cohorts)[unit], cohorts

    def send(self, group: Group, block: int) -> None:
        """Let a group stand at a block, each thread in its cohort."""
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

    def _pop(self, block: int, ready: dict[int, list[Group]]) -> Group:
        groups = ready.pop(block)
        if len(groups) == 1:
            return groups[0]
        return Group(self.geometry, np.sort(np.concatenate([group.threads for group in groups])))

    def _choose(self, ready: dict[int, list[Group]], last_resort: bool) -> tuple[int, Group] | None:
        """The lowest block of a cohort that may run, and the threads that run it."""
        for number in sorted(ready):
            block = self.blocks[number]
            if block.polls and not last_resort:
                continue
            group = self._pop(number, ready)
            if not block.converged or last_resort or group.full_warps:
                return number, group
            present = np.bincount(group.warp, minlength=self.geometry.warp_count)
            whole = (present == self.warp_alive)[group.warp]
            if whole.all():
                return number, group
            if whole.any():
                ready[number] = [group.take(~whole)]
                return number, group.take(whole)
            ready[number] = [group]
        return None

    def standing(self) -> Iterator[tuple[Instruction, Array]]:
        """The threads that can run: the instruction before which they are, and which they are."""
        for ready in self.ready:
            for number, groups in ready.items():
                yield self.blocks[number].instructions[0], np.concatenate([g.threads for g in groups])

    def next(self) -> tuple[int, Group] | None:
        """The next block to run, or None if no thread is ready. Raises Idle."""
        self.desperate = False
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
        if self.idle % 8 == 0 and self.deliver():
            return self.next()
        polling = [c for c in order if any(self.blocks[b].polls for b in self.ready[c])]
        if self.idle > _IDLE_LIMIT:
            raise Idle
        for cohort in (polling if self.idle < _IDLE_LIMIT // 2 else []) or order:
            ready = self.ready[cohort]
            if cohort in polling and self.idle < _IDLE_LIMIT // 2:
                number = min(b for b in ready if self.blocks[b].polls)
                self.cohort = cohort
                return number, self._pop(number, ready)
            if self.deliver():
                return self.next()
            found = self._choose(ready, True)
            if found is not None:
                self.cohort, self.desperate = cohort, True
                return found
        return None
