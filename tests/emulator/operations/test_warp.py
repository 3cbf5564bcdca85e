"""What the lanes of a warp do together: shuffles, votes, elections, reductions, matrix instructions."""

import numpy as np
import pytest

from emulator.errors import (
    Divergence,
)
from tests.emulator.written import apply, run

LANES = np.arange(32)
SEEDS = [None, 0, 1, 2, 3]


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


HALVES = """
    mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 16; selp.b32 %r2, 0xffff, 0xffff0000, %p1;
"""
"""Each half warp names its own lanes."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("code", "low", "high"),
    [
        ("redux.sync.add.u32 %r9, %r1, {mask};", 0x78, 0x178),
        ("redux.sync.max.s32 %r9, %r1, {mask};", 15, 31),
        ("match.any.sync.b32 %r9, 7, {mask};", 0xFFFF, 0xFFFF0000),
        ("match.all.sync.b32 %r9, %r2, {mask};", 0xFFFF, 0xFFFF0000),
        ("setp.ge.u32 %p2, %r1, 8; vote.sync.ballot.b32 %r9, %p2, {mask};", 0xFF00, 0xFFFF0000),
        ("setp.ge.u32 %p2, %r1, 8; vote.sync.all.pred %p3, %p2, {mask}; selp.b32 %r9, 1, 0, %p3;", 0, 1),
        ("setp.lt.u32 %p2, %r1, 8; vote.sync.any.pred %p3, %p2, {mask}; selp.b32 %r9, 1, 0, %p3;", 1, 0),
        ("setp.lt.u32 %p2, %r1, 8; vote.sync.uni.pred %p3, %p2, {mask}; selp.b32 %r9, 1, 0, %p3;", 0, 1),
        ("elect.sync %r9|%p2, {mask};", 0, 16),
        ("shfl.sync.idx.b32 %r9, %r1, 3, 0x101f, {mask};", 3, 19),
    ],
)
def test_the_member_mask_decides(code, low, high, apart, seed):
    """Two halves of a warp, in one instruction or in two."""
    body = HALVES + code.format(mask="%r2")
    if apart:
        ways = code.format(mask="0xffff"), code.format(mask="0xffff0000")
        body = HALVES + f"@%p1 bra LOW; {ways[1]} bra END; LOW: {ways[0]} END:"
    want = np.where(LANES < 16, np.uint32(low), np.uint32(high))
    np.testing.assert_array_equal(run(body, 64, seed=seed), np.tile(want, 2))


def test_a_shuffle_does_not_reach_lanes_outside_its_member_mask():
    """What is read there is undefined: poison here."""
    got = run(HALVES + "shfl.sync.bfly.b32 %r9, %r1, 16, 31, %r2;")
    assert (got == 0xFFDEFFDE).all()


@pytest.mark.parametrize(
    "code",
    [
        "redux.sync.add.u32 %r9, %r1, %r2;",
        "match.any.sync.b32 %r9, %r1, %r2;",
        "vote.sync.ballot.b32 %r9, %p1, %r2;",
        "elect.sync %r9|%p2, %r2;",
        "shfl.sync.idx.b32 %r9, %r1, 0, 31, %r2;",
    ],
)
def test_lanes_that_name_different_masks(code):
    """Lanes 0 to 15 name all lanes, the others themselves alone."""
    with pytest.raises(Divergence, match=r"lanes .* of its member mask are not here with the same mask"):
        run(HALVES.replace("0xffff,", "0xffffffff,") + code)


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
