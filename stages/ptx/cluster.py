"""Distributed shared memory: addresses in the CTAs of a cluster, and asynchronous stores to them.

Contract
    Called by any thread. A store completes on an mbarrier of the CTA that receives it, which must have
    initialised the barrier, and must not have ended, when the bytes arrive. Nothing here checks a bound or an
    alignment.

Source: PTX ISA 8.8, mapa, st.async.
"""

from cutlass import Int32
from cutlass.cutlass_dsl import T, dsl_user_op

from stages.ptx.inline import f32, i32, inline_ptx


@dsl_user_op
def map_to_rank(address: Int32, rank: Int32, *, loc=None, ip=None) -> Int32:
    """The `shared::cluster` address at which CTA `rank` of this cluster holds `address`."""
    operands = (i32(address), i32(rank))
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    return Int32(inline_ptx(T.i32(), operands, text, "=r,r,r", loc=loc, ip=ip))


@dsl_user_op
def store_async_f32x4(remote: Int32, values, barrier: Int32, *, loc=None, ip=None) -> None:
    """Send four FP32 values to a CTA of the cluster; 16 transaction bytes complete on its barrier.

    remote, barrier: `shared::cluster` addresses (`map_to_rank`) in the same CTA. Alignment: 16 bytes.
    """
    operands = [i32(remote), i32(barrier), *(f32(v) for v in values)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$2, $3, $4, $5}, [$1];"
    inline_ptx(None, operands, text, "r,r,f,f,f,f", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def store_async_f32x2(remote: Int32, values, barrier: Int32, *, loc=None, ip=None) -> None:
    """Send two FP32 values; 8 transaction bytes. Otherwise as `store_async_f32x4`."""
    operands = [i32(remote), i32(barrier), *(f32(v) for v in values)]
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [$0], {$2, $3}, [$1];"
    inline_ptx(None, operands, text, "r,r,f,f", ordered=True, loc=loc, ip=ip)
