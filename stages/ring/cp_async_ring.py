"""Page ring: the pages of a CTA stream through shared memory with `cp.async`, and every warp reads each.

Contract
    Computes nothing: it fills the K and V fragments of the pages of one step, the same for all warps of the
    CTA, which attend them for different rows. The ring holds `depth` pages; while a step is attended, the
    pages of the following ones are on their way.

    All threads of the CTA call `open`, `start`, then `take` for each step in turn, then `close`, together and
    with the same arguments. A thread copies its own 16-byte chunks of each page and waits for its own copies;
    the CTA barrier in `take` makes everybody's visible, and says that the step before has been read by all,
    so that its place can be filled again. One barrier a step.

    A page that is not live is not read: its place is filled with zeros.

    V comes out in columns, transposed on its way by `ldmatrix`. In shared memory K's two 64-byte halves
    change places in every odd slot: the lanes of a quarter-warp read from two neighbouring slots, and so from
    different banks. V's 16-byte chunks are numbered by xor with the slot, so that the 8 slots of a tile lie
    in different banks. No access has conflicts.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32, Int64

from stages.contract import Contract, Parameter, Region
from stages.fragments import TILE, PageFragments, chunks, pairs
from stages.pages.walk import PageWalk
from stages.ptx import (
    copy_async_16,
    copy_async_commit,
    copy_async_wait,
    cta_sync,
    load_matrices_transposed,
    load_shared_x4,
    select,
)
from stages.ring.entries import WalkEntries
from stages.ring.layout import page_bytes, slot_bytes, tiles


@dataclass(frozen=True)
class CpAsyncRing:
    """A ring of `depth` pages that all threads of the CTA fill."""

    head_dim: int
    page_size: int
    pages_per_step: int
    warps: int
    depth: int

    @property
    def steps_ahead(self) -> int:
        """Steps whose pages are on their way while one is attended."""
        return self.depth // self.pages_per_step - 1

    @property
    def v_columns(self) -> bool:
        """V comes as mma B fragments."""
        return True

    def open(self, region: Int32) -> None:
        """Nothing: copies are counted by the threads themselves."""

    def start(self, walk: PageWalk, live: Int32, region: Int32) -> WalkEntries:
        """Begin to copy the pages of the first steps. live: how many pages the CTA's walk has."""
        entries = WalkEntries.begin(walk)
        for step in range(self.steps_ahead):
            self._copy(walk, live, Int32(step), region, entries)
        return entries

    def take(
        self,
        walk: PageWalk,
        live: Int32,
        step: Int32,
        region: Int32,
        state: WalkEntries,
        pages: PageFragments,
    ) -> None:
        """Hand over the fragments of a step, and begin to copy into the place of the step before."""
        copy_async_wait(self.steps_ahead - 1)
        cta_sync()
        self._copy(walk, live, step + self.steps_ahead, region, state)
        self._read(step, region, pages)

    def close(self) -> None:
        """Wait for the copies of steps that the walk did not have."""
        copy_async_wait(0)

    def _place(self, step):
        """Which page of the ring holds the step's first page."""
        return step % (self.depth // self.pages_per_step) * self.pages_per_step

    def _copy(self, walk, live, step, region, entries):
        thread, _, _ = cute.arch.thread_idx()
        a_slot = slot_bytes(self.head_dim) // 16
        threads = 32 * self.warps
        entries.advance(walk, step * self.pages_per_step)
        for p in range(self.pages_per_step):
            index = step * self.pages_per_step + p
            wanted = index < live
            entry = select(wanted, entries.at(index), Int32(0))
            size = select(wanted, Int32(16), Int32(0))
            page = region + (self._place(step) + p) * page_bytes(self.head_dim, self.page_size)
            for first in range(0, page_bytes(self.head_dim, self.page_size) // 16, threads):
                chunk = thread + first
                slot, column = chunk // a_slot, chunk % a_slot
                in_v = column >= a_slot // 2
                place = slot * a_slot + (column ^ select(in_v, slot % 8, slot % 2 * 4))
                copy_async_16(page + 16 * place, walk.address(entry) + Int64(16 * chunk), size)
        copy_async_commit()

    def _read(self, step, region, pages):
        lane = cute.arch.lane_idx()
        g, t = lane // 4, lane % 4
        for p in range(self.pages_per_step):
            page = region + (self._place(step) + p) * page_bytes(self.head_dim, self.page_size)
            at = p * tiles(self.page_size) * pairs(self.head_dim)
            for n in range(tiles(self.page_size)):
                slot = page + (TILE * n + g) * slot_bytes(self.head_dim)
                for c in range(chunks(self.head_dim)):
                    words = load_shared_x4(slot + 16 * ((4 * c + t) ^ (g % 2 * 4)))
                    for i, word in enumerate(words):
                        pages.k[at + n * pairs(self.head_dim) + 4 * c + i] = word
            # Matrices: (tile 0, dims 8 j), (tile 1, dims 8 j), then the same of dims 8 j + 8.
            slot, further = lane % 16, lane // 16
            row = page + slot * slot_bytes(self.head_dim) + slot_bytes(self.head_dim) // 2
            for j in range(0, pairs(self.head_dim), 2):
                words = load_matrices_transposed(row + 16 * ((j + further) ^ (slot % 8)))
                for i, word in enumerate(words):
                    pages.v[at + i % 2 * pairs(self.head_dim) + j + i // 2] = word


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
        "pages_per_step": (1, 2),
        "warps": (1, 2, 4, 8),
    },
    shared=lambda stage: (Region("page_ring", stage.depth * page_bytes(stage.head_dim, stage.page_size)),),
    unfit=lambda stage: (
        None
        if stage.steps_ahead > 0
        else f"a ring of depth {stage.depth} holds one step of {stage.pages_per_step} pages, and nothing "
        "could be on its way while it is attended"
    ),
    min_arch=80,
)
