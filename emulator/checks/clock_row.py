"""A row of a vector clock: what is released at some point. See `clocks` for the columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from emulator.arrays import Array

EARLIER_WAVE = -1
"""Writer of what an earlier wave wrote. Below it are the columns of `bars`: -2 - column."""


@dataclass
class Row:
    """What a warp of `cluster` knew. wide: with columns for all warps, not its cluster's alone."""

    cluster: int
    wide: bool
    per_cluster: int
    every: Array
    some: Array
    lanes: Array
    bars: Array
    inits: Array
    earlier: int = 0

    @classmethod
    def empty(cls, cluster: int, wide: bool, per_cluster: int, width: int, mbarriers: int) -> Row:
        """A row that knows nothing."""
        return cls(
            cluster,
            wide,
            per_cluster,
            np.zeros(width, np.int32),
            np.zeros(width, np.int32),
            np.zeros(width, np.uint32),
            np.zeros(2 * mbarriers, np.int32),
            np.zeros(mbarriers, bool),
        )

    def copy(self) -> Row:
        """A row that stays as it is."""
        names = ("every", "some", "lanes", "bars", "inits")
        return replace(self, **{name: getattr(self, name).copy() for name in names})

    def column(self, warp: int) -> int:
        """The column of a warp; out of range for another cluster's in a row that is not wide."""
        return warp if self.wide else warp - self.cluster * self.per_cluster

    def columns(self, wide: bool) -> slice:
        """Where this row's columns are in rows of that width, which is not smaller."""
        if wide and not self.wide:
            return slice(self.cluster * self.per_cluster, (self.cluster + 1) * self.per_cluster)
        return slice(0, len(self.every))

    def add_lanes(self, warp: int, mask: int, when: int) -> None:
        """Add what some lanes of a warp did until then."""
        column = self.column(warp)
        if self.some[column] <= self.every[column]:
            self.lanes[column] = 0
        self.some[column] = max(int(self.some[column]), when)
        self.lanes[column] |= np.uint32(mask)

    def lanes_of(self, warp: int) -> int:
        """The lanes of a warp that `some` is about."""
        column = self.column(warp)
        return int(self.lanes[column]) if 0 <= column < len(self.lanes) else 0

    def merge(self, other: Row) -> None:
        """Add what another row knows, which is not wider."""
        at = other.columns(self.wide)
        for name in ("every", "some"):
            mine = getattr(self, name)
            np.maximum(mine[at], getattr(other, name), out=mine[at])
        self.lanes[at] |= other.lanes
        self.lanes[self.some <= self.every] = 0
        self.earlier = max(self.earlier, other.earlier)
        if self.cluster == other.cluster:
            count = min(len(self.inits), len(other.inits))
            self.inits[:count] |= other.inits[:count]
            np.maximum(self.bars[: 2 * count], other.bars[: 2 * count], out=self.bars[: 2 * count])

    def orders(self, writer: int, warp: int, lane: int, serial: int) -> bool:
        """Whether it knows what a writer, a thread with this warp and lane or a number below 0, did then."""
        if writer == EARLIER_WAVE:
            return self.earlier >= serial
        if writer < EARLIER_WAVE:
            return -2 - writer < len(self.bars) and int(self.bars[-2 - writer]) >= serial
        column = self.column(warp)
        if not 0 <= column < len(self.every):
            return False
        mine = int(self.lanes[column]) >> lane & 1
        return int(self.every[column]) >= serial or bool(mine and int(self.some[column]) >= serial)
