"""Addresses of elements, and the indices of the block and the thread.

Contract
    Called by any thread.

Source: PTX ISA 8.8, mad, special registers.
"""

from cutlass import Int32, Int64
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import i32, i64, inline_ptx


@dsl_user_op
def element_address(base: Int64, index: Int32, stride: Int32, *, loc=None, ip=None) -> Int64:
    """base + index * stride, in one instruction: index and stride are unsigned, the product has 64 bits."""
    operands = (i32(index), i32(stride), i64(base))
    return Int64(inline_ptx(T.i64(), operands, "mad.wide.u32 $0, $1, $2, $3;", "=l,r,r,l", loc=loc, ip=ip))


@dsl_user_op
def block_index_again(*, loc=None, ip=None) -> tuple[Int32, Int32, Int32]:
    """(x, y, z) of the block, read where this stands: the compiler keeps no earlier value in registers."""
    return tuple(special_register(f"ctaid.{axis}", loc, ip) for axis in "xyz")


@dsl_user_op
def thread_index_again(*, loc=None, ip=None) -> Int32:
    """x of the thread, read where this stands, as `block_index_again` does."""
    return special_register("tid.x", loc, ip)


def special_register(name, loc, ip):
    """A 32-bit special register, read at this place in the order of memory operations."""
    return Int32(inline_ptx(T.i32(), (), f"mov.u32 $0, %{name};", "=r", ordered=True, loc=loc, ip=ip))
