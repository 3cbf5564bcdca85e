"""What mbarriers order, and what copies in flight forbid."""

import numpy as np
import pytest

from emulator.errors import BarrierFault, Race, UnfinishedAsync, UninitialisedRead
from tests.emulator.handwritten import fails, run

SEEDS = [None, *range(20)]


def test_an_mbarrier_orders_what_its_arrivals_release():
    """One lane that arrives for its warp needs the warp to meet before."""
    body = """
        mov.u32 %r0, memory;
        setp.ne.u32 %p0, %tid, 0;
        @%p0 bra READY;
        mbarrier.init.shared::cta.b64 [%r0], 1;
        READY:
        bar.sync 0;
        shl.b32 %r1, %tid, 2;
        add.u32 %r2, %r0, %r1;
        setp.lt.u32 %p1, %tid, 32;
        @%p1 bra CONSUMER;
        st.shared.b32 [%r2+128], %tid;
        {meet}
        setp.ne.u32 %p2, %tid, 32;
        @%p2 bra END;
        mbarrier.arrive{how}.shared::cta.b64 _, [%r0];
        bra END;
        CONSUMER:
        { .reg .pred done; WAIT_0: mbarrier.try_wait.parity{acquire}.shared::cta.b64 done, [%r0], 0;
        @!done bra WAIT_0; }
        ld.shared.b32 %r3, [%r2+256];
        END:
    """

    def made(meet: str = "bar.warp.sync -1;", how: str = "", acquire: str = "") -> str:
        return body.replace("{meet}", meet).replace("{how}", how).replace("{acquire}", acquire)

    for seed in SEEDS:
        run(made(), block=64, seed=seed)
    fails(Race, "written by", made(meet=""), at="ld.shared", block=64)
    fails(Race, "written by", made(how=".relaxed.cta"), at="ld.shared", block=64)
    run(made(how=".relaxed.cta", meet="bar.warp.sync -1;\nfence.acq_rel.cta;"), block=64)
    early = made().replace("bar.sync 0;", "")
    for seed in range(4):
        with pytest.raises(BarrierFault, match=r"no mbarrier has been|behind the mbarrier's initialisation"):
            run(early, block=64, seed=seed)


def test_one_lane_that_waits_does_not_wait_for_the_others():
    """The others need to meet it."""
    body = """
        mov.u32 %r0, memory;
        setp.ne.u32 %p0, %tid, 0;
        @%p0 bra READY;
        mbarrier.init.shared::cta.b64 [%r0], 32;
        READY:
        bar.sync 0;
        shl.b32 %r1, %tid, 2;
        add.u32 %r2, %r0, %r1;
        setp.lt.u32 %p1, %tid, 32;
        @%p1 bra CONSUMER;
        st.shared.b32 [%r2+128], %tid;
        mbarrier.arrive.shared::cta.b64 _, [%r0];
        bra END;
        CONSUMER:
        setp.ne.u32 %p2, %tid, 0;
        @%p2 bra MEET;
        { .reg .pred done; WAIT_0: mbarrier.try_wait.parity.shared::cta.b64 done, [%r0], 0;
        @!done bra WAIT_0; }
        MEET:
        {meet}
        ld.shared.b32 %r3, [%r2+256];
        END:
    """
    for seed in SEEDS:
        run(body.replace("{meet}", "bar.warp.sync -1;"), block=64, seed=seed)
    for seed in SEEDS:
        with pytest.raises((Race, UninitialisedRead)):
            run(body.replace("{meet}", ""), block=64, seed=seed)


def test_mbarriers_are_no_data():
    """Neither read nor written, until mbarrier.inval."""
    init = "mov.u32 %r0, memory;\nmbarrier.init.shared::cta.b64 [%r0], 1;\n"
    fails(
        BarrierFault, "a read of an mbarrier", init + "ld.shared.b32 %r1, [%r0+4];", at="ld.shared", block=1
    )
    fails(BarrierFault, "a write of an mbarrier", init + "st.shared.b32 [%r0], %r0;", at="st.shared", block=1)
    run(init + "mbarrier.inval.shared::cta.b64 [%r0];\nst.shared.b32 [%r0], %r0;", block=1)


def test_copies_in_flight_may_not_be_overwritten():
    """The slot of a ring that is filled twice."""
    copy = "cp.async.ca.shared.global [%r0], [%d0], 4;\ncp.async.commit_group;\n"
    body = "mov.u32 %r0, memory;\n" + copy + "{between}\nst.shared.b32 [%r0], %r0;\ncp.async.wait_all;"
    fails(
        UnfinishedAsync,
        "a write where an asynchronous write is in flight",
        body.replace("{between}", ""),
        np.zeros(1, np.uint32),
        at="st.shared",
        block=1,
    )
    run(body.replace("{between}", "cp.async.wait_group 0;"), np.zeros(1, np.uint32), block=1)


PIPELINE = """
    mov.u32 %r0, memory;
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r0], 1;
    mbarrier.init.shared::cta.b64 [%r0+8], 1;
    mbarrier.init.shared::cta.b64 [%r0+16], 32;
    mbarrier.init.shared::cta.b64 [%r0+24], 32;
    READY:
    bar.sync 0;
    mov.b32 %r1, 0;
    setp.ge.u32 %p1, %tid, 32;
    @%p1 bra CONSUMER;
    @%p0 bra END;
    PRODUCER:
    and.b32 %r2, %r1, 1;
    shl.b32 %r3, %r2, 3;
    add.u32 %r3, %r3, %r0;
    mad.lo.u32 %r4, %r2, 128, %r0;
    shr.u32 %r5, %r1, 1;
    xor.b32 %r5, %r5, 1;
    and.b32 %r5, %r5, 1;
    {empty}
    mbarrier.arrive.expect_tx.shared::cta.b64 %d9, [%r3], 128;
    mul.wide.u32 %d4, %r1, 128;
    add.u64 %d4, %d4, %d0;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4+256], [%d4], 128, [%r3];
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p2, %r1, 6;
    @%p2 bra PRODUCER;
    bra END;
    CONSUMER:
    and.b32 %r2, %r1, 1;
    shl.b32 %r3, %r2, 3;
    add.u32 %r3, %r3, %r0;
    mad.lo.u32 %r4, %r2, 128, %r0;
    shr.u32 %r5, %r1, 1;
    and.b32 %r5, %r5, 1;
    {{ .reg .pred done; FULL: mbarrier.try_wait.parity.shared::cta.b64 done, [%r3], %r5;
    @!done bra FULL; }}
    shl.b32 %r6, %tid, 2;
    add.u32 %r7, %r4, %r6;
    ld.shared.b32 %r8, [%r7+128];
    mbarrier.arrive.shared::cta.b64 _, [%r3+{arrive}];
    mad.lo.u32 %r9, %r1, 128, %r6;
    cvt.u64.u32 %d5, %r9;
    add.u64 %d5, %d5, %d1;
    st.global.b32 [%d5+-128], %r8;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p2, %r1, 6;
    @%p2 bra CONSUMER;
    END:
"""
"""A ring of two slots: one thread fills them with bulk copies, a warp empties them."""

EMPTY = """{ .reg .pred done; EMPTY: mbarrier.try_wait.parity.shared::cta.b64 done, [%r3+16], %r5;
    @!done bra EMPTY; }"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ring_of_mbarriers(seed):
    """Phase after phase, in both directions, with no report and the right data."""
    given, out = np.arange(192, dtype=np.uint32), np.zeros(192, np.uint32)
    run(PIPELINE.format(empty=EMPTY, arrive=16), given, out, block=64, seed=seed)
    assert np.array_equal(out, given)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_ring_that_does_not_wait_for_empty_slots(seed):
    """A slot is filled again while it is read, or its mbarrier is not ready for the next phase."""
    given, out = np.arange(192, dtype=np.uint32), np.zeros(192, np.uint32)
    with pytest.raises((Race, UnfinishedAsync, BarrierFault)):
        run(PIPELINE.format(empty="", arrive=16), given, out, block=64, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_source_of_a_copy_may_not_be_overwritten(seed):
    """Not before the group has been waited for."""
    body = """
        mov.u32 %r0, memory;
        st.shared.b32 [%r0], %r0;
        st.shared.b32 [%r0+4], %r0;
        st.shared.b32 [%r0+8], %r0;
        st.shared.b32 [%r0+12], %r0;
        fence.proxy.async;
        cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 16;
        cp.async.bulk.commit_group;
        {wait}
        st.shared.b32 [%r0+12], %r0;
        cp.async.bulk.wait_group 0;
    """
    run(
        body.replace("{wait}", "cp.async.bulk.wait_group.read 0;"), np.zeros(4, np.uint32), block=1, seed=seed
    )
    if seed is None:
        wrong = body.replace("{wait}", "")
        given = np.zeros(4, np.uint32)
        fails(UnfinishedAsync, "source of a copy", wrong, given, at="st.shared", number=4, block=1)
