"""Page ring: one bulk copy a page, by the copy engine, counted by an mbarrier; every warp reads each page.

Contract
    Fills the same slot as `cp_async_ring` with the same fragments, save that V comes in rows. A page of one
    KV head is contiguous, so one thread brings it with one `cp.async.bulk`; the other threads do nothing for
    it.

    All threads of the CTA call `start`, which starts the barriers too, then `take` for each step in turn,
    then `close`, together and with the same arguments. Behind the pages, the region holds one mbarrier for
    each step that fits into the ring: 1 arrival (the copying thread's, which announces the bytes) and the
    bytes of the step's live pages. Step s completes phase s // (steps in the ring) of its barrier. The CTA
    barrier in `take` says that the step before has been read by all, so that its place can be filled again;
    the wait that follows acquires the step.

    A page that is not live is not copied, and must not be asked for: its place holds anything.

    Pages lie as they come, so two neighbouring slots begin in the same bank. The lanes of odd slots therefore
    read their two chunks of a row in the other order, and select them back: no conflicts.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from stages.contract import Contract, Parameter, Region
from stages.fragments import TILE, pairs, registers
from stages.pages.walk import PageWalk
from stages.ptx.arithmetic import select
from stages.ptx.async_copy import copy_bulk
from stages.ptx.barrier import cta_sync
from stages.ptx.mbarrier import mbarrier_arrive_expect, mbarrier_init, mbarrier_init_fence, mbarrier_wait
from stages.ptx.shared_memory import load_shared_x4
from stages.ring.entries import WalkEntries
from stages.ring.layout import REGION_ALIGN, page_bytes, slot_bytes, tiles

BARRIER_BYTES = 8
"""Of one mbarrier."""


@dataclass(frozen=True)
class RowPage:
    """A page that lies in shared memory as it came, at this address."""

    address: Int32
    head_dim: int
    page_size: int

    def keys(self) -> cute.Tensor:
        """K's fragments."""
        return self._read(0)

    def values(self) -> cute.Tensor:
        """V's fragments, in rows."""
        return self._read(slot_bytes(self.head_dim) // 2)

    def _read(self, half):
        lane = cute.arch.lane_idx()
        g, t = lane // 4, lane % 4
        odd = g % 2
        count = pairs(self.head_dim)
        fragments = registers(Int32, tiles(self.page_size) * count)
        for n in range(tiles(self.page_size)):
            row = self.address + (TILE * n + g) * slot_bytes(self.head_dim) + half
            # Two chunks of a row, 64 bytes apart; odd slots begin with the second.
            early = load_shared_x4(row + 64 * odd + 16 * t)
            late = load_shared_x4(row + 64 * (1 - odd) + 16 * t)
            for i in range(4):
                fragments[n * count + i] = select(odd == 0, early[i], late[i])
                fragments[n * count + 4 + i] = select(odd == 0, late[i], early[i])
        return fragments


@dataclass(frozen=True)
class BulkRing:
    """A ring of `depth` pages that the copy engine fills."""

    head_dim: int
    page_size: int
    ring_pages_per_step: int
    depth: int

    @property
    def v_columns(self) -> bool:
        """V comes in rows."""
        return False

    @property
    def steps(self) -> int:
        """Steps whose pages the ring holds."""
        return self.depth // self.ring_pages_per_step

    def start(self, walk: PageWalk, live: Int32, region: Int32) -> WalkEntries:
        """Begin to copy the pages of the first steps. live: how many pages the CTA's walk has."""
        entries = WalkEntries.begin(walk)
        self._open(region)
        # Nobody waits at a barrier before it has been started.
        cta_sync()
        for step in range(self.steps - 1):
            self._copy(walk, live, Int32(step), region, entries)
        return entries

    def take(self, walk: PageWalk, live: Int32, step: Int32, region: Int32, entries: WalkEntries) -> None:
        """Wait for a step's pages, and begin to copy into the place of the step before."""
        cta_sync()
        self._copy(walk, live, step + (self.steps - 1), region, entries)
        mbarrier_wait(self._barrier(region, step % self.steps), step // self.steps % 2)

    def page(self, step: Int32, page: Int32 | int, region: Int32) -> RowPage:
        """One of the pages of the step that was taken last."""
        place = step % self.steps * self.ring_pages_per_step + page
        return RowPage(
            region + place * page_bytes(self.head_dim, self.page_size), self.head_dim, self.page_size
        )

    def close(self) -> None:
        """Nothing: only live pages are copied, and each has been waited for."""

    @cute.jit
    def _open(self, region: Int32):
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            for place in cutlass.range_constexpr(self.steps):
                mbarrier_init(self._barrier(region, Int32(place)), 1)
            mbarrier_init_fence()

    def _barrier(self, region, place):
        """The barrier of the steps that lie at this place of the ring."""
        return region + self.depth * page_bytes(self.head_dim, self.page_size) + place * BARRIER_BYTES

    @cute.jit
    def _copy(self, walk: PageWalk, live: Int32, step: Int32, region: Int32, entries: WalkEntries):
        a_page = page_bytes(self.head_dim, self.page_size)
        first = step * self.ring_pages_per_step
        if (cute.arch.warp_idx() == 0) & (first < live):
            entries.advance(walk, first)
            rest = live - first
            count = select(rest < self.ring_pages_per_step, rest, Int32(self.ring_pages_per_step))
            place = step % self.steps
            barrier = self._barrier(region, place)
            sources = [walk.address(entries.at(first + p)) for p in range(self.ring_pages_per_step)]
            if cute.arch.lane_idx() == 0:
                mbarrier_arrive_expect(barrier, count * a_page)
                for p in cutlass.range_constexpr(self.ring_pages_per_step):
                    if p < count:
                        target = region + (place * self.ring_pages_per_step + p) * a_page
                        copy_bulk(target, sources[p], a_page, barrier)


CONTRACT = Contract(
    slot="ring",
    stage=BulkRing,
    summary="pages stream through shared memory by the copy engine, one bulk copy a page",
    parameters=(
        Parameter("depth", (2, 4, 6, 8, 10, 12, 14, 16, 24, 32, 48), 8, "pages that the ring holds"),
    ),
    requires={"head_dim": (64,), "page_size": (16,), "dtype": ("bf16",), "ring_pages_per_step": (1, 2, 4, 8)},
    shared=lambda stage: (
        Region(
            "page_ring",
            stage.depth * page_bytes(stage.head_dim, stage.page_size) + stage.steps * BARRIER_BYTES,
            REGION_ALIGN,
        ),
    ),
    unfit=lambda stage: (
        None
        if stage.steps > 0
        else f"a ring of depth {stage.depth} holds no step of {stage.ring_pages_per_step} pages"
    ),
    min_arch=90,
)
