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
from stages.partial import MergedUnits
from stages.ptx import load_shared_f32x2
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


def load_share(base: Int64, warps: int) -> MergedUnits:
    """This thread's share of a CTA's rows [16, o 64 | m | l], dealt out as the warp merge does."""
    thread, _, _ = cute.arch.thread_idx()
    threads_a_row = 32 * warps // ROWS
    row, first = thread // threads_a_row, thread % threads_a_row
    record = base + Int64(4 * WORDS * row)
    units = [
        [load_f32(record + Int64(16 * (first + i * threads_a_row) + 4 * d)) for d in range(4)]
        for i in range(HEAD_DIM // 4 // threads_a_row)
    ]
    m, l = load_f32(record + 4 * HEAD_DIM), load_f32(record + 4 * HEAD_DIM + 4)
    return MergedUnits(row, first, threads_a_row, m, l, units)


@dataclass(frozen=True)
class Pushing(MicroKernel):
    """partials [group, rank, row, WORDS] -> records [group, rank, owned row * cluster + sender, WORDS]."""

    cluster: int
    warps: int

    def __str__(self):
        return f"Pushing_{self.cluster}_ranks_{self.warps}_warps"

    @property
    def stage(self) -> DsmemPush:
        """The stage under test."""
        return DsmemPush(HEAD_DIM, self.cluster)

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
        self.stage.open(arrived)
        merged = load_share(partials + Int64(block * ROWS * WORDS * 4), self.warps)
        self.stage.send(region, arrived, block % self.cluster, merged)
        self.stage.wait(arrived)
        # A CTA owns 16 records, whatever the cluster's size.
        pairs, threads = ROWS * WORDS // 2, 32 * self.warps
        for i in cutlass.range_constexpr(0, pairs, threads):
            if i + thread < pairs:
                record, pair = (i + thread) // (WORDS // 2), (i + thread) % (WORDS // 2)
                words = load_shared_f32x2(region + record * self.stage.record.bytes + 8 * pair)
                at = records + Int64(8 * (block * pairs + i + thread))
                store_f32(at, words[0])
                store_f32(at + 4, words[1])


KERNELS = [Pushing(cluster, 4) for cluster in CLUSTERS] + [Pushing(8, warps) for warps in (1, 2, 8)]
"""Each size of a cluster with the usual warps, and each number of warps: it decides a thread's units."""


def owner_of(row: int, cluster: int) -> int:
    """The rank that owns a row: rows are dealt out in order, as many to each."""
    return row // (ROWS // cluster)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """The mbarrier starts with the contract's arrivals, and expects its bytes once."""
    (barrier,) = CONTRACT.barriers(kernel.stage)
    ptx = compile_kernel(kernel, arch).ptx
    (expected,) = re.findall(r"mbarrier\.arrive\.expect_tx\S* _, \[%\w+\], (\d+);", ptx)
    (arrivals,) = re.findall(r"mbarrier\.init\S* \[%\w+\], (\d+);", ptx)
    assert (int(arrivals), int(expected)) == (barrier.arrivals, barrier.transaction_bytes)
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == 1


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_transaction_bytes_are_the_bytes_sent(kernel, arch):
    """What all ranks' st.async bring to one owner is what its barrier expects: otherwise the kernel hangs.

    Counted in the compiled code: its 16-byte stores run in every thread, the 8-byte store in one a row.
    """
    ptx = compile_kernel(kernel, arch).ptx
    wide = len(re.findall(r"st\.async\S*\.v4\.b32", ptx))
    narrow = len(re.findall(r"st\.async\S*\.v2\.b32", ptx))
    assert narrow == 1
    threads_a_row = 32 * kernel.warps // ROWS
    row_bytes = 16 * wide * threads_a_row + 8 * narrow
    received = np.zeros(kernel.cluster, int)
    for _sender in range(kernel.cluster):
        for row in range(ROWS):
            received[owner_of(row, kernel.cluster)] += row_bytes
    (barrier,) = CONTRACT.barriers(kernel.stage)
    assert set(received) == {barrier.transaction_bytes}
    assert barrier.transaction_bytes == ROWS * WORDS * 4


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_regions(cluster):
    """The region holds one record for each owned row and rank, and the barrier is aligned to its 8 bytes."""
    stage = DsmemPush(HEAD_DIM, cluster)
    region, arrived = CONTRACT.shared(stage)
    assert region.bytes == ROWS * stage.record.bytes and region.align == 16
    assert (arrived.bytes, arrived.align) == (8, 8)
    assert CONTRACT.requires["cluster"] == CLUSTERS
    assert CONTRACT.min_arch == 90


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_rows_reach_their_owners(kernel, launch):
    """Owner, owned row, sending rank, word: every word lands in its place, bit for bit.

    No two words are equal: a row that goes to another owner, record or cluster, or not at all, shows.
    """
    shape = (GROUPS, kernel.cluster, ROWS, WORDS)
    partials = np.random.default_rng(0).permutation(int(np.prod(shape))).astype(np.uint32).reshape(shape)
    partials |= (partials * np.uint32(40503)) << 17
    (got,) = launch(kernel, partials, out(np.uint32, GROUPS, kernel.cluster, ROWS, WORDS))
    rows_per_rank = ROWS // kernel.cluster
    for sender in range(kernel.cluster):
        for row in range(ROWS):
            record = row % rows_per_rank * kernel.cluster + sender
            words = got[:, owner_of(row, kernel.cluster), record]
            assert np.array_equal(words, partials[:, sender, row]), (sender, row)
