"""Pairs of BF16 values in 32 bits, the first in the low half.

Contract
    Called by any thread; no side effects.

Source: PTX ISA 8.8, cvt.
"""

from cutlass import Float32, Int32
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, inline_ptx


@dsl_user_op
def pack_bf16(low: Float32, high: Float32, *, loc=None, ip=None) -> Int32:
    """Round two FP32 values to BF16 (nearest even) and pack them, `low` in bits 0:16."""
    operands = (f32(high), f32(low))
    text = "cvt.rn.bf16x2.f32 $0, $1, $2;"
    return Int32(inline_ptx(T.i32(), operands, text, "=r,f,f", loc=loc, ip=ip))


@dsl_user_op
def unpack_bf16(pair: Int32, *, loc=None, ip=None) -> tuple[Float32, Float32]:
    """The two BF16 values of a pair, widened exactly to FP32: (bits 0:16, bits 16:32)."""
    pair = i32(pair)
    low = (pair << Int32(16)).bitcast(Float32, loc=loc, ip=ip)
    high = (pair & Int32(-65536)).bitcast(Float32, loc=loc, ip=ip)
    return low, high
