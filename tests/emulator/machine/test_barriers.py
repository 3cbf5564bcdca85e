"""Barriers of a CTA, of a cluster and of lanes: who waits for whom, and what is against their rules."""

import numpy as np
import pytest

from emulator.errors import BarrierFault, Deadlock, Divergence
from tests.emulator.written import launch, raised, store

DYNAMIC = ".extern .shared .align 16 .b8 dynamic[];\n"
SHARED = {"shared_bytes": 1024, "before": DYNAMIC}
SEEDS = [None, *range(6)]

THREAD = "mov.u32 %r1, %tid.x; mov.b32 %r2, dynamic; mad.lo.s32 %r3, %r1, 4, %r2;\n"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_in_a_loop(seed):
    """Each turn every thread takes its neighbour's number, four warps in three CTAs."""
    body = THREAD + """
    mov.u32 %r4, %r1; mov.b32 %r5, 0; add.s32 %r6, %r1, 1; and.b32 %r6, %r6, 127; mad.lo.s32 %r6, %r6, 4, %r2;
    LOOP: st.shared.b32 [%r3], %r4; bar.sync 0; ld.shared.b32 %r4, [%r6]; bar.sync 0;
    add.s32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 5; @%p1 bra LOOP;
    """
    out = np.zeros(384, np.uint32)
    launch(body + store("%r4") + "ret;", out, threads=128, grid=3, seed=seed, **SHARED)
    np.testing.assert_array_equal(out, np.tile((np.arange(128) + 5) % 128, 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_of_some_warps(seed):
    """Warps 0 and 1 arrive at barrier 1, warps 2 and 3 wait for them: a hand-over in one direction."""
    body = THREAD + """
    shr.u32 %r4, %r1, 6; setp.eq.u32 %p1, %r4, 0; mov.b32 %r9, 0; @!%p1 bra TAKE;
    st.shared.b32 [%r3], %r1; bar.arrive 1, 128; bra END;
    TAKE: bar.sync 1, 128; ld.shared.b32 %r9, [%r3+-256];
    END:
    """
    out = np.zeros(128, np.uint32)
    launch(body + store("%r9") + "ret;", out, threads=128, seed=seed, **SHARED)
    np.testing.assert_array_equal(out, [0] * 64 + list(range(64)))


@pytest.mark.parametrize("seed", SEEDS)
def test_named_barriers_by_register(seed):
    """Each pair of warps has its own barrier, whose number is computed."""
    body = THREAD + """
    st.shared.b32 [%r3], %r1; shr.u32 %r4, %r1, 6; add.s32 %r4, %r4, 1; mov.b32 %r5, 64;
    barrier.sync.aligned %r4, %r5; xor.b32 %r6, %r1, 32; mad.lo.s32 %r6, %r6, 4, %r2;
    ld.shared.b32 %r9, [%r6];
    """
    out = np.zeros(128, np.uint32)
    launch(body + store("%r9") + "ret;", out, threads=128, seed=seed, **SHARED)
    np.testing.assert_array_equal(out, np.arange(128) ^ 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_cluster_barrier(seed):
    """Two phases, with work between arrival and wait."""
    body = THREAD + """
    mov.u32 %r4, %cluster_ctarank; mad.lo.s32 %r5, %r4, 1000, %r1; st.shared.b32 [%r3], %r5;
    barrier.cluster.arrive.release.aligned; add.s32 %r6, %r4, 1; and.b32 %r6, %r6, 3;
    mapa.shared::cluster.u32 %r7, %r3, %r6; barrier.cluster.wait.acquire.aligned;
    ld.shared::cluster.b32 %r9, [%r7];
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    out = np.zeros(8 * 64, np.uint32)
    launch(body + store("%r9") + "ret;", out, threads=64, grid=8, cluster=4, seed=seed, **SHARED)
    want = [(c % 4 + 1) % 4 * 1000 + t for c in range(8) for t in range(64)]
    np.testing.assert_array_equal(out, want)


def test_the_cluster_barrier_does_not_wait_for_those_that_have_ended():
    body = """
    mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1; @%p1 ret;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
    """
    launch(body, grid=2, cluster=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_of_lanes(seed):
    body = THREAD + """
    setp.ne.u32 %p1, %r1, 0; @%p1 bra MEET; mov.b32 %r4, 0;
    LATE: add.s32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 7; @%p2 bra LATE; st.shared.b32 [%r2], %r4;
    MEET: bar.warp.sync -1; ld.shared.b32 %r9, [%r2];
    """
    out = np.zeros(32, np.uint32)
    launch(body + store("%r9") + "ret;", out, seed=seed, **SHARED)
    assert (out == 7).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_of_half_warps(seed):
    """Each half waits for its own late lane, in one instruction."""
    body = THREAD + """
    mov.u32 %r5, %laneid; and.b32 %r6, %r5, 15; setp.lt.u32 %p3, %r5, 16;
    selp.b32 %r7, 0xffff, 0xffff0000, %p3; and.b32 %r8, %r5, 16; mad.lo.s32 %r8, %r8, 4, dynamic;
    setp.ne.u32 %p1, %r6, 0; @%p1 bra MEET; mov.b32 %r4, 0;
    LATE: add.s32 %r4, %r4, 1; setp.le.u32 %p2, %r4, %r5; @%p2 bra LATE; st.shared.b32 [%r8], %r4;
    MEET: bar.warp.sync %r7; ld.shared.b32 %r9, [%r8];
    """
    out = np.zeros(32, np.uint32)
    launch(body + store("%r9") + "ret;", out, seed=seed, **SHARED)
    np.testing.assert_array_equal(out, np.repeat([1, 17], 16))


@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_do_not_wait_for_threads_that_end_later(seed):
    """bar.warp.sync and bar.sync of all threads: those that end count as arrived, whenever they do."""
    end = "LATE: add.s32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 9; @%p2 bra LATE; ret;"
    lanes = "mov.u32 %r1, %laneid; mov.b32 %r4, 0; setp.eq.u32 %p1, %r1, 3; @%p1 bra LATE;"
    out = np.zeros(32, np.uint32)
    launch(f"{lanes} bar.warp.sync -1; {store('1')} ret; {end}", out, seed=seed)
    np.testing.assert_array_equal(out, np.arange(32) != 3)
    warps = "mov.u32 %r1, %warpid; mov.b32 %r4, 0; setp.ge.u32 %p1, %r1, 2; @%p1 bra LATE;"
    for barrier in ("bar.sync 0;", "barrier.sync 5;", "barrier.cta.sync.aligned 1; bar.sync 0;"):
        out = np.zeros(256, np.uint32)
        launch(f"{warps} {barrier} {store('1')} ret; {end}", out, threads=128, grid=2, seed=seed)
        np.testing.assert_array_equal(out, np.tile(np.arange(128) < 64, 2))
    first = f"mov.u32 %r1, %warpid; setp.ge.u32 %p1, %r1, 2; @%p1 ret; bar.sync 0; {store('1')} ret;"
    out = np.zeros(128, np.uint32)
    launch(first, out, threads=128, seed=seed)
    np.testing.assert_array_equal(out, np.arange(128) < 64)


def test_a_thread_that_arrived_and_ended_counts_once():
    """Warp 1 arrives and ends, warp 2 never comes: it is waited for."""
    body = """
    mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 1; @%p1 bra ONE; setp.eq.u32 %p2, %r1, 2; @%p2 bra TWO;
    bar.sync 0; ret;
    ONE: bar.arrive 0, 96; ret;
    TWO: bar.sync 1, 64; bar.sync 0; ret;
    """
    said = raised(Deadlock, body, threads=96)
    assert "barrier 0 of their CTA: 64 of 96 threads have arrived, 32 have ended" in said


def test_a_barrier_of_lanes_that_does_not_name_the_thread():
    said = raised(Divergence, "bar.warp.sync 1; ret;")
    assert "bar.warp.sync with member mask 0x1: the thread is not in it" in said and "lane 1" in said


def test_barriers_against_their_rules():
    said = raised(
        BarrierFault,
        "mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 0; @%p1 bra A; bar.sync 1, 96; ret;"
        "A: bar.sync 1, 64; ret;",
        threads=96,
    )
    assert "barrier 1 with" in said and "PTX line" in said
    assert "barrier 16 of 16" in raised(BarrierFault, "bar.sync 16; ret;")
    assert "33 threads are no multiple" in raised(BarrierFault, "bar.sync 1, 33; ret;", threads=64)
    twice = "barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned; ret;"
    assert "second arrival" in raised(BarrierFault, twice)
    assert "no arrival" in raised(BarrierFault, "barrier.cluster.wait.aligned; ret;")
    part = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 9; @%p1 ret; bar.sync 0, 32; ret;"
    assert "23 of 32 threads have arrived, 9 have ended" in raised(Deadlock, part)


def test_a_barrier_under_a_branch():
    body = """
    mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 16; @%p1 bra A;
    bar.sync 0; bra B;
    A: bar.sync 0;
    B: ret;
    """
    said = raised(Divergence, body)
    assert "16 of the 32 threads of a warp are at bar.sync" in said
