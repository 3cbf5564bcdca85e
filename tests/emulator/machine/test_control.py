"""Control flow: divergence and reconvergence, predicated instructions, loops, what warps do together."""

import numpy as np
import pytest

from emulator.errors import Divergence
from tests.emulator.written import apply, launch, load, store

LANES = np.arange(32)


def run(body: str, threads: int = 32, out: int = 1, **more) -> np.ndarray:
    """Run a kernel that leaves something in %r9; out: words that it stores at most."""
    result = np.zeros(threads * out, np.uint32)
    launch(body + store("%r9") + "ret;", result, threads=threads, **more)
    return result


SEEDS = [None, 0, 1, 2, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_part_and_meet(seed):
    """Each lane takes its own number of turns in a loop with two ways through it."""
    body = """
    mov.u32 %r1, %tid.x; mov.b32 %r9, 0; mov.b32 %r2, 0;
    LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;
    and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
    add.s32 %r9, %r9, 100; bra NEXT;
    EVEN: add.s32 %r9, %r9, 1;
    NEXT: add.s32 %r2, %r2, 1; bra LOOP;
    DONE: activemask.b32 %r4; setp.eq.s32 %p3, %r4, -1; @%p3 bra END;
    mov.b32 %r9, -1;
    END:
    """
    n = np.arange(96)
    np.testing.assert_array_equal(run(body, 96, seed=seed), (n + 1) // 2 + 100 * (n // 2))


def test_predicated_instructions():
    """They keep what was there where the predicate does not hold, moves and constants too."""
    body = """
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 10;
    mov.b32 %r9, 7; @%p1 mov.b32 %r9, %r1; @!%p1 add.s32 %r9, %r9, 1;
    """
    np.testing.assert_array_equal(run(body), np.where(LANES < 10, LANES, 8))


def test_predicated_memory_instructions():
    """Those threads that do not execute a load may hold any address."""
    data, out = np.arange(100, 132, dtype=np.uint32), np.zeros(32, np.uint32)
    body = """
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; setp.lt.u32 %p2, %r1, 5; mov.b32 %r9, 3;
    ld.param.u64 %rd1, [a1]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
    @!%p2 mov.b64 %rd1, 1;
    @%p2 ld.global.b32 %r9, [%rd1];
    """
    launch(body + store("%r9") + "ret;", out, data)
    np.testing.assert_array_equal(out, np.where(LANES < 5, data, 3))


def test_predicated_return():
    body = "mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 20; @%p1 ret; mov.b32 %r9, 5;"
    np.testing.assert_array_equal(run(body), np.where(LANES > 20, 0, 5))


def test_a_kernel_may_end_without_a_return():
    launch("mov.b32 %r1, 1;")
    launch("")


def test_two_registers_that_were_one():
    """A copy is a copy, though moves cost nothing: partial writes to one leave the other alone."""
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %r1; setp.lt.u32 %p1, %r1, 8; @%p1 bra SOME; bra ALL;
    SOME: add.s32 %r2, %r2, 50;
    ALL: mov.u32 %r4, %laneid; mov.u32 %r9, %r1; @%p1 bra FEW; bra END;
    FEW: add.s32 %r9, %r9, %r2;
    END: add.s32 %r9, %r9, %r1;
    """
    np.testing.assert_array_equal(run(body), np.where(LANES < 8, 3 * LANES + 50, 2 * LANES))
    np.testing.assert_array_equal(run("mov.u32 %r9, %laneid;"), LANES)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("%tid.x", lambda t: t % 4),
        ("%tid.y", lambda t: t // 4 % 8),
        ("%tid.z", lambda t: t // 32 % 2),
        ("%ntid.y", lambda t: 8 + 0 * t),
        ("%laneid", lambda t: t % 32),
        ("%warpid", lambda t: t % 64 // 32),
        ("%ctaid.x", lambda t: t // 64 % 4),
        ("%ctaid.y", lambda t: t // 256 % 2),
        ("%nctaid.x", lambda t: 4 + 0 * t),
        ("%clusterid.x", lambda t: t // 64 % 4 // 2),
        ("%nclusterid.x", lambda t: 2 + 0 * t),
        ("%cluster_ctaid.x", lambda t: t // 64 % 2),
        ("%cluster_ctarank", lambda t: t // 64 % 2),
        ("%cluster_nctarank", lambda t: 2 + 0 * t),
        ("%lanemask_lt", lambda t: (1 << t % 32) - 1),
        ("%lanemask_ge", lambda t: 0xFFFFFFFF & ~((1 << t % 32) - 1)),
        ("%dynamic_smem_size", lambda t: 48 + 0 * t),
    ],
)
@pytest.mark.parametrize("resident", [1, 4])
def test_special_registers(name, want, resident):
    """Grid 4 x 2 in clusters of 2, blocks of 4 x 8 x 2, in one wave and in several."""
    out = np.zeros(512, np.uint32)
    body = f"""
    mov.u32 %r9, {name};
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ctaid.y;
    mad.lo.s32 %r5, %r5, 4, %r4; mad.lo.s32 %r3, %r5, 2, %r3; mad.lo.s32 %r2, %r3, 8, %r2;
    mad.lo.s32 %r1, %r2, 4, %r1; ld.param.u64 %rd1, [a0]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r9; ret;
    """
    where = {"grid": (4, 2), "cluster": 2, "block": (4, 8, 2), "shared_bytes": 48, "resident": resident}
    launch(body, out, **where)
    np.testing.assert_array_equal(out, want(np.arange(512)))


# ---- lanes together ----------------------------------------------------------------------------------


def shuffle(how: str, b: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """shfl as PTX's own pseudo-code has it, with values 100 + lane."""
    values, inside = [], []
    for lane in range(32):
        bound, segment = c & 31, c >> 8 & 31
        top, low = (lane & segment) | (bound & ~segment & 31), lane & segment
        source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | (b & ~segment & 31)}[how]
        fits = source >= top if how == "up" else source <= top
        values.append(100 + (source if fits else lane))
        inside.append(fits)
    return np.array(values), np.array(inside)


@pytest.mark.parametrize("how", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles(how, width):
    for b in (0, 1, 3, 8, 31):
        c = (0 if how == "up" else 31) | (32 - width) << 8
        values, inside = shuffle(how, b, c)
        got = apply(
            f"shfl.sync.{how}.b32", np.uint32, (100 + LANES).astype(np.uint32), extra=f", {b}, {c}, -1"
        )
        np.testing.assert_array_equal(got, values)
        body = (
            f"mov.u32 %r1, %laneid; shfl.sync.{how}.b32 %r2|%p1, %r1, {b}, {c}, -1; selp.b32 %r9, 1, 0, %p1;"
        )
        np.testing.assert_array_equal(run(body, 64), np.tile(inside, 2))


def test_a_shuffle_in_a_branch_honours_its_member_mask():
    body = """
    mov.u32 %r1, %laneid; mov.b32 %r9, 0; setp.lt.u32 %p1, %r1, 8; @!%p1 bra END;
    shfl.sync.idx.b32 %r9, %r1, 5, 31, 255;
    END:
    """
    np.testing.assert_array_equal(run(body), np.where(LANES < 8, 5, 0))
    with pytest.raises(Divergence, match="member mask 0xffffffff: lanes"):
        run(body.replace(", 255;", ", -1;"))
    with pytest.raises(Divergence, match="not in its member mask"):
        run(body.replace(", 255;", ", 127;"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shuffle_waits_for_lanes_that_are_behind(seed):
    """Lane 0 comes by way of a loop whose blocks lie behind the shuffle."""
    body = """
    mov.u32 %r1, %laneid; mov.b32 %r5, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra LATE;
    MEET: shfl.sync.idx.b32 %r9, %r5, 0, 31, -1; bra END;
    LATE: add.s32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 9; @%p2 bra LATE;
    bra MEET;
    END:
    """
    np.testing.assert_array_equal(run(body, seed=seed), [9] * 32)


def test_votes():
    odd = LANES % 2 == 1
    assert (apply("vote.sync.ballot.b32", np.uint32, odd, extra=", -1") == 0xAAAAAAAA).all()
    for values in (odd, odd | True, odd & False):
        for how, want in (("all", values.all()), ("any", values.any()), ("uni", len(set(values)) == 1)):
            assert (apply(f"vote.sync.{how}.pred", bool, values, extra=", -1") == want).all(), how


def test_election():
    body = "elect.sync %r2|%p1, -1; selp.b32 %r9, 1, 0, %p1; add.s32 %r9, %r9, %r2;"
    np.testing.assert_array_equal(run(body), LANES == 0)


def test_reductions_over_lanes():
    rng = np.random.default_rng(3)
    values = rng.integers(-1000, 1000, 64, dtype=np.int32)
    warps = values.reshape(2, 32)
    for how, want in (("add", warps.sum(1)), ("min", warps.min(1)), ("max", warps.max(1))):
        got = apply(f"redux.sync.{how}.s32", np.int32, values, extra=", -1")
        np.testing.assert_array_equal(got, np.repeat(want, 32))
    bits = values.view(np.uint32)
    for how, ufunc in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        got = apply(f"redux.sync.{how}.b32", np.uint32, bits, extra=", -1")
        np.testing.assert_array_equal(got, np.repeat(ufunc.reduce(bits.reshape(2, 32), axis=1), 32))


def test_matches():
    values = np.array([i % 3 for i in range(32)], np.uint32)
    want = [sum(1 << j for j in range(32) if values[j] == values[i]) for i in range(32)]
    np.testing.assert_array_equal(apply("match.any.sync.b32", np.uint32, values, extra=", -1"), want)
    assert (apply("match.all.sync.b32", np.uint32, values, extra=", -1") == 0).all()
    assert (apply("match.all.sync.b32", np.uint32, 0 * values, extra=", -1") == 0xFFFFFFFF).all()


def test_the_active_lanes():
    body = """
    mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 3; @%p1 bra FEW; bra MANY;
    FEW: activemask.b32 %r9; bra END;
    MANY: activemask.b32 %r9;
    END:
    """
    np.testing.assert_array_equal(run(body), np.where(LANES < 3, 7, 0xFFFFFFF8))


def test_matrix_instructions_need_the_whole_warp():
    body = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 8; @%p1 bra END;"
    body += "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r1; END:"
    with pytest.raises(Divergence, match="24 of 32 lanes"):
        run(body)


def test_matrix_rows_from_shared_memory():
    """ldmatrix of 4 matrices; each 16-bit element of shared memory holds its own index."""
    body = """
    .shared .align 16 .b8 tile[512];
    mov.u32 %r1, %laneid; mov.b32 %r2, tile; mad.lo.s32 %r3, %r1, 16, %r2; mov.b32 %r4, 0;
    shl.b32 %r5, %r1, 3;
    FILL: mad.lo.s32 %r6, %r4, 2, %r3; add.s32 %r7, %r5, %r4; cvt.u16.u32 %rs1, %r7;
    st.shared.b16 [%r6], %rs1;
    add.s32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 8; @%p1 bra FILL;
    bar.warp.sync -1;
    """
    lane = LANES
    for trans in (False, True):
        code = (
            f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r3];"
        )
        for matrix in range(4):
            got = run(f"{body}{code} mov.b32 %r9, %r{10 + matrix};")
            row, column = lane // 4, lane % 4 * 2
            low = 64 * matrix + (8 * column + row if trans else 8 * row + column)
            high = low + (8 if trans else 1)
            np.testing.assert_array_equal(got, low | high << 16)


def test_values_that_were_loaded_stay():
    """What a block loads outlives a later store to the same place."""
    data = np.arange(32, dtype=np.uint32)
    body = load("%r1", 0) + "st.global.b32 [%rd30], 99;" + "add.s32 %r9, %r1, 1;" + store("%r9", 0) + "ret;"
    launch(body, data)
    np.testing.assert_array_equal(data, LANES + 1)
