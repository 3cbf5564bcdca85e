"""Plain epilogue: attention itself, out = bf16(o / l).

Contract
    Neither norm nor gate: the norm hides any error that scales a row, so this is the epilogue that shows
    whether attention is right. The gate and eps are not used, and the gate is not read.

    Called by whole warps, a row a warp; a lane has the head dims 2 * lane and 2 * lane + 1. Writes the row,
    128 contiguous bytes a warp. No barrier, no fence.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.contract import Contract
from stages.epilogue.output import normalised
from stages.ptx.global_memory import store_global_i32


@dataclass(frozen=True)
class PlainEpilogue:
    """Stores o / l."""

    head_dim: int

    def load_gate(self, row: Int64) -> Int32:
        """Nothing: there is no gate."""
        return Int32(0)

    def store(self, row: Int64, l: Float32, o: list[Float32], gate: Int32, eps: Float32) -> None:
        """Finish one row of the output at global byte address `row`."""
        store_global_i32(row + Int64(4 * cute.arch.lane_idx()), normalised(l, o))


def reference(attended, gate, eps):
    """Attention's result as it is."""
    return attended


CONTRACT = Contract(
    slot="epilogue",
    stage=PlainEpilogue,
    summary="out = o / l",
    requires={"head_dim": (64,), "dtype": ("bf16",)},
    reference=reference,
)
