"""Scheduling: order under seeds, deadlocks and livelocks."""

import re

import numpy as np
import pytest

import emulator
from emulator.errors import Deadlock, Livelock
from tests.emulator.written import launch, raised, store

DYNAMIC = ".extern .shared .align 16 .b8 dynamic[];\n"
SHARED = {"shared_bytes": 1024, "before": DYNAMIC}
SEEDS = [None, *range(6)]

THREAD = "mov.u32 %r1, %tid.x; mov.b32 %r2, dynamic; mad.lo.s32 %r3, %r1, 4, %r2;\n"


# ---- deadlocks ---------------------------------------------------------------------------------------


def test_a_deadlock_says_who_waits_for_what():
    body = "mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 1; @%p1 bra END; bar.sync 0, 128; END: ret;"
    said = raised(Deadlock, body, threads=128, grid=2)
    assert "no thread can go on" in said
    assert "barrier 0 of their CTA: 96 of 128 threads have arrived, 32 have ended" in said
    assert re.search(r"thread 0 \(warp 0, lane 0\) of CTA \(0, 0, 0\) and 191 more", said)
    assert "bar.sync 0" in said and "64 of 256 threads have ended" in said


def test_a_deadlock_at_the_cluster_barrier():
    body = """
    mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0; @%p1 bra ZERO;
    bar.sync 1, 64; ret;
    ZERO: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
    """
    said = raised(Deadlock, body, grid=2, cluster=2, threads=32)
    assert "the cluster barrier: 32 of 64 threads have arrived" in said
    assert "barrier 1 of their CTA: 32 of 64" in said


def test_lanes_that_wait_while_others_need_them():
    """A deadlock, not just missing lanes: lane 0 waits for a lane barrier that never comes."""
    body = """
    mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; ret;
    WAIT: bar.warp.sync 3; ret;
    """
    said = raised(Deadlock, body)
    assert "because they wait" in said and "bar.warp.sync with lanes 0x3" in said


# ---- polling -----------------------------------------------------------------------------------------

FLAG = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; ld.param.u64 %rd1, [a0]; setp.ne.u32 %p1, %r1, 0;
    @%p1 bra GIVE;
    SPIN: ld.acquire.gpu.global.b32 %r3, [%rd1]; setp.eq.u32 %p2, %r3, 0; @%p2 bra SPIN;
    ld.global.b32 %r9, [%rd1+4]; bra END;
    GIVE: mov.b32 %r9, 5; setp.ne.u32 %p3, %r2, 0; @%p3 bra END;
    st.global.b32 [%rd1+4], 41; st.release.gpu.global.b32 [%rd1], 1;
    END:
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [1, 64])
def test_spinning_on_global_memory(seed, threads):
    """CTA 0 polls a flag that CTA 1 sets; they are in different clusters and have to run at once."""
    flag, out = np.zeros(2, np.uint32), np.zeros(2 * threads, np.uint32)
    launch(FLAG + store("%r9", 1) + "ret;", flag, out, grid=2, threads=threads, seed=seed, resident=2)
    np.testing.assert_array_equal(out, np.repeat([41, 5], threads))


@pytest.mark.parametrize("pause", ["nanosleep.u32 20;", "fence.acq_rel.gpu;"])
def test_spinning_with_a_pause(pause):
    """Even where the loop's blocks come first, those who are waited for get their turn."""
    body = FLAG.replace("@%p2 bra SPIN;", f"@!%p2 bra SEEN; {pause} bra SPIN; SEEN:")
    launch(body + "ret;", np.zeros(2, np.uint32), grid=2, resident=2)


def test_a_work_queue_is_no_spinning():
    """A loop around an atomic that does something runs as often as it likes."""
    body = """
    ld.param.u64 %rd1, [a0];
    NEXT: atom.global.add.u32 %r1, [%rd1], 1; st.global.b32 [%rd1+4], %r1;
    setp.lt.u32 %p1, %r1, 5000; @%p1 bra NEXT; ret;
    """
    data = np.zeros(2, np.uint32)
    launch(body, data, threads=1)
    assert data.tolist() == [5001, 5000]


def test_a_loop_without_end(monkeypatch):
    monkeypatch.setattr("emulator.machine.machine._PATIENCE", 1000)
    assert "1000 blocks ran" in raised(Livelock, "L: add.s32 %r1, %r1, 1; bra L;")


def test_a_livelock():
    said = raised(
        Livelock,
        FLAG.replace("st.release.gpu.global.b32 [%rd1], 1;", "") + "ret;",
        np.zeros(2, np.uint32),
        grid=2,
        resident=2,
    )
    assert "nothing changes" in said and "PTX line" in said


def test_a_grid_that_does_not_fit_in_one_wave_cannot_wait_for_the_next():
    flag = np.zeros(2, np.uint32)
    assert "polling" in raised(Livelock, FLAG + "ret;", flag, grid=2, threads=1, resident=1)


def test_the_last_to_arrive():
    """An arrival counter in global memory, no polling: exactly one CTA comes last, whatever the waves."""
    body = """
    mov.b32 %r9, 0; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END; ld.param.u64 %rd1, [a0];
    atom.acq_rel.gpu.global.add.u32 %r2, [%rd1], 1; setp.eq.u32 %p2, %r2, 6; selp.b32 %r9, 1, 0, %p2;
    END:
    """
    for resident in (1, 3, 7):
        count, out = np.zeros(1, np.uint32), np.zeros(7 * 32, np.uint32)
        launch(body + store("%r9", 1) + "ret;", count, out, grid=7, resident=resident, seed=resident)
        assert out.sum() == 1 and count[0] == 7


# ---- order -------------------------------------------------------------------------------------------


def orders(unit: str, **more) -> set[tuple[int, ...]]:
    """The orders in which units (%warpid, %ctaid.x) take tickets, over some seeds."""
    body = f"""
    mov.u32 %r1, {unit}; mov.u32 %r2, %laneid; setp.ne.u32 %p1, %r2, 0; @%p1 ret; ld.param.u64 %rd1, [a0];
    bar.warp.sync 1; atom.global.add.u32 %r3, [%rd1], 1; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd2, %rd1;
    st.global.b32 [%rd2+4], %r3; ret;
    """
    found = set()
    for seed in range(12):
        tickets = np.zeros(9, np.uint32)
        launch(body, tickets, seed=seed, checks=False, **more)
        found.add(tuple(np.argsort(tickets[1:]).tolist()))
    return found


def test_seeds_change_the_order():
    assert len(orders("%warpid", threads=256)) > 4
    assert len(orders("%ctaid.x", grid=8)) > 4
    assert len(orders("%ctaid.x", grid=8, resident=1)) > 4
    assert orders("%warpid", threads=256) == orders("%warpid", threads=256)


def test_a_missing_barrier_is_seen_in_the_numbers():
    """In step all warps store before any loads; with a seed some warp is behind."""
    body = (
        THREAD
        + "st.shared.b32 [%r3], %r1; xor.b32 %r4, %r3, 128; ld.shared.b32 %r9, [%r4];"
        + store("%r9")
        + "ret;"
    )

    def right(seed) -> bool:
        out = np.zeros(256, np.uint32)
        launch(body, out, threads=256, seed=seed, checks=False, shared_bytes=1024, before=DYNAMIC)
        return bool((out == (np.arange(256) ^ 32)).all())

    assert right(None)
    assert not all(right(seed) for seed in range(8))


def test_registers_start_poisoned():
    out = np.zeros(32, np.float32)
    body = (
        "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 4; @!%p1 bra END; mov.b32 %r9, 0; END:"
        + store("%r9")
        + "ret;"
    )
    launch(body, out)
    assert (out[:4] == 0).all() and np.isnan(out[4:]).all()


def test_traps_and_hints():
    assert "executed trap" in raised(emulator.EmulatorError, "trap;")
    launch("nanosleep.u32 20; griddepcontrol.launch_dependents; griddepcontrol.wait; membar.gl; ret;")
