"""Each rule of order, with a kernel that keeps it and one that does not: no report on the first."""

import numpy as np
import pytest

import emulator
from emulator.checker import Checker
from emulator.interface import (
    BarrierFault,
    EmulatorError,
    MemoryFault,
    Race,
    UnfinishedAsync,
    UninitialisedRead,
)
from tests.emulator.handwritten import kernel, line_of, run

SEEDS = [None, *range(20)]

NEIGHBOUR = """
    mov.u32 %r0, memory;
    shl.b32 %r1, %tid, 2;
    add.u32 %r2, %r0, %r1;
    st.shared.b32 [%r2], %tid;
    {between}
    xor.b32 %r3, %r1, {distance};
    add.u32 %r3, %r3, %r0;
    ld.shared.b32 %r4, [%r3];
"""
"""Each thread reads what the thread `distance` bytes away wrote."""


def neighbour(between: str, distance: int) -> str:
    """NEIGHBOUR with this code between write and read."""
    return NEIGHBOUR.replace("{between}", between).replace("{distance}", str(distance))


def fails(kind: type[EmulatorError], match: str, body: str, *arrays, at: str, number: int = 0, **more):
    """Assert that a kernel is found to be wrong, and return the error.

    Without a seed it is found at the `number`-th instruction with this text. With one the two accesses may
    come the other way round.
    """
    for seed in (0, 1, 2):
        with pytest.raises((kind, UninitialisedRead)):
            run(body, *(array.copy() for array in arrays), seed=seed, **more)
    with pytest.raises(kind, match=match) as caught:
        run(body, *arrays, **more)
    error = caught.value
    assert error.line == line_of(kernel(body, len(arrays)), at, number), str(error)
    assert error.kernel == "by_hand" and error.thread
    return error


# ---- unwritten ------------------------------------------------------------------------------------------


def test_shared_memory_starts_unwritten():
    """Also where only one half of a word has been written."""
    for store in ("", "st.shared.b16 [%r0], %h0;", "st.shared.b16 [%r0+2], %h0;"):
        body = f"mov.u32 %r0, memory;\nmov.b16 %h0, 1;\n{store}\nld.shared.b32 %r1, [%r0];"
        error = fails(UninitialisedRead, "nothing has written", body, at="ld.shared", block=1)
        assert "shared byte" in error.address and "CTA 0" in error.address
    both = "st.shared.b16 [%r0], %h0;\nst.shared.b16 [%r0+2], %h0;"
    run(f"mov.u32 %r0, memory;\nmov.b16 %h0, 1;\n{both}\nld.shared.b32 %r1, [%r0];", block=1)


@pytest.mark.parametrize("width", ["b8", "b16", "b32", "b64", "v2.b32", "v4.b32", "v2.b64"])
def test_reads_of_every_width_are_checked(width):
    """What has been written may be read, and the bytes behind may not."""
    size = int(width[-2:].lstrip("b")) // 8 * (int(width[1]) if width[0] == "v" else 1)
    letter = "d" if "64" in width else "h" if width in ("b8", "b16") else "r"
    register = f"%{letter}8"
    if width[0] == "v":
        register = "{" + ", ".join(f"%{letter}{9 + i}" for i in range(int(width[1]))) + "}"
    fill = "mov.u32 %r0, memory;\nmov.b32 %r1, 0;\n"
    fill += "".join(f"st.shared.b32 [%r0+{at}], %r1;\n" for at in range(0, 64, 4))
    run(fill + f"ld.shared.{width} {register}, [%r0+{64 - size}];", block=1)
    fails(UninitialisedRead, "nothing", fill + f"ld.shared.{width} {register}, [%r0+64];", at="ld.shared", block=1)


def test_global_buffers_can_be_unwritten():
    """Buffers come written, unless the checker is told."""
    body = "ld.global.b32 %r1, [%d0+4];\nst.global.b32 [%d0], %r1;\nld.global.b32 %r2, [%d0];"
    array = np.zeros(2, np.uint32)
    run(body, array, block=1)
    with pytest.raises(UninitialisedRead):
        run(body, array, block=1, checks=False, observers=[Checker(unwritten=["argument 0"])])
    written = "mov.b32 %r1, 1;\nst.global.b32 [%d0+4], %r1;\n" + body
    run(written, array, block=1, checks=False, observers=[Checker(unwritten=["argument 0"])])


# ---- warps and CTAs -------------------------------------------------------------------------------------


def test_lanes_of_a_warp_need_a_warp_barrier():
    """Running in step is no order, nor is a shuffle."""
    for between in ("", "shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;", "bar.warp.sync 0xffffffff;"):
        body = neighbour(between, 4)
        if "bar" in between:
            run(body)
        else:
            error = fails(Race, "not ordered; written by thread", body, at="ld.shared")
            assert f"PTX line {line_of(kernel(body, 0), 'st.shared')}" in error.message


def test_the_same_thread_needs_nothing():
    """A thread sees its own writes."""
    run(neighbour("", 0))


def test_warps_need_a_barrier_of_the_cta():
    """bar.warp.sync is not enough between warps, and a fence without a barrier is nothing."""
    fails(Race, "written by", neighbour("bar.warp.sync -1;", 128), at="ld.shared", block=64)
    for seed in SEEDS:
        run(neighbour("bar.sync 0;", 128), block=64, seed=seed)


def test_a_write_after_a_read_needs_a_barrier_too():
    """The next round may not overwrite what others still read."""
    body = neighbour("bar.sync 0;", 128) + "{again}\nst.shared.b32 [%r2], %r4;\n"
    error = fails(Race, "; read by", body.replace("{again}", ""), at="st.shared", number=1, block=64)
    assert f"PTX line {line_of(kernel(body, 0), 'ld.shared')}" in error.message
    for seed in SEEDS:
        run(body.replace("{again}", "bar.sync 0;"), block=64, seed=seed)


def test_a_write_after_an_older_read_of_another_warp():
    """Readers are told apart: the last one being in order does not excuse the others."""
    body = """
        mov.u32 %r0, memory;
        setp.lt.u32 %p0, %tid, 32;
        @!%p0 bra A;
        st.shared.b32 [%r0], %tid;
        A:
        bar.sync 0;
        ld.shared.b32 %r1, [%r0];
        setp.lt.u32 %p1, %tid, 64;
        @!%p1 bra B;
        bar.sync 1, 64;
        B:
        setp.eq.u32 %p2, %tid, 0;
        @!%p2 bra C;
        st.shared.b32 [%r0], %tid;
        C:
    """
    body = body.replace("setp.lt.u32 %p0, %tid, 32", "setp.eq.u32 %p0, %tid, 0")
    run(body, block=64)
    fails(Race, "read by thread", body, at="st.shared", number=1, block=96)


def test_two_writes_need_an_order():
    """Of different warps, to one place."""
    body = "mov.u32 %r0, memory;\nst.shared.b32 [%r0], %tid;"
    fails(Race, "write and an earlier access", body, at="st.shared", block=64)
    body = "mov.u32 %r0, memory;\nsetp.ne.u32 %p0, %tid, {};\n@%p0 bra A;\nst.shared.b32 [%r0], %tid;\nA:"
    run(body.format(0), block=64)
    both = body.format(0) + "\n{}\n" + body.format(32).replace("A", "B")
    run(both.format("bar.sync 0;"), block=64)
    fails(Race, "write and an earlier access", both.format(""), at="st.shared", number=1, block=64)


def test_named_barriers_of_some_warps():
    """bar.arrive releases, and whoever only arrives is not ordered behind the others."""
    body = """
        mov.u32 %r0, memory;
        shl.b32 %r1, %tid, 2;
        add.u32 %r2, %r0, %r1;
        setp.lt.u32 %p0, %tid, 32;
        @%p0 bra CONSUMER;
        st.shared.b32 [%r2], %tid;
        bar.arrive 1, 64;
        {late}
        bra END;
        CONSUMER:
        bar.sync 1, 64;
        ld.shared.b32 %r3, [%r2+128];
        END:
    """
    for seed in SEEDS:
        run(body.replace("{late}", ""), block=64, seed=seed)
    late = body.replace("{late}", "st.shared.b32 [%r2], %tid;")
    for seed in range(4):
        with pytest.raises(Race):
            run(late, block=64, seed=seed)


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
        with pytest.raises(BarrierFault, match="no mbarrier has been|behind the mbarrier's initialisation"):
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
    fails(BarrierFault, "a read of an mbarrier", init + "ld.shared.b32 %r1, [%r0+4];", at="ld.shared", block=1)
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


# ---- clusters -------------------------------------------------------------------------------------------

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


def test_a_cta_must_not_end_while_its_peer_may_still_read():
    """Nothing said that the peer was done, though in this run it was."""
    body = (
        remote("").split("st.shared::cluster")[0].replace(MEET, "st.shared.b32 [%r2], %tid;\n" + MEET)
        + "ld.shared::cluster.b32 %r6, [%r5];\n"
    )
    with pytest.raises(MemoryFault, match="a CTA ends and nothing says|has exited"):
        run(body, grid=2, cluster=2)
    for seed in SEEDS:
        run(body + MEET, grid=2, cluster=2, seed=seed)


def test_cta_scope_does_not_reach_a_peer():
    """st.async of a peer needs a wait at cluster scope."""
    from tests.emulator.test_asynchronous import RING

    body = RING.format(bytes=256)
    run(body, np.zeros((2, 32), np.uint32), grid=2, cluster=2)
    narrow = body.replace("parity.acquire.cluster", "parity")
    fails(Race, "asynchronously", narrow, np.zeros((2, 32), np.uint32), at="ld.shared", grid=2, cluster=2)


def test_landed_is_not_waited_for():
    """Bytes that have landed are ordered by the wait alone."""
    from tests.emulator.test_asynchronous import RING

    body = RING.format(bytes=256)
    early = body.replace("{ .reg .pred done;", "ld.shared.b32 %r12, [%r4];\n{ .reg .pred done;")
    for seed in SEEDS:
        with pytest.raises((Race, UnfinishedAsync, UninitialisedRead)) as caught:
            run(early, np.zeros((2, 32), np.uint32), grid=2, cluster=2, seed=seed)
        assert caught.value.line == line_of(kernel(early, 1), "ld.shared.b32 %r12")


def test_a_peers_mbarrier_has_to_be_initialised_first():
    """A cluster barrier in between, with the fence if the arrival is relaxed."""
    from tests.emulator.test_asynchronous import RING

    body = RING.format(bytes=256)
    relaxed = body.replace("arrive.release.aligned", "arrive.relaxed.aligned")
    run(relaxed, np.zeros((2, 32), np.uint32), grid=2, cluster=2)
    unfenced = relaxed.replace("fence.mbarrier_init.release.cluster;", "")
    match = "nothing orders this behind the mbarrier's initialisation"
    fails(BarrierFault, match, unfenced, np.zeros((2, 32), np.uint32), at="st.async", grid=2, cluster=2)


# ---- global memory --------------------------------------------------------------------------------------

LAST = """
    mov.u32 %r0, %ctaid.x;
    mul.wide.u32 %d2, %r0, 128;
    add.u64 %d3, %d0, %d2;
    mul.wide.u32 %d4, %tid, 4;
    add.u64 %d3, %d3, %d4;
    add.u32 %r1, %tid, %r0;
    st.global.b32 [%d3], %r1;
    {before}
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra ARRIVED;
    {fence}
    {atom} %r2, [%d1], 1;
    {behind}
    mov.u32 %r9, memory;
    st.shared.b32 [%r9], %r2;
    ARRIVED:
    {after}
    mov.u32 %r9, memory;
    ld.shared.b32 %r2, [%r9];
    setp.ne.u32 %p1, %r2, {last};
    @%p1 bra END;
    mul.wide.u32 %d4, %tid, 4;
    add.u64 %d5, %d0, %d4;
    mov.b32 %r3, 0;
    mov.b32 %r4, 0;
    LOOP:
    ld.global.b32 %r5, [%d5];
    add.u32 %r3, %r3, %r5;
    add.u64 %d5, %d5, 128;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p2, %r4, 4;
    @%p2 bra LOOP;
    add.u64 %d5, %d5, %d4;
    sub.u64 %d5, %d5, %d4;
    st.global.b32 [%d5], %r3;
    @%p0 bra END;
    mov.b32 %r5, 0;
    st.global.b32 [%d1], %r5;
    END:
"""
"""Four CTAs leave partials in a workspace; the last to arrive adds them up and resets the counter."""


def last_arriver(
    before: str = "bar.sync 0;",
    fence: str = "",
    atom: str = "atom.acq_rel.gpu.global.add.u32",
    behind: str = "",
    after: str = "bar.sync 0;",
    last: int = 3,
) -> str:
    """LAST with these pieces; as it is, it is right."""
    pieces = {"before": before, "fence": fence, "atom": atom, "behind": behind, "after": after, "last": last}
    body = LAST
    for name, piece in pieces.items():
        body = body.replace("{" + name + "}", str(piece))
    return body


def workspace() -> tuple[np.ndarray, np.ndarray]:
    """Four partials and the result, and the counter."""
    return np.zeros((5, 32), np.uint32), np.zeros(1, np.uint32)


FENCE = "fence.acq_rel.gpu;"
RELAXED = "atom.relaxed.gpu.global.add.u32"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "pieces",
    [
        {},
        {"atom": RELAXED, "fence": FENCE, "behind": FENCE},
        {"atom": "atom.global.add.u32", "fence": "fence.sc.gpu;", "behind": "membar.gl;"},
        {"atom": "atom.release.gpu.global.add.u32", "behind": FENCE},
        {"atom": "atom.acquire.gpu.global.add.u32", "fence": FENCE},
    ],
    ids=["acq_rel", "fences", "older forms", "release", "acquire"],
)
def test_the_last_arriver_sees_all_partials(pieces, seed):
    """Release, counter, acquire: in every form that the memory model has for it."""
    space, counter = workspace()
    run(last_arriver(**pieces), space, counter, grid=4, seed=seed)
    assert np.array_equal(space[4], space[:4].sum(axis=0)) and space[4].any()
    assert counter[0] == 0


@pytest.mark.parametrize(
    "pieces",
    [
        {"atom": RELAXED},
        {"atom": RELAXED, "fence": FENCE},
        {"atom": RELAXED, "behind": FENCE},
        {"atom": RELAXED, "before": FENCE + "\nbar.sync 0;", "behind": FENCE},
        {"atom": RELAXED, "fence": "fence.acq_rel.cta;", "behind": FENCE},
        {"atom": "atom.acq_rel.cta.global.add.u32"},
        {"before": ""},
        {"last": 2},
    ],
    ids=[
        "no fences",
        "no acquire",
        "no release",
        "fence in another thread",
        "cta fence",
        "cta scope",
        "no barrier before",
        "a CTA too early",
    ],
)
def test_a_race_on_a_global_workspace(pieces):
    """Every part of the pattern is needed, though the numbers are right without it."""
    body = last_arriver(**pieces)
    for seed in range(4):
        with pytest.raises((Race, UninitialisedRead), match="race") as caught:
            run(body, *workspace(), grid=4, seed=seed)
        where = {line_of(kernel(body, 2), text) for text in ("st.global", "atom", "ld.global.b32 %r5")}
        assert caught.value.line in where
        assert "argument 0" in caught.value.address or "argument 1" in caught.value.address


def test_ctas_that_store_to_one_place():
    """Different CTAs, no order."""
    body = "mov.u32 %r0, %ctaid.x;\nst.global.b32 [%d0], %r0;"
    fails(Race, "write", body, np.zeros(1, np.uint32), at="st.global", grid=2, block=1)


def test_waves_do_not_order():
    """CTAs that happen to run one after the other are not ordered by it."""
    body = "mov.u32 %r0, %ctaid.x;\nst.global.b32 [%d0], %r0;"
    with pytest.raises(Race, match="by a CTA that ran before"):
        run(body, np.zeros(1, np.uint32), grid=2, block=1, resident=1)
    space, counter = workspace()
    run(last_arriver(), space, counter, grid=4, resident=1)
    assert np.array_equal(space[4], space[:4].sum(axis=0))
    with pytest.raises(Race):
        run(last_arriver(atom=RELAXED), *workspace(), grid=4, resident=1)


def test_checks_can_be_left_off():
    """Then nothing is reported."""
    ptx = kernel("mov.u32 %r0, memory;\nld.shared.b32 %r1, [%r0];", 0)
    emulator.launch(ptx, grid=1, block=32, arguments=[], checks=False)
