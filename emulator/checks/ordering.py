"""Ordering by barriers, mbarriers, fences and atomics, kept in vector clocks.

Contract
    The rules are those of the PTX memory model, taken strictly:

    - bar.sync and its kin order all that their threads did, at CTA scope, and not what threads did that ended
      before. bar.arrive releases and acquires nothing.
    - bar.warp.sync orders the lanes of its member mask. No other warp-synchronous instruction does
      (shfl, vote, mma, ldmatrix), nor does running in lockstep: a lane that reads what another lane wrote
      needs it.
    - barrier.cluster.arrive releases, wait acquires. With arrive.relaxed nothing is released but mbarriers
      that the arriving thread initialised before a fence.mbarrier_init, and what precedes a fence that
      releases, at cluster scope or wider.
    - An arrival at an mbarrier releases, a wait acquires; both only inside the CTA of the mbarrier unless
      they say .cluster or wider (the default is .cta). What st.async and bulk copies bring is ordered by a
      wait for the phase that counts the bytes, and of what another CTA sends, by a wait at cluster scope.
      They release nothing else of their thread.
    - Atomics, loads and stores with .release and .acquire, at a scope that holds both threads, and so do
      relaxed ones with a fence of the same thread before (release) or behind them (acquire). fence.acq_rel
      and fence.sc do both, fence.release and fence.acquire one of them. A fence of another thread does not
      count, with a bar.sync in between or without: the usual pattern is bar.sync, then one thread's fence
      and atomic, then its fence, then bar.sync.
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.checks.clock_row import Row
from emulator.checks.clocks import Clocks
from emulator.checks.mbarrier_ordering import MbarrierOrdering
from emulator.checks.scopes import CLUSTER, GPU, scope
from emulator.ptx.instruction import Instruction
from emulator.wave.observing import Wave
from emulator.wave.threads import Group


class Ordering:
    """The clocks of a wave, moved on by what its threads do."""

    def __init__(self, machine: Wave):
        self.machine = machine
        self.geometry = machine.geometry
        self.clocks = Clocks(machine.geometry)
        self.mbarriers = MbarrierOrdering(self.clocks, machine.shared_window)
        self._arrivals = np.zeros(machine.geometry.thread_count, np.int64)
        self._cluster_rows: dict[tuple[int, int], Row] = {}
        self._snapshots: dict[int, Row] = {}
        # The last fences that release, by warp, the latest first: lanes, scope, what they knew, and when.
        self._fences: dict[int, list[tuple[int, int, Row, int]]] = {}
        self._init_fenced: set[int] = set()
        self.read: dict[int, list[tuple[int, int, Row]]] = {}
        """What relaxed loads have read, to be acquired by a fence. By warp: lanes, the scope at which it was
        released, and what it was."""

    # ---- barriers ----------------------------------------------------------------------------------

    def arrive(self, kind: str, group: Group, instruction: Instruction, now: int) -> None:
        """Threads arrive at a barrier."""
        if kind == "cta" and instruction.has("arrive"):
            for part in self.clocks.by_warp(group.threads):
                self._snapshots[int(self.geometry.warp_of[part[0]])] = self.clocks.export(part, now)
        if kind != "cluster":
            return
        phases = self._arrivals[group.threads]
        self._arrivals[group.threads] += 1
        clusters = group.cluster
        for cluster in np.flatnonzero(np.bincount(clusters)).tolist():
            here = clusters == cluster
            for phase in sorted(set(phases[here].tolist())):
                threads = group.threads[here & (phases == phase)]
                row = self._cluster_rows.get((cluster, phase))
                if row is None:
                    row = self._cluster_rows[cluster, phase] = self.clocks.empty(cluster)
                if not instruction.has("relaxed"):
                    self.clocks.absorb(row, self.clocks.export(threads, now))
                    continue
                self._merge_inits(row, threads)
                for part in self.clocks.by_warp(threads) if self._fences else ():
                    fenced = self.fence_of(part, CLUSTER)
                    if fenced is not None:
                        self.clocks.absorb(row, fenced)

    def _merge_inits(self, row: Row, threads: Array) -> None:
        present = set(threads.tolist()) & self._init_fenced
        if not present:
            return
        for mbarrier in self.mbarriers.known.values():
            if mbarrier.thread in present:
                if mbarrier.number >= len(row.inits):
                    self.clocks.absorb(row, self.clocks.empty(row.cluster))
                row.inits[mbarrier.number] = True

    def complete(self, kind: str, arrived: Array, waiting: Array, now: int) -> None:
        """Threads go on behind a barrier, ordered behind those that arrived."""
        geometry, clocks = self.geometry, self.clocks
        if kind == "warp":
            clocks.meet(waiting, now)
        elif kind == "cluster":
            phases = self._arrivals[waiting] - 1
            clusters = geometry.cta_of[waiting] // geometry.cluster_size
            for cluster in np.flatnonzero(np.bincount(clusters)).tolist():
                here = clusters == cluster
                for phase in sorted(set(phases[here].tolist())):
                    threads = waiting[here & (phases == phase)]
                    clocks.acquire(threads, self._cluster_rows[cluster, phase])
        else:
            ctas = geometry.cta_of[waiting]
            count = np.bincount(ctas, minlength=geometry.cta_count)
            whole = (count == geometry.block_size) & (len(arrived) == len(waiting))
            if whole.any():
                clocks.meet_ctas(np.flatnonzero(whole), now)
            rest = ~whole[ctas]
            for cta in sorted(set(ctas[rest].tolist())):
                self._partial(arrived[geometry.cta_of[arrived] == cta], waiting[ctas == cta], now)

    def _partial(self, arrived: Array, waiting: Array, now: int) -> None:
        """A barrier of some threads of one CTA."""
        synced = np.intersect1d(arrived, waiting)
        row = self.clocks.empty(int(self.geometry.cta_of[arrived[0]]) // self.geometry.cluster_size)
        if len(synced):
            self.clocks.absorb(row, self.clocks.export(synced, now))
        for part in self.clocks.by_warp(np.setdiff1d(arrived, waiting)):
            self.clocks.absorb(row, self._snapshots[int(self.geometry.warp_of[part[0]])])
        if len(waiting):
            self.clocks.acquire(waiting, row)

    def warp_sync(self, group: Group, instruction: Instruction, now: int) -> None:
        """A warp-synchronous instruction: only bar.warp.sync orders."""
        if instruction.has("bar", "barrier") and instruction.has("warp"):
            self.clocks.meet(group.threads, now)

    # ---- fences ------------------------------------------------------------------------------------

    def fence(self, group: Group, instruction: Instruction, now: int) -> None:
        """A fence."""
        if instruction.parts[0] not in ("fence", "membar") or instruction.has("proxy"):
            return
        if instruction.has("mbarrier_init"):
            self._init_fenced.update(group.threads.tolist())
            return
        wide = scope(instruction, GPU)
        if wide == GPU:
            self.clocks.widen()
        for part in self.clocks.by_warp(group.threads):
            if not instruction.has("release"):
                self._acquire_read(part, wide)
            if not instruction.has("acquire"):
                self._release(part, wide, now)

    def _acquire_read(self, threads: Array, wide: int) -> None:
        """One warp's threads acquire what they have read, if the scope holds the threads that released it."""
        warp, mask = (int(each[0]) for each in self.clocks.masks(threads))
        alone = self.geometry.cta_count == self.geometry.cluster_size
        kept = []
        for lanes, level, row in self.read.pop(warp, ()):
            held = wide >= level or (alone and wide >= CLUSTER)
            if held and lanes & mask:
                which = (lanes >> self.geometry.lane_of[threads]) & 1 == 1
                self.clocks.acquire(threads[which], row)
                lanes &= ~mask
            if lanes:
                kept.append((lanes, level, row))
        if kept:
            self.read[warp] = kept

    def _release(self, threads: Array, wide: int, now: int) -> None:
        """Note a fence that releases, of one warp's threads, instead of those that it covers."""
        warp, mask = (int(each[0]) for each in self.clocks.masks(threads))
        fences = [(mask, wide, self.clocks.export(threads), now)]
        for lanes, level, row, when in self._fences.get(warp, ()):
            left = lanes if level > wide else lanes & ~mask
            if left:
                fences.append((left, level, row, when))
        self._fences[warp] = fences

    def fence_of(self, threads: Array, least: int) -> Row | None:
        """What one warp's threads have released by fences of at least this scope, each for itself."""
        warp = int(self.geometry.warp_of[threads[0]])
        mask = int(self.clocks.masks(threads)[1][0])
        released: Row | None = None
        for lanes, level, row, when in self._fences.get(warp, ()):
            if level < least or not lanes & mask:
                continue
            if released is None:
                released = row.copy()
            else:
                self.clocks.absorb(released, row)
            released.add_lanes(warp, lanes & mask, when)
            mask &= ~lanes
        return None if mask else released
