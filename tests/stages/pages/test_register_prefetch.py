"""The register-prefetch loader: every element of every live page in its register, nothing else touched."""

import dataclasses
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int32, Int64

from stages.fragments import PageFragments
from stages.pages.register_prefetch import RegisterPrefetch
from stages.pages.walk import PageWalk
from stages.ptx.global_memory import load_global_i32
from tests import layouts
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import store_registers

PAGE_SIZE, HEAD_DIM = layouts.PAGE_SIZE, layouts.HEAD_DIM
PAGE_BYTES = PAGE_SIZE * 2 * HEAD_DIM * 2
INT_MAX = 2**31 - 1
REGISTERS = 16
"""Registers of one page's K, and of its V."""


@dataclass(frozen=True)
class Prefetching(MicroKernel):
    """Stores what `take` hands over: [case, warp, step, K then V, page of the step, register, lane].

    A case is a CTA with its own length and row of the table. only_live: take only the steps that have a live
    page, as a skeleton does.
    """

    warps: int
    pages_per_step: int
    steps: int
    only_live: bool = False
    cases: int = 1

    def __str__(self):
        return f"Prefetching_{self.warps}_warps_{self.pages_per_step}_pages_{self.steps}_steps" + (
            "_only_live" if self.only_live else ""
        )

    @property
    def where(self) -> Launch:
        """A CTA a case, whose warps deal the pages out."""
        return Launch(grid=(self.cases, 1, 1), block=(32 * self.warps, 1, 1))

    @property
    def most_pages(self) -> int:
        """The pages that the walks of all warps have together."""
        return self.warps * self.steps * self.pages_per_step

    @cute.jit
    def __call__(
        self,
        cache: cute.Pointer,
        table: cute.Pointer,
        lengths: cute.Pointer,
        taken: cute.Pointer,
        head_offset: Int64,
        page_stride: Int32,
        columns: Int32,
        stream: cuda.CUstream,
    ):
        self.kernel(
            cache.toint(), table.toint(), lengths.toint(), taken.toint(), head_offset, page_stride, columns
        ).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(
        self,
        cache: Int64,
        table: Int64,
        lengths: Int64,
        taken: Int64,
        head_offset: Int64,
        page_stride: Int32,
        columns: Int32,
    ):
        case, _, _ = cute.arch.block_idx()
        length = load_global_i32(lengths + Int64(4 * case))
        warp = cute.arch.warp_idx()
        loader = RegisterPrefetch(HEAD_DIM, PAGE_SIZE, self.pages_per_step)
        row = table + Int64(4 * case * columns)
        walk = PageWalk(row, columns, cache + head_offset, page_stride, warp, self.warps)
        incoming = loader.begin(walk)
        pages = loader.empty()
        clear(pages)
        live = walk.pages(length, PAGE_SIZE)
        loader.start(walk, live, self.steps == 1, incoming)
        for step in cutlass.range_constexpr(self.steps):
            if cutlass.const_expr(self.only_live):
                clear(pages)
                if step * self.pages_per_step < live:
                    loader.take(walk, live, Int32(step), step + 1 == self.steps, incoming, pages)
            else:
                loader.take(walk, live, Int32(step), step + 1 == self.steps, incoming, pages)
            index = (case * self.warps + warp) * self.steps + step
            file = taken + Int64(index * self.pages_per_step * 2 * REGISTERS * 128)
            for p in cutlass.range_constexpr(self.pages_per_step):
                at = file + p * REGISTERS * 128
                store_registers(at, pages[p].keys(), Int32)
                store_registers(at + self.pages_per_step * REGISTERS * 128, pages[p].values(), Int32)


def clear(pages: list[PageFragments]) -> None:
    """Make all fragments zeros."""
    for page in pages:
        page.k.fill(0)
        page.v.fill(0)


KERNELS = [
    Prefetching(1, 1, 1),  # `last` at once: nothing is loaded after the first step
    Prefetching(1, 2, 3),
    Prefetching(4, 1, 3),
    Prefetching(4, 2, 2),
    Prefetching(4, 2, 2, only_live=True),
]


def make_cache(pages: int, heads: int) -> np.ndarray:
    """[pages, heads, 16, 128] BF16 bits such that every pair of neighbours in a page's row is unique.

    The even elements say where they are: page and head, slot, column. The odd ones hash it: NaN among them.
    """
    index = np.arange(pages * heads * PAGE_SIZE * 2 * HEAD_DIM, dtype=np.uint64)
    pair = index // 2
    cache = np.where(index % 2 == 0, pair & 0xFFFF, (pair >> 16) * 40503 + (pair & 0xFFFF) * 30011)
    return (cache & 0xFFFF).astype(np.uint16).reshape(pages, heads, PAGE_SIZE, 2 * HEAD_DIM)


def expected(kernel: Prefetching, cache, table, head: int, length: int) -> np.ndarray:
    """What each warp is handed: its live pages' fragments, and zeros for pages that are not live."""
    live = min(-(-length // PAGE_SIZE), len(table))
    taken = np.zeros((kernel.warps, kernel.steps, 2, kernel.pages_per_step, REGISTERS, 32), np.uint32)
    for warp, step, p in np.ndindex(kernel.warps, kernel.steps, kernel.pages_per_step):
        page = warp + kernel.warps * (step * kernel.pages_per_step + p)
        if page < live:
            slots = cache[table[page], head]
            taken[warp, step, 0, p] = layouts.fold_page(slots[:, :HEAD_DIM])
            taken[warp, step, 1, p] = layouts.fold_page(slots[:, HEAD_DIM:])
    return taken


def prefetch(launch, kernel, cache, table, head: int, lengths: list[int]) -> np.ndarray:
    """What the loader hands over for each length, for one KV head; table [case, columns]."""
    kernel = dataclasses.replace(kernel, cases=len(lengths))
    heads, columns = cache.shape[1], table.shape[1]
    taken = out(np.uint32, len(lengths), kernel.warps, kernel.steps, 2, kernel.pages_per_step, REGISTERS, 32)
    strides = (head * PAGE_BYTES, heads * PAGE_BYTES)
    return launch(kernel, cache, table, np.array(lengths, np.int32), taken, *strides, columns)[0]


def boundaries(kernel: Prefetching) -> list[int]:
    """Lengths: none, one slot, and around the boundary of each page of the walks."""
    pages = range(1, kernel.most_pages + 1)
    return sorted({0, 1} | {PAGE_SIZE * page + d for page in pages for d in (-1, 0, 1)})


@pytest.mark.pin
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """Pages are read with 16-byte loads that leave L1 alone: 4 for K and 4 for V a page, for each load.

    Table entries are looked up a step before their pages are loaded, and none where step 0 is the last.
    """
    ptx = compile_kernel(kernel, arch).ptx
    loads = ptx.count("ld.global.L1::no_allocate.v4.b32")
    assert loads == 8 * kernel.pages_per_step * kernel.steps
    looked_up = 1 if kernel.steps == 1 else kernel.steps + 1
    assert ptx.count("ld.global.b32") == 1 + kernel.pages_per_step * looked_up  # the length, and entries


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_element_in_its_register(kernel, launch):
    """Steps hand over the walk's pages in order, K and V, each element in its register and lane.

    The pages are placed at random, the table has exactly the live pages and nothing behind them, and the
    second of three KV heads is read. A wrong page, head, slot, tile, column or step shows: no word is twice.
    """
    most = kernel.most_pages
    cache = make_cache(most + 2, 3)
    placement = np.random.default_rng(0).permutation(most + 2).astype(np.int32)
    for pages in {1, most // 2 + 1, most}:
        length = PAGE_SIZE * pages - 5
        (got,) = prefetch(launch, kernel, cache, placement[None, :pages], 1, [length])
        assert np.array_equal(got, expected(kernel, cache, placement[:pages], 1, length)), length


@pytest.mark.parametrize("poison", [-1, INT_MAX, "another page"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_dead_pages_are_not_touched(kernel, poison, launch):
    """Table entries past the live pages are not used, be they no page at all or one that holds NaN.

    Dereferencing the two numbers would leave the cache's allocation. Lengths around every page boundary.
    """
    most = kernel.most_pages
    cache = make_cache(most + 1, 1)
    cache[most] = 0x7FC0
    dead = most if poison == "another page" else poison
    lengths = [min(length, PAGE_SIZE * most) for length in boundaries(kernel)]
    live = -(-np.array(lengths)[:, None] // PAGE_SIZE)
    placement = np.random.default_rng(1).permutation(most + 3) % most
    table = np.where(np.arange(most + 3) < live, placement, dead).astype(np.int32)
    got = prefetch(launch, kernel, cache, table, 0, lengths)
    for case, length in enumerate(lengths):
        assert np.array_equal(got[case], expected(kernel, cache, table[case], 0, length)), length


def test_reference_has_distinct_words():
    """The cache of these tests has no word twice in a head of a page, and few anywhere."""
    words = make_cache(26, 3).view(np.uint32)
    assert len(np.unique(words)) == words.size
