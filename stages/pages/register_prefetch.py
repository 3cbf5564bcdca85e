"""Page loader: pages go from global memory straight to the registers of the warp that attends them.

Contract
    Computes nothing: it fills the K and V fragments of the pages of one step, `pages_per_step` pages of
    a warp's walk. While a step is attended, the registers of the next are loading; nothing passes
    through shared memory, so there is no barrier and no fence.

    A page that is not live is never touched: its fragments are zeros and its table entry is not used.
    Slots that no row sees are read with their page, whatever they hold, and masked later.

    Called by whole warps, in this order: `begin`, which may run before the request's length is known;
    `start`, which begins to load step 0; then `take` for each step in turn, which hands the step's
    fragments over and begins to load the next step.

    Does not mask or convert, and shares nothing between warps: each page's bytes are read once by each
    warp that attends it.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from stages.contract import Contract
from stages.fragments import TILE, PageFragments, chunk_dim, chunks, pairs, registers
from stages.pages.walk import PageWalk
from stages.ptx.global_memory import stream_global_x4


@dataclass(frozen=True)
class Incoming:
    """Registers on their way: the table entries and the fragments of a warp's next step."""

    entries: cute.Tensor
    pages: list[PageFragments]


@dataclass(frozen=True)
class RegisterPrefetch:
    """Holds the pages of the next step in registers while one step is attended."""

    head_dim: int
    page_size: int
    pages_per_step: int

    def empty(self) -> list[PageFragments]:
        """Registers for the pages of one step, not yet set."""
        return [PageFragments.empty(self.page_size, self.head_dim) for _ in range(self.pages_per_step)]

    def begin(self, walk: PageWalk) -> Incoming:
        """Look up the pages of step 0 in the block table."""
        incoming = Incoming(registers(Int32, self.pages_per_step), self.empty())
        self._look_up(walk, Int32(0), incoming)
        return incoming

    def start(self, walk: PageWalk, live: Int32, last: bool, incoming: Incoming) -> None:
        """Begin to load step 0. live: how many pages the walk has; last: they all fit into step 0."""
        self._load(walk, live, Int32(0), incoming)
        if not last:
            self._look_up(walk, Int32(1), incoming)

    def take(
        self,
        walk: PageWalk,
        live: Int32,
        step: Int32,
        last: cutlass.Constexpr[bool],
        incoming: Incoming,
        pages: list[PageFragments],
    ) -> None:
        """Hand over the fragments of a step, and begin to load the next unless this is the `last`."""
        for page, ready in zip(pages, incoming.pages, strict=True):
            page.k.store(ready.k.load())
            page.v.store(ready.v.load())
        if not last:
            self._load(walk, live, step + 1, incoming)
            self._look_up(walk, step + 2, incoming)

    def _look_up(self, walk, step, incoming):
        for p in range(self.pages_per_step):
            incoming.entries[p] = walk.entry(step * self.pages_per_step + p)

    @cute.jit
    def _load(self, walk: PageWalk, live: Int32, step: Int32, incoming: Incoming):
        lane = cute.arch.lane_idx()
        slot_bytes = 4 * self.head_dim
        for p in cutlass.range_constexpr(self.pages_per_step):
            fragments = incoming.pages[p]
            if step * self.pages_per_step + p < live:
                page = walk.address(incoming.entries[p])
                for n in cutlass.range_constexpr(self.page_size // TILE):
                    slot = page + Int64((lane // 4 + TILE * n) * slot_bytes)
                    self._load_row(slot, n, fragments.k)
                for n in cutlass.range_constexpr(self.page_size // TILE):
                    slot = page + Int64((lane // 4 + TILE * n) * slot_bytes + slot_bytes // 2)
                    self._load_row(slot, n, fragments.v)
            else:
                fragments.k.fill(0)
                fragments.v.fill(0)

    def _load_row(self, address, tile, fragments):
        quarter = cute.arch.lane_idx() % 4
        for c in range(chunks(self.head_dim)):
            words = stream_global_x4(address + Int64(2 * chunk_dim(c, quarter)))
            for i, word in enumerate(words):
                fragments[tile * pairs(self.head_dim) + 4 * c + i] = word


CONTRACT = Contract(
    slot="pages",
    stage=RegisterPrefetch,
    summary="next pages load into registers while this step's are attended",
    requires={"head_dim": (64,), "page_size": (16,), "dtype": ("bf16",)},
)
