"""Norm-gate epilogue: the per-head RMS norm without a weight, and the sigmoid gate.

Contract
    With y = bf16(o / l), in FP32 and rounded once to BF16 at the end:

        out = y * rsqrt(mean(y**2) + eps) * sigmoid(gate),  sigmoid(x) = 1 / (1 + 2**(-x log2(e)))

    (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.) The mean is summed from y / 8, whose
    squares are already divided by 64: exact, and values up to 1e19 do not overflow. The sum runs over a
    fixed butterfly of the lanes. A row that saw no key (l = 0) is zeros, whatever its gate holds.

    Called by whole warps, a row a warp (shuffles); a lane has the head dims 2 * lane and 2 * lane + 1. Reads
    the row of the gate (`load_gate`, as early as the caller likes) and writes the row of the output, 128
    contiguous bytes a warp each. No barrier, no fence, no shared memory.
"""

import math
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.contract import Contract
from stages.epilogue.output import normalised
from stages.ptx.arithmetic import add, exp2, fma, mul, reciprocal, rsqrt, select
from stages.ptx.bf16 import pack_bf16, unpack_bf16
from stages.ptx.global_memory import load_global_i32, store_global_i32
from stages.ptx.warp import shuffle_xor


@dataclass(frozen=True)
class NormGateEpilogue:
    """Stores the normalised and gated output."""

    head_dim: int

    def load_gate(self, row: Int64) -> Int32:
        """The lane's two values of the gate's row at global byte address `row`, as a BF16 pair."""
        return load_global_i32(row + Int64(4 * cute.arch.lane_idx()))

    def store(self, row: Int64, l: Float32, o: list[Float32], gate: Int32, eps: Float32) -> None:
        """Finish one row of the output at global byte address `row`."""
        y = unpack_bf16(normalised(l, o))
        inverse_root = Float32(self.head_dim**-0.5)
        scaled = [mul(x, inverse_root) for x in y]
        mean_square = fma(scaled[1], scaled[1], mul(scaled[0], scaled[0]))
        for lanes in (16, 8, 4, 2, 1):
            mean_square = add(mean_square, shuffle_xor(mean_square, lanes))
        norm = rsqrt(add(mean_square, eps))
        out = [mul(mul(x, norm), self._sigmoid(g)) for x, g in zip(y, unpack_bf16(gate), strict=True)]
        # A padded row's gate may hold NaN.
        finished = select(l == 0.0, Int32(0), pack_bf16(out[0], out[1]))
        store_global_i32(row + Int64(4 * cute.arch.lane_idx()), finished)

    def _sigmoid(self, x):
        return reciprocal(add(Float32(1.0), exp2(mul(x, Float32(-math.log2(math.e))))))


def reference(attended, gate, eps):
    """attended * rsqrt(mean(attended**2) + eps) * sigmoid(gate), the mean over a head's dims."""
    return attended * (attended.square().mean(-1, keepdim=True) + eps).rsqrt() * gate.sigmoid()


CONTRACT = Contract(
    slot="epilogue",
    stage=NormGateEpilogue,
    summary="RMS norm over head_dim without a weight, and the sigmoid gate",
    requires={"head_dim": (64,), "dtype": ("bf16",)},
    reference=reference,
)
