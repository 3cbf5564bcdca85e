"""Ordering through words of memory: strong loads, stores and atomics, with or without fences."""

from __future__ import annotations

import copy

import numpy as np

from emulator.arrays import Array
from emulator.checks.clock_row import Row
from emulator.checks.ordering import Ordering
from emulator.checks.scopes import CLUSTER, CTA, GPU, scope
from emulator.wave.observing import Access


def strength(access: Access) -> int:
    """The scope of a strong access, 0 for a weak one. Without a scope it is the whole device."""
    instruction = access.instruction
    strong = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
    if access.kind == "atomic" or (instruction.parts[0] in ("ld", "st") and instruction.has(*strong)):
        return scope(instruction, GPU)
    return 0


def coming_order(access: Access, random: np.random.Generator | None) -> Array:
    """The elements of an atomic's group in the order in which they will be served.

    With a seed that is drawn by the operation as soon as the observers have been told, so a copy of the
    generator gives the same.
    """
    if random is None or access.kind != "atomic" or access.group.size < 2:
        return np.arange(access.group.size)
    return copy.deepcopy(random).permutation(access.group.size)


class Words:
    """What has been released into words of memory; lives as long as the launch."""

    def __init__(self) -> None:
        # By region and offset, then by (scope, CTA or cluster).
        self._rows: dict[tuple[str, int], dict[tuple[int, int], Row]] = {}
        self._ordering: Ordering

    def begin(self, ordering: Ordering) -> None:
        """Another wave."""
        self._ordering = ordering

    def end(self, now: int) -> None:
        """The wave is over: to the next one, what has been released is what an earlier wave did."""
        for rows in self._rows.values():
            for key in list(rows):
                if key[0] == GPU:
                    row = self._ordering.clocks.empty(0)
                    row.cluster, row.wide, row.earlier = -1, True, now
                    row.every = row.some = np.zeros(0, np.int32)
                    row.lanes = np.zeros(0, np.uint32)
                    rows[key] = row
                else:
                    del rows[key]

    def synchronise(self, access: Access, wide: int, now: int, order: Array) -> None:
        """A strong access: acquire what was released there, release what it releases.

        order: elements of the group in the order in which an atomic serves them.
        """
        if wide == GPU:
            self._ordering.clocks.widen()
        offsets, threads = access.offsets, access.group.threads
        if access.kind != "atomic":
            for offset in np.unique(offsets).tolist():
                if access.kind == "load" and (access.region.name, offset) not in self._rows:
                    continue  # nothing was released there
                self._word(access, offset, threads[offsets == offset], wide, now)
            return
        # One behind the other, as they are carried out.
        for i in order.tolist():
            self._acquire(access, int(offsets[i]), threads[i : i + 1], wide)
            self._release(access, int(offsets[i]), threads[i : i + 1], wide, now)

    def _word(self, access: Access, offset: int, threads: Array, wide: int, now: int) -> None:
        if access.kind == "load":
            self._acquire(access, offset, threads, wide)
        else:
            self._rows.pop((access.region.name, offset), None)
            self._release(access, offset, threads, wide, now)

    def _acquire(self, access: Access, offset: int, threads: Array, wide: int) -> None:
        ordering, clocks, instruction = self._ordering, self._ordering.clocks, access.instruction
        if instruction.parts[0] == "red":
            return
        acquires = instruction.has("acquire", "acq_rel")
        for (level, place), row in self._rows.get((access.region.name, offset), {}).items():
            for part in clocks.by_warp(threads):
                if not self._covers(level, place, wide, int(part[0])):
                    continue
                if acquires:
                    clocks.acquire(part, row)
                else:
                    warp, mask = (int(each[0]) for each in clocks.masks(part))
                    have = ordering.read.setdefault(warp, [])
                    if have and have[-1][2] is row:
                        mask |= have.pop()[0]
                    have.append((mask, level, row))

    def _release(self, access: Access, offset: int, threads: Array, wide: int, now: int) -> None:
        clocks, geometry = self._ordering.clocks, self._ordering.geometry
        for part in clocks.by_warp(threads):
            if access.instruction.has("release", "acq_rel"):
                released: Row | None = clocks.export(part, now)
            else:
                released = self._ordering.fence_of(part, wide)
            if released is None:
                continue
            cta = int(geometry.cta_of[part[0]])
            place = {CTA: cta, CLUSTER: cta // geometry.cluster_size, GPU: 0}[wide]
            # Never changed in place: who has acquired the old row has not acquired this.
            rows = self._rows.setdefault((access.region.name, offset), {})
            if (wide, place) in rows:
                clocks.absorb(released, rows[wide, place])
            rows[wide, place] = released

    def _covers(self, level: int, place: int, wide: int, thread: int) -> bool:
        """Whether the scopes of a release and of an acquire by this thread each hold the other's thread."""
        geometry = self._ordering.geometry
        cta = int(geometry.cta_of[thread])
        if level == GPU:
            return wide == GPU or (wide == CLUSTER and geometry.cta_count == geometry.cluster_size)
        if level == CLUSTER:
            return wide >= CLUSTER and place == cta // geometry.cluster_size
        return place == cta
