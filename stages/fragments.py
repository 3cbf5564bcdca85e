"""Where a warp keeps a row group, a page and an output: the layout that all stages agree on.

Contract
    A warp attends for one row group, the 16 rows (token, query head) that are the M of one
    `mma.sync.m16n8k16`. Lane 4 g + t works on rows g and g + 8 of the group, on slots 8 n + g of a page
    (n counts the page's tiles of 8 slots), and on quarter t of the head dims.

    The head dims are permuted so that what a lane reads with 16-byte loads are its mma fragments as they
    stand: chunk c of quarter t is the 8 dims from 32 c + 8 t. A dot product does not mind the order of
    its dims as long as q and K agree, and the output comes out in the order of V. In one warp-wide load
    the four lanes of a row read 64 contiguous bytes, two whole sectors.

    For the host and for any thread; nothing here touches memory.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

ROWS = 16
"""Rows of a row group."""

TILE = 8
"""Keys (slots) of one mma tile."""


def chunks(head_dim: int) -> int:
    """How many 16-byte chunks (8 BF16 dims) of a row one lane holds."""
    return head_dim // 32


def chunk_dim(chunk, quarter):
    """The first of the 8 head dims in chunk `chunk` of a lane of quarter `quarter` (lane % 4)."""
    return 32 * chunk + 8 * quarter


def pairs(head_dim: int) -> int:
    """How many BF16 pairs of a row one lane holds: its registers for that row."""
    return head_dim // 8


def registers(kind, count: int) -> cute.Tensor:
    """`count` registers of a lane, to be indexed by compile-time integers only."""
    return cute.make_rmem_tensor(count, kind)


@dataclass(frozen=True)
class PageFragments:
    """K and V of one page, BF16 pairs in the registers of a warp, in rows.

    Pair j of tile n is at n * pairs(head_dim) + j in both: two dims of slot 8 n + g, as lanes read them.
    """

    k: cute.Tensor
    v: cute.Tensor

    @staticmethod
    def empty(page_size: int, head_dim: int) -> "PageFragments":
        """Registers for a page, not yet set."""
        count = page_size // TILE * pairs(head_dim)
        return PageFragments(registers(Int32, count), registers(Int32, count))

    def keys(self) -> cute.Tensor:
        """K's fragments."""
        return self.k

    def values(self) -> cute.Tensor:
        """V's fragments, in rows."""
        return self.v


@dataclass(frozen=True)
class RowState:
    """What a lane has of the partials of its two rows (g, then g + 8) while a warp attends.

    m: [2] running maxima of the base-2 logits, the same in the four lanes of a row. l: [2] sums of this
    lane's weights alone. o: [head_dim / 8 tiles of 4] unnormalised outputs, an mma accumulator: tile j holds
    two dims for row g and then for row g + 8, those of pair j. (While V comes in columns they are dims
    8 j + 2t and 8 j + 2t + 1, until the values stage's `finish` gives each lane the dims of its pairs.)
    """

    m: cute.Tensor
    l: cute.Tensor
    o: cute.Tensor

    @staticmethod
    def empty(head_dim: int) -> "RowState":
        """The partial over no key at all: (-inf, 0, 0)."""
        state = RowState(registers(Float32, 2), registers(Float32, 2), registers(Float32, head_dim // 2))
        state.m.fill(float("-inf"))
        state.l.fill(0.0)
        state.o.fill(0.0)
        return state
