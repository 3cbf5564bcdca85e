"""The register layout that all stages agree on: its arithmetic, and what an empty state holds."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int64

from stages.fragments import PageFragments, RowState, chunk_dim, chunks, pairs
from tests import layouts
from tests.device import MicroKernel, compile_kernel, out
from tests.micro import store_registers
from tests.numerics import assert_same_bits


@dataclass(frozen=True)
class EmptyState(MicroKernel):
    """Stores the registers of an empty row state: m, then l, then o."""

    head_dim: int

    @cute.jit
    def __call__(self, state: cute.Pointer, stream: cuda.CUstream):
        self.kernel(state.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, state: Int64):
        empty = RowState.empty(self.head_dim)
        store_registers(state, empty.m, Float32)
        store_registers(state + 2 * 128, empty.l, Float32)
        store_registers(state + 4 * 128, empty.o, Float32)


@dataclass(frozen=True)
class FragmentCount(MicroKernel):
    """Sets and stores as many registers as the fragments of a page have."""

    @cute.jit
    def __call__(self, k: cute.Pointer, v: cute.Pointer, stream: cuda.CUstream):
        self.kernel(k.toint(), v.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, k: Int64, v: Int64):
        fragments = PageFragments.empty(layouts.PAGE_SIZE, layouts.HEAD_DIM)
        fragments.k.fill(1)
        fragments.v.fill(2)
        store_registers(k, fragments.keys(), int)
        store_registers(v, fragments.values(), int)


@pytest.mark.pin
def test_compiles(arch):
    """Compiles for every architecture, and the tensors are registers: no local memory."""
    compile_kernel(EmptyState(layouts.HEAD_DIM), arch)
    compile_kernel(FragmentCount(), arch)


def test_empty_state(launch):
    """The partial over no key: m = -inf, l = 0, o = 0 (a positive zero), in every lane."""
    (state,) = launch(EmptyState(layouts.HEAD_DIM), out(np.float32, 36, 32))
    expected = np.zeros((36, 32), np.float32)
    expected[:2] = -np.inf
    assert_same_bits(state, expected)


def test_fragments_of_a_page(launch):
    """A page of 16 slots and 64 dims takes 16 registers for K and 16 for V: 4 KiB / 4 B / 32 lanes / 2."""
    k, v = launch(FragmentCount(), out(np.int32, 16, 32), out(np.int32, 16, 32))
    assert np.all(k == 1) and np.all(v == 2)


def test_quarters_partition_the_head_dims():
    """The chunks of the four quarters cover each head dim once, and a quarter's pairs are its chunks."""
    dims = [
        chunk_dim(chunk, quarter) + i for chunk in range(chunks(64)) for quarter in range(4) for i in range(8)
    ]
    assert sorted(dims) == list(range(64))
    assert 2 * pairs(64) == 8 * chunks(64)


def test_a_row_is_read_in_whole_sectors():
    """One 16-byte load of the four lanes of a row covers 64 contiguous bytes, aligned to them."""
    for chunk in range(chunks(64)):
        starts = [2 * chunk_dim(chunk, quarter) for quarter in range(4)]
        assert starts == [starts[0] + 16 * quarter for quarter in range(4)]
        assert starts[0] % 64 == 0


def test_pairs_follow_the_chunks():
    """The dims of pair j, as the reference layouts of these tests have them, are those of its chunk."""
    for j in range(pairs(64)):
        for e in range(2):
            expected = [chunk_dim(j // 4, quarter) + 2 * (j % 4) + e for quarter in layouts.T]
            assert layouts.dims_of_pair(j, e).tolist() == expected


def test_layouts_are_bijections():
    """Folding into registers and back loses nothing: every element has exactly one register and lane."""
    numbers = np.arange(16 * 64, dtype=np.uint32).reshape(16, 64)
    assert np.array_equal(layouts.unfold_output(layouts.fold_output(numbers)), numbers)
    assert np.array_equal(layouts.unfold_scores(layouts.fold_scores(numbers)), numbers)
    assert np.array_equal(layouts.unfold_weights(layouts.fold_weights(numbers.astype(np.uint16))), numbers)
    for fold in (layouts.fold_page, layouts.fold_page_columns):
        halves = fold(numbers.astype(np.uint16)).view(np.uint16)
        assert sorted(halves.ravel()) == list(range(16 * 64))
    assert sorted(layouts.fold_output_columns(numbers).ravel()) == list(range(16 * 64))
