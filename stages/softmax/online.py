"""Online softmax: scores become weights, the running maximum and sum of each row move on.

Contract
    Works in base 2: the caller folds scale * log2(e) into one factor, which multiplies each score once.
    A key that a row does not see gets the score -inf by selection, whatever its raw score was.

    With M the larger of the running maximum and the step's scores,

        weight = 2**(score - M),  l = l * 2**(m - M) + sum(weights),  o = o * 2**(m - M),  m = M.

    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.) l sums the FP32 weights;
    the weights that go on to P V are rounded to BF16. A lane sums its own weights, in ascending order of
    keys; `finish` adds up the four lanes of a row.

    A row that sees no key keeps (-inf, 0, 0). A NaN score that a row sees makes its l NaN.

    Called by whole warps (shuffles); no barrier, no shared memory.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from stages.contract import Contract
from stages.fragments import TILE, RowState, registers
from stages.mask import KeyRange
from stages.partial import NEGATIVE_INFINITY, exponent_base
from stages.ptx import add, exp2, maximum, mul, pack_bf16, select, shuffle_xor, sub


@dataclass(frozen=True)
class OnlineSoftmax:
    """One step of the online softmax over `pages_per_step` pages."""

    page_size: int
    pages_per_step: int

    def weigh(
        self,
        scores: cute.Tensor,
        first_keys: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
        first: bool,
    ) -> cute.Tensor:
        """Turn a step's raw scores into weights; move m and l on, and rescale o.

        scores: as the scores stage leaves them; they are overwritten. first_keys: the first key of each
        page of the step. visible: the keys of the lane's two rows. first: nothing has been accumulated.

        Returns the weights as mma A fragments, [4 per 16 keys] BF16 pairs.
        """
        tiles = self.pages_per_step * self.page_size // TILE
        t = cute.arch.lane_idx() % 4
        for n in range(tiles):
            tiles_a_page = self.page_size // TILE
            key = first_keys[n // tiles_a_page] + (n % tiles_a_page) * TILE + 2 * t
            for i in range(4):
                score = mul(scores[4 * n + i], scale_log2)
                seen = visible[i // 2].sees(key + i % 2)
                scores[4 * n + i] = select(seen, score, Float32(NEGATIVE_INFINITY))

        for half in range(2):
            row = [scores[4 * n + 2 * half + e] for n in range(tiles) for e in range(2)]
            top = row[0] if first else state.m[half]
            for score in row[1:] if first else row:
                top = maximum(top, score)
            for lanes in (1, 2):
                top = maximum(top, shuffle_xor(top, lanes))
            base = exponent_base(top)
            weights = [exp2(sub(score, base)) for score in row]
            total = weights[0]
            for weight in weights[1:]:
                total = add(total, weight)
            if not first:
                factor = exp2(sub(state.m[half], base))
                total = add(mul(state.l[half], factor), total)
                for j in range(2 * half, cute.size(state.o), 4):
                    for e in range(2):
                        state.o[j + e] = mul(state.o[j + e], factor)
            state.m[half] = top
            state.l[half] = total
            for i, weight in enumerate(weights):
                scores[4 * (i // 2) + 2 * half + i % 2] = weight

        fragments = registers(Int32, 2 * tiles)
        for i in range(2 * tiles):
            fragments[i] = pack_bf16(scores[2 * i], scores[2 * i + 1])
        return fragments

    def finish(self, state: RowState) -> None:
        """Make l the sum over all keys of the row, the same in its four lanes."""
        for half in range(2):
            total = state.l[half]
            for lanes in (1, 2):
                total = add(total, shuffle_xor(total, lanes))
            state.l[half] = total


CONTRACT = Contract(
    slot="softmax",
    stage=OnlineSoftmax,
    summary="running maximum and sum in base 2, weights rounded to BF16",
    requires={"page_size": (16,)},
)
