"""Merging partials: known bits in the documented order, empty partials, NaN; and the record's layout."""

import itertools
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int64

from stages import partial
from stages.fragments import RowState
from stages.ptx.global_memory import store_global_i32
from tests import layouts, numerics
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import fill_registers, load_f32, store_f32

PARTS = 5
THREADS = 128


@dataclass(frozen=True)
class Merging(MicroKernel):
    """[M, exponent_base(M), weighted sum] of each thread's `PARTS` pairs (m, part), [PARTS, 2, THREADS]."""

    @property
    def where(self) -> Launch:
        """One merge a thread."""
        return Launch(block=(THREADS, 1, 1))

    @cute.jit
    def __call__(self, pairs: cute.Pointer, merged: cute.Pointer, stream: cuda.CUstream):
        self.kernel(pairs.toint(), merged.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, pairs: Int64, merged: Int64):
        thread, _, _ = cute.arch.thread_idx()
        at = Int64(4 * thread)
        maxima = [load_f32(pairs + at + 4 * THREADS * (2 * i)) for i in range(PARTS)]
        parts = [load_f32(pairs + at + 4 * THREADS * (2 * i + 1)) for i in range(PARTS)]
        top, factors = partial.merge_weights(maxima)
        store_f32(merged + at, top)
        store_f32(merged + at + 4 * THREADS, partial.exponent_base(top))
        store_f32(merged + at + 8 * THREADS, partial.weighted_sum(factors, parts))


@dataclass(frozen=True)
class Sharing(MicroKernel):
    """What a lane holds of its two rows, from a state [m 2, l 2, o 32, lane].

    o [row, dim] as rows and units say; stats [half, lane, (row, 4 units, m, l)].
    """

    @cute.jit
    def __call__(self, state: cute.Pointer, o: cute.Pointer, stats: cute.Pointer, stream: cuda.CUstream):
        self.kernel(state.toint(), o.toint(), stats.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, file: Int64, o: Int64, stats: Int64):
        lane = cute.arch.lane_idx()
        state = RowState.empty(layouts.HEAD_DIM)
        fill_registers(state.m, Float32, file)
        fill_registers(state.l, Float32, file + 256)
        fill_registers(state.o, Float32, file + 512)
        for half in cutlass.range_constexpr(2):
            mine = partial.lane_units(state, half, lane // 4 + 8 * half, layouts.HEAD_DIM)
            at = stats + Int64(28 * (32 * half + lane))
            store_global_i32(at, mine.row)
            for i in cutlass.range_constexpr(len(mine.units)):
                store_global_i32(at + 4 + 4 * i, mine.units[i])
                for d in cutlass.range_constexpr(4):
                    place = mine.row * layouts.HEAD_DIM + 4 * mine.units[i] + d
                    store_f32(o + Int64(4 * place), mine.o[i][d])
            store_f32(at + 20, mine.m)
            store_f32(at + 24, mine.l)


def merge_on_device(launch, m, parts):
    """(M, base, sum) of m and parts, both [PARTS, THREADS]."""
    pairs = np.stack([m, parts], axis=1).astype(np.float32)
    return launch(Merging(), pairs, out(np.float32, 3, THREADS))[0]


@pytest.mark.pin
def test_compiles(arch):
    """A merge of n partials is n exponentials, one product and n - 1 fused additions."""
    ptx = compile_kernel(Merging(), arch).ptx
    counts = [ptx.count(f"{op}.ftz.f32") for op in ("ex2.approx", "mul.rn", "fma.rn")]
    assert counts == [PARTS, 1, PARTS - 1]
    compile_kernel(Sharing(), arch)


def test_ascending_order(launch):
    """The sum has the bits of its documented order, ascending: the parts are such that the order shows.

    The maxima are whole numbers, so that the factors have no error.
    """
    rng = np.random.default_rng(0)
    m = rng.integers(-3, 4, (PARTS, THREADS)).astype(np.float32)
    parts = (rng.standard_normal((PARTS, THREADS)) * 10.0 ** rng.integers(-3, 4, (PARTS, THREADS))).astype(
        np.float32
    )
    top = m.max(axis=0)
    factors = numerics.power_of_two(m - top)
    ascending = numerics.weighted_sum(factors, parts)
    for order in itertools.islice(itertools.permutations(range(PARTS)), 1, None):
        if set(order[:2]) != {0, 1} or order[2:] != (2, 3, 4):
            assert not np.array_equal(ascending, numerics.weighted_sum(factors, parts, order)), order
    got = merge_on_device(launch, m, parts)
    numerics.assert_same_bits(got, np.stack([top, top, ascending]))


def test_empty_partials(launch):
    """(-inf, 0, 0) contributes nothing, in any place; where all are empty the result is empty and no NaN."""
    m = np.full((PARTS, THREADS), -np.inf, np.float32)
    parts = np.zeros((PARTS, THREADS), np.float32)
    # Thread i has the partials whose bit of i is set.
    present = (np.arange(THREADS) >> np.arange(PARTS)[:, None] & 1).astype(bool)
    m[present], parts[present] = -1000.0, 1.5
    got = merge_on_device(launch, m, parts)
    count = present.sum(axis=0)
    top = np.where(count > 0, np.float32(-1000), np.float32(-np.inf))
    base = np.where(count > 0, np.float32(-1000), np.float32(0))
    numerics.assert_same_bits(got, np.stack([top, base, 1.5 * count]))


def test_nan_never_enters_the_maximum_but_reaches_the_sum(launch):
    """A NaN among the parts makes the sum NaN; one among the maxima is dropped from M, and does so too."""
    m, parts = np.zeros((PARTS, THREADS), np.float32), np.ones((PARTS, THREADS), np.float32)
    m[1] = 2.0
    for i in range(PARTS):
        parts[i, i] = np.nan
        m[i, PARTS + i] = np.nan
    got = merge_on_device(launch, m, parts)
    numerics.assert_same_bits(got[0], np.where(np.arange(THREADS) == PARTS + 1, 0.0, 2.0))
    assert np.array_equal(np.isnan(got[2]), np.arange(THREADS) < 2 * PARTS)
    assert set(got[2][2 * PARTS :]) == {2.0}


def test_large_and_small_maxima(launch):
    """The larger maximum wins entirely at any magnitude: no difference of maxima overflows or becomes NaN."""
    m = np.zeros((PARTS, THREADS), np.float32)
    m[:, ::2] = np.float32([-1e38, -1e5, 1e4, -1e4, 3e38])[:, None]
    m[:, 1::2] = np.float32([-1e5, -1.5e5, -2e5, -3e38, -np.inf])[:, None]
    parts = np.broadcast_to(np.float32([3.0, 5.0, 7.0, 9.0, 11.0])[:, None], m.shape)
    got = merge_on_device(launch, m, parts)
    assert set(got[2][::2]) == {11.0}
    assert set(got[2][1::2]) == {3.0}


def test_a_lane_shares_its_rows_in_units_of_4_dims(launch):
    """Each row and dim of a row group is in one unit of one lane, as the layout of the registers has it.

    The four lanes of a row have four units each, ascending, and all have the row's m and l. No number is
    there twice.
    """
    o = np.random.default_rng(0).permutation(16 * 64).reshape(16, 64).astype(np.float32)
    m, l = np.arange(16, dtype=np.float32) - 100, np.arange(16, dtype=np.float32) + 2000
    state = np.concatenate([layouts.fold_rows(m), layouts.fold_rows(l), layouts.fold_output(o)])
    got, stats = launch(Sharing(), state, out(np.float32, 16, 64), out(np.uint32, 2, 32, 7))
    assert np.array_equal(got, o)
    row = layouts.G + 8 * np.arange(2)[:, None]
    assert np.array_equal(stats[..., 0], row)
    assert np.all(np.diff(stats[..., 1:5].astype(int), axis=-1) > 0)
    units = stats[..., 1:5].reshape(2, 8, 16)
    assert np.array_equal(np.sort(units, axis=-1), np.broadcast_to(np.arange(16), units.shape))
    assert np.array_equal(numerics.from_bits(stats[..., 5]), m[row])
    assert np.array_equal(numerics.from_bits(stats[..., 6]), l[row])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_record(head_dim):
    """[o | m | l | 8 bytes of padding]: 16-byte records and 8-byte stats, neighbours 4 banks apart."""
    record = partial.PartialRecord(head_dim)
    assert (record.stats, record.payload, record.bytes) == (
        4 * head_dim,
        4 * head_dim + 8,
        4 * head_dim + 16,
    )
    assert record.bytes % 16 == 0 and record.stats % 8 == 0
    assert record.bytes // 4 % 32 == 4
