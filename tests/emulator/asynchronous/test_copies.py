"""Copies: cp.async and its groups, bulk copies, with every size and every way to wait for them."""

import numpy as np
import pytest

import emulator
from emulator.errors import Deadlock, MemoryFault, UnfinishedAsync, UninitialisedRead
from tests.emulator.handwritten import INIT, kernel, line_of, run, store, wait

SEEDS = [None, *range(5)]


# ---- cp.async -------------------------------------------------------------------------------------------

COPY = """
    mov.u32 %r0, memory;
    shl.b32 %r1, %tid, {shift};
    add.u32 %r2, %r0, %r1;
    cvt.u64.u32 %d4, %r1;
    add.u64 %d5, %d0, %d4;
    {copy}
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.warp.sync -1;
    shl.b32 %r3, %tid, 2;
    add.u32 %r3, %r3, %r0;
    ld.shared.b32 %r4, [%r3];
"""
"""Copy a size a thread, then each thread reads its word."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async(size, seed):
    """Bytes of every size arrive."""
    given, out = np.arange(128, dtype=np.uint32), np.zeros(32, np.uint32)
    cache = "cg" if size == 16 else "ca"
    copy = f"cp.async.{cache}.shared.global [%r2], [%d5], {size};"
    body = COPY.format(shift=size.bit_length() - 1, copy=copy) + store("%r4", 1)
    run(body, given, out, seed=seed)
    assert np.array_equal(out, given[:32])


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_cp_async_from_a_buffer_that_begins_anywhere(first):
    """What is aligned is the address, not the place in the buffer."""
    given, out = np.arange(160, dtype=np.uint32), np.zeros(32, np.uint32)
    copy = f"cp.async.cg.shared.global [%r2], [%d5+{4 * (-first % 4)}], 16;"
    run(COPY.format(shift=4, copy=copy) + store("%r4", 1), given[first:], out)
    assert np.array_equal(out, given[first + -first % 4 :][:32])


def test_zero_fill_reads_only_the_source_bytes():
    """Bytes behind the source size are zeros, and their addresses are not touched."""
    given, out = np.arange(1, 9, dtype=np.uint32), np.zeros(32, np.uint32)
    copy = """
        setp.lt.u32 %p1, %tid, 2;
        selp.b32 %r5, 16, 0, %p1;
        setp.eq.u32 %p2, %tid, 1;
        selp.b32 %r5, 4, %r5, %p2;
        cp.async.cg.shared.global [%r2], [%d5], 16, %r5;
    """
    run(COPY.format(shift=4, copy=copy) + store("%r4", 1), given, out)
    assert np.array_equal(out[:8], [1, 2, 3, 4, 5, 0, 0, 0]) and not out[8:].any()


def test_ignored_sources_are_not_read():
    """With ignore-src there are zeros."""
    given, out = np.arange(1, 33, dtype=np.uint32), np.full(32, 9, np.uint32)
    copy = "setp.ge.u32 %p1, %tid, 4;\ncp.async.cg.shared.global [%r2], [%d5], 16, %p1;"
    run(COPY.format(shift=4, copy=copy) + store("%r4", 1), given, out)
    assert np.array_equal(out[:16], given[:16]) and not out[16:].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_wait_group_leaves_the_youngest_groups(seed):
    """With the wait for one group fewer the older data is there, and reading the younger is an error."""
    body = """
        mov.u32 %r0, memory;
        shl.b32 %r1, %tid, 2;
        add.u32 %r2, %r0, %r1;
        cvt.u64.u32 %d4, %r1;
        add.u64 %d5, %d0, %d4;
        cp.async.ca.shared.global [%r2], [%d5], 4;
        cp.async.commit_group;
        cp.async.ca.shared.global [%r2+128], [%d5+128], 4;
        cp.async.commit_group;
        cp.async.wait_group 1;
        ld.shared.b32 %r4, [%r2{offset}];
        cp.async.wait_all;
    """ + store("%r4", 1)
    given, out = np.arange(64, dtype=np.uint32), np.zeros(32, np.uint32)
    run(body.replace("{offset}", ""), given, out, seed=seed)
    assert np.array_equal(out, given[:32])
    wrong = body.replace("{offset}", "+128")
    with pytest.raises(UnfinishedAsync, match=r"a read where an asynchronous write is in flight") as caught:
        run(wrong, given, out, seed=seed)
    assert caught.value.line == line_of(kernel(wrong, 2), "ld.shared")


def test_a_copy_that_nobody_waits_for():
    """Found when its CTA ends."""
    body = COPY.format(shift=2, copy="cp.async.ca.shared.global [%r2], [%d5], 4;")
    body = body.split("cp.async.wait_group")[0]
    with pytest.raises(UnfinishedAsync, match="nobody has waited for this copy"):
        run(body, np.zeros(32, np.uint32))


@pytest.mark.parametrize("seed", SEEDS)
def test_cp_async_tracked_by_an_mbarrier(seed):
    """One warp copies and ends; the other sees the data behind the phase."""
    body = INIT.format(arrivals=32) + """
        shl.b32 %r1, %tid, 2;
        and.b32 %r1, %r1, 127;
        add.u32 %r2, %r0, %r1;
        setp.lt.u32 %p1, %tid, 32;
        @%p1 bra CONSUMER;
        cvt.u64.u32 %d4, %r1;
        add.u64 %d5, %d0, %d4;
        cp.async.ca.shared.global [%r2+128], [%d5], 4;
        cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r0];
        bra END;
        CONSUMER:
        """ + wait(0) + "ld.shared.b32 %r4, [%r2+128];" + store("%r4", 1) + "END:\n"
    given, out = np.arange(7, 39, dtype=np.uint32), np.zeros(32, np.uint32)
    run(body, given, out, block=64, seed=seed)
    assert np.array_equal(out, given)
    # Without the wait the consumer may even come before the issue.
    with pytest.raises((UnfinishedAsync, UninitialisedRead)):
        run(body.replace(wait(0), ""), given, out, block=64, seed=seed)


# ---- bulk copies ----------------------------------------------------------------------------------------

BULK = (
    INIT.format(arrivals=1)
    + """
    @%p0 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 %d7, [%r0], 512;
    add.u32 %r1, %r0, 512;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 512, [%r0];
    ISSUED:
    """
    + wait(0)
    + """
    shl.b32 %r3, %tid, 2;
    add.u32 %r3, %r3, %r0;
    ld.shared.b32 %r4, [%r3+{at}];
    """
)


@pytest.mark.parametrize("seed", SEEDS)
def test_bulk_copy_from_global(seed):
    """It completes its bytes on the mbarrier."""
    given, out = np.arange(128, dtype=np.uint32), np.zeros(32, np.uint32)
    run(BULK.replace("{at}", "896") + store("%r4", 1), given, out, seed=seed)
    assert np.array_equal(out, given[96:])


def test_bulk_copies_are_checked():
    """Alignment, size and bounds."""
    body = BULK.replace("{at}", "512") + store("%r4", 1)
    given, out = np.arange(128, dtype=np.uint32), np.zeros(32, np.uint32)
    with pytest.raises(MemoryFault, match="multiples of 16"):
        run(body.replace("[%d0], 512", "[%d0+8], 496"), given, out)
    with pytest.raises(MemoryFault):
        run(body, given[:120].copy(), out)
    with pytest.raises(Deadlock, match="16 transaction bytes are pending"):
        run(body.replace("[%d0], 512", "[%d0], 496"), given, out)


@pytest.mark.parametrize("seed", SEEDS)
def test_bulk_copy_to_another_cta(seed):
    """From shared memory into a peer's, counted there."""
    body = (
        INIT.format(arrivals=1)
        + """
        shl.b32 %r3, %tid, 2;
        add.u32 %r3, %r3, %r0;
        mov.u32 %r1, %cluster_ctarank;
        mad.lo.u32 %r7, %r1, 1000, %tid;
        st.shared.b32 [%r3+128], %r7;
        fence.proxy.async;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        @%p0 bra ISSUED;
        mbarrier.arrive.expect_tx.shared::cta.b64 %d7, [%r0], 128;
        xor.b32 %r2, %r1, 1;
        add.u32 %r4, %r0, 256;
        mapa.shared::cluster.u32 %r5, %r4, %r2;
        mapa.shared::cluster.u32 %r6, %r0, %r2;
        add.u32 %r4, %r0, 128;
        cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], [%r4], 128, [%r6];
        ISSUED:
        """
        + wait(0).replace("parity.", "parity.acquire.cluster.")
        + "ld.shared.b32 %r4, [%r3+256];\nmad.lo.u32 %r8, %r1, 32, %tid;\nshl.b32 %r8, %r8, 2;\n"
        + "cvt.u64.u32 %d8, %r8;\nadd.u64 %d9, %d0, %d8;\nst.global.b32 [%d9], %r4;\n"
        + "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    )
    out = np.zeros((2, 32), np.uint32)
    run(body, out, grid=2, cluster=2, seed=seed)
    assert np.array_equal(out[0], 1000 + np.arange(32)) and np.array_equal(out[1], np.arange(32))


@pytest.mark.parametrize("seed", SEEDS)
def test_bulk_groups(seed):
    """Shared to global, waited for by groups; not waiting is an error."""
    body = """
        mov.u32 %r0, memory;
        shl.b32 %r3, %tid, 2;
        add.u32 %r3, %r3, %r0;
        st.shared.b32 [%r3], %tid;
        fence.proxy.async;
        bar.sync 0;
        setp.ne.u32 %p0, %tid, 0;
        @%p0 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 128;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;
        END:
    """
    out = np.zeros(32, np.uint32)
    run(body, out, seed=seed)
    assert np.array_equal(out, np.arange(32))
    with pytest.raises(UnfinishedAsync):
        run(body.replace("wait_group 0", "wait_group 1"), out, seed=seed)


def test_landing_is_late_without_a_seed():
    """The old contents are gone from the issue on: poison is what a kernel that does not wait gets."""
    body = COPY.format(shift=2, copy="cp.async.ca.shared.global [%r2], [%d5], 4;")
    body = body.replace("cp.async.wait_group 0;", "").replace("bar.warp.sync -1;", "")
    body += store("%r4", 1) + "cp.async.wait_all;\n"
    out = np.zeros(32, np.uint32)
    ptx = kernel(body, 2)
    given = np.arange(32, dtype=np.uint32)
    emulator.launch(ptx, grid=1, block=32, arguments=[given, out], checks=False)
    assert (out == 0xFFFFFFFF).all()
