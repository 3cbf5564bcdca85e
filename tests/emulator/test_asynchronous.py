"""What is in flight lands no later than it has to, completes what it should, and is counted to the byte."""

import numpy as np
import pytest

import emulator
from emulator.interface import BarrierFault, Deadlock, MemoryFault, UnfinishedAsync, UninitialisedRead
from tests.emulator.handwritten import kernel, line_of, run

SEEDS = [None, *range(5)]

INIT = """
    mov.u32 %r0, memory;
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r0], {arrivals};
    fence.mbarrier_init.release.cluster;
    READY:
    bar.sync 0;
"""
"""An mbarrier at the beginning of shared memory."""

WAIT = """
    {{ .reg .pred done; WAIT_{n}: mbarrier.try_wait.parity.shared::cta.b64 done, [%r0], {parity};
    @!done bra WAIT_{n}; }}
"""


def wait(parity: int, n: int = 0) -> str:
    """A loop that waits for the phase of this parity."""
    return WAIT.format(parity=parity, n=n).replace("{{", "{").replace("}}", "}")


STORE = """
    shl.b32 %r8, %tid, 2;
    cvt.u64.u32 %d8, %r8;
    add.u64 %d9, %d{array}, %d8;
    st.global.b32 [%d9], {value};
"""
"""Store a register to a thread's word of an array."""


def store(value: str, array: int = 0) -> str:
    """Store a register to the thread's word of a parameter's array."""
    return STORE.replace("{value}", value).replace("{array}", str(array))


# ---- mbarriers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", ["", ", 1"])
def test_arrivals_complete_a_phase(seed, count):
    """One warp waits for 32 arrivals of another; what was stored before them is there."""
    body = (
        INIT.format(arrivals=32)
        + f"""
        setp.lt.u32 %p1, %tid, 32;
        @%p1 bra CONSUMER;
        shl.b32 %r1, %tid, 2;
        add.u32 %r1, %r1, %r0;
        st.shared.b32 [%r1], %tid;
        mbarrier.arrive.shared::cta.b64 _, [%r0]{count};
        bra END;
        CONSUMER:
        """
        + wait(0)
        + """
        shl.b32 %r1, %tid, 2;
        add.u32 %r1, %r1, %r0;
        ld.shared.b32 %r2, [%r1+128];
        """
        + store("%r2")
        + "END:\n"
    )
    out = np.zeros(32, np.uint32)
    run(body, out, block=64, seed=seed)
    assert np.array_equal(out, np.arange(32, 64))


def test_phases_alternate_and_states_name_them():
    """Each phase has its own arrivals; the state of an arrival can be waited for."""
    body = (
        INIT.format(arrivals=32)
        + "mbarrier.arrive.shared::cta.b64 %d4, [%r0];"
        + "\nS0: mbarrier.test_wait.shared::cta.b64 %p1, [%r0], %d4;\n@!%p1 bra S0;\n"
        + "mbarrier.arrive.shared::cta.b64 %d5, [%r0];\n"
        + wait(1, 1)
        + "sub.u64 %d6, %d5, %d4;\ncvt.u32.u64 %r2, %d6;\n"
        + store("%r2")
    )
    out = np.zeros(32, np.uint32)
    run(body, out)
    assert (out == 1).all()


def test_the_phase_before_the_first_is_over():
    """Parity 1 on a fresh mbarrier does not wait: that is how producers begin."""
    out = np.zeros(32, np.uint32)
    run(INIT.format(arrivals=1) + wait(1) + "mov.b32 %r2, 7;" + store("%r2"), out)
    assert (out == 7).all()


def test_a_phase_that_cannot_complete_is_a_deadlock():
    """The report names the mbarrier and what is missing."""
    body = INIT.format(arrivals=33) + "mbarrier.arrive.shared::cta.b64 _, [%r0];\n" + wait(0)
    with pytest.raises(Deadlock, match=r"1 of 33 arrivals and 0 transaction bytes are pending"):
        run(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mbarrier.arrive.shared::cta.b64 _, [%r0+8];", "no mbarrier has been initialised"),
        ("mbarrier.init.shared::cta.b64 [%r0], 1;", "initialised again"),
        ("mbarrier.init.shared::cta.b64 [%r0+8], 0;", "1 to 1048575 arrivals"),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 1048576;", "transaction count beyond"),
        (
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 16;\n"
            "mbarrier.arrive.shared::cta.b64 _, [%r0], 32;\nmbarrier.arrive.shared::cta.b64 _, [%r0];",
            "an arrival too many",
        ),
        (
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 16;\nmbarrier.inval.shared::cta.b64 [%r0];",
            "invalidated in use",
        ),
    ],
)
def test_misuse(body, message):
    """Each with the line of the instruction and the thread."""
    text = INIT.format(arrivals=32) + "@%p0 bra END;\n" + body + "\nEND:\n"
    with pytest.raises(BarrierFault, match=message) as caught:
        run(text)
    assert caught.value.line == line_of(kernel(text, 0), body.splitlines()[-1], -1)
    assert "thread 0 " in caught.value.thread


def test_bytes_that_do_not_add_up_at_the_end():
    """An mbarrier that still expects bytes when the kernel ends."""
    body = INIT.format(arrivals=1) + "@%p0 bra END;\n"
    body += "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 64;\nEND:\n"
    with pytest.raises(UnfinishedAsync, match="64 transaction bytes are pending"):
        run(body)


# ---- st.async -------------------------------------------------------------------------------------------

RING = (
    INIT.format(arrivals=1)
    + """
    @%p0 bra ANNOUNCED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], {bytes};
    ANNOUNCED:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mov.u32 %r1, %cluster_ctarank;
    add.u32 %r2, %r1, 1;
    mov.u32 %r3, %cluster_nctarank;
    rem.u32 %r2, %r2, %r3;
    shl.b32 %r4, %tid, 3;
    add.u32 %r4, %r4, %r0;
    add.u32 %r4, %r4, 128;
    mapa.shared::cluster.u32 %r5, %r4, %r2;
    mapa.shared::cluster.u32 %r6, %r0, %r2;
    mad.lo.u32 %r7, %r1, 100, %tid;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5], {{%r7, %r1}}, [%r6];
    {{ .reg .pred done; WAIT_0:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%r0], 0;
    @!done bra WAIT_0; }}
    ld.shared.v2.b32 {{%r9, %r10}}, [%r4];
    mad.lo.u32 %r11, %r1, 32, %tid;
    shl.b32 %r11, %r11, 2;
    cvt.u64.u32 %d8, %r11;
    add.u64 %d9, %d0, %d8;
    st.global.b32 [%d9], %r9;
    """
)
"""Each CTA of a cluster sends 8 bytes a thread to the next one."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cluster", [1, 2, 5])
def test_st_async_reaches_the_next_cta(cluster, seed):
    """Data and transaction bytes arrive at the CTA that the addresses name."""
    out = np.zeros((cluster, 32), np.uint32)
    run(RING.format(bytes=256), out, grid=cluster, cluster=cluster, seed=seed)
    for rank in range(cluster):
        assert np.array_equal(out[(rank + 1) % cluster], 100 * rank + np.arange(32)), rank


def test_too_few_bytes_sent_is_a_deadlock():
    """The report has the bytes that are missing."""
    with pytest.raises(Deadlock, match=r"0 of 1 arrivals and 8 transaction bytes are pending, 0 bytes in"):
        run(RING.format(bytes=264), np.zeros((2, 32), np.uint32), grid=2, cluster=2)


def test_too_many_bytes_sent():
    """More bytes than were announced."""
    with pytest.raises(BarrierFault, match="8 bytes more than the phase expects"):
        run(RING.format(bytes=248), np.zeros((2, 32), np.uint32), grid=2, cluster=2)


def test_data_and_mbarrier_in_different_ctas():
    """An mbarrier counts bytes of its own CTA."""
    body = RING.format(bytes=256).replace("[%r6];", "[%r0];")
    with pytest.raises(BarrierFault, match="different CTAs") as caught:
        run(body, np.zeros((2, 32), np.uint32), grid=2, cluster=2)
    assert caught.value.instruction.opcode.startswith("st.async")


def test_a_cta_that_ends_before_its_bytes_have_landed():
    """Without the wait the sender's data has no place to go."""
    body = RING.format(bytes=256).split("{ .reg")[0]
    with pytest.raises(UnfinishedAsync, match="in flight"):
        run(body, np.zeros((2, 32), np.uint32), grid=2, cluster=2)


def test_a_write_into_a_cta_that_has_ended():
    """Found as the address is used, whatever the order of CTAs."""
    body = RING.format(bytes=256).replace("mov.u32 %r3", "setp.eq.u32 %p2, %r1, 1;\n@%p2 bra END;\nmov.u32 %r3")
    for seed in range(4):
        with pytest.raises((MemoryFault, UnfinishedAsync), match=r"exited|ends"):
            run(body + "END:\n", np.zeros((2, 32), np.uint32), grid=2, cluster=2, seed=seed)


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
    body = (
        INIT.format(arrivals=32)
        + """
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
        """
        + wait(0)
        + "ld.shared.b32 %r4, [%r2+128];"
        + store("%r4", 1)
        + "END:\n"
    )
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
