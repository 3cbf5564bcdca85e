"""What is in flight lands no later than it has to, completes what it should, and is counted to the byte."""

import numpy as np
import pytest

from emulator.errors import BarrierFault, Deadlock, MemoryFault, UnfinishedAsync
from tests.emulator.handwritten import INIT, RING, kernel, line_of, run, store, wait

SEEDS = [None, *range(5)]

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
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 16;\n"
            "mbarrier.inval.shared::cta.b64 [%r0];",
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
    assert caught.value.place.text.startswith("st.async")


def test_a_cta_that_ends_before_its_bytes_have_landed():
    """Without the wait the sender's data has no place to go."""
    body = RING.format(bytes=256).split("{ .reg")[0]
    with pytest.raises(UnfinishedAsync, match="in flight"):
        run(body, np.zeros((2, 32), np.uint32), grid=2, cluster=2)


def test_a_write_into_a_cta_that_has_ended():
    """Found as the address is used, whatever the order of CTAs."""
    body = RING.format(bytes=256).replace(
        "mov.u32 %r3", "setp.eq.u32 %p2, %r1, 1;\n@%p2 bra END;\nmov.u32 %r3"
    )
    for seed in range(4):
        with pytest.raises((MemoryFault, UnfinishedAsync), match=r"exited|ends"):
            run(body + "END:\n", np.zeros((2, 32), np.uint32), grid=2, cluster=2, seed=seed)
