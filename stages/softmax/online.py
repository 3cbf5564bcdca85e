"""Online softmax: scores become weights, the running maximum and sum of each row move on.

Contract
    Works in base 2: the caller folds scale * log2(e) into one factor, which is not negative (so that the
    largest score has the largest logit), and gives raw scores. With M the larger of the running maximum m and
    the step's largest score * scale,

        weight = 2**(score * scale - M),  l = l * 2**(m - M) + sum(weights),  o = o * 2**(m - M),  m = M.

    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.) The exponent is one fma. l
    sums the FP32 weights; the weights that go on to P V are rounded to BF16. A lane sums its own weights, in
    ascending order of keys; `finish` adds up the four lanes of a row.

    A key that a row does not see gets the weight 0 and no say in the maximum, by selection, whatever its raw
    score was. A row that sees no key keeps (-inf, 0, 0). A NaN score that a row sees makes its l NaN.

    Called by whole warps (shuffles); no barrier, no shared memory.
"""

import functools
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from stages.contract import SLOT_REFERENCE, Contract
from stages.fragments import TILE, RowState, registers
from stages.mask import KeyRange
from stages.partial import NEGATIVE_INFINITY, exponent_base
from stages.ptx.arithmetic import add, exp2, fma, maximum, mul, select, sub
from stages.ptx.bf16 import pack_bf16
from stages.ptx.warp import shuffle_xor


@dataclass(frozen=True)
class OnlineSoftmax:
    """One step of the online softmax, over some pages."""

    page_size: int

    def weigh(
        self,
        scores: list[Float32],
        first_keys: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
        first: bool,
        masked: bool,
    ) -> cute.Tensor:
        """Turn a step's raw scores into weights; move m and l on, and rescale o.

        scores: as the scores stage leaves them, page by page. first_keys: the first key of each page of the
        step. visible: the keys of the lane's two rows. first: nothing has been accumulated. masked: False
        where both rows are known to see all keys.

        Returns the weights as mma A fragments, [4 per 16 keys] BF16 pairs.
        """
        tiles = len(first_keys) * self.page_size // TILE
        fragments = registers(Int32, 2 * tiles)
        for half in range(2):
            row = [scores[4 * n + 2 * half + e] for n in range(tiles) for e in range(2)]
            seen = self._seen(first_keys, visible[half]) if masked else []
            least = Float32(NEGATIVE_INFINITY)
            shown = [select(s, x, least) for s, x in zip(seen, row, strict=True)] if masked else row
            # Two chains: one would wait for itself.
            top = maximum(*(functools.reduce(maximum, shown[first::2]) for first in range(2)))
            for lanes in (1, 2):
                top = maximum(top, shuffle_xor(top, lanes))
            # `max` drops the NaN that -inf * 0 is.
            m = maximum(state.m[half], mul(top, scale_log2))
            base = exponent_base(m)
            below = mul(base, Float32(-1.0))
            weights = [exp2(fma(score, scale_log2, below)) for score in row]
            if masked:
                weights = [select(s, w, Float32(0.0)) for s, w in zip(seen, weights, strict=True)]
            total = functools.reduce(add, weights)
            for n in range(tiles):
                fragments[2 * n + half] = pack_bf16(weights[2 * n], weights[2 * n + 1])
            if not first:
                factor = exp2(sub(state.m[half], base))
                total = add(mul(state.l[half], factor), total)
                for j in range(2 * half, cute.size(state.o), 4):
                    for e in range(2):
                        state.o[j + e] = mul(state.o[j + e], factor)
            state.m[half] = m
            state.l[half] = total
        return fragments

    def _seen(self, first_keys, keys: KeyRange) -> list:
        """Which of the lane's keys of a step a row sees, in ascending order."""
        t = cute.arch.lane_idx() % 4
        tiles = range(0, self.page_size, TILE)
        return [
            keys.sees(first + tile + 2 * t + e) for first in first_keys for tile in tiles for e in range(2)
        ]

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
    reference=SLOT_REFERENCE,
)
