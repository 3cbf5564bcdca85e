"""What orders the CTAs of a cluster, and when one may end: kernels that keep the rules, or do not."""

import numpy as np
import pytest

from emulator.errors import BarrierFault, MemoryFault, Race, UnfinishedAsync, UninitialisedRead
from tests.emulator.handwritten import RING, fails, kernel, line_of, run

SEEDS = [None, *range(20)]


REMOTE = """
    mov.u32 %r0, memory;
    shl.b32 %r1, %tid, 2;
    add.u32 %r2, %r0, %r1;
    mov.u32 %r3, %cluster_ctarank;
    xor.b32 %r4, %r3, 1;
    mapa.shared::cluster.u32 %r5, %r2, %r4;
    {first}
    st.shared::cluster.b32 [%r5], %r3;
    {then}
    ld.shared.b32 %r6, [%r2];
"""

MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def remote(then: str = MEET) -> str:
    """Each CTA writes into the other's memory."""
    return REMOTE.replace("{first}", MEET).replace("{then}", then)


def test_a_cluster_barrier_orders_remote_stores():
    """A relaxed arrival does not, unless a fence precedes it."""
    relaxed = MEET.replace("arrive", "arrive.relaxed")
    for seed in SEEDS:
        run(remote(), grid=2, cluster=2, seed=seed)
        run(remote("fence.acq_rel.cluster;\n" + relaxed), grid=2, cluster=2, seed=seed)
    for then in (relaxed, "fence.acq_rel.cta;\n" + relaxed):
        fails(Race, "written by thread", remote(then), at="ld.shared", grid=2, cluster=2)


OWN = """
    mov.u32 %r0, memory;
    shl.b32 %r1, %tid, 2;
    add.u32 %r2, %r0, %r1;
    mov.u32 %r3, %cluster_ctarank;
    xor.b32 %r4, %r3, 1;
    mapa.shared::cluster.u32 %r5, %r2, %r4;
    st.shared.b32 [%r2], %r3;
    {first}
    {own}
    {then}
    {peer}
"""


@pytest.mark.parametrize(
    ("own", "peer", "match"),
    [
        ("st.shared.b32 [%r2], %r3;", "ld.shared::cluster.b32 %r6, [%r5];", "this read .* written by thread"),
        (
            "st.shared.b32 [%r2], %r3;",
            "st.shared::cluster.b32 [%r5], %r4;",
            "this write .* written by thread",
        ),
        ("ld.shared.b32 %r6, [%r2];", "st.shared::cluster.b32 [%r5], %r4;", "this write .* read by thread"),
        ("ld.shared.b32 %r6, [%r2];", "atom.shared::cluster.add.u32 %r7, [%r5], 1;", "read by thread"),
        ("st.shared.b32 [%r2], %r3;", "cvta.shared::cluster.u64 %d1, %d2;\nld.b32 %r6, [%d1];", "this read"),
    ],
    ids=["read of a write", "write over a write", "write over a read", "atomic over a read", "generic"],
)
@pytest.mark.parametrize("block", [32, 128])
def test_a_barrier_of_the_cta_does_not_order_accesses_to_a_peer(own, peer, match, block):
    """Each CTA has its own; even if all CTAs pass theirs at the same time."""
    if "%d1" in peer:
        peer = "cvt.u64.u32 %d2, %r5;\n" + peer
    body = OWN.replace("{own}", own).replace("{peer}", peer).replace("{first}", MEET)
    at = peer.split("\n")[-1]
    for then in ("bar.sync 0;", "bar.sync 0;\nbar.sync 0;", "fence.acq_rel.cluster;\nbar.sync 0;"):
        fails(Race, match, body.replace("{then}", then), at=at, grid=2, cluster=2, block=block)
    for seed in SEEDS[:8]:
        run(body.replace("{then}", MEET) + MEET, grid=2, cluster=2, block=block, seed=seed)


def test_reads_that_a_barrier_orders_for_the_cta_are_kept_for_its_peers():
    """The CTA writes to other places of its memory in between, by accesses of another width."""
    between = "bar.sync 0;\nst.shared.b64 [%r8+512], %d3;\nbar.sync 0;\nst.shared.b64 [%r8+512], %d3;\n"
    own = "ld.shared.b32 %r6, [%r2];\nshl.b32 %r8, %tid, 3;\nadd.u32 %r8, %r8, %r0;\nmov.b64 %d3, 0;\n"
    peer = "setp.eq.u32 %p0, %r3, 0;\n@%p0 st.shared::cluster.b32 [%r5], %r4;"
    body = OWN.replace("{own}", own + between).replace("{peer}", peer).replace("{first}", MEET)
    fails(Race, "read by thread", body.replace("{then}", "") + MEET, at="@%p0", grid=2, cluster=2)
    run(body.replace("{then}", MEET) + MEET, grid=2, cluster=2)


def test_a_cta_must_not_end_while_its_peer_may_still_read():
    """Nothing said that the peer was done, though in this run it was."""
    body = (
        remote("").split("st.shared::cluster")[0].replace(MEET, "st.shared.b32 [%r2], %tid;\n" + MEET)
        + "ld.shared::cluster.b32 %r6, [%r5];\n"
    )
    with pytest.raises(MemoryFault, match=r"a CTA ends and nothing says|has exited"):
        run(body, grid=2, cluster=2)
    for seed in SEEDS:
        run(body + MEET, grid=2, cluster=2, seed=seed)


def test_cta_scope_does_not_reach_a_peer():
    """st.async of a peer needs a wait at cluster scope."""
    body = RING.format(bytes=256)
    run(body, np.zeros((2, 32), np.uint32), grid=2, cluster=2)
    narrow = body.replace("parity.acquire.cluster", "parity")
    fails(Race, "asynchronously", narrow, np.zeros((2, 32), np.uint32), at="ld.shared", grid=2, cluster=2)


def test_landed_is_not_waited_for():
    """Bytes that have landed are ordered by the wait alone."""
    body = RING.format(bytes=256)
    early = body.replace("{ .reg .pred done;", "ld.shared.b32 %r12, [%r4];\n{ .reg .pred done;")
    for seed in SEEDS:
        with pytest.raises((Race, UnfinishedAsync, UninitialisedRead)) as caught:
            run(early, np.zeros((2, 32), np.uint32), grid=2, cluster=2, seed=seed)
        assert caught.value.line == line_of(kernel(early, 1), "ld.shared.b32 %r12")


def test_a_peers_mbarrier_has_to_be_initialised_first():
    """A cluster barrier in between, with the fence if the arrival is relaxed."""
    body = RING.format(bytes=256)
    relaxed = body.replace("arrive.release.aligned", "arrive.relaxed.aligned")
    run(relaxed, np.zeros((2, 32), np.uint32), grid=2, cluster=2)
    unfenced = relaxed.replace("fence.mbarrier_init.release.cluster;", "")
    match = "nothing orders this behind the mbarrier's initialisation"
    fails(BarrierFault, match, unfenced, np.zeros((2, 32), np.uint32), at="st.async", grid=2, cluster=2)
