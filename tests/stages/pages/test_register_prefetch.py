"""The register-prefetch loader: every element of every live page in its register, nothing else touched."""

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
    """Stores what `take` hands over: [warp, step, page of the step, K then V, register, lane].

    only_live: take only the steps that have a live page, as a skeleton does.
    """

    warps: int
    pages_per_step: int
    steps: int
    only_live: bool = False

    def __str__(self):
        return f"Prefetching_{self.warps}_warps_{self.pages_per_step}_pages_{self.steps}_steps" + (
            "_only_live" if self.only_live else ""
        )

    @property
    def where(self) -> Launch:
        """One CTA whose warps deal the pages out."""
        return Launch(block=(32 * self.warps, 1, 1))

    @cute.jit
    def __call__(
        self,
        cache: cute.Pointer,
        table: cute.Pointer,
        taken: cute.Pointer,
        head_offset: Int64,
        page_stride: Int64,
        columns: Int32,
        length: Int32,
        stream: cuda.CUstream,
    ):
        self.kernel(
            cache.toint(), table.toint(), taken.toint(), head_offset, page_stride, columns, length
        ).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(
        self,
        cache: Int64,
        table: Int64,
        taken: Int64,
        head_offset: Int64,
        page_stride: Int64,
        columns: Int32,
        length: Int32,
    ):
        warp = cute.arch.warp_idx()
        loader = RegisterPrefetch(HEAD_DIM, PAGE_SIZE, self.pages_per_step)
        walk = PageWalk(table, columns, cache + head_offset, page_stride, warp, self.warps)
        incoming = loader.begin(walk)
        pages = PageFragments.empty(self.pages_per_step, PAGE_SIZE, HEAD_DIM)
        pages.k.fill(0)
        pages.v.fill(0)
        live = walk.pages(length, PAGE_SIZE)
        loader.start(walk, live, incoming)
        for step in cutlass.range_constexpr(self.steps):
            if cutlass.const_expr(self.only_live):
                pages.k.fill(0)
                pages.v.fill(0)
                if step * self.pages_per_step < live:
                    loader.take(walk, live, Int32(step), step + 1 == self.steps, incoming, pages)
            else:
                loader.take(walk, live, Int32(step), step + 1 == self.steps, incoming, pages)
            file = taken + Int64((warp * self.steps + step) * self.pages_per_step * 2 * REGISTERS * 128)
            store_registers(file, pages.k, Int32)
            store_registers(file + self.pages_per_step * REGISTERS * 128, pages.v, Int32)


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


def prefetch(launch, kernel, cache, table, head: int, length: int) -> np.ndarray:
    """What the loader hands over, for one KV head of a packed cache."""
    heads = cache.shape[1]
    shape = (kernel.warps, kernel.steps, 2, kernel.pages_per_step, REGISTERS, 32)
    arguments = (head * PAGE_BYTES, heads * PAGE_BYTES, len(table), length)
    return launch(kernel, cache, table, out(np.uint32, *shape), *arguments)[0]


def lengths(kernel: Prefetching) -> list[int]:
    """None, one slot, and around the boundary of each page of the walks."""
    most = kernel.warps * kernel.steps * kernel.pages_per_step
    return sorted({0, 1} | {PAGE_SIZE * page + d for page in range(1, most + 1) for d in (-1, 0, 1)})


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """Pages are read with 16-byte loads that leave L1 alone: 4 for K and 4 for V a page, for each load."""
    ptx = compile_kernel(kernel, arch).ptx
    loads = ptx.count("ld.global.L1::no_allocate.v4.b32")
    assert loads == 8 * kernel.pages_per_step * kernel.steps


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_element_in_its_register(kernel, launch):
    """Steps hand over the walk's pages in order, K and V, each element in its register and lane.

    The pages are placed at random, the table has exactly the live pages, and the second of three KV heads is
    read. A wrong page, head, slot, tile, column or step shows, since no two words of the cache are equal.
    """
    rng = np.random.default_rng(0)
    most = kernel.warps * kernel.steps * kernel.pages_per_step
    cache = make_cache(most + 2, 3)
    placement = rng.permutation(most + 2).astype(np.int32)
    for length in lengths(kernel):
        table = placement[: max(1, min(most, -(-length // PAGE_SIZE)))]
        got = prefetch(launch, kernel, cache, table, 1, length)
        assert np.array_equal(got, expected(kernel, cache, table, 1, length)), length


@pytest.mark.parametrize("poison", [-1, INT_MAX, "another page"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_dead_pages_are_not_touched(kernel, poison, launch):
    """Table entries past the live pages are not used, be they no page at all or one that holds NaN.

    Dereferencing the two numbers would leave the cache's allocation.
    """
    rng = np.random.default_rng(1)
    most = kernel.warps * kernel.steps * kernel.pages_per_step
    cache = make_cache(most + 1, 1)
    cache[most] = 0x7FC0
    dead = most if poison == "another page" else poison
    placement = rng.permutation(most).astype(np.int32)
    for length in lengths(kernel):
        live = min(most, -(-length // PAGE_SIZE))
        table = np.where(np.arange(most + 3) < live, np.resize(placement, most + 3), dead).astype(np.int32)
        got = prefetch(launch, kernel, cache, table, 0, min(length, PAGE_SIZE * most))
        reference = expected(kernel, cache, table[: max(live, 1)], 0, PAGE_SIZE * live)
        assert np.array_equal(got, reference), length


def test_reference_has_distinct_words():
    """The cache of these tests has no word twice in a head of a page, and few anywhere."""
    words = make_cache(26, 3).view(np.uint32)
    assert len(np.unique(words)) == words.size
