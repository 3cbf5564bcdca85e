"""mbarriers in the CTA's shared memory: initialise, arrive, wait.

Contract
    Called by any thread, of which one initialises a barrier; before others use it, a fence and a barrier of
    the CTA or the cluster. A phase completes when its arrivals and its transaction bytes are all there; the
    parity of the first phase is 0.

Source: PTX ISA 8.8, parallel synchronization and communication instructions: mbarrier.
"""

from cutlass import Int32
from cutlass.cutlass_dsl import dsl_user_op

from stages.ptx.inline import i32, inline_ptx


@dsl_user_op
def mbarrier_init(barrier: Int32, arrivals: int, *, loc=None, ip=None) -> None:
    """Start an mbarrier that expects `arrivals` arrivals a phase. One thread; then a fence."""
    text = f"mbarrier.init.shared::cta.b64 [$0], {arrivals};"
    inline_ptx(None, (i32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_init_fence(*, loc=None, ip=None) -> None:
    """Make this thread's `mbarrier_init` visible to the cluster at its next cluster barrier."""
    inline_ptx(None, (), "fence.mbarrier_init.release.cluster;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_arrive_expect(barrier: Int32, transaction_bytes: Int32 | int, *, loc=None, ip=None) -> None:
    """Arrive once and expect `transaction_bytes` more bytes in this phase."""
    opcode = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0]"
    if isinstance(transaction_bytes, int):
        text, operands = f"{opcode}, {transaction_bytes};", (i32(barrier),)
    else:
        text, operands = f"{opcode}, $1;", (i32(barrier), i32(transaction_bytes))
    inline_ptx(None, operands, text, ",".join("r" * len(operands)), ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_wait(barrier: Int32, parity: Int32, *, loc=None, ip=None) -> None:
    """Wait for the phase of this parity of a barrier of this CTA; acquires."""
    text = (
        "{ .reg .pred done; "
        "WAIT_${:uid}: "
        "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
        "@!done bra WAIT_${:uid}; }"
    )
    inline_ptx(None, (i32(barrier), i32(parity)), text, "r,r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_wait_cluster(barrier: Int32, parity: int, *, loc=None, ip=None) -> None:
    """Wait for the phase of this parity, acquiring what any CTA of the cluster released into it."""
    text = (
        "{ .reg .pred done; "
        "WAIT_${:uid}: "
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$0], " + str(parity) + "; "
        "@!done bra WAIT_${:uid}; }"
    )
    inline_ptx(None, (i32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_arrive(barrier: Int32, *, loc=None, ip=None) -> None:
    """Arrive once at a barrier of this CTA; releases."""
    text = "mbarrier.arrive.shared::cta.b64 _, [$0];"
    inline_ptx(None, (i32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def mbarrier_arrive_copies(barrier: Int32, *, loc=None, ip=None) -> None:
    """Arrive once as soon as this thread's earlier `copy_async_16` have landed; it does not wait for them.

    The arrival is one of those that the barrier was initialised with. Who waits for the phase sees the bytes;
    before the async proxy reads them, a proxy fence (`stages.ptx.proxy`).
    """
    text = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];"
    inline_ptx(None, (i32(barrier),), text, "r", ordered=True, loc=loc, ip=ip)
