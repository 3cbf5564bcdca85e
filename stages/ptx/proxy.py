"""Fences between the generic proxy and the async proxy.

Contract
    Called by any thread. Loads, stores and cp.async reach memory through the generic proxy; bulk and tensor
    copies and wgmma through the async proxy. Where one of the first writes what one of the second reads, a
    fence stands between them, behind the write in what orders the two: in the thread that wrote, before it
    arrives at a barrier; or in the thread that goes on behind the barrier, before it issues what reads.

Source: PTX ISA 8.8, "Async proxy", membar / fence: fence.proxy.async.
"""

from cutlass.cutlass_dsl import dsl_user_op

from stages.ptx.inline import inline_ptx


@dsl_user_op
def proxy_fence_shared(*, loc=None, ip=None) -> None:
    """Order what came before to this CTA's shared memory, through the generic proxy, for the async proxy."""
    inline_ptx(None, (), "fence.proxy.async.shared::cta;", "", ordered=True, loc=loc, ip=ip)
