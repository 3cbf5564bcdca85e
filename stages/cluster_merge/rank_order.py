"""Cluster merge: the owner of a row adds up the partials of all ranks, in rank order.

Contract
    Reads one owned row's `cluster` records from the region `rank_partials` and merges them; the sum runs
    over the ranks in ascending order whatever the order in which they arrived, so the bits are the same in
    every run.

    Called by whole warps, one owned row a warp at a time, after the push stage's `wait`. A lane merges the
    head dims 2 * lane and 2 * lane + 1. No barrier, no fence; writes nothing.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from stages.contract import Contract
from stages.partial import PartialRecord, merge_weights, weighted_sum
from stages.ptx.shared_memory import load_shared_f32x2


@dataclass(frozen=True)
class RankOrderMerge:
    """Merges the partials that `cluster` ranks sent for one row."""

    head_dim: int
    cluster: int

    def merge(self, region: Int32, row: Int32) -> tuple[Float32, Float32, list[Float32]]:
        """(m, l, the lane's two dims of o) of an owned row over the cluster's keys.

        region: shared-memory address of `rank_partials`. row: 0 .. rows_per_rank - 1.
        """
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        first = region + row * (self.cluster * record.bytes)
        records = [first + rank * record.bytes for rank in range(self.cluster)]
        stats = [load_shared_f32x2(r + record.stats) for r in records]
        parts = [load_shared_f32x2(r + 8 * lane) for r in records]
        m, factors = merge_weights([m for m, _ in stats])
        l = weighted_sum(factors, [l for _, l in stats])
        return m, l, [weighted_sum(factors, [part[d] for part in parts]) for d in range(2)]


CONTRACT = Contract(
    slot="cluster_merge",
    stage=RankOrderMerge,
    summary="the owner adds up the ranks' partials in rank order",
    requires={"head_dim": (64,), "cluster": (1, 2, 4, 8, 16)},
)
