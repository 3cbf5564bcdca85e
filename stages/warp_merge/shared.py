"""Warp merge: the partials of a CTA's warps become one partial a row, through shared memory.

Contract
    Each warp leaves the partials of its 16 rows in the region `warp_partials` (records of
    `stages.partial`), then one CTA barrier, then every thread merges some dims of one row, adding the
    warps in ascending order. Thread i has row i // (threads / 16) and every (threads / 16)-th unit of 4
    dims of it.

    Called once by all threads of the CTA together. Before it, nothing may be in flight in the region; after
    it, the region is free once every thread has passed the kernel's next barrier.

    Reads and writes are 16 bytes wide and free of bank conflicts with 4 warps and more.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from stages.contract import Contract, Region
from stages.fragments import ROWS, RowState
from stages.partial import PartialRecord, RowUnits, lane_units, merge_weights, weighted_sum
from stages.ptx.barrier import cta_sync
from stages.ptx.shared_memory import (
    load_shared_f32x2,
    load_shared_f32x4,
    store_shared_f32x2,
    store_shared_f32x4,
)


@dataclass(frozen=True)
class SharedWarpMerge:
    """Merges the partials of `warps` warps."""

    head_dim: int
    warps: int

    @property
    def record(self) -> PartialRecord:
        """How a partial lies in shared memory."""
        return PartialRecord(self.head_dim)

    def merge(self, region: Int32, state: RowState) -> RowUnits:
        """Merge the warps' states; returns this thread's share of the CTA's partials.

        region: shared-memory address of `warp_partials`. state: this warp's rows, l already summed.
        """
        self._publish(region, state)
        cta_sync()
        return self._gather(region)

    @cute.jit
    def _publish(self, region: Int32, state: RowState):
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        for half in cutlass.range_constexpr(2):
            mine = lane_units(state, half, warp * ROWS + lane // 4 + 8 * half, self.head_dim)
            record = region + mine.row * self.record.bytes
            for i in cutlass.range_constexpr(len(mine.units)):
                store_shared_f32x4(record + 16 * mine.units[i], mine.o[i])
            if lane % 4 == 0:
                store_shared_f32x2(record + self.record.stats, (mine.m, mine.l))

    def _gather(self, region):
        thread, _, _ = cute.arch.thread_idx()
        threads_a_row = self.warps * 32 // ROWS
        row, first = thread // threads_a_row, thread % threads_a_row
        records = [region + (w * ROWS + row) * self.record.bytes for w in range(self.warps)]
        stats = [load_shared_f32x2(r + self.record.stats) for r in records]
        m, factors = merge_weights([s[0] for s in stats])
        l = weighted_sum(factors, [s[1] for s in stats])
        units = [first + i for i in range(0, self.head_dim // 4, threads_a_row)]
        o = []
        for unit in units:
            parts = [load_shared_f32x4(r + 16 * unit) for r in records]
            o.append([weighted_sum(factors, [part[d] for part in parts]) for d in range(4)])
        return RowUnits(row, units, m, l, o)


CONTRACT = Contract(
    slot="warp_merge",
    stage=SharedWarpMerge,
    summary="the CTA's warps merge through shared memory, in warp order",
    requires={"head_dim": (64,), "warps": (1, 2, 4, 8)},
    shared=lambda stage: (Region("warp_partials", stage.warps * ROWS * stage.record.bytes),),
)
