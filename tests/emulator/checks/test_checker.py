"""Each rule of order, with a kernel that keeps it and one that does not: no report on the first."""

import numpy as np
import pytest

from emulator.checks.checker import Checker
from emulator.errors import Race, UninitialisedRead
from tests.emulator.handwritten import fails, kernel, line_of, run

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
    fails(
        UninitialisedRead,
        "nothing",
        fill + f"ld.shared.{width} {register}, [%r0+64];",
        at="ld.shared",
        block=1,
    )


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


PARTNER = """
    mov.u32 %r0, memory;
    shl.b32 %r1, %tid, 2;
    add.u32 %r2, %r0, %r1;
    setp.lt.u32 %p0, %tid, 16;
    selp.b32 %r3, 0xffff, 0xffff0000, %p0;
    xor.b32 %r4, %r1, {far};
    add.u32 %r4, %r4, %r0;
    {before}
    st.shared.b32 [%r2], %tid;
    bar.warp.sync %r3;
    {after}
    ld.shared.b32 %r5, [%r4];
"""
"""Half warps meet, each by itself; then each lane reads what another lane wrote, `far` bytes away."""


def partner(far: int, before: str = "", after: str = "") -> str:
    return PARTNER.format(far=far, before=before, after=after)


def test_a_warp_barrier_orders_the_lanes_of_its_mask_alone():
    """Lanes of the same half, and not of the other, before or behind which all have met."""
    everyone = "bar.warp.sync -1;"
    run(partner(32))
    run(partner(32, everyone, partner(4).rpartition("st.shared")[2].partition("\n")[2]))
    run(partner(64, after=everyone))
    fails(Race, "not ordered; written by thread", partner(64), at="ld.shared")
    fails(Race, "not ordered; written by thread", partner(64, everyone), at="ld.shared")
    fails(Race, "not ordered; written by thread", partner(64, after="bar.warp.sync %r3;"), at="ld.shared")


def test_warp_barriers_of_overlapping_masks_hand_on():
    """Lanes 0 to 7, then 4 to 15: lanes 8 to 15 know what lane 0 wrote, but not what it writes later."""
    body = """
    mov.u32 %r0, memory;
    setp.ne.u32 %p0, %tid, 0;
    @!%p0 st.shared.b32 [%r0], %tid;
    setp.gt.u32 %p1, %tid, 7;
    @!%p1 bar.warp.sync 0xff;
    {later}
    setp.lt.u32 %p2, %tid, 4;
    setp.gt.or.u32 %p2, %tid, 15, %p2;
    @!%p2 bar.warp.sync 0xfff0;
    setp.ne.u32 %p3, %tid, 12;
    @!%p3 ld.shared.b32 %r1, [%r0];
    """
    run(body.format(later=""))
    fails(Race, "written by thread 0", body.format(later="@!%p0 st.shared.b32 [%r0], %tid;"), at="@!%p3 ld")


def test_what_a_thread_wrote_before_it_ended_is_not_ordered():
    """It counts as arrived at the barrier, but its accesses are not made visible by it."""
    body = """
    mov.u32 %r0, memory;
    setp.lt.u32 %p0, %tid, 32;
    @%p0 bra MEET;
    st.shared.b32 [%r0], %tid;
    ret;
    MEET:
    bar.sync 0;
    ld.shared.b32 %r1, [%r0];
    """.replace("st.shared.b32 [%r0], %tid;", "{st}")
    store = "setp.eq.u32 %p1, %tid, 32;\n@%p1 st.shared.b32 [%r0], %tid;"
    fails(Race, "written by thread 32", body.format(st=store), at="ld.shared", block=64)


def test_warps_that_meet_after_others_have_ended_are_ordered():
    body = "setp.ge.u32 %p0, %tid, 64;\n@%p0 ret;\n"
    for seed in (None, 0, 1):
        run(body + neighbour("bar.sync 0;", 128).replace("{again}", ""), block=128, seed=seed)
    fails(Race, "written by", body + neighbour("", 128), at="ld.shared", block=128)


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


def test_buffers_that_begin_anywhere():
    """A view whose first byte is not aligned as its accesses are: places are told by their addresses."""
    body = """
        mul.wide.u32 %d2, %tid, 16;
        add.u64 %d2, %d2, %d0;
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d2+8];
        st.global.v4.b32 [%d2+8], {%r1, %r2, %r3, %r4};
        {more}
    """
    array = np.zeros(34 * 4, np.uint32)[2:132]
    run(body.replace("{more}", ""), array)
    wrong = body.replace("{more}", "st.global.b32 [%d2+4], %r1;")
    with pytest.raises(Race, match="by thread") as caught:
        run(wrong, array)
    assert caught.value.address.startswith("byte 20 of argument 0")


def test_readers_of_unlike_places_are_all_remembered():
    """Reads are written down late, in parts and in order: no part may hide another."""
    body = """
        mov.u32 %r0, memory;
        shl.b32 %r1, %tid, 2;
        add.u32 %r2, %r0, %r1;
        st.shared.b32 [%r2], %tid;
        st.shared.b32 [%r2+256], %tid;
        bar.sync 0;
        ld.shared.b32 %r3, [%r2];
        xor.b32 %r4, %r1, 128;
        add.u32 %r4, %r4, %r0;
        ld.shared.b32 %r3, [%r4];
        st.shared.b32 [%r2+256], %tid;
        setp.lt.u32 %p0, %tid, 32;
        @%p0 bra END;
        {write}
        END:
    """
    run(body.replace("{write}", "st.shared.b32 [%r2+256], %tid;"), block=64)
    fails(
        Race, "; read by", body.replace("{write}", "st.shared.b32 [%r4], %tid;"), at="[%r4], %tid", block=64
    )
