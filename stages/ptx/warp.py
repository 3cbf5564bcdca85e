"""Exchange between the lanes of a warp, and their barrier.

Contract
    Called by all 32 lanes of a warp together.

Source: PTX ISA 8.8, shfl.sync, bar.warp.sync.
"""

from cutlass import Float32, Int32
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, inline_ptx


@dsl_user_op
def shuffle_xor(value: Float32, lanes: int, *, loc=None, ip=None) -> Float32:
    """The value of the lane whose index differs by the bits of `lanes` (a compile-time integer)."""
    text = f"shfl.sync.bfly.b32 $0, $1, {lanes}, 31, -1;"
    return Float32(inline_ptx(T.f32(), (f32(value),), text, "=f,f", collective=True, loc=loc, ip=ip))


@dsl_user_op
def shuffle_index(value: Int32, lane: Int32, *, loc=None, ip=None) -> Int32:
    """The value of lane `lane` % 32 of the warp."""
    operands = (i32(value), i32(lane))
    text = "shfl.sync.idx.b32 $0, $1, $2, 31, -1;"
    return Int32(inline_ptx(T.i32(), operands, text, "=r,r,r", collective=True, loc=loc, ip=ip))


@dsl_user_op
def warp_sync(*, loc=None, ip=None) -> None:
    """Barrier of the 32 lanes of a warp; orders their memory accesses."""
    inline_ptx(None, (), "bar.warp.sync -1;", "", ordered=True, loc=loc, ip=ip)
