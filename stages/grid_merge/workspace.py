"""Grid merge: the clusters that share a request merge their partials of a row through global memory.

Contract
    A row of the workspace is one record (`stages.partial`) a cluster, [clusters]; for each row there is a
    counter, zero before the launch. The warp that owns rows in its cluster leaves its record of each and then
    counts its arrival at all of them, a lane a row, in one trip to memory. Where it was the last, it merges
    the row's records in cluster order, whoever it is, so that the bits do not depend on the order of arrival.
    The counter is back at zero then.

    The counting atomic releases the warp's records and, for the last, acquires all others (device scope). The
    lanes of the warp are ordered with those that count by warp barriers on both sides.

    Called by whole warps: `leave` for each of the warp's rows, `arrive` once, then `collect` for the rows of
    which `last` says that the warp was the last. Two launches that run at the same time need workspaces and
    counters of their own.

    Records may hold anything before the launch, counters must hold zero.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.contract import Contract
from stages.fragments import registers
from stages.partial import NEGATIVE_INFINITY, PartialRecord, merge_weights, weighted_sum
from stages.ptx.arithmetic import select
from stages.ptx.global_memory import count_arrival, load_device_f32x2, store_global_f32x2, store_global_i32
from stages.ptx.warp import shuffle_index, warp_sync

FEW = 4
"""Records that a lane reads at once if there are no more."""

MANY = 12
"""Records that a lane reads at once if there are more: one trip to memory for nearly all deployments."""


@dataclass(frozen=True)
class WorkspaceMerge:
    """Merges the partials of all clusters of a row."""

    head_dim: int

    @cute.jit
    def leave(self, row: Int64, cluster: Int32, m: Float32, l: Float32, o: list[Float32]):
        """Leave cluster `cluster`'s partial of a row.

        row: global address of the row's records. o: the lane's two dims.
        """
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        mine = row + Int64(cluster) * record.bytes
        store_global_f32x2(mine + Int64(8 * lane), o)
        if lane == 0:
            store_global_f32x2(mine + record.stats, (m, l))

    @cute.jit
    def arrive(self, counters: Int64, rows: cutlass.Constexpr[int], clusters: Int32):
        """Count the arrival at the warp's rows, `rows` of them, at most a lane each; what `last` asks for.

        counters: global address of the first row's counter; the others follow.
        """
        lane = cute.arch.lane_idx()
        counter = counters + Int64(4 * lane)
        before = registers(Int32, 1)
        before[0] = Int32(0)
        warp_sync()
        if lane < rows:
            before[0] = count_arrival(counter)
            if before[0] == clusters - 1:
                store_global_i32(counter, Int32(0))
        warp_sync()
        return before[0]

    def last(self, before: Int32, row: Int32, clusters: Int32):
        """Whether the warp was the last of `clusters` at its row `row`, by what `arrive` said."""
        return shuffle_index(before, row) == clusters - 1

    @cute.jit
    def collect(self, row: Int64, clusters: Int32):
        """(l, the lane's two dims of o) of the row over all clusters."""
        merged = registers(Float32, 4)
        merged.fill(0.0)
        merged[0] = Float32(NEGATIVE_INFINITY)
        if clusters <= FEW:
            self._add(row, Int32(0), clusters, FEW, merged)
        else:
            for batch in cutlass.range((clusters + (MANY - 1)) // MANY, unroll=1):
                self._add(row, batch * MANY, clusters, MANY, merged)
        return merged[1], [merged[2], merged[3]]

    def _add(self, row, first, clusters, count, merged):
        """Merge `count` records from cluster `first` on, all in flight at once; past the last are none."""
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        m, l, o = [merged[0]], [merged[1]], [[merged[2], merged[3]]]
        for i in range(count):
            there = first + i < clusters
            other = row + Int64(select(there, first + i, clusters - 1)) * record.bytes
            stats = load_device_f32x2(other + record.stats)
            part = load_device_f32x2(other + Int64(8 * lane))
            m.append(select(there, stats[0], Float32(NEGATIVE_INFINITY)))
            l.append(select(there, stats[1], Float32(0.0)))
            o.append([select(there, x, Float32(0.0)) for x in part])
        merged[0], factors = merge_weights(m)
        merged[1] = weighted_sum(factors, l)
        for d in range(2):
            merged[2 + d] = weighted_sum(factors, [part[d] for part in o])


CONTRACT = Contract(
    slot="grid_merge",
    stage=WorkspaceMerge,
    summary="clusters merge through a global workspace, the last to arrive in cluster order",
    requires={"head_dim": (64,)},
    min_arch=70,
)
