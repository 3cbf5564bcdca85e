"""Loads and stores of global memory, and the arrival counters of the device.

Contract
    Called by any thread. Addresses are plain `Int64`; nothing here checks a bound or an alignment. All keep
    their order among the thread's memory operations, so what is read after `griddep_wait` or after a barrier
    is read after it.

Source: PTX ISA 8.8, ld, st, atom.
"""

from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, i64, inline_ptx, load_x4, struct_fields


@dsl_user_op
def load_global_i32(address: Int64, *, loc=None, ip=None) -> Int32:
    """One 32-bit integer from global memory. Alignment: 4 bytes."""
    text = "ld.global.b32 $0, [$1];"
    return Int32(inline_ptx(T.i32(), (i64(address),), text, "=r,l", ordered=True, loc=loc, ip=ip))


@dsl_user_op
def load_global_x4(address: Int64, *, loc=None, ip=None):
    """Four 32-bit words from global memory. Alignment: 16 bytes."""
    return load_x4("global", Int32, i64(address), loc, ip)


@dsl_user_op
def stream_global_x4(address: Int64, *, loc=None, ip=None):
    """`load_global_x4` for data that this SM reads once: it is not kept in the L1 cache."""
    return load_x4("global.L1::no_allocate", Int32, i64(address), loc, ip)


@dsl_user_op
def store_global_i32(address: Int64, value: Int32, *, loc=None, ip=None) -> None:
    """One 32-bit word to global memory. Alignment: 4 bytes."""
    operands = (i64(address), i32(value))
    inline_ptx(None, operands, "st.global.b32 [$0], $1;", "l,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_global_f32x2(address: Int64, values, *, loc=None, ip=None) -> None:
    """Two FP32 values to global memory. Alignment: 8 bytes."""
    operands = [i64(address), *(f32(v) for v in values)]
    inline_ptx(None, operands, "st.global.v2.b32 [$0], {$1, $2};", "l,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def load_device_f32x2(address: Int64, *, loc=None, ip=None):
    """Two FP32 values that other CTAs of the device have written. Alignment: 8 bytes.

    Relaxed at device scope: it reads behind the L1 cache; an acquire before it gives the order.
    """
    types = [T.f32()] * 2
    struct = llvm.StructType.get_literal(types)
    text = "ld.relaxed.gpu.global.v2.b32 {$0, $1}, [$2];"
    result = inline_ptx(struct, (i64(address),), text, "=f,=f,l", ordered=True, loc=loc, ip=ip)
    return struct_fields(Float32, result, types, loc, ip)


@dsl_user_op
def count_arrival(address: Int64, *, loc=None, ip=None) -> Int32:
    """Add 1 to a device-wide counter and return what it was; releases and acquires at device scope."""
    text = "atom.acq_rel.gpu.global.add.u32 $0, [$1], 1;"
    return Int32(inline_ptx(T.i32(), (i64(address),), text, "=r,l", ordered=True, loc=loc, ip=ip))
