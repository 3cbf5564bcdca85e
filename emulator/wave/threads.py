"""Groups of threads that execute together."""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.errors import Divergence
from emulator.ptx.instruction import Instruction
from emulator.wave.geometry import Geometry


class Group:
    """Threads that execute together.

    threads: their numbers in the wave, ascending (int64 [size]); thread = cta * block size + linear thread
    index. The other arrays are [size] too, and must not be written to.
    """

    __slots__ = ("_cta", "_full", "_lane", "_warp", "geometry", "size", "threads")

    def __init__(self, geometry: Geometry, threads: Array):
        self.geometry = geometry
        self.threads = threads
        self.size = len(threads)
        self._cta: Array | None = None
        self._lane: Array | None = None
        self._warp: Array | None = None
        self._full: bool | None = None

    @property
    def everyone(self) -> bool:
        """Whether these are all threads of the wave."""
        return self.size == self.geometry.thread_count

    @property
    def cta(self) -> Array:
        """Each thread's CTA in the wave (int64)."""
        if self._cta is None:
            self._cta = self.geometry.cta_of[self.threads]
        return self._cta

    @property
    def lane(self) -> Array:
        """Each thread's lane (int64)."""
        if self._lane is None:
            self._lane = self.geometry.lane_of[self.threads]
        return self._lane

    @property
    def warp(self) -> Array:
        """Each thread's warp in the wave (int64): cta * warps per CTA + warp in the CTA."""
        if self._warp is None:
            self._warp = self.geometry.warp_of[self.threads]
        return self._warp

    @property
    def cluster(self) -> Array:
        """Each thread's cluster in the wave (int64)."""
        return self.cta // self.geometry.cluster_size

    @property
    def rank(self) -> Array:
        """Each thread's CTA rank in its cluster (int64)."""
        return self.cta % self.geometry.cluster_size

    @property
    def full_warps(self) -> bool:
        """Whether each warp of the group is here with 32 lanes: arrays may then be reshaped to [-1, 32]."""
        if self._full is None:
            lanes = self.lane
            self._full = self.size % 32 == 0 and bool(
                (lanes.reshape(-1, 32) == np.arange(32)).all() and (np.diff(self.warp[::32]) > 0).all()
            )
        return self._full

    def require_full_warps(self, instruction: Instruction) -> None:
        """Raise Divergence unless `full_warps`."""
        if self.full_warps:
            return
        present = np.bincount(self.warp)
        first = int(np.flatnonzero((present != 32) & (present != 0))[0])
        at = int(np.flatnonzero(self.warp == first)[0])
        raise Divergence(
            f"{present[first]} of 32 lanes of the warp are here; {instruction.parts[0]} needs them all",
            place=instruction.place,
            thread=self.describe(at),
        )

    def take(self, which: Array) -> Group:
        """The group of those elements: a bool mask [size], or ascending indices."""
        return Group(self.geometry, self.threads[which])

    def describe(self, element: int) -> str:
        """Element `element`'s thread in words: its index, warp, lane, CTA, rank and cluster."""
        return self.geometry.describe(int(self.threads[element]))
