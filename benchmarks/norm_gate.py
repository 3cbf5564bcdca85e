"""The peer of our epilogue: a Triton kernel for per-head RMS norm without a weight, times a sigmoid gate.

It has to be a fair peer, so: every thread moves 16 bytes at a time, the reduction stays inside a warp, no
tile needs a mask, and the block size is picked by measurement. Importing this module needs Triton.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

#: (rows a block, warps) that are tried: one, two and four rows of 16-byte loads a thread.
CONFIGS = ((4, 1), (8, 2), (16, 4), (32, 8), (32, 4), (64, 4))


# Triton compiles the function from its source, and takes annotations for types of its own.
@triton.jit  # type: ignore[untyped-decorator]
def _norm_gate_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    gate_ptr,
    out_ptr,
    gate_stride,
    eps,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS rows of DIM elements; a row is one query head of one token."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    at = row[:, None] * DIM + column[None, :]
    gate_at = (row // HEADS)[:, None] * gate_stride + (row % HEADS)[:, None] * DIM + column[None, :]
    # The gate was there before the attention kernel started, so its load need not wait for that kernel.
    gate = tl.load(gate_ptr + gate_at).to(tl.float32)
    if PDL:
        gdc_wait()
    x = tl.load(x_ptr + at).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) * (1.0 / DIM) + eps)
    result = x * inverse[:, None] * tl.sigmoid(gate)
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty))


def norm_gate(
    x: torch.Tensor,
    gate: torch.Tensor,
    out: torch.Tensor,
    *,
    eps: float,
    config: tuple[int, int] = CONFIGS[2],
    pdl: bool = False,
) -> None:
    """Write sigmoid(gate) * rmsnorm(x) to out, the norm over each head.

    x: [tokens, heads, dim], contiguous. gate: [tokens, heads * dim], any token stride. out: contiguous, as
    many elements as x. config: rows a block and warps. pdl: start before the preceding kernel has ended.
    """
    tokens, heads, dim = x.shape
    rows, warps = config
    if tokens * heads % rows:
        raise ValueError(f"{tokens * heads} rows are no multiple of the block's {rows}")
    if not (x.is_contiguous() and out.is_contiguous() and gate.stride(-1) == 1):
        raise ValueError("x and out must be contiguous, and so must a token of gate")
    # Only where it is on: the interpreter has no such option.
    options = {"launch_pdl": True} if pdl else {}
    _norm_gate_kernel[(tokens * heads // rows,)](
        x,
        gate,
        out,
        gate.stride(0),
        eps,
        HEADS=heads,
        DIM=dim,
        ROWS=rows,
        PDL=pdl,
        num_warps=warps,
        **options,
    )
