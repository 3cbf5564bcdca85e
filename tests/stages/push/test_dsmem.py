"""The push: every row reaches its owner's record of the sending rank, and the bytes add up."""

import re
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int64

from stages.fragments import ROWS
from stages.partial import RowUnits
from stages.ptx.shared_memory import load_shared_f32x2
from stages.push.dsmem import CONTRACT, DsmemPush
from tests import layouts
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import load_f32, place, store_f32

HEAD_DIM = layouts.HEAD_DIM
WORDS = HEAD_DIM + 2
"""FP32 words of a record that travel: o, m and l."""

CLUSTERS = (1, 2, 4, 8, 16)
GROUPS = 2
"""Clusters in the grid: a store must not leave its own."""


def load_share(base: Int64, row, units: list) -> RowUnits:
    """Some units of a row of a CTA's rows [row, o 64 | m | l]."""
    record = base + Int64(4 * WORDS * row)
    o = [[load_f32(record + Int64(16 * unit + 4 * d)) for d in range(4)] for unit in units]
    m, l = load_f32(record + 4 * HEAD_DIM), load_f32(record + 4 * HEAD_DIM + 4)
    return RowUnits(row, units, m, l, o)


def load_shares(base: Int64, warps: int, rows: int) -> list[RowUnits]:
    """This thread's shares of a CTA's rows.

    Of 16 rows as the warp merge deals them out, one row a thread and units as many apart as threads share a
    row. Of more, as a warp's lanes hold a row group: two rows a thread, and of each two pairs of neighbouring
    units.
    """
    thread, _, _ = cute.arch.thread_idx()
    if rows == ROWS:
        threads_a_row = 32 * warps // ROWS
        units = [thread % threads_a_row + i for i in range(0, HEAD_DIM // 4, threads_a_row)]
        return [load_share(base, thread // threads_a_row, units)]
    lane, warp = thread % 32, thread // 32
    units = [8 * chunk + 2 * (lane % 4) + unit for chunk in range(2) for unit in range(2)]
    return [load_share(base, ROWS * warp + lane // 4 + 8 * half, units) for half in range(2)]


@dataclass(frozen=True)
class Pushing(MicroKernel):
    """partials [group, rank, row, WORDS] -> records [group, rank, owned row * cluster + sender, WORDS].

    rows: of the exchange. exchange_rows: those that the stage has room for.
    """

    cluster: int
    warps: int
    rows: int = ROWS
    exchange_rows: int = ROWS

    def __str__(self):
        more = f"_{self.rows}_of_{self.exchange_rows}_rows" if self.exchange_rows > ROWS else ""
        return f"Pushing_{self.cluster}_ranks_{self.warps}_warps{more}"

    @property
    def stage(self) -> DsmemPush:
        """The stage under test."""
        return DsmemPush(HEAD_DIM, self.cluster, self.exchange_rows)

    @property
    def where(self) -> Launch:
        """Some clusters, each CTA with the stage's regions."""
        _, end = place(CONTRACT.shared(self.stage))
        return Launch(
            (GROUPS * self.cluster, 1, 1), (32 * self.warps, 1, 1), (self.cluster, 1, 1), shared_bytes=end
        )

    @cute.jit
    def __call__(self, partials: cute.Pointer, records: cute.Pointer, stream: cuda.CUstream):
        self.kernel(partials.toint(), records.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, partials: Int64, records: Int64):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        offsets, _ = place(CONTRACT.shared(self.stage))
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint()
        region, arrived = shared + offsets["rank_partials"], shared + offsets["arrived"]
        self.stage.open(arrived, self.rows)
        shares = load_shares(partials + Int64(block * self.rows * WORDS * 4), self.warps, self.rows)
        self.stage.meet()
        for i in cutlass.range_constexpr(len(shares)):
            self.stage.send(region, arrived, block % self.cluster, shares[i], self.rows)
        self.stage.wait(arrived)
        # A CTA owns as many records as there are rows, whatever the cluster's size.
        pairs, threads = self.rows * WORDS // 2, 32 * self.warps
        for i in cutlass.range_constexpr(0, pairs, threads):
            if i + thread < pairs:
                record, pair = (i + thread) // (WORDS // 2), (i + thread) % (WORDS // 2)
                words = load_shared_f32x2(region + record * self.stage.record.bytes + 8 * pair)
                at = records + Int64(8 * (block * pairs + i + thread))
                store_f32(at, words[0])
                store_f32(at + 4, words[1])


KERNELS = [
    *(Pushing(cluster, 4) for cluster in CLUSTERS),
    *(Pushing(8, warps) for warps in (1, 2, 8)),
    *(Pushing(cluster, 4, 64, 64) for cluster in CLUSTERS),
    Pushing(4, 2, 32, 64),
    Pushing(16, 4, 16, 64),
]
"""Each size of a cluster with the usual warps, and each number of warps, which decides a thread's units;
then all rows of a request, and fewer rows than there is room for."""


def owner_of(row: int, kernel: Pushing) -> int:
    """The rank that owns a row: rows are dealt out in order, as many to each."""
    return row // (kernel.rows // kernel.cluster)


@pytest.mark.pin
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """The mbarrier starts with the contract's arrivals, and expects its bytes once.

    Those are the contract's if the exchange is of all the rows that there is room for.
    """
    (barrier,) = CONTRACT.barriers(kernel.stage)
    ptx = compile_kernel(kernel, arch).ptx
    (expected,) = re.findall(r"mbarrier\.arrive\.expect_tx\S* _, \[%\w+\], (\d+);", ptx)
    (arrivals,) = re.findall(r"mbarrier\.init\S* \[%\w+\], (\d+);", ptx)
    assert (int(arrivals), int(expected)) == (barrier.arrivals, kernel.stage.transaction_bytes(kernel.rows))
    assert kernel.rows < kernel.exchange_rows or int(expected) == barrier.transaction_bytes
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == 1


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_transaction_bytes_are_the_bytes_sent(kernel, arch):
    """What all ranks' st.async bring to one owner is what its barrier expects: otherwise the kernel hangs.

    Counted in the compiled code: its 16-byte stores run in every thread, once for each row that it sends, and
    the 8-byte store in one a row.
    """
    ptx = compile_kernel(kernel, arch).ptx
    wide = len(re.findall(r"st\.async\S*\.v4\.b32", ptx))
    narrow = len(re.findall(r"st\.async\S*\.v2\.b32", ptx))
    rows_a_thread = 1 if kernel.rows == ROWS else 2
    assert narrow == rows_a_thread
    threads_a_row = 32 * kernel.warps * rows_a_thread // kernel.rows
    row_bytes = 16 * (wide // rows_a_thread) * threads_a_row + 8
    received = np.zeros(kernel.cluster, int)
    for _sender in range(kernel.cluster):
        for row in range(kernel.rows):
            received[owner_of(row, kernel)] += row_bytes
    assert set(received) == {kernel.stage.transaction_bytes(kernel.rows)}
    assert kernel.stage.transaction_bytes(kernel.rows) == kernel.rows * WORDS * 4


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_regions(cluster, rows):
    """The region holds one record for each owned row and rank, and the barrier is aligned to its 8 bytes."""
    stage = DsmemPush(HEAD_DIM, cluster, rows)
    region, arrived = CONTRACT.shared(stage)
    assert stage.rows_per_rank(rows) * cluster == rows
    assert region.bytes == rows * stage.record.bytes and region.align == 16
    assert (arrived.bytes, arrived.align) == (8, 8)
    assert CONTRACT.requires["cluster"] == CLUSTERS
    assert CONTRACT.min_arch == 90


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_rows_reach_their_owners(kernel, launch):
    """Owner, owned row, sending rank, word: every word lands in its place, bit for bit.

    No two words are equal: a row that goes to another owner, record or cluster, or not at all, shows.
    """
    shape = (GROUPS, kernel.cluster, kernel.rows, WORDS)
    partials = np.random.default_rng(0).permutation(int(np.prod(shape))).astype(np.uint32).reshape(shape)
    partials |= (partials * np.uint32(40503)) << 18
    assert len(np.unique(partials)) == partials.size
    (got,) = launch(kernel, partials, out(np.uint32, *shape))
    rows_per_rank = kernel.rows // kernel.cluster
    for sender in range(kernel.cluster):
        for row in range(kernel.rows):
            record = row % rows_per_rank * kernel.cluster + sender
            words = got[:, owner_of(row, kernel), record]
            assert np.array_equal(words, partials[:, sender, row]), (sender, row)
