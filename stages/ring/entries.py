"""The block-table entries of a long walk: 32 at a time, one a lane, looked up well before they are needed.

Contract
    Called by whole warps with the same arguments; every warp of a CTA keeps entries of its own. The steps
    of a walk are asked for in order, none left out: `advance` with the step's first page, then `at` for each
    of its pages. The pages of a step divide 32. Reads global memory; a lane may look at an entry that the
    walk does not have, as long as it is in the table.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from stages.fragments import registers
from stages.pages.walk import PageWalk
from stages.ptx.warp import shuffle_index

BATCH = 32
"""Entries that a warp looks up at once: one a lane."""


@dataclass(frozen=True)
class WalkEntries:
    """The entries of the present 32 pages of the walk, and of the next."""

    held: cute.Tensor

    @staticmethod
    def begin(walk: PageWalk) -> "WalkEntries":
        """Look up the walk's first 64 entries."""
        entries = WalkEntries(registers(Int32, 2))
        for batch in range(2):
            entries.held[batch] = walk.entry(cute.arch.lane_idx() + batch * BATCH)
        return entries

    @cute.jit
    def advance(self, walk: PageWalk, index: Int32):
        """Make room for the walk's page `index` and those of its step."""
        if (index % BATCH == 0) & (index > 0):
            self.held[0] = self.held[1]
            self.held[1] = walk.entry(index + BATCH + cute.arch.lane_idx())

    def at(self, index: Int32) -> Int32:
        """The entry of the walk's page `index`."""
        return shuffle_index(self.held[0], index)
