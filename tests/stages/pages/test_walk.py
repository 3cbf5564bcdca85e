"""A warp's walk: which pages, which table entries, which addresses."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int32, Int64

from stages.pages.walk import PageWalk
from stages.ptx.global_memory import store_global_i32
from tests.device import Launch, MicroKernel, compile_kernel, out

PAGE_SIZE = 16
INDICES = 32


@dataclass(frozen=True)
class Dealing(MicroKernel):
    """pages[length - first_length, warp]: how many pages are the walk's of each of `stride` warps."""

    stride: int
    lengths: int

    @property
    def where(self) -> Launch:
        """A CTA a length, a thread a walk."""
        return Launch(grid=(self.lengths, 1, 1), block=(self.stride, 1, 1))

    @cute.jit
    def __call__(self, pages: cute.Pointer, first_length: Int32, columns: Int32, stream: cuda.CUstream):
        self.kernel(pages.toint(), first_length, columns).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, pages: Int64, first_length: Int32, columns: Int32):
        first, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        walk = PageWalk(Int64(0), columns, Int64(0), Int32(0), first, self.stride)
        count = walk.pages(first_length + block, PAGE_SIZE)
        store_global_i32(pages + Int64(4 * (block * self.stride + first)), count)


@dataclass(frozen=True)
class LookingUp(MicroKernel):
    """[page, entry, address low, address high] of each walk's first `INDICES` pages, [warp, index, 4]."""

    stride: int

    @property
    def where(self) -> Launch:
        """A CTA a walk, a thread an index."""
        return Launch(grid=(self.stride, 1, 1), block=(INDICES, 1, 1))

    @cute.jit
    def __call__(
        self,
        table: cute.Pointer,
        found: cute.Pointer,
        columns: Int32,
        cache: Int64,
        page_stride: Int32,
        stream: cuda.CUstream,
    ):
        self.kernel(table.toint(), found.toint(), columns, cache, page_stride).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, table: Int64, found: Int64, columns: Int32, cache: Int64, page_stride: Int32):
        index, _, _ = cute.arch.thread_idx()
        first, _, _ = cute.arch.block_idx()
        walk = PageWalk(table, columns, cache, page_stride, first, self.stride)
        entry = walk.entry(index)
        address = walk.address(entry)
        words = (walk.page(index), entry, Int32(address), Int32(address >> 32))
        at = found + Int64(16 * (first * INDICES + index))
        for i in cutlass.range_constexpr(4):
            store_global_i32(at + 4 * i, words[i])


@dataclass(frozen=True)
class Stepping(MicroKernel):
    """[walk, step, page of the step]: the page numbers of each walk's first `INDICES` steps."""

    stride: int
    pages_per_step: int

    @property
    def where(self) -> Launch:
        """A CTA a walk, a thread a step."""
        return Launch(grid=(self.stride, 1, 1), block=(INDICES, 1, 1))

    @cute.jit
    def __call__(self, pages: cute.Pointer, first: Int32, stream: cuda.CUstream):
        self.kernel(pages.toint(), first).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, pages: Int64, first: Int32):
        step, _, _ = cute.arch.thread_idx()
        number, _, _ = cute.arch.block_idx()
        walk = PageWalk(Int64(0), Int32(1), Int64(0), Int32(0), first + number, self.stride)
        found = walk.step(step, self.pages_per_step)
        at = pages + Int64(4 * self.pages_per_step * (number * INDICES + step))
        for i in cutlass.range_constexpr(self.pages_per_step):
            store_global_i32(at + 4 * i, found[i])


STRIDES = (1, 3, 64)
"""One warp; a stride that is no power of two; the 64 warps of a cluster of 16."""


@pytest.mark.pin
@pytest.mark.parametrize("stride", STRIDES)
def test_compiles(stride, arch):
    """Compiles for every architecture; a count of pages reads no memory."""
    assert "ld.global" not in compile_kernel(Dealing(stride, 4), arch).ptx
    compile_kernel(LookingUp(stride), arch)
    assert "ld.global" not in compile_kernel(Stepping(stride, 2), arch).ptx


@pytest.mark.parametrize("stride", STRIDES)
def test_pages_are_dealt_out_once(stride, launch):
    """Each live page belongs to one walk: page p to walk p % stride. Lengths around each page and round."""
    columns = 3 * stride
    lengths = PAGE_SIZE * columns + 1
    (pages,) = launch(Dealing(stride, lengths), out(np.int32, lengths, stride), 0, columns)
    for length in range(lengths):
        live = -(-length // PAGE_SIZE)
        expected = np.bincount(np.arange(live) % stride, minlength=stride)
        assert np.array_equal(pages[length], expected), length


@pytest.mark.parametrize("columns", [1, 5])
def test_pages_end_with_the_table(columns, launch):
    """A length beyond the table's columns has only the table's pages: an entry past them is never live."""
    (pages,) = launch(Dealing(3, 64), out(np.int32, 64, 3), PAGE_SIZE * columns - 8, columns)
    for i in range(64):
        live = min(-(-(PAGE_SIZE * columns - 8 + i) // PAGE_SIZE), columns)
        assert np.array_equal(pages[i], np.bincount(np.arange(live) % 3, minlength=3)), i


@pytest.mark.parametrize("columns", [1, 2, 40])
@pytest.mark.parametrize("stride", STRIDES)
def test_entries_stay_in_the_table(stride, columns, launch):
    """The walk's page i is table column first + i * stride; past the end it is the last column, no further.

    The table has exactly its columns, so that a read past them would leave the allocation.
    """
    table = np.random.default_rng(columns).permutation(2**20)[:columns].astype(np.int32)
    (found,) = launch(LookingUp(stride), table, out(np.int32, stride, INDICES, 4), columns, 0, 0)
    page = np.arange(stride)[:, None] + np.arange(INDICES) * stride
    assert np.array_equal(found[..., 0], page)
    assert np.array_equal(found[..., 1], table[np.minimum(page, columns - 1)])


@pytest.mark.parametrize("page_stride", [4096, 2**30 + 16, 2**32 - 4096])
def test_addresses_have_64_bits(page_stride, launch):
    """cache + entry * page_stride, without loss for caches beyond 2**31 elements and 2**32 bytes.

    The stride is an unsigned number: a kernel is given its 32 bits.
    """
    table = np.array([0, 1, 131071, 131072, 262144, 524288, 2**30, 2**31 - 1] * 4, np.int32)
    cache, bits = 0x7F12_3456_7890, int(np.uint32(page_stride).view(np.int32))
    (found,) = launch(LookingUp(1), table, out(np.int32, 1, INDICES, 4), len(table), cache, bits)
    address = np.ascontiguousarray(found[0, :, 2:]).view(np.uint64)[:, 0]
    assert address.tolist() == [cache + int(entry) * page_stride for entry in table]


@pytest.mark.parametrize("pages_per_step", [1, 2])
@pytest.mark.parametrize("stride", STRIDES)
def test_steps_take_the_pages_in_order(stride, pages_per_step, launch):
    """The steps of a walk have its pages, `pages_per_step` each, in order; it may begin at any page."""
    kernel = Stepping(stride, pages_per_step)
    (got,) = launch(kernel, out(np.int32, stride, INDICES, pages_per_step), 1000)
    walks = 1000 + np.arange(stride)[:, None] + stride * np.arange(INDICES * pages_per_step)
    assert np.array_equal(got.reshape(stride, -1), walks)
