"""Values by tensor cores: O += P V with `mma.sync.m16n8k16`, V transposed in registers by `movmatrix`.

Contract
    Adds to the accumulator of a row group the values of a page, weighted. Pair j of tile n of V is at
    n * pairs(head_dim) + j. V may come in rows, a slot's dims side by side, as lanes load it: the mma wants
    a dim's slots side by side, which is the transpose of an 8 x 8 matrix a pair, and so the output's dims
    come out in the permuted order of V. Or it comes in columns: slots 2t and 2t + 1 of the tile, of dim
    8 j + g, an mma B fragment as it stands; then nothing is transposed, the dims come out in order, and
    `finish` after the last step permutes them. Both give the same bits.

    A slot's value must reach the rows that see the slot, and no other row, though the 16 rows of an mma
    may belong to two tokens: with a weight of 0, a NaN or an Inf in V would still spoil the product. Pages
    that both tokens see whole, nearly all, take one mma a tile. In the others the caller asks for masking:
    the slots that a token does not see are zeroed, and each of the two tokens gets an mma of its own, of
    which only its rows are kept. Both ways add the same numbers in the same order, so they agree bit for bit.

    Called by whole warps; no barrier, no fence, no memory.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from stages.contract import SLOT_REFERENCE, Contract
from stages.fragments import TILE, pairs
from stages.mask import KeyRange
from stages.ptx.arithmetic import select
from stages.ptx.matrix import mma_bf16, movmatrix
from stages.ptx.warp import shuffle_xor


@dataclass(frozen=True)
class MmaValues:
    """P V of one row group and a page."""

    head_dim: int
    page_size: int

    def accumulate(
        self,
        weights: list[Int32],
        v: cute.Tensor,
        v_columns: bool,
        first_key: Int32,
        visible: tuple[KeyRange, KeyRange],
        masked: bool,
        o: cute.Tensor,
    ) -> None:
        """o += weights @ V, of one page.

        weights: the page's A fragments as the softmax stage leaves them. v: as the loader leaves it, in
        columns or in rows. first_key: the first key of the page. visible: the keys of the lane's two rows.
        masked: False where both rows are known to see the whole page.
        """
        if masked:
            self._ragged_page(weights, v, v_columns, first_key, visible, o)
        else:
            self._whole_page(weights, v, v_columns, o)

    def _whole_page(self, a, v, v_columns, o):
        for j in range(pairs(self.head_dim)):
            out = mma_bf16(a, self._columns(v, v_columns, j), [o[4 * j + i] for i in range(4)])
            for i in range(4):
                o[4 * j + i] = out[i]

    def _ragged_page(self, a, v, v_columns, first_key, visible, o):
        t = cute.arch.lane_idx() % 4
        keep = [
            [self._seen_pair(rows, first_key + tile * TILE + 2 * t) for tile in range(2)] for rows in visible
        ]
        for j in range(pairs(self.head_dim)):
            b = self._columns(v, v_columns, j)
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

    def _columns(self, v, v_columns, j):
        """B fragments of dim tile j: pairs (slots 2t, 2t + 1) of one dim, for the page's two tiles."""
        held = [v[n * pairs(self.head_dim) + j] for n in range(self.page_size // TILE)]
        return held if v_columns else [movmatrix(pair) for pair in held]

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
    reference=SLOT_REFERENCE,
)
