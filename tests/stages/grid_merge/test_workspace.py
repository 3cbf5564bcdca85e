"""The grid merge: the last cluster to arrive merges all, in cluster order, whoever arrives when."""

import re
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int32, Int64

import emulator
from emulator.errors import Race
from stages.grid_merge.workspace import CONTRACT, FEW, MANY, WorkspaceMerge
from stages.partial import PartialRecord
from stages.ptx.global_memory import store_global_i32
from tests import layouts, numerics
from tests.device import ARCHITECTURES, Launch, MicroKernel, Scratch, compile_kernel, out
from tests.micro import load_f32, store_f32

HEAD_DIM = layouts.HEAD_DIM
RECORD = PartialRecord(HEAD_DIM)
WORDS = RECORD.bytes // 4
ROWS_PER_WARP = 3
"""Rows that a warp owns."""

WARPS = 2
"""Of a CTA."""

ROWS = WARPS * ROWS_PER_WARP
"""Rows of every CTA, in order by warp."""

CLUSTERS = (1, 3, 4, 5, 12, 13, 25)
"""One; around the few and the many records that are read at once; more than two reads of many."""

SPARE = 12
"""Records behind each row's, of clusters that the launch does not have."""


@dataclass(frozen=True)
class MergingClusters(MicroKernel):
    """partials [cluster, row, o | m | l] -> merged [row, (l, o, o), lane], one CTA a cluster.

    told: [row, lane] of a fourth part say which cluster has merged.
    """

    clusters: int
    told: bool = False

    def __str__(self):
        return f"MergingClusters_{self.clusters}" + "_told" * self.told

    @property
    def parts(self) -> int:
        """Words a lane has of a merged row."""
        return 4 if self.told else 3

    @property
    def where(self) -> Launch:
        """A CTA a cluster: what else is in a cluster has no part in this."""
        return Launch(grid=(self.clusters, 1, 1), block=(32 * WARPS, 1, 1))

    @cute.jit
    def __call__(
        self,
        partials: cute.Pointer,
        workspace: cute.Pointer,
        counters: cute.Pointer,
        merged: cute.Pointer,
        stream: cuda.CUstream,
    ):
        self.kernel(partials.toint(), workspace.toint(), counters.toint(), merged.toint()).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, partials: Int64, workspace: Int64, counters: Int64, merged: Int64):
        lane, first = cute.arch.lane_idx(), cute.arch.warp_idx() * ROWS_PER_WARP
        cluster, _, _ = cute.arch.block_idx()
        clusters, _, _ = cute.arch.grid_dim()
        stage = WorkspaceMerge(HEAD_DIM)
        a_row = Int64(clusters + SPARE) * RECORD.bytes
        for i in cutlass.range(ROWS_PER_WARP, unroll=1):
            mine = partials + Int64(4 * (HEAD_DIM + 2) * (cluster * ROWS + first + i))
            o = [load_f32(mine + Int64(8 * lane + 4 * d)) for d in range(2)]
            m, l = load_f32(mine + 4 * HEAD_DIM), load_f32(mine + 4 * HEAD_DIM + 4)
            stage.leave(workspace + Int64(first + i) * a_row, cluster, m, l, o)
        before = stage.arrive(counters + Int64(4 * first), ROWS_PER_WARP, clusters)
        for i in cutlass.range(ROWS_PER_WARP, unroll=1):
            if stage.last(before, i, clusters):
                total, total_o = stage.collect(workspace + Int64(first + i) * a_row, clusters)
                at = merged + Int64(4 * (32 * self.parts * (first + i) + lane))
                store_f32(at, total)
                store_f32(at + 128, total_o[0])
                store_f32(at + 256, total_o[1])
                if cutlass.const_expr(self.told):
                    store_global_i32(at + 384, Int32(cluster))


@dataclass(frozen=True)
class Arriving(MicroKernel):
    """One CTA arrives at counters that may differ: for each row, whether it was the last of `clusters`."""

    clusters: int

    def __str__(self):
        return f"Arriving_{self.clusters}"

    @property
    def where(self) -> Launch:
        """A CTA with the warps of the others."""
        return Launch(block=(32 * WARPS, 1, 1))

    @cute.jit
    def __call__(self, counters: cute.Pointer, lasts: cute.Pointer, stream: cuda.CUstream):
        self.kernel(counters.toint(), lasts.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, counters: Int64, lasts: Int64):
        lane, first = cute.arch.lane_idx(), cute.arch.warp_idx() * ROWS_PER_WARP
        stage, clusters = WorkspaceMerge(HEAD_DIM), Int32(self.clusters)
        before = stage.arrive(counters + Int64(4 * first), ROWS_PER_WARP, clusters)
        for i in cutlass.range(ROWS_PER_WARP, unroll=1):
            last = Int32(0)
            if stage.last(before, i, clusters):
                last = Int32(1)
            store_global_i32(lasts + Int64(4 * (32 * (first + i) + lane)), last)


def random_partials(seed: int, clusters: int):
    """m, l [cluster, row] and o [cluster, row, 64] whose sums show their order.

    The maxima are whole numbers, so that factors are exact; o spans seven orders of magnitude.
    """
    rng = np.random.default_rng(seed)
    m = rng.integers(-4, 5, (clusters, ROWS)).astype(np.float32)
    l = (1 + rng.random((clusters, ROWS)) * 100).astype(np.float32)
    o = rng.standard_normal((clusters, ROWS, HEAD_DIM))
    return m, l, (o * 10.0 ** rng.integers(-3, 4, o.shape)).astype(np.float32)


def merge(m, l, o, order=None):
    """(L, O): from zero on, in this order of clusters, as many at once as `collect` reads at once."""
    order = list(range(len(m)) if order is None else order)
    at_once = FEW if len(m) <= FEW else MANY
    merged = np.full(m[0].shape, -np.inf, np.float32), np.zeros_like(l[0]), np.zeros_like(o[0])
    for at in range(0, len(order), at_once):
        some = order[at : at + at_once]
        parts = (np.concatenate([a[None], b[some]]) for a, b in zip(merged, (m, l, o), strict=True))
        merged = numerics.merge(*parts)
    return merged[1:]


def folded(m, l, o) -> np.ndarray:
    """The partials as the kernel takes them."""
    return np.concatenate([o, m[..., None], l[..., None]], axis=-1)


def scratch(clusters: int, value: float = np.nan) -> list[np.ndarray]:
    """A workspace full of a number, and counters at zero."""
    return [np.full((ROWS, clusters + SPARE, WORDS), value, np.float32), np.zeros(ROWS, np.uint32)]


def unfold(merged: np.ndarray):
    """l [row] and o [row, 64]; all lanes have the row's l."""
    assert np.all(numerics.f32_bits(merged[:, 0]) == numerics.f32_bits(merged[:, 0, :1]))
    return merged[:, 0, 0], merged[:, 1:3].transpose(0, 2, 1).reshape(ROWS, HEAD_DIM)


def merge_on_device(launch, m, l, o, value: float = np.nan):
    """(L, O) on the device; the counters must come out zero, and the records as they were left.

    What no cluster has a record in stays as it was.
    """
    clusters = len(m)
    workspace, counters, merged = launch(
        MergingClusters(clusters),
        folded(m, l, o),
        *(Scratch(x) for x in scratch(clusters, value)),
        out(np.float32, ROWS, 3, 32),
    )
    assert not counters.any()
    expected = scratch(clusters, value)[0]
    expected[:, :clusters, : HEAD_DIM + 2] = folded(m, l, o).transpose(1, 0, 2)
    assert workspace.tobytes() == expected.tobytes()
    return unfold(merged)


def assert_merged(got, expected) -> None:
    """Equal bits of (L, O)."""
    for a, b in zip(got, expected, strict=True):
        numerics.assert_same_bits(a, b)


def emulate(kernel: MergingClusters, partials, given, ptx: str | None = None, **more) -> np.ndarray:
    """What the kernel merges on the emulator; `given` (workspace and counters) is written to."""
    merged = np.zeros((ROWS, kernel.parts, 32), np.float32)
    emulator.launch(
        ptx or compile_kernel(kernel, ARCHITECTURES[0]).ptx,
        grid=kernel.where.grid,
        block=kernel.where.block,
        arguments=[partials, *given, merged],
        unwritten=[1, 3],
        **more,
    )
    return merged


@pytest.mark.pin
def test_compiles(arch):
    """One counted arrival, released and acquired at device scope; records are read behind the L1 cache.

    Few or many of them at once: two loads of a lane each.
    """
    ptx = compile_kernel(MergingClusters(25), arch).ptx
    assert ptx.count("atom.acq_rel.gpu.global.add.u32") == 1
    assert ptx.count("ld.relaxed.gpu.global.v2.b32") == 2 * (FEW + MANY)
    assert ptx.count("bar.warp.sync -1;") == 2
    assert (CONTRACT.slot, CONTRACT.min_arch) == ("grid_merge", 70)
    assert not CONTRACT.shared(WorkspaceMerge(HEAD_DIM))


@pytest.mark.parametrize("clusters", CLUSTERS)
def test_clusters_merge_in_ascending_order(clusters, launch):
    """(l, o) bit for bit in ascending order of the clusters; other orders have other bits."""
    m, l, o = random_partials(clusters, clusters)
    expected = merge(m, l, o)
    if clusters > 2:
        assert not np.array_equal(expected[1], merge(m, l, o, range(clusters)[::-1])[1])
    assert_merged(merge_on_device(launch, m, l, o), expected)


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, 3e38])
def test_what_the_workspace_held_before_changes_nothing(value, launch):
    """NaN is what the other tests leave there; here other numbers, the same bits.

    Those that stay, in records of clusters that do not exist, have no part in the sum either.
    """
    m, l, o = random_partials(1, 5)
    assert_merged(merge_on_device(launch, m, l, o, value), merge(m, l, o))


@pytest.mark.parametrize("clusters", [3, 25])
def test_clusters_without_a_key(clusters, launch):
    """Clusters with (-inf, 0, 0) change nothing, wherever they are; where all are empty the sum is zero."""
    m, l, o = random_partials(2, clusters)
    empty = np.random.default_rng(3).random(m.shape) < 0.6
    empty[:, 0] = True
    empty[-1, 1], empty[:-1, 1] = False, True
    m[empty], l[empty], o[empty] = -np.inf, 0, 0
    expected = merge(m, l, o)
    assert expected[0][0] == 0 and not expected[1][0].any() and expected[0][1] > 0
    assert_merged(merge_on_device(launch, m, l, o), expected)


def test_nan_stays_in_its_row_and_dim(launch):
    """A NaN in one cluster's l or in one dim of its o reaches that sum of its row, and no other."""
    m, l, o = random_partials(4, 3)
    total, expected = merge(m, l, o)
    l[2, 1], o[0, 2, 17] = np.nan, np.nan
    total[1], expected[2, 17] = np.nan, np.nan
    assert_merged(merge_on_device(launch, m, l, o), (total, expected))


@pytest.mark.parametrize("clusters", [3, 5, 25])
def test_the_order_of_arrival_changes_no_bit(clusters):
    """Other clusters arrive last in other orders of execution, and every bit is the same.

    The workspace counts as memory that nobody has written: what is read, this launch has left there, and
    nothing is read of clusters that do not exist.
    """
    m, l, o = random_partials(5, clusters)
    expected, last = merge(m, l, o), set()
    for seed in (None, *range(6)):
        given = scratch(clusters)
        merged = emulate(MergingClusters(clusters, told=True), folded(m, l, o), given, seed=seed)
        assert_merged(unfold(merged), expected)
        assert not given[1].any(), seed
        last |= set(merged[:, 3].view(np.int32).ravel().tolist())
    assert len(last) > 1


def test_one_launch_after_the_other():
    """The counters are zero again, so that the next launch may use the same workspace as it is."""
    given = scratch(5)
    for seed in range(3):
        m, l, o = random_partials(10 + seed, 5)
        merged = emulate(MergingClusters(5), folded(m, l, o), given, seed=seed)
        assert_merged(unfold(merged), merge(m, l, o))
        assert not given[1].any()


def test_each_row_has_a_counter_of_its_own(launch):
    """The last of 5 is who finds 4, row by row, and all lanes know it; that counter alone is zero again."""
    found = np.array([4, 0, 3, 2, 4, 4], np.uint32)
    counters, lasts = launch(Arriving(5), Scratch(found.copy()), out(np.int32, ROWS, 32))
    assert np.array_equal(lasts, np.broadcast_to((found == 4)[:, None], (ROWS, 32)))
    assert counters.tolist() == [0, 1, 4, 3, 0, 0]


FAULTS = {
    "an arrival that orders nothing": (r"atom\.acq_rel\.gpu", "atom.relaxed.gpu", 1),
    "an arrival that does not acquire": (r"atom\.acq_rel\.gpu", "atom.release.gpu", 1),
    "an arrival that does not release": (r"atom\.acq_rel\.gpu", "atom.acquire.gpu", 1),
    "lanes that do not meet": (r"bar\.warp\.sync -1;", "", 2),
}


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault, seed):
    """Arrivals that order too little, and lanes whose stores nothing orders, are reported as races."""
    old, new, times = FAULTS[fault]
    kernel, m, l, o = MergingClusters(4), *random_partials(6, 4)
    ptx, found = re.subn(old, new, compile_kernel(kernel, ARCHITECTURES[0]).ptx)
    assert found == times
    with pytest.raises(Race) as caught:
        emulate(kernel, folded(m, l, o), scratch(4), ptx, seed=seed)
    assert "ld.relaxed" in caught.value.place.text
