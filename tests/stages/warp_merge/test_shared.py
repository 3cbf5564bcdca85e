"""The warp merge: each thread's share has the bits of the documented order, for every number of warps."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int64

from stages.fragments import RowState
from stages.ptx.barrier import cta_sync
from stages.ptx.global_memory import store_global_i32
from stages.ptx.shared_memory import store_shared_f32x4
from stages.warp_merge.shared import CONTRACT, SharedWarpMerge
from tests import layouts, numerics
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import fill_registers, place, store_f32

HEAD_DIM, ROWS = layouts.HEAD_DIM, layouts.ROWS
STATE_REGISTERS = 4 + HEAD_DIM // 2
WARPS = (1, 2, 4, 8)


@dataclass(frozen=True)
class MergingWarps(MicroKernel):
    """Merges the states [warp, m 2, l 2, o 32, lane] of a CTA's warps, over shared memory full of NaN.

    o [row, dim] as the threads' units say; stats [thread, (row, first unit, from it to the second, m, l)], 0
    where there is one unit.
    """

    warps: int

    def __str__(self):
        return f"MergingWarps_{self.warps}"

    @property
    def stage(self) -> SharedWarpMerge:
        """The stage under test."""
        return SharedWarpMerge(HEAD_DIM, self.warps)

    @property
    def where(self) -> Launch:
        """One CTA and the stage's region."""
        _, end = place(CONTRACT.shared(self.stage))
        return Launch(block=(32 * self.warps, 1, 1), shared_bytes=end)

    @cute.jit
    def __call__(self, states: cute.Pointer, o: cute.Pointer, stats: cute.Pointer, stream: cuda.CUstream):
        self.kernel(states.toint(), o.toint(), stats.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, states: Int64, o: Int64, stats: Int64):
        thread, _, _ = cute.arch.thread_idx()
        offsets, end = place(CONTRACT.shared(self.stage))
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint()
        for i in cutlass.range_constexpr(0, end // 16, 32 * self.warps):
            if i + thread < end // 16:
                store_shared_f32x4(shared + 16 * (i + thread), [Float32(float("nan"))] * 4)
        cta_sync()

        state = RowState.empty(HEAD_DIM)
        file = states + Int64(cute.arch.warp_idx() * STATE_REGISTERS * 128)
        fill_registers(state.m, Float32, file)
        fill_registers(state.l, Float32, file + 256)
        fill_registers(state.o, Float32, file + 512)
        merged = self.stage.merge(shared + offsets["warp_partials"], state)
        for i in cutlass.range_constexpr(len(merged.o)):
            for d in cutlass.range_constexpr(4):
                dim = 4 * merged.units[i] + d
                store_f32(o + Int64(4 * (merged.row * HEAD_DIM + dim)), merged.o[i][d])
        at = stats + Int64(20 * thread)
        store_global_i32(at, merged.row)
        store_global_i32(at + 4, merged.units[0])
        store_global_i32(at + 8, merged.units[min(1, len(merged.units) - 1)] - merged.units[0])
        store_f32(at + 12, merged.m)
        store_f32(at + 16, merged.l)


def random_partials(rng, parts: int, rows: int = ROWS):
    """m, l [parts, rows] and o [parts, rows, 64] whose sums show their order.

    The maxima are whole numbers, so that factors are exact; o spans seven orders of magnitude.
    """
    m = rng.integers(-4, 5, (parts, rows)).astype(np.float32)
    l = (1 + rng.random((parts, rows)) * 100).astype(np.float32)
    o = rng.standard_normal((parts, rows, HEAD_DIM)) * 10.0 ** rng.integers(-3, 4, (parts, rows, HEAD_DIM))
    return m, l, o.astype(np.float32)


def merge_on_device(launch, m, l, o):
    """(M [16], L [16], O [16, 64]) of partials [warps, ...]; every thread's share is checked."""
    warps = len(m)
    files = [
        np.concatenate([layouts.fold_rows(m[w]), layouts.fold_rows(l[w]), layouts.fold_output(o[w])])
        for w in range(warps)
    ]
    got, stats = launch(
        MergingWarps(warps),
        np.stack(files),
        out(np.float32, ROWS, HEAD_DIM),
        out(np.uint32, 32 * warps, 5),
    )
    threads_a_row = 2 * warps
    thread = np.arange(32 * warps)
    assert np.array_equal(stats[:, 0], thread // threads_a_row)
    assert np.array_equal(stats[:, 1], thread % threads_a_row)
    assert np.all(stats[:, 2] == (threads_a_row if threads_a_row < HEAD_DIM // 4 else 0))
    of_rows = stats[:, 3:].reshape(ROWS, threads_a_row, 2)
    assert np.all(of_rows == of_rows[:, :1])
    top, total = numerics.from_bits(of_rows[:, 0].T)
    return top, total, got


def assert_merged(got, expected) -> None:
    """Equal bits of (M, L, O)."""
    for a, b in zip(got, expected, strict=True):
        numerics.assert_same_bits(a, b)


@pytest.mark.pin
@pytest.mark.parametrize("warps", WARPS)
def test_compiles(warps, arch):
    """One CTA barrier around the stage, and 16-byte accesses for all of o."""
    ptx = compile_kernel(MergingWarps(warps), arch).ptx
    assert ptx.count("bar.sync 0;") == 2  # the micro-kernel's own, and the stage's
    assert ptx.count("ld.shared::cta.v4.b32") == HEAD_DIM // 4 * ROWS // 32


@pytest.mark.parametrize("warps", WARPS)
def test_warps_merge_in_ascending_order(warps, launch):
    """(M, L, O) bit for bit in ascending order of the warps, each row and dim in its place.

    The same sum from the last warp to the first has other bits.
    """
    m, l, o = random_partials(np.random.default_rng(warps), warps)
    expected = numerics.merge(m, l, o)
    if warps > 2:
        assert not np.array_equal(expected[2], numerics.merge(m, l, o, range(warps)[::-1])[2])
    assert_merged(merge_on_device(launch, m, l, o), expected)


@pytest.mark.parametrize("warps", WARPS)
def test_one_warp_alone_is_moved_unchanged(warps, launch):
    """With all but one warp empty, its partials come out bit for bit, row by row and dim by dim."""
    rng = np.random.default_rng(warps)
    for present in range(warps):
        m = np.full((warps, ROWS), -np.inf, np.float32)
        l, o = np.zeros((warps, ROWS), np.float32), np.zeros((warps, ROWS, HEAD_DIM), np.float32)
        m[present] = rng.integers(-1000, 1000, ROWS)
        l[present] = 1 + rng.random(ROWS)
        o[present] = rng.permutation(ROWS * HEAD_DIM).reshape(ROWS, HEAD_DIM) + 0.5
        assert_merged(merge_on_device(launch, m, l, o), (m[present], l[present], o[present]))


@pytest.mark.parametrize("warps", WARPS)
def test_rows_without_a_key(warps, launch):
    """A row that no warp has a key for stays (-inf, 0, 0), beside rows that have some."""
    m, l, o = random_partials(np.random.default_rng(7), warps)
    m[:, ::3], l[:, ::3], o[:, ::3] = -np.inf, 0, 0
    assert_merged(merge_on_device(launch, m, l, o), numerics.merge(m, l, o))


def test_nan_stays_in_its_row(launch):
    """A NaN in l or in one dim of o of one warp reaches the sum of that row (and dim) alone."""
    m, l, o = random_partials(np.random.default_rng(8), 4)
    expected = [x.copy() for x in numerics.merge(m, l, o)]
    l[2, 3], o[1, 9, 41] = np.nan, np.nan
    expected[1][3], expected[2][9, 41] = np.nan, np.nan
    assert_merged(merge_on_device(launch, m, l, o), expected)


@pytest.mark.parametrize("warps", CONTRACT.requires["warps"])
def test_every_unit_has_one_thread(warps):
    """The contract's warps are those tested here, and give each thread whole units of 4 dims."""
    assert warps in WARPS
    assert HEAD_DIM // 4 % (32 * warps // ROWS) == 0


@pytest.mark.pin
@pytest.mark.parametrize("warps", WARPS)
def test_accesses_are_free_of_bank_conflicts(warps):
    """With 4 warps and more, each quarter warp's 16-byte accesses touch all 32 banks once.

    Writes: lane 4 g + t at record g, dims 8 t (+ 4). Reads: thread i at row i // threads_a_row.
    """
    stage = SharedWarpMerge(HEAD_DIM, warps)
    write = (np.arange(32) // 4) * stage.record.bytes + 32 * (np.arange(32) % 4)
    threads_a_row = 2 * warps
    read = np.arange(32) // threads_a_row * stage.record.bytes + 16 * (np.arange(32) % threads_a_row)
    if warps >= 4:
        assert max(conflicts(read), conflicts(write)) == 1


def conflicts(addresses: np.ndarray) -> int:
    """The most accesses to one bank in a phase: 8 lanes of 16 bytes."""
    banks = (addresses[:, None] // 4 + np.arange(4)) % 32
    return max(np.bincount(phase.ravel(), minlength=32).max() for phase in banks.reshape(4, 8, 4))
