"""Which threads run next.

Contract
    Groups of threads wait at blocks. The lowest block goes first, with all threads that stand there, so
    threads that parted meet again. Threads are dealt into cohorts (one without a seed); a cohort runs until
    all its threads are parked or have ended, then another one, so that with a seed warps, CTAs and clusters
    are ahead of each other by whole phases. A block with a warp-synchronous instruction waits for the lanes
    of a warp that can still come; a block that polls runs when nothing else can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator import reports
from emulator.interface import Array, Group, Livelock

if TYPE_CHECKING:
    from emulator.machine import Machine

_IDLE_LIMIT = 2000
"""Blocks that only poll, run in a row with nothing else happening, before it is called a livelock."""


class Schedule:
    """The threads of a machine that can run. ready: for each cohort, the groups that stand at each block.

    desperate: whether the last block was chosen although lanes of its warps are missing.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.cohort_of, self.cohorts = self._deal()
        self.ready: list[dict[int, list[Group]]] = [{} for _ in range(self.cohorts)]
        self.cohort = 0
        self.idle = 0
        self.desperate = False

    def _deal(self) -> tuple[Array | None, int]:
        """Cohort of each thread, and how many there are: by warps, CTAs or clusters, as the seed says."""
        machine = self.machine
        if machine.random is None or machine.warp_count == 1:
            return None, 1
        random = machine.random
        unit, count = [
            (machine.warp_of, machine.warp_count),
            (machine.cta_of, machine.cta_count),
            (machine.cta_of // machine.cluster_size, machine.cta_count // machine.cluster_size),
        ][int(random.choice(3, p=(0.5, 0.3, 0.2)))]
        if count == 1:
            unit, count = machine.warp_of, machine.warp_count
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
        return Group(self.machine, np.sort(np.concatenate([group.threads for group in groups])))

    def _choose(self, ready: dict[int, list[Group]], last_resort: bool) -> tuple[int, Group] | None:
        """The lowest block of a cohort that may run, and the threads that run it."""
        blocks = self.machine.program.blocks
        for number in sorted(ready):
            block = blocks[number]
            if block.polls and not last_resort:
                continue
            group = self._pop(number, ready)
            if not block.converged or last_resort or group.full_warps:
                return number, group
            present = np.bincount(group.warp, minlength=self.machine.warp_count)
            whole = (present == self.machine.warp_alive)[group.warp]
            if whole.all():
                return number, group
            if whole.any():
                ready[number] = [group.take(~whole)]
                return number, group.take(whole)
            ready[number] = [group]
        return None

    def next(self) -> tuple[int, Group] | None:
        """The next block to run, or None if no thread is ready."""
        self.desperate = False
        found = self._choose(self.ready[self.cohort], False)
        if found is not None:
            self.idle = 0
            return found
        order = [c for c in range(self.cohorts) if self.ready[c]]
        if self.machine.random is not None and len(order) > 1:
            order = self.machine.random.permutation(order).tolist()
        for cohort in order:
            found = self._choose(self.ready[cohort], False)
            if found is not None:
                self.cohort, self.idle = cohort, 0
                return found
        if not order:
            return None
        # Only polling blocks, and blocks whose warps are not whole: let pending writes land in between.
        self.idle += 1
        if self.idle % 8 == 0 and self.machine.asynchronous.deliver():
            return self.next()
        polling = [c for c in order if any(self.machine.program.blocks[b].polls for b in self.ready[c])]
        if self.idle > _IDLE_LIMIT:
            message = reports.deadlock(self.machine, "threads poll, and nothing changes any more")
            raise Livelock(message, kernel=self.machine.program.name)
        for cohort in (polling if self.idle < _IDLE_LIMIT // 2 else []) or order:
            ready = self.ready[cohort]
            if cohort in polling and self.idle < _IDLE_LIMIT // 2:
                number = min(b for b in ready if self.machine.program.blocks[b].polls)
                self.cohort = cohort
                return number, self._pop(number, ready)
            if self.machine.asynchronous.deliver():
                return self.next()
            found = self._choose(ready, True)
            if found is not None:
                self.cohort, self.desperate = cohort, True
                return found
        return None
