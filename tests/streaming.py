"""A micro-kernel around a ring: the pages of walks in, the fragments that every warp reads out."""

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int32, Int64

from stages.contract import Contract
from stages.pages.walk import PageWalk
from stages.ptx.global_memory import load_global_i32, store_global_f32x2, store_global_i32
from tests import layouts
from tests.device import Launch, MicroKernel, out
from tests.micro import place
from variants.kernels.base import SHARED_ALIGN

PAGE_SIZE, HEAD_DIM = layouts.PAGE_SIZE, layouts.HEAD_DIM
PAGE_BYTES = PAGE_SIZE * 2 * HEAD_DIM * 2
REGISTERS = 16
"""Registers of one page's K, and of its V."""

PAGE_FILE = 2 * REGISTERS * 128
"""Bytes of what one warp stores of a page."""

CTAS = 8
"""The walks of a launch, at most: one a CTA."""


WORDS = 5
"""What the kernel is told of a walk."""


@dataclass(frozen=True)
class Streaming(MicroKernel):
    """Stores what the pages give, as `taken_shape` says, and the number of steps: [CTA, warp].

    walks: [CTA, 5] of a walk's first entry in the table, how many columns it may read, which of them is the
    first of its pages, how many are live, and the pages that the CTAs before store. There are as many steps
    as a walk of `live` pages has. dead: pages of the last step that are not live are asked for as well.
    """

    contract: Contract
    ring: Any
    warps: int
    dead: bool = False

    def __str__(self):
        name, ring = type(self.ring).__name__, self.ring
        shape = f"{ring.depth}_deep_{ring.ring_pages_per_step}_pages_{self.warps}_warps"
        return f"Streaming_{name}_{shape}" + "_dead" * self.dead

    def __hash__(self):
        return hash((self.ring, self.warps, self.dead))

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
        page_stride: Int32,
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
        page_stride: Int32,
    ):
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        cta, _, _ = cute.arch.block_idx()
        begin, columns, first, live, before = [
            load_global_i32(walks + Int64(4 * (WORDS * cta + i))) for i in range(WORDS)
        ]
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=SHARED_ALIGN).toint()
        region = shared + self.regions[0]["page_ring"]
        a_step = self.ring.ring_pages_per_step
        walk = PageWalk(table + Int64(begin) * 4, columns, cache + head_offset, page_stride, first, 1)
        entries = self.ring.start(walk, live, region)
        count = (live + (a_step - 1)) // a_step
        for step in cutlass.range(count, unroll=1):
            self.ring.take(walk, live, step, region, entries)
            file = taken + Int64((before + step * a_step) * self.warps + warp) * PAGE_FILE
            rest = live - step * a_step
            # As the kernels do it: all pages of a whole step at once, those of another one by one.
            if rest >= a_step:
                for p in cutlass.range_constexpr(a_step):
                    self.store(self.ring.page(step, p, region), file + p * self.warps * PAGE_FILE)
            else:
                for p in cutlass.range(a_step if self.dead else rest, unroll=1):
                    self.store(self.ring.page(step, p, region), file + Int64(p) * (self.warps * PAGE_FILE))
        self.ring.close()
        if lane == 0:
            store_global_i32(steps + Int64(4 * (self.warps * cta + warp)), count)

    def store(self, page, file: Int64) -> None:
        """Store what a page gives."""
        store_pairs(file, page.keys())
        store_pairs(file + PAGE_FILE // 2, page.values())


def store_pairs(base: Int64, held: cute.Tensor) -> None:
    """Store this lane's registers, two at a time: half as many stores to simulate."""
    lane = cute.arch.lane_idx()
    for i in range(0, cute.size(held), 2):
        pair = [held[i + j].bitcast(Float32) for j in range(2)]
        store_global_f32x2(base + Int64(4 * (32 * i + 2 * lane)), pair)


def taken_shape(kernel: Streaming, pages: int) -> tuple[int, ...]:
    """[page, warp, K then V, pair of registers, lane, register of the pair]."""
    return pages, kernel.warps, 2, REGISTERS // 2, 32, 2


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
    return -(-live // kernel.ring.ring_pages_per_step)


def pages_of(kernel: Streaming, live: int) -> int:
    """Pages that are asked for of a walk of `live` pages."""
    return steps_of(kernel, live) * kernel.ring.ring_pages_per_step if kernel.dead else live


def expected(kernel: Streaming, cache, entries, head: int) -> np.ndarray:
    """What each warp reads, in the shape of `taken_shape`: the walk's pages, and zeros past the last."""
    fold_v = layouts.fold_page_columns if kernel.ring.v_columns else layouts.fold_page
    taken = np.zeros((pages_of(kernel, len(entries)), 2, REGISTERS, 32), np.uint32)
    for page, entry in zip(taken, entries, strict=False):
        slots = cache[entry, head]
        page[0], page[1] = layouts.fold_page(slots[:, :HEAD_DIM]), fold_v(slots[:, HEAD_DIM:])
    paired = taken.reshape(-1, 2, REGISTERS // 2, 2, 32).swapaxes(-1, -2)
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
        before += pages_of(kernel, walk.live)
    strides = (head * PAGE_BYTES, cache.shape[1] * PAGE_BYTES)
    return [cache, table, told, taken, steps, *strides]


def check(launch, kernel: Streaming, cache, table, head: int, walks: list[Walk]) -> None:
    """Every warp reads the pages of its CTA's walk, in order. All tables end where the memory ends."""
    counts = [pages_of(kernel, walk.live) for walk in walks]
    taken = out(np.uint32, *taken_shape(kernel, sum(counts)))
    given = arguments(kernel, cache, table, head, walks, taken, out(np.int32, CTAS, kernel.warps))
    written, steps = launch(kernel, *given)
    taken_steps = [[steps_of(kernel, walk.live)] for walk in walks]
    assert np.all(steps[: len(walks)] == taken_steps) and not steps[len(walks) :].any()
    for walk, got in zip(walks, np.split(written, np.cumsum(counts)[:-1]), strict=True):
        begin = len(table) - walk.columns + walk.first
        assert np.array_equal(got, expected(kernel, cache, table[begin : begin + walk.live], head)), walk
