"""Push: each CTA sends its merged rows to the CTAs that own them, through distributed shared memory.

Contract
    The 16 rows of a row group are owned in order, 16 / cluster rows a rank: row r by rank
    r // rows_per_rank. Every CTA sends every row, its own rows too, with `st.async` into the owner's
    region `rank_partials`: one record (`stages.partial`) a row and sending rank, [rows_per_rank, cluster].

    Each store completes transaction bytes on the owner's mbarrier `arrived`, whose one phase is:
    1 arrival (the owner's own, which also announces the bytes) and
    rows_per_rank * cluster * (head_dim + 2) * 4 bytes.

    Obligations, in this order:
      1. `open` by all threads of every CTA, once: it starts the mbarrier and arrives at the cluster barrier;
      2. `send` by all threads: it waits at the cluster barrier, so that no store meets a peer whose barrier
         has not been started, then stores;
      3. `wait` by every thread that reads the region: it acquires, at cluster scope, what all ranks sent.
    A CTA stays alive until its rows have arrived because the warps that own rows wait for them, and nothing
    else is ever sent to it; so no barrier is needed at the end. The launch has one phase; nothing is reused.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from stages.contract import Barrier, Contract, Region
from stages.fragments import ROWS
from stages.partial import MergedUnits, PartialRecord
from stages.ptx import (
    cluster_arrive,
    cluster_wait,
    map_to_rank,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait_cluster,
    store_async_f32x2,
    store_async_f32x4,
)


@dataclass(frozen=True)
class DsmemPush:
    """Sends the rows of one CTA of a cluster of `cluster` CTAs to their owners."""

    head_dim: int
    cluster: int

    @property
    def record(self) -> PartialRecord:
        """How a partial lies in shared memory."""
        return PartialRecord(self.head_dim)

    @property
    def rows_per_rank(self) -> int:
        """Rows that one CTA owns."""
        return ROWS // self.cluster

    @property
    def region_bytes(self) -> int:
        """Bytes of the region `rank_partials`: one record an owned row and rank."""
        return self.rows_per_rank * self.cluster * self.record.bytes

    @property
    def transaction_bytes(self) -> int:
        """Bytes that arrive at one CTA."""
        return self.rows_per_rank * self.cluster * self.record.payload

    @cute.jit
    def open(self, arrived: Int32):
        """Start the mbarrier at this shared-memory address, and arrive at the cluster barrier."""
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            mbarrier_init(arrived, 1)
            mbarrier_init_fence()
            mbarrier_arrive_expect(arrived, self.transaction_bytes)
        cluster_arrive()

    @cute.jit
    def send(self, region: Int32, arrived: Int32, rank: Int32, merged: MergedUnits):
        """Send this thread's units to the CTA that owns their row.

        region, arrived: shared-memory addresses of `rank_partials` and of the mbarrier, the same in every
        CTA. rank: this CTA's.
        """
        cluster_wait()
        owner = merged.row // self.rows_per_rank
        slot = (merged.row % self.rows_per_rank) * self.cluster + rank
        record = map_to_rank(region + slot * self.record.bytes, owner)
        barrier = map_to_rank(arrived, owner)
        for i in cutlass.range_constexpr(len(merged.o)):
            unit = merged.unit + i * merged.unit_stride
            store_async_f32x4(record + 16 * unit, merged.o[i], barrier)
        if merged.unit == 0:
            store_async_f32x2(record + self.record.stats, (merged.m, merged.l), barrier)

    def wait(self, arrived: Int32) -> None:
        """Wait until all ranks' partials of this CTA's rows are here."""
        mbarrier_wait_cluster(arrived, 0)


CONTRACT = Contract(
    slot="push",
    stage=DsmemPush,
    summary="rows go to their owners by st.async, counted in transaction bytes",
    requires={"head_dim": (64,), "cluster": (1, 2, 4, 8, 16)},
    shared=lambda stage: (
        Region("rank_partials", stage.region_bytes),
        Region("arrived", 8, align=8),
    ),
    barriers=lambda stage: (
        Barrier(
            "arrived",
            arrivals=1,
            transaction_bytes=stage.transaction_bytes,
            arithmetic=f"{stage.rows_per_rank} rows x {stage.cluster} ranks x "
            f"({stage.head_dim} + 2) x 4 B",
        ),
    ),
    min_arch=90,
)
