"""Asynchronous copies from global to shared memory: cp.async by each thread, cp.async.bulk by one.

Contract
    Called by any thread. The bytes of `copy_async_16` belong to the calling thread's groups: after
    `copy_async_wait` they are visible to that thread, and to others after a barrier. The bytes of `copy_bulk`
    complete on an mbarrier (`stages.ptx.mbarrier`), and are visible to who waits for its phase. Nothing here
    checks a bound or an alignment.

Source: PTX ISA 8.8, cp.async, cp.async.bulk.
"""

from cutlass import Int32, Int64
from cutlass.cutlass_dsl import dsl_user_op

from stages.ptx.inline import i32, i64, inline_ptx


@dsl_user_op
def copy_async_16(shared: Int32, source: Int64, size: Int32, further: int = 0, *, loc=None, ip=None) -> None:
    """Begin to copy 16 bytes from global to shared memory, past the L1 cache. Alignment: 16 bytes.

    Of the source only the first `size` bytes are read, 0 for none; the rest is filled with zeros. further:
    bytes to add to the source's address.
    """
    operands = (i32(shared), i64(source), i32(size))
    text = f"cp.async.cg.shared.global [$0], [$1+{further}], 16, $2;"
    inline_ptx(None, operands, text, "r,l,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_async_commit(*, loc=None, ip=None) -> None:
    """Close this thread's group of copies."""
    inline_ptx(None, (), "cp.async.commit_group;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_async_wait(pending: int, *, loc=None, ip=None) -> None:
    """Wait until at most `pending` of this thread's latest groups are unfinished. A barrier for others."""
    inline_ptx(None, (), f"cp.async.wait_group {pending};", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def copy_bulk(shared: Int32, source: Int64, size: int, barrier: Int32, *, loc=None, ip=None) -> None:
    """Begin to copy `size` bytes from global to shared memory; they complete on the barrier. One thread.

    Alignment and size: 16 bytes.
    """
    operands = (i32(shared), i64(source), i32(barrier))
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes " f"[$0], [$1], {size}, [$2];"
    inline_ptx(None, operands, text, "r,l,r", ordered=True, loc=loc, ip=ip)
