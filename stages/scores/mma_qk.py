"""Scores by tensor cores: S = Q K^T with `mma.sync.m16n8k16`, BF16 operands, FP32 accumulation.

Contract
    Computes the raw dot products of a row group's 16 query rows with the keys of a page.
    Neither scale nor mask is applied: a slot that no row sees gets whatever its bytes give, NaN included,
    and it is the softmax that must select it away.

    Q and K come as lanes load them (`stages.fragments`), the head dims in permuted order: mma k-step j
    takes pairs 2 j and 2 j + 1 of both. The four k-steps of a tile accumulate in ascending order; tiles
    are independent.

    Called by whole warps; no barrier, no fence, no shared memory. `load_query` reads global memory.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.contract import SLOT_REFERENCE, Contract
from stages.fragments import TILE, chunk_dim, chunks, pairs, registers
from stages.ptx.global_memory import load_global_x4
from stages.ptx.matrix import mma_bf16


@dataclass(frozen=True)
class MmaScores:
    """Q K^T of one row group and a page."""

    head_dim: int
    page_size: int

    def load_query(self, row: Int64, row_plus_8: Int64) -> cute.Tensor:
        """A lane's A fragments: [2 * pairs(head_dim)] BF16 pairs, row g's and then row g + 8's.

        row, row_plus_8: global byte addresses of the lane's two query rows, 16-byte aligned.
        """
        count = pairs(self.head_dim)
        query = registers(Int32, 2 * count)
        quarter = cute.arch.lane_idx() % 4
        for half, address in enumerate((row, row_plus_8)):
            for c in range(chunks(self.head_dim)):
                words = load_global_x4(address + Int64(2 * chunk_dim(c, quarter)))
                for i, word in enumerate(words):
                    query[half * count + 4 * c + i] = word
        return query

    def scores(self, query: cute.Tensor, k: cute.Tensor) -> list[Float32]:
        """[4 per tile of 8 keys] FP32 scores: keys 2t, 2t+1 of row g, then the same keys of row g + 8."""
        count = pairs(self.head_dim)
        scores: list[Float32] = []
        for n in range(self.page_size // TILE):
            tile = [Float32(0.0)] * 4
            for j in range(0, count, 2):
                a = (query[j], query[count + j], query[j + 1], query[count + j + 1])
                b = (k[n * count + j], k[n * count + j + 1])
                tile = mma_bf16(a, b, tile)
            scores.extend(tile)
        return scores


CONTRACT = Contract(
    slot="scores",
    stage=MmaScores,
    summary="Q K^T by mma.sync m16n8k16",
    requires={"head_dim": (64,), "page_size": (16,), "dtype": ("bf16",)},
    reference=SLOT_REFERENCE,
)
