"""Barriers of the CTA and of the cluster, and the dependencies of a launch on the one before it.

Contract
    The barriers are called by every thread of the CTA or of the cluster, the dependencies by any thread. All
    keep their place among the thread's memory operations.

Source: PTX ISA 8.8, bar, barrier.cluster, griddepcontrol.
"""

from cutlass.cutlass_dsl import dsl_user_op

from stages.ptx.inline import inline_ptx


@dsl_user_op
def cta_sync(*, loc=None, ip=None) -> None:
    """Barrier of all threads of the CTA; orders their shared-memory accesses."""
    inline_ptx(None, (), "bar.sync 0;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def cluster_arrive(*, loc=None, ip=None) -> None:
    """Arrive at the cluster barrier without ordering memory. Every thread of the cluster, once."""
    inline_ptx(None, (), "barrier.cluster.arrive.relaxed.aligned;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def cluster_wait(*, loc=None, ip=None) -> None:
    """Wait until every thread of the cluster has arrived; acquires."""
    inline_ptx(None, (), "barrier.cluster.wait.acquire.aligned;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def griddep_wait(*, loc=None, ip=None) -> None:
    """Wait until the kernels this one depends on have finished and their writes are visible."""
    inline_ptx(None, (), "griddepcontrol.wait;", "", ordered=True, loc=loc, ip=ip)


@dsl_user_op
def griddep_launch_dependents(*, loc=None, ip=None) -> None:
    """Let a dependent kernel start; it still waits for this one's end before it reads."""
    inline_ptx(None, (), "griddepcontrol.launch_dependents;", "", ordered=True, loc=loc, ip=ip)
