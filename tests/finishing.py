"""A micro-kernel around an epilogue: merged rows and gates in, rows of the output out."""

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int64

from tests.device import Launch, MicroKernel, out
from tests.layouts import HEAD_DIM
from tests.micro import load_f32
from tests.numerics import from_bf16, to_bf16

WARPS = 4


@dataclass(frozen=True)
class Finishing(MicroKernel):
    """Finishes rows, one a warp: l [rows], o [rows, 64], gate and output [rows, 64] BF16.

    The epilogue gets the address of each row of gate and output; gate may be a null pointer if it reads none.
    """

    epilogue: Any
    rows: int

    def __str__(self):
        return f"Finishing_{type(self.epilogue).__name__}_{self.rows}"

    @property
    def where(self) -> Launch:
        """A few rows a CTA."""
        return Launch(grid=(self.rows // WARPS, 1, 1), block=(32 * WARPS, 1, 1))

    @cute.jit
    def __call__(
        self,
        l: cute.Pointer,
        o: cute.Pointer,
        result: cute.Pointer,
        gate: cute.Pointer,
        gate_offset: Int64,
        eps: Float32,
        stream: cuda.CUstream,
    ):
        self.kernel(l.toint(), o.toint(), result.toint(), gate.toint(), gate_offset, eps).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, l: Int64, o: Int64, result: Int64, gate: Int64, gate_offset: Int64, eps: Float32):
        block, _, _ = cute.arch.block_idx()
        row = Int64(WARPS * block + cute.arch.warp_idx())
        pair = o + row * 4 * HEAD_DIM + Int64(8 * cute.arch.lane_idx())
        gated = self.epilogue.load_gate(gate + gate_offset + row * 2 * HEAD_DIM)
        values = [load_f32(pair), load_f32(pair + 4)]
        self.epilogue.store(result + row * 2 * HEAD_DIM, load_f32(l + row * 4), values, gated, eps)


def finish(launch, epilogue, l, o, gate=None, eps: float = 1e-5) -> np.ndarray:
    """[rows, 64] BF16 bits of an epilogue's output. Without a gate, its address is nowhere."""
    rows = -(-len(l) // WARPS) * WARPS
    l, o = (np.concatenate([x, np.ones((rows - len(x), *x.shape[1:]))]).astype(np.float32) for x in (l, o))
    offset = -(2**62) if gate is None else 0
    gates = np.zeros((rows, HEAD_DIM), np.uint16)
    if gate is not None:
        gates[: len(gate)] = gate
    (got,) = launch(Finishing(epilogue, rows), l, o, out(np.uint16, rows, HEAD_DIM), gates, offset, eps)
    return got


def random_rows(rng, rows: int, scale=1.0):
    """Rows l [rows], o [rows, 64] and y = o / l, where y is a BF16 number and l a power of two.

    So the division is exact, its rounding is nowhere near a tie, and y is known whatever 1 / l costs in ulps.
    """
    y = from_bf16(to_bf16((rng.standard_normal((rows, HEAD_DIM)) * scale).astype(np.float32)))
    l = np.exp2(rng.integers(0, 12, rows)).astype(np.float32)
    return l, (y * l[:, None]).astype(np.float32), y
