"""Values by tensor cores: O += P V with `mma.sync.m16n8k16`, V transposed in registers by `movmatrix`.

Contract
    Adds to the accumulator of a row group the values of the pages of one step, weighted. V comes as lanes
    load it, a slot's dims side by side; the mma wants a dim's slots side by side, which is the transpose
    of an 8 x 8 matrix a pair, and so the output's dims come out in the permuted order of V. Where V comes in
    columns already, nothing is transposed, the dims come out in order, and `finish` after the last step
    permutes them. Both give the same bits.

    A slot's value must reach the rows that see the slot, and no other row, though the 16 rows of an mma
    may belong to two tokens: with a weight of 0, a NaN or an Inf in V would still spoil the product. Pages
    that both tokens see whole, nearly all, take one mma a tile. In the others the slots that a token does
    not see are zeroed, and each of the two tokens gets an mma of its own, of which only its rows are kept.
    Both ways add the same numbers in the same order, so they agree bit for bit. A page of which neither
    token sees anything adds nothing.

    Pages accumulate in ascending order. Called by whole warps; no barrier, no fence, no memory.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from stages.contract import Contract
from stages.fragments import TILE, PageFragments, pairs
from stages.mask import KeyRange
from stages.ptx import mma_bf16, movmatrix, select, shuffle_xor


@dataclass(frozen=True)
class MmaValues:
    """P V of one row group and the pages of one step."""

    head_dim: int
    page_size: int
    pages_per_step: int

    @cute.jit
    def accumulate(
        self,
        weights: cute.Tensor,
        pages: PageFragments,
        first_keys: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        o: cute.Tensor,
    ):
        """o += weights @ V.

        weights: A fragments as the softmax stage leaves them. pages: as the loader leaves them. first_keys:
        the first key of each page. visible: the keys of the lane's two rows.
        """
        for p in cutlass.range_constexpr(self.pages_per_step):
            key = first_keys[p]
            a = [weights[4 * p + i] for i in range(4)]
            whole = visible[0].sees_all(key, self.page_size) & visible[1].sees_all(key, self.page_size)
            some = visible[0].sees_any(key, self.page_size) | visible[1].sees_any(key, self.page_size)
            if whole:
                self._whole_page(a, pages, p, o)
            elif some:
                self._ragged_page(a, pages, p, key, visible, o)

    def _whole_page(self, a, pages, page, o):
        for j in range(pairs(self.head_dim)):
            out = mma_bf16(a, self._columns(pages, page, j), [o[4 * j + i] for i in range(4)])
            for i in range(4):
                o[4 * j + i] = out[i]

    def _ragged_page(self, a, pages, page, first_key, visible, o):
        t = cute.arch.lane_idx() % 4
        keep = [
            [self._seen_pair(rows, first_key + tile * TILE + 2 * t) for tile in range(2)] for rows in visible
        ]
        for j in range(pairs(self.head_dim)):
            b = self._columns(pages, page, j)
            c = [o[4 * j + i] for i in range(4)]
            for half in range(2):
                seen = [b[tile] & keep[half][tile] for tile in range(2)]
                out = mma_bf16(a, seen, c)
                for e in range(2):
                    o[4 * j + 2 * half + e] = out[2 * half + e]

    def finish(self, o: cute.Tensor, v_columns: bool) -> None:
        """Give each lane the dims of its own pairs, if V came in columns.

        Tiles 4 c + i of lane quarter t hold dims of chunk c, quarter i; they change places with those that
        lane quarter i holds of quarter t: a 4 x 4 transpose across the lanes of a row, in two exchanges.
        """
        if not v_columns:
            return
        quarter = cute.arch.lane_idx() % 4
        for first in range(0, pairs(self.head_dim), 4):
            for part in range(4):
                tile = [o[4 * (first + i) + part] for i in range(4)]
                for bit in (1, 2):
                    tile = self._exchange(tile, bit, (quarter & bit) != 0)
                for i in range(4):
                    o[4 * (first + i) + part] = tile[i]

    def _exchange(self, tile, bit, upper):
        """Lanes whose quarters differ in `bit` swap the entries that lie on the other side of it."""
        swapped = list(tile)
        for low in (i for i in range(4) if not i & bit):
            high = low | bit
            given = shuffle_xor(select(upper, tile[low], tile[high]), bit)
            swapped[low] = select(upper, given, tile[low])
            swapped[high] = select(upper, tile[high], given)
        return swapped

    def _columns(self, pages, page, j):
        """B fragments of dim tile j: pairs (slots 2t, 2t + 1) of one dim, for the page's two tiles."""
        tiles = range(page * self.page_size // TILE, (page + 1) * self.page_size // TILE)
        held = [pages.v[n * pairs(self.head_dim) + j] for n in tiles]
        return held if pages.v_columns else [movmatrix(pair) for pair in held]

    def _seen_pair(self, rows, key):
        """A mask that keeps those of keys `key` and `key` + 1 (low and high half) that the rows see."""
        low = select(rows.sees(key), Int32(0x0000FFFF), Int32(0))
        high = select(rows.sees(key + 1), Int32(-65536), Int32(0))
        return low | high


CONTRACT = Contract(
    slot="values",
    stage=MmaValues,
    summary="P V by mma.sync m16n8k16, V transposed by movmatrix",
    requires={
        "head_dim": (64,),
        "page_size": (16,),
        "dtype": ("bf16",),
        "heads_per_kv": (8,),
    },
)
