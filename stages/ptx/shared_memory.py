"""Loads and stores of the CTA's own shared memory.

Contract
    Called by any thread. Addresses are plain `Int32`, of the window `shared::cta`; nothing here checks a
    bound or an alignment. All keep their order among the thread's memory operations; a thread that reads what
    another one wrote needs a barrier in between.

Source: PTX ISA 8.8, ld, st.
"""

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, inline_ptx, load_x4, struct_fields


@dsl_user_op
def load_shared_f32x4(address: Int32, *, loc=None, ip=None):
    """Four FP32 values from this CTA's shared memory. Alignment: 16 bytes."""
    return load_x4("shared::cta", Float32, i32(address), loc, ip)


@dsl_user_op
def load_shared_f32x2(address: Int32, *, loc=None, ip=None):
    """Two FP32 values from this CTA's shared memory. Alignment: 8 bytes."""
    types = [T.f32()] * 2
    struct = llvm.StructType.get_literal(types)
    text = "ld.shared::cta.v2.b32 {$0, $1}, [$2];"
    result = inline_ptx(struct, (i32(address),), text, "=f,=f,r", ordered=True, loc=loc, ip=ip)
    return struct_fields(Float32, result, types, loc, ip)


@dsl_user_op
def load_shared_x4(address: Int32, *, loc=None, ip=None):
    """Four 32-bit words from this CTA's shared memory. Alignment: 16 bytes."""
    return load_x4("shared::cta", Int32, i32(address), loc, ip)


@dsl_user_op
def store_shared_f32x4(address: Int32, values, *, loc=None, ip=None) -> None:
    """Four FP32 values to this CTA's shared memory. Alignment: 16 bytes."""
    operands = [i32(address), *(f32(v) for v in values)]
    text = "st.shared::cta.v4.b32 [$0], {$1, $2, $3, $4};"
    inline_ptx(None, operands, text, "r,f,f,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_shared_f32x2(address: Int32, values, *, loc=None, ip=None) -> None:
    """Two FP32 values to this CTA's shared memory. Alignment: 8 bytes."""
    operands = [i32(address), *(f32(v) for v in values)]
    text = "st.shared::cta.v2.b32 [$0], {$1, $2};"
    inline_ptx(None, operands, text, "r,f,f", ordered=True, loc=loc, ip=ip)
