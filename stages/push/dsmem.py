"""Push: each CTA sends its rows' partials to the CTAs that own them, through distributed shared memory.

Contract
    The rows of an exchange, 16 for a row group or more, are owned in order, rows / cluster a rank: row r by
    rank r // rows_per_rank. Every CTA sends every row, its own rows too, with `st.async` into the owner's
    region `rank_partials`: one record (`stages.partial`) a row and sending rank, [rows_per_rank, cluster].

    Each store completes transaction bytes on the owner's mbarrier `arrived`, whose one phase is:
    1 arrival (the owner's own, which also announces the bytes) and
    rows_per_rank * cluster * (head_dim + 2) * 4 bytes.

    Obligations, in this order:
      1. `open` by all threads of every CTA, once: it starts the mbarrier, announces the exchange, and arrives
         at the cluster barrier;
      2. `meet` by all threads, before the first `send`: it waits at the cluster barrier, so that no store
         meets a peer whose barrier has not been started;
      3. `send` for each row, by the threads that share it;
      4. `wait` by every thread that reads the region: it acquires, at cluster scope, what all ranks sent.
    A CTA stays alive until its rows have arrived because the warps that own rows wait for them, and nothing
    else is ever sent to it; so no barrier is needed at the end. A launch has one exchange; nothing is reused.
    CTAs that have nothing to exchange need none of it, if their whole cluster has nothing.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from stages.contract import Barrier, Contract, Region
from stages.partial import PartialRecord, RowUnits
from stages.ptx.barrier import cluster_arrive, cluster_wait
from stages.ptx.cluster import map_to_rank, store_async_f32x2, store_async_f32x4
from stages.ptx.mbarrier import (
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait_cluster,
)


@dataclass(frozen=True)
class DsmemPush:
    """Sends the rows of one CTA of a cluster of `cluster` CTAs to their owners.

    exchange_rows: the most rows of an exchange.
    """

    head_dim: int
    cluster: int
    exchange_rows: int

    @property
    def record(self) -> PartialRecord:
        """How a partial lies in shared memory."""
        return PartialRecord(self.head_dim)

    def rows_per_rank(self, rows: int) -> int:
        """How many of the rows of an exchange one CTA owns."""
        return rows // self.cluster

    def transaction_bytes(self, rows: int) -> int:
        """Bytes that arrive at one CTA."""
        return self.rows_per_rank(rows) * self.cluster * self.record.payload

    @cute.jit
    def open(self, arrived: Int32, rows: cutlass.Constexpr[int]):
        """Start the mbarrier at this shared-memory address for an exchange of so many rows, and arrive."""
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            mbarrier_init(arrived, 1)
            mbarrier_init_fence()
            mbarrier_arrive_expect(arrived, self.transaction_bytes(rows))
        cluster_arrive()

    def meet(self) -> None:
        """Wait until every CTA of the cluster is ready to receive."""
        cluster_wait()

    @cute.jit
    def send(self, region: Int32, arrived: Int32, rank: Int32, mine: RowUnits, rows: cutlass.Constexpr[int]):
        """Send this thread's units to the CTA that owns their row.

        region, arrived: shared-memory addresses of `rank_partials` and of the mbarrier, the same in every
        CTA. rank: this CTA's. rows: of the exchange.
        """
        owner = mine.row // self.rows_per_rank(rows)
        slot = (mine.row % self.rows_per_rank(rows)) * self.cluster + rank
        record = map_to_rank(region + slot * self.record.bytes, owner)
        barrier = map_to_rank(arrived, owner)
        for i in cutlass.range_constexpr(len(mine.units)):
            store_async_f32x4(record + 16 * mine.units[i], mine.o[i], barrier)
        if mine.units[0] == 0:
            store_async_f32x2(record + self.record.stats, (mine.m, mine.l), barrier)

    def wait(self, arrived: Int32) -> None:
        """Wait until all ranks' partials of this CTA's rows are here."""
        mbarrier_wait_cluster(arrived, 0)


CONTRACT = Contract(
    slot="push",
    stage=DsmemPush,
    summary="rows go to their owners by st.async, counted in transaction bytes",
    requires={"head_dim": (64,), "cluster": (1, 2, 4, 8, 16)},
    shared=lambda stage: (
        Region("rank_partials", stage.exchange_rows * stage.record.bytes),
        Region("arrived", 8, align=8),
    ),
    barriers=lambda stage: (
        Barrier(
            "arrived",
            arrivals=1,
            transaction_bytes=stage.transaction_bytes(stage.exchange_rows),
            arithmetic=f"{stage.rows_per_rank(stage.exchange_rows)} rows x {stage.cluster} ranks x "
            f"({stage.head_dim} + 2) x 4 B",
        ),
    ),
    min_arch=90,
)
