"""Grid merge: the clusters that share a request merge their partials of a row through global memory.

Contract
    A row of the workspace is one record (`stages.partial`) a cluster, [clusters]; beside it stands a counter,
    zero before the launch. The warp that owns a row in its cluster leaves its record and counts its arrival;
    the warp that finds that it was the last merges all records in cluster order, whoever it is, so that the
    bits do not depend on the order of arrival, and puts the counter back to zero.

    The counting atomic releases the warp's record and, for the last, acquires all others (device scope). The
    lanes of the warp are ordered with the one that counts by warp barriers on both sides.

    Called by whole warps. `collect` only by the warp whose `deposit` said that it was the last. Two launches
    that run at the same time need workspaces and counters of their own.

    Records may hold anything before the launch, counters must hold zero.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.contract import Contract
from stages.fragments import registers
from stages.partial import NEGATIVE_INFINITY, PartialRecord, exponent_base
from stages.ptx import (
    count_arrival,
    exp2,
    fma,
    load_device_f32x2,
    maximum,
    shuffle_index,
    shuffle_xor,
    store_global_f32x2,
    store_global_i32,
    sub,
    warp_sync,
)


@dataclass(frozen=True)
class WorkspaceMerge:
    """Merges the partials of all clusters of a row."""

    head_dim: int

    @cute.jit
    def deposit(
        self,
        row: Int64,
        counter: Int64,
        cluster: Int32,
        clusters: Int32,
        m: Float32,
        l: Float32,
        o: list[Float32],
    ):
        """Leave cluster `cluster`'s partial of the row; True for the last of `clusters`.

        row, counter: global addresses of the row's records and of its counter. o: the lane's two dims.
        """
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        mine = row + Int64(cluster) * record.bytes
        store_global_f32x2(mine + Int64(8 * lane), o)
        if lane == 0:
            store_global_f32x2(mine + record.stats, (m, l))
        warp_sync()
        before = registers(Int32, 1)
        before[0] = Int32(0)
        if lane == 0:
            before[0] = count_arrival(counter)
            if before[0] == clusters - 1:
                store_global_i32(counter, Int32(0))
        warp_sync()
        return shuffle_index(before[0], Int32(0)) == clusters - 1

    @cute.jit
    def collect(self, row: Int64, clusters: Int32):
        """(l, the lane's two dims of o) of the row over all clusters."""
        record = PartialRecord(self.head_dim)
        lane = cute.arch.lane_idx()
        top = registers(Float32, 1)
        top[0] = Float32(NEGATIVE_INFINITY)
        for i in cutlass.range(lane, clusters, 32, unroll=1):
            m_i, _ = load_device_f32x2(row + Int64(i) * record.bytes + record.stats)
            top[0] = maximum(top[0], m_i)
        m = top[0]
        for lanes in (16, 8, 4, 2, 1):
            m = maximum(m, shuffle_xor(m, lanes))
        base = exponent_base(m)
        total = registers(Float32, 3)
        total.fill(0.0)
        for i in cutlass.range(clusters, unroll=4):
            other = row + Int64(i) * record.bytes
            m_j, l_j = load_device_f32x2(other + record.stats)
            o_j = load_device_f32x2(other + Int64(8 * lane))
            factor = exp2(sub(m_j, base))
            total[0] = fma(factor, l_j, total[0])
            total[1] = fma(factor, o_j[0], total[1])
            total[2] = fma(factor, o_j[1], total[2])
        return total[0], [total[1], total[2]]


CONTRACT = Contract(
    slot="grid_merge",
    stage=WorkspaceMerge,
    summary="clusters merge through a global workspace, the last to arrive in cluster order",
    requires={"head_dim": (64,)},
    min_arch=70,
)
