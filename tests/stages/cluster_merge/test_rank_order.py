"""The cluster merge: documented order of ranks, alone and after a push across a real cluster."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int64

from stages.cluster_merge.rank_order import CONTRACT, RankOrderMerge
from stages.fragments import ROWS
from stages.partial import PartialRecord, RowUnits
from stages.ptx.barrier import cta_sync
from stages.ptx.shared_memory import store_shared_f32x4
from stages.push import dsmem
from tests import layouts, numerics
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import load_f32, place, store_f32

HEAD_DIM = layouts.HEAD_DIM
RECORD = PartialRecord(HEAD_DIM)
WORDS = RECORD.bytes // 4
CLUSTERS = (1, 2, 4, 8, 16)
WARPS = 4


def store_row(merged: Int64, row, stat: Float32, o: list[Float32]) -> None:
    """Store what each lane has of a row: [l or m, o of dim 2 * lane, and 2 * lane + 1], [row, 3, lane]."""
    at = merged + Int64(4 * (96 * row + cute.arch.lane_idx()))
    for i, value in enumerate((stat, *o)):
        store_f32(at + 128 * i, value)


@dataclass(frozen=True)
class MergingRanks(MicroKernel):
    """Merges the owned rows of one CTA: records [owned row, rank, WORDS], a row a warp at a time.

    rows: of the exchange. maxima: store m in the place of l.
    """

    cluster: int
    rows: int = ROWS
    maxima: bool = False

    def __str__(self):
        return f"MergingRanks_{self.cluster}" + (f"_{self.rows}_rows" if self.rows > ROWS else "")

    @property
    def where(self) -> Launch:
        """One CTA with its records, as many as the exchange has rows, from byte 64 on."""
        return Launch(block=(32 * WARPS, 1, 1), shared_bytes=64 + self.rows * RECORD.bytes)

    @cute.jit
    def __call__(self, records: cute.Pointer, merged: cute.Pointer, stream: cuda.CUstream):
        self.kernel(records.toint(), merged.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, records: Int64, merged: Int64):
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.warp_idx()
        region = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint() + 64
        for i in cutlass.range_constexpr(0, self.rows * WORDS // 4, 32 * WARPS):
            unit = i + thread
            if unit < self.rows * WORDS // 4:
                words = [load_f32(records + Int64(16 * unit + 4 * d)) for d in range(4)]
                store_shared_f32x4(region + 16 * unit, words)
        cta_sync()
        stage = RankOrderMerge(HEAD_DIM, self.cluster)
        rows = self.rows // self.cluster
        for i in cutlass.range_constexpr(0, rows, WARPS):
            owned = warp + i
            if owned < rows:
                m, l, o = stage.merge(region, owned)
                store_row(merged, owned, m if cutlass.const_expr(self.maxima) else l, o)


@dataclass(frozen=True)
class PushingAndMerging(MicroKernel):
    """partials [group, rank, row, o | m | l] through push and merge: the 16 rows of each group."""

    cluster: int
    groups: int

    def __str__(self):
        return f"PushingAndMerging_{self.cluster}"

    @property
    def push(self) -> dsmem.DsmemPush:
        """The push stage."""
        return dsmem.DsmemPush(HEAD_DIM, self.cluster, ROWS)

    @property
    def where(self) -> Launch:
        """One cluster a group."""
        _, end = place(dsmem.CONTRACT.shared(self.push))
        return Launch(
            (self.groups * self.cluster, 1, 1), (32 * WARPS, 1, 1), (self.cluster, 1, 1), shared_bytes=end
        )

    @cute.jit
    def __call__(self, partials: cute.Pointer, merged: cute.Pointer, stream: cuda.CUstream):
        self.kernel(partials.toint(), merged.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, partials: Int64, merged: Int64):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp = cute.arch.warp_idx()
        rank, group = block % self.cluster, block // self.cluster
        offsets, _ = place(dsmem.CONTRACT.shared(self.push))
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint()
        region, arrived = shared + offsets["rank_partials"], shared + offsets["arrived"]
        self.push.open(arrived, ROWS)

        # 8 threads a row, each with units t and t + 8 of 4 dims, as the warp merge of 4 warps leaves them.
        row, unit = thread // 8, thread % 8
        record = partials + Int64(4 * (HEAD_DIM + 2) * (block * ROWS + row))
        units = [unit, unit + 8]
        o = [[load_f32(record + Int64(16 * u + 4 * d)) for d in range(4)] for u in units]
        m, l = load_f32(record + 4 * HEAD_DIM), load_f32(record + 4 * HEAD_DIM + 4)
        self.push.meet()
        self.push.send(region, arrived, rank, RowUnits(row, units, m, l, o), ROWS)

        rows = ROWS // self.cluster
        for i in cutlass.range_constexpr(0, rows, WARPS):
            owned = warp + i
            if owned < rows:
                self.push.wait(arrived)
                _, total, merged_o = RankOrderMerge(HEAD_DIM, self.cluster).merge(region, owned)
                store_row(merged, group * ROWS + rank * rows + owned, total, merged_o)


def random_partials(rng, *shape: int):
    """m, l of this shape and o [shape, 64] whose sums show their order: exact factors, wide magnitudes."""
    m = rng.integers(-4, 5, shape).astype(np.float32)
    l = (1 + rng.random(shape) * 100).astype(np.float32)
    o = rng.standard_normal((*shape, HEAD_DIM)) * 10.0 ** rng.integers(-3, 4, (*shape, HEAD_DIM))
    return m, l, o.astype(np.float32)


def unfold(merged: np.ndarray):
    """l (or m) [rows] and o [rows, 64] of [rows, 3, lane]; all lanes have the row's l."""
    assert np.all(numerics.f32_bits(merged[:, 0]) == numerics.f32_bits(merged[:, 0, :1]))
    return merged[:, 0, 0], merged[:, 1:].transpose(0, 2, 1).reshape(len(merged), HEAD_DIM)


def merge_on_device(launch, m, l, o):
    """m, l and o of the owned rows of one CTA; partials [ranks, owned rows, ...]. The padding holds NaN."""
    cluster, rows = m.shape
    records = np.full((rows, cluster, WORDS), np.nan, np.float32)
    records[..., :HEAD_DIM] = o.transpose(1, 0, 2)
    records[..., HEAD_DIM], records[..., HEAD_DIM + 1] = m.T, l.T
    merged = out(np.float32, rows, 3, 32)
    total, got = unfold(launch(MergingRanks(cluster, cluster * rows), records, merged)[0])
    top, again = unfold(launch(MergingRanks(cluster, cluster * rows, maxima=True), records, merged)[0])
    assert again.tobytes() == got.tobytes()
    return top, total, got


def assert_merged(got, expected) -> None:
    """Equal bits of (M, L, O)."""
    for a, b in zip(got, expected, strict=True):
        numerics.assert_same_bits(a, b)


@pytest.mark.pin
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_compiles(cluster, arch):
    """Each rank's stats and dims are read once, 8 bytes a lane, for each owned row of a warp."""
    ptx = compile_kernel(MergingRanks(cluster), arch).ptx
    rows_a_warp = -(-ROWS // cluster // WARPS)
    assert ptx.count("ld.shared::cta.v2.b32") == 2 * cluster * rows_a_warp
    compile_kernel(PushingAndMerging(cluster, 2), arch)
    assert CONTRACT.requires["cluster"] == CLUSTERS


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_ranks_merge_in_ascending_order(cluster, rows, launch):
    """(m, l, o) bit for bit in ascending order of the ranks; the opposite order has other bits."""
    m, l, o = random_partials(np.random.default_rng(cluster), cluster, rows // cluster)
    expected = numerics.merge(m, l, o)
    if cluster > 2:
        assert not np.array_equal(expected[2], numerics.merge(m, l, o, range(cluster)[::-1])[2])
    assert_merged(merge_on_device(launch, m, l, o), expected)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_ranks_without_a_key(cluster, launch):
    """Ranks with (-inf, 0, 0) change nothing, wherever they are; a row that none has a key for stays so."""
    m, l, o = random_partials(np.random.default_rng(9), cluster, ROWS // cluster)
    empty = np.random.default_rng(10).random(m.shape) < 0.6
    empty[:, 0] = True
    m[empty], l[empty], o[empty] = -np.inf, 0, 0
    expected = numerics.merge(m, l, o)
    assert (expected[0][0], expected[1][0]) == (-np.inf, 0)
    assert_merged(merge_on_device(launch, m, l, o), expected)


def test_nan_stays_in_its_row_and_dim(launch):
    """A NaN in one rank's l or in one dim of its o reaches that sum of its row, and no other."""
    m, l, o = random_partials(np.random.default_rng(11), 4, 4)
    top, total, expected = (x.copy() for x in numerics.merge(m, l, o))
    l[3, 1], o[2, 2, 17] = np.nan, np.nan
    total[1], expected[2, 17] = np.nan, np.nan
    assert_merged(merge_on_device(launch, m, l, o), (top, total, expected))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_push_and_merge_across_a_cluster(cluster, launch):
    """All 16 rows of a row group come out at their owners, merged in the order of the ranks, bit for bit."""
    groups = 2
    m, l, o = random_partials(np.random.default_rng(12), groups, cluster, ROWS)
    m[1, :, 5], l[1, :, 5], o[1, :, 5] = -np.inf, 0, 0
    partials = np.concatenate([o, m[..., None], l[..., None]], axis=-1)
    (merged,) = launch(PushingAndMerging(cluster, groups), partials, out(np.float32, groups * ROWS, 3, 32))
    total, got = unfold(merged)
    for group in range(groups):
        rows = slice(group * ROWS, (group + 1) * ROWS)
        _, expected_l, expected_o = numerics.merge(m[group], l[group], o[group])
        numerics.assert_same_bits(total[rows], expected_l)
        numerics.assert_same_bits(got[rows], expected_o)
