"""A micro-kernel around a ring: the pages of walks in, the fragments that every warp gets out."""

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int64

from stages.contract import Contract
from stages.fragments import PageFragments
from stages.pages.walk import PageWalk
from stages.ptx import load_global_i32, store_global_f32x2, store_global_i32
from tests import layouts
from tests.device import Launch, MicroKernel, out
from tests.micro import place

PAGE_SIZE, HEAD_DIM = layouts.PAGE_SIZE, layouts.HEAD_DIM
PAGE_BYTES = PAGE_SIZE * 2 * HEAD_DIM * 2
REGISTERS = 16
"""Registers of one page's K, and of its V."""

CTAS = 8
"""The walks of a launch, at most: one a CTA."""


WORDS = 5
"""What the kernel is told of a walk."""


@dataclass(frozen=True)
class Streaming(MicroKernel):
    """Stores what `take` hands over, as `taken_shape` says, and the number of steps: [CTA, warp].

    walks: [CTA, 5] of a walk's first entry in the table, how many columns it may read, which of them is the
    first of its pages, how many are live, and the steps of the CTAs before. There are as many steps as a walk
    of `live` pages has. The fragments hold ones in all bits before each step.
    """

    contract: Contract
    ring: Any
    warps: int

    def __str__(self):
        name, ring = type(self.ring).__name__, self.ring
        return f"Streaming_{name}_{ring.depth}_deep_{ring.pages_per_step}_pages_{self.warps}_warps"

    def __hash__(self):
        return hash((self.ring, self.warps))

    @property
    def regions(self) -> tuple[dict[str, int], int]:
        """Where the ring's region lies."""
        return place(self.contract.shared(self.ring))

    @property
    def where(self) -> Launch:
        """CTAs with the ring's region."""
        return Launch(grid=(CTAS, 1, 1), block=(32 * self.warps, 1, 1), shared_bytes=self.regions[1])

    @cute.jit
    def __call__(
        self,
        cache: cute.Pointer,
        table: cute.Pointer,
        walks: cute.Pointer,
        taken: cute.Pointer,
        steps: cute.Pointer,
        head_offset: Int64,
        page_stride: Int64,
        stream: cuda.CUstream,
    ):
        self.kernel(
            cache.toint(),
            table.toint(),
            walks.toint(),
            taken.toint(),
            steps.toint(),
            head_offset,
            page_stride,
        ).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(
        self,
        cache: Int64,
        table: Int64,
        walks: Int64,
        taken: Int64,
        steps: Int64,
        head_offset: Int64,
        page_stride: Int64,
    ):
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        cta, _, _ = cute.arch.block_idx()
        begin, columns, first, live, before = [
            load_global_i32(walks + Int64(4 * (WORDS * cta + i))) for i in range(WORDS)
        ]
        region = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint() + self.regions[0]["page_ring"]
        a_step = self.ring.pages_per_step
        self.ring.open(region)
        walk = PageWalk(table + Int64(begin) * 4, columns, cache + head_offset, page_stride, first, 1)
        state = self.ring.start(walk, live, region)
        pages = PageFragments.empty(a_step, PAGE_SIZE, HEAD_DIM, self.ring.v_columns)
        count = (live + (a_step - 1)) // a_step
        for step in cutlass.range(count, unroll=1):
            pages.k.fill(-1)
            pages.v.fill(-1)
            self.ring.take(walk, live, step, region, state, pages)
            file = taken + Int64(((before + step) * self.warps + warp) * a_step * 2 * REGISTERS * 128)
            store_pairs(file, pages.k)
            store_pairs(file + a_step * REGISTERS * 128, pages.v)
        self.ring.close()
        if lane == 0:
            store_global_i32(steps + Int64(4 * (self.warps * cta + warp)), count)


def store_pairs(base: Int64, held: cute.Tensor) -> None:
    """Store this lane's registers, two at a time: half as many stores to simulate."""
    lane = cute.arch.lane_idx()
    for i in range(0, cute.size(held), 2):
        pair = [held[i + j].bitcast(Float32) for j in range(2)]
        store_global_f32x2(base + Int64(4 * (32 * i + 2 * lane)), pair)


def taken_shape(kernel: Streaming, steps: int) -> tuple[int, ...]:
    """[step, warp, K then V, page of the step, pair of registers, lane, register of the pair]."""
    return steps, kernel.warps, 2, kernel.ring.pages_per_step, REGISTERS // 2, 32, 2


def make_cache(pages: int, heads: int) -> np.ndarray:
    """[pages, heads, 16, 128] BF16 bits: no element is twice in a page, and no pair of neighbours anywhere.

    The even elements say where they are: slot, column and, in part, page; the odd ones hash it.
    """
    index = np.arange(pages * heads * PAGE_SIZE * 2 * HEAD_DIM, dtype=np.uint64)
    within, page = index % (PAGE_SIZE * 2 * HEAD_DIM), index // (PAGE_SIZE * 2 * HEAD_DIM)
    cache = within + (page * 2048 + (page // 32) * 40503 * (index % 2))
    return (cache & 0xFFFF).astype(np.uint16).reshape(pages, heads, PAGE_SIZE, 2 * HEAD_DIM)


def steps_of(kernel: Streaming, live: int) -> int:
    """Steps of a walk of `live` pages."""
    return -(-live // kernel.ring.pages_per_step)


def expected(kernel: Streaming, cache, entries, head: int) -> np.ndarray:
    """What each warp is handed, in the shape of `taken_shape`: the walk's pages, and zeros past the last."""
    a_step = kernel.ring.pages_per_step
    fold_v = layouts.fold_page_columns if kernel.ring.v_columns else layouts.fold_page
    taken = np.zeros((steps_of(kernel, len(entries)), 2, a_step, REGISTERS, 32), np.uint32)
    for index, entry in enumerate(entries):
        slots = cache[entry, head]
        taken[index // a_step, 0, index % a_step] = layouts.fold_page(slots[:, :HEAD_DIM])
        taken[index // a_step, 1, index % a_step] = fold_v(slots[:, HEAD_DIM:])
    paired = taken.reshape(*taken.shape[:3], REGISTERS // 2, 2, 32).swapaxes(-1, -2)
    return np.repeat(paired[:, None], kernel.warps, axis=1)


@dataclass(frozen=True)
class Walk:
    """A walk over a table's last `columns` entries, of which `live` from number `first` on are its pages."""

    columns: int
    first: int
    live: int


def arguments(kernel: Streaming, cache, table, head: int, walks: list[Walk], taken, steps) -> list:
    """Those of the kernel. A CTA that is left over has a walk of no page."""
    told, before = np.zeros((CTAS, WORDS), np.int32), 0
    for cta in range(CTAS):
        walk = walks[cta] if cta < len(walks) else Walk(len(table), 0, 0)
        told[cta] = len(table) - walk.columns, walk.columns, walk.first, walk.live, before
        before += steps_of(kernel, walk.live)
    strides = (head * PAGE_BYTES, cache.shape[1] * PAGE_BYTES)
    return [cache, table, told, taken, steps, *strides]


def check(launch, kernel: Streaming, cache, table, head: int, walks: list[Walk]) -> None:
    """Every warp is handed the pages of its CTA's walk, in order. All tables end where the memory ends."""
    counts = [steps_of(kernel, walk.live) for walk in walks]
    taken = out(np.uint32, *taken_shape(kernel, sum(counts)))
    given = arguments(kernel, cache, table, head, walks, taken, out(np.int32, CTAS, kernel.warps))
    written, steps = launch(kernel, *given)
    assert np.all(steps[: len(walks)] == np.array(counts)[:, None]) and not steps[len(walks) :].any()
    for walk, got in zip(walks, np.split(written, np.cumsum(counts)[:-1]), strict=True):
        begin = len(table) - walk.columns + walk.first
        assert np.array_equal(got, expected(kernel, cache, table[begin : begin + walk.live], head)), walk
