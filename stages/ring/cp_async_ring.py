"""Page ring: the pages of a CTA stream through shared memory with `cp.async`, and every warp reads each.

Contract
    Computes nothing: it gives the K and V fragments of the pages of one step, the same to all warps of the
    CTA, which attend them for different rows. The ring holds `depth` pages; while a step is attended, the
    pages of the following ones are on their way.

    All threads of the CTA call `start`, then `take` for each step in turn, then `close`, together and with
    the same arguments. A warp copies pages of a step of its own, or a part of one, and a thread waits for its
    own copies; the CTA barrier in `take` makes everybody's visible, and says that the step before has been
    read by all, so that its place can be filled again. One barrier a step. Between one `take` and the next, a
    warp asks for the live pages of the step, and for the fragments of each, when it has use for them.

    A page that is not live is not read: its place is filled with zeros.

    V comes out in columns, transposed on its way by `ldmatrix`. In shared memory K's two 64-byte halves
    change places in every odd slot: the lanes of a quarter-warp read from two neighbouring slots, and so from
    different banks. V's 16-byte chunks are numbered by xor with the slot, so that the 8 slots of a tile lie
    in different banks. No access has conflicts.
"""

import dataclasses
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32, Int64

from stages.contract import Contract, Parameter, Region
from stages.fragments import TILE, chunks, pairs, registers
from stages.pages.walk import PageWalk
from stages.ptx.arithmetic import select
from stages.ptx.async_copy import copy_async_16, copy_async_commit, copy_async_wait
from stages.ptx.barrier import cta_sync
from stages.ptx.matrix import load_matrices_transposed
from stages.ptx.shared_memory import load_shared_x4
from stages.ring.entries import WalkEntries
from stages.ring.layout import REGION_ALIGN, page_bytes, slot_bytes, tiles

ROW_BYTES = 512
"""What the lanes of a warp copy at once, 16 bytes each."""

FLIPS = 4
"""Rows after which V's chunks lie as before: 8 slots, of two in a row."""


@dataclass(frozen=True)
class SwizzledPage:
    """A page in shared memory, its chunks moved against bank conflicts.

    It begins `offset` bytes after `step`, the address of its step's first page. Swizzling flips address bits
    below those of the offset, so it is done once for all pages of a step.
    """

    step: Int32
    offset: Int32 | int
    head_dim: int
    page_size: int

    def keys(self) -> cute.Tensor:
        """K's fragments."""
        lane = cute.arch.lane_idx()
        g, t = lane // 4, lane % 4
        chunk = self.step + g * slot_bytes(self.head_dim) + 16 * (t ^ (g % 2 * 4))
        fragments = registers(Int32, tiles(self.page_size) * pairs(self.head_dim))
        for n in range(tiles(self.page_size)):
            tile = self.offset + TILE * n * slot_bytes(self.head_dim)
            for c in range(chunks(self.head_dim)):
                words = load_shared_x4((chunk ^ (64 * c)) + tile)
                for i, word in enumerate(words):
                    fragments[n * pairs(self.head_dim) + 4 * c + i] = word
        return fragments

    def values(self) -> cute.Tensor:
        """V's fragments, in columns."""
        lane = cute.arch.lane_idx()
        # Matrices: (tile 0, dims 8 j), (tile 1, dims 8 j), then the same of dims 8 j + 8.
        slot, further = lane % 16, lane // 16
        row = self.step + slot * slot_bytes(self.head_dim) + slot_bytes(self.head_dim) // 2
        chunk = row + 16 * (further ^ (slot % TILE))
        fragments = registers(Int32, tiles(self.page_size) * pairs(self.head_dim))
        for j in range(0, pairs(self.head_dim), 2):
            words = load_matrices_transposed((chunk ^ (16 * j)) + self.offset)
            for i, word in enumerate(words):
                fragments[i % 2 * pairs(self.head_dim) + j + i // 2] = word
        return fragments


@dataclass(frozen=True)
class CpAsyncRing:
    """A ring of `depth` pages that all threads of the CTA fill."""

    head_dim: int
    page_size: int
    ring_pages_per_step: int
    warps: int
    depth: int

    @property
    def steps_ahead(self) -> int:
        """Steps whose pages are on their way while one is attended."""
        return self.depth // self.ring_pages_per_step - 1

    @property
    def v_columns(self) -> bool:
        """V comes as mma B fragments."""
        return True

    def start(self, walk: PageWalk, live: Int32, region: Int32) -> WalkEntries:
        """Begin to copy the pages of the first steps. live: how many pages the CTA's walk has."""
        entries = WalkEntries.begin(walk)
        for step in range(self.steps_ahead):
            self._copy(Int32(step), region, self._sources(walk, live, Int32(step), entries))
        return entries

    def take(self, walk: PageWalk, live: Int32, step: Int32, region: Int32, entries: WalkEntries) -> None:
        """Wait for a step's pages, and begin to copy into the place of the step before."""
        sources = self._sources(walk, live, step + self.steps_ahead, entries)
        copy_async_wait(self.steps_ahead - 1)
        cta_sync()
        self._copy(step + self.steps_ahead, region, sources)

    def page(self, step: Int32, page: Int32 | int, region: Int32) -> SwizzledPage:
        """One of the pages of the step that was taken last."""
        a_page = page_bytes(self.head_dim, self.page_size)
        return SwizzledPage(region + self._place(step) * a_page, page * a_page, self.head_dim, self.page_size)

    def close(self) -> None:
        """Wait for the copies of steps that the walk did not have."""
        copy_async_wait(0)

    def _place(self, step):
        """Which page of the ring holds the step's first page."""
        return step % (self.depth // self.ring_pages_per_step) * self.ring_pages_per_step

    @property
    def _pages_per_warp(self) -> int:
        """Pages of a step that a warp copies; of a page that warps share, each copies a part."""
        return max(1, self.ring_pages_per_step // self.warps)

    @property
    def _rows_per_page(self) -> int:
        """Rows of a page that a warp copies. A row is 512 bytes, one chunk a lane: two slots."""
        rows = page_bytes(self.head_dim, self.page_size) // ROW_BYTES
        return rows * self.ring_pages_per_step // (self.warps * self._pages_per_warp)

    def _first_row(self):
        """Where the warp begins, in rows from the step's first page."""
        return cute.arch.warp_idx() * (self._pages_per_warp * self._rows_per_page)

    def _sources(self, walk, live, step, entries):
        """Where the thread's part of each of its warp's pages lies, and the bytes of each of its copies."""
        a_page = page_bytes(self.head_dim, self.page_size)
        first = self._first_row() * ROW_BYTES
        # Of all pages, so that each takes one instruction. From the middle, which every copy can name.
        offset = first % a_page + 16 * cute.arch.lane_idx() + self._middle
        mine = dataclasses.replace(walk, cache=walk.cache + Int64(offset))
        entries.advance(walk, step * self.ring_pages_per_step)
        sources = []
        for p in range(self._pages_per_warp):
            index = step * self.ring_pages_per_step + first // a_page + p
            wanted = index < live
            entry = select(wanted, entries.at(index), Int32(0))
            sources.append((mine.address(entry), select(wanted, Int32(16), Int32(0))))
        return sources

    @property
    def _middle(self) -> int:
        """Bytes from the thread's first chunk in a page; an instruction adds up to 2,047 either way."""
        return self._rows_per_page * ROW_BYTES // 2

    def _copy(self, step, region, sources):
        a_page = page_bytes(self.head_dim, self.page_size)
        start, flip = self._first_target(region)
        targets = [start ^ (flip * row) for row in range(FLIPS)]
        for p, (source, size) in enumerate(sources):
            for row in range(self._rows_per_page):
                target = targets[row % FLIPS] + self._place(step) * a_page + p * a_page + row * ROW_BYTES
                copy_async_16(target, source, size, row * ROW_BYTES - self._middle)
        copy_async_commit()

    def _first_target(self, region):
        """Where the thread's first chunk goes in the first step, and what flips its place row by row.

        K's chunks lie alike in all rows, V's alike in every fourth: a row has an even and an odd slot.
        """
        a_slot = slot_bytes(self.head_dim) // 16
        odd, column = cute.arch.lane_idx() // a_slot, cute.arch.lane_idx() % a_slot
        of_v = column >= a_slot // 2
        flip = select(of_v, Int32(32), Int32(0))
        moved = column ^ select(of_v, odd, odd * (a_slot // 4))
        first = self._first_row()
        start = region + first * ROW_BYTES + odd * slot_bytes(self.head_dim) + 16 * moved
        return start ^ (flip * (first % FLIPS)), flip


CONTRACT = Contract(
    slot="ring",
    stage=CpAsyncRing,
    summary="pages stream through shared memory by cp.async, copied by all threads",
    parameters=(
        Parameter("depth", (2, 4, 6, 8, 10, 12, 14, 16, 24, 32, 48), 8, "pages that the ring holds"),
    ),
    requires={
        "head_dim": (64,),
        "page_size": (16,),
        "dtype": ("bf16",),
        "ring_pages_per_step": (1, 2, 4, 8),
        "warps": (1, 2, 4, 8),
    },
    shared=lambda stage: (
        Region("page_ring", stage.depth * page_bytes(stage.head_dim, stage.page_size), REGION_ALIGN),
    ),
    unfit=lambda stage: (
        None
        if stage.steps_ahead > 0
        else f"a ring of depth {stage.depth} holds no two steps of {stage.ring_pages_per_step} pages, and "
        "nothing could be on its way while one is attended"
    ),
    min_arch=80,
)
