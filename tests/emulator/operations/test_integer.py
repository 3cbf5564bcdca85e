"""Integer arithmetic, logic, shifts, bit fields, comparisons and conversions against Python's own numbers."""

import itertools

import numpy as np
import pytest

from tests.emulator.written import apply

EDGES = {
    16: [0, 1, 2, 3, 7, 100, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 12345],
    32: [0, 1, 2, 7, 31, 32, 33, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF],
    64: [
        0,
        1,
        3,
        0xFFFFFFFF,
        1 << 32,
        (1 << 63) - 1,
        1 << 63,
        (1 << 63) + 1,
        (1 << 64) - 1,
        0x123456789ABCDEF0,
    ],
}


def pairs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of edge values of a type."""
    width = int(kind[1:])
    a, b = zip(*itertools.product(EDGES[width], repeat=2), strict=True)
    dtype = np.dtype(f"{kind[0].replace('s', 'i')}{width // 8}")
    return tuple(np.array(x, f"u{width // 8}").view(dtype) for x in (a, b))


def wrap(values, dtype) -> np.ndarray:
    """Python integers cut to a type."""
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([v & (1 << bits) - 1 for v in values], f"u{bits // 8}").view(dtype)


def python(a: np.ndarray) -> list[int]:
    """Python integers."""
    return [int(x) for x in a]


def toward_zero(x: int, y: int) -> int:
    """The quotient, rounded toward zero."""
    return abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)


INTEGERS = ["u16", "s16", "u32", "s32", "u64", "s64"]
BINARY = {
    "add": lambda x, y, w: x + y,
    "sub": lambda x, y, w: x - y,
    "mul.lo": lambda x, y, w: x * y,
    "mul.hi": lambda x, y, w: (x * y) >> w,
    "min": lambda x, y, w: min(x, y),
    "max": lambda x, y, w: max(x, y),
    "div": lambda x, y, w: toward_zero(x, y),
    "rem": lambda x, y, w: x - y * toward_zero(x, y),
}


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, kind):
    a, b = pairs(kind)
    if name in ("div", "rem"):
        a, b = a[b != 0], b[b != 0]
    width = int(kind[1:])
    want = wrap([BINARY[name](x, y, width) for x, y in zip(python(a), python(b), strict=True)], a.dtype)
    np.testing.assert_array_equal(apply(f"{name}.{kind}", a.dtype, a, b), want)


def test_a_division_by_zero_sets_all_bits():
    a = np.arange(4, dtype=np.int32)
    np.testing.assert_array_equal(apply("div.s32", np.int32, a, 0 * a), [-1] * 4)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_the_whole_product(kind):
    a, b = pairs(kind)
    wide = np.dtype(f"{a.dtype.kind}{2 * a.itemsize}")
    want = wrap([x * y for x, y in zip(python(a), python(b), strict=True)], wide)
    np.testing.assert_array_equal(apply(f"mul.wide.{kind}", wide, a, b), want)
    c = np.arange(len(a)).astype(wide) * 77
    np.testing.assert_array_equal(apply(f"mad.wide.{kind}", wide, a, b, c), want + c)


@pytest.mark.parametrize("kind", ["u32", "s32", "s64"])
def test_multiply_and_add(kind):
    a, b = pairs(kind)
    c, width = a[::-1].copy(), int(kind[1:])
    triples = list(zip(python(a), python(b), python(c), strict=True))
    want = wrap([x * y + z for x, y, z in triples], a.dtype)
    np.testing.assert_array_equal(apply(f"mad.lo.{kind}", a.dtype, a, b, c), want)
    want = wrap([(x * y >> width) + z for x, y, z in triples], a.dtype)
    np.testing.assert_array_equal(apply(f"mad.hi.{kind}", a.dtype, a, b, c), want)


def test_clamped_addition():
    a, b = pairs("s32")
    want = [max(-(1 << 31), min((1 << 31) - 1, x + y)) for x, y in zip(python(a), python(b), strict=True)]
    np.testing.assert_array_equal(apply("add.sat.s32", np.int32, a, b), want)


def test_relu():
    a, b = pairs("s32")
    np.testing.assert_array_equal(apply("min.relu.s32", np.int32, a, b), np.maximum(np.minimum(a, b), 0))


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_signs(kind):
    a, _ = pairs(kind)
    np.testing.assert_array_equal(apply(f"neg.{kind}", a.dtype, a), wrap([-x for x in python(a)], a.dtype))
    np.testing.assert_array_equal(
        apply(f"abs.{kind}", a.dtype, a), wrap([abs(x) for x in python(a)], a.dtype)
    )


def test_sum_of_absolute_difference():
    a, b = pairs("s32")
    want = wrap([abs(x - y) + x for x, y in zip(python(a), python(b), strict=True)], np.int32)
    np.testing.assert_array_equal(apply("sad.s32", np.int32, a, b, a), want)


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("constant", [False, True])
def test_shifts(width, constant):
    """Amounts past the width act as the width: 0, or the sign."""
    for amount in (0, 1, 15, 16, 31, 32, 33, 63, 64, 200, 0xFFFFFFFF):
        a, _ = pairs(f"s{width}")
        by = np.full(len(a), amount, np.uint32)
        given, extra = ((a,), f", {amount}") if constant else ((a, by), "")
        n = min(amount, width)
        left = wrap([x << n for x in python(a)], a.dtype)
        np.testing.assert_array_equal(apply(f"shl.b{width}", a.dtype, *given, extra=extra), left)
        right = wrap([x >> n for x in python(a)], a.dtype)
        np.testing.assert_array_equal(apply(f"shr.s{width}", a.dtype, *given, extra=extra), right)
        u = a.view(f"u{width // 8}")
        given = (u,) if constant else (u, by)
        logical = wrap([x >> n for x in python(u)], u.dtype)
        np.testing.assert_array_equal(apply(f"shr.u{width}", u.dtype, *given, extra=extra), logical)
        np.testing.assert_array_equal(apply(f"shr.b{width}", u.dtype, *given, extra=extra), logical)


def test_funnel_shifts():
    low, high = pairs("u32")
    for amount in (0, 1, 17, 31, 32, 40):
        both = [y << 32 | x for x, y in zip(python(low), python(high), strict=True)]
        for mode, n in (("clamp", min(amount, 32)), ("wrap", amount & 31)):
            extra = f", {amount}"
            want = wrap([x << n >> 32 for x in both], np.uint32)
            np.testing.assert_array_equal(apply(f"shf.l.{mode}.b32", np.uint32, low, high, extra=extra), want)
            want = wrap([x >> n for x in both], np.uint32)
            np.testing.assert_array_equal(apply(f"shf.r.{mode}.b32", np.uint32, low, high, extra=extra), want)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_logic(width):
    a, b = pairs(f"u{width}")
    for name, want in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        np.testing.assert_array_equal(apply(f"{name}.b{width}", a.dtype, a, b), want)
    np.testing.assert_array_equal(apply(f"not.b{width}", a.dtype, a), ~a)
    np.testing.assert_array_equal(apply(f"cnot.b{width}", a.dtype, a), a == 0)


def test_logic_of_predicates():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for name, want in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        np.testing.assert_array_equal(apply(f"{name}.pred", bool, a, b), want)
    np.testing.assert_array_equal(apply("not.pred", bool, a), ~a)


def test_any_function_of_three():
    a, b, c = np.uint32(0xF0F0F0F0), np.uint32(0xCCCCCCCC), np.uint32(0xAAAAAAAA)
    for table in (0x00, 0x96, 0xE8, 0x1B, 0xFF, 0x80):
        got = apply("lop3.b32", np.uint32, *(np.array([x]) for x in (a, b, c)), extra=f", {table}")
        assert got[0] == table * 0x01010101


def test_bit_fields():
    for kind in ("u32", "s32", "u64", "s64"):
        a, _ = pairs(kind)
        width = int(kind[1:])
        for position, length in itertools.product((0, 1, 8, 31, width - 1, 70), (0, 1, 5, 32, 64, 255)):
            got = apply(f"bfe.{kind}", a.dtype, a, extra=f", {position}, {length}")
            # Beyond the top an unsigned number goes on with zeros, a signed one with its sign.
            taken = [x >> position & (1 << length) - 1 for x in python(a)]
            if kind[0] == "s" and length:
                taken = [x - (1 << length) if x >> length - 1 else x for x in taken]
            np.testing.assert_array_equal(got, wrap(taken, a.dtype), f"{kind} {position} {length}")


def test_bit_fields_put_in():
    field, into = pairs("u32")
    for position, length in itertools.product((0, 3, 31, 32), (0, 1, 8, 32, 64)):
        mask = (1 << length) - 1 << position
        want = [
            (y & ~mask) | (x << position & mask) for x, y in zip(python(field), python(into), strict=True)
        ]
        got = apply("bfi.b32", np.uint32, field, into, extra=f", {position}, {length}")
        np.testing.assert_array_equal(got, wrap(want, np.uint32), f"{position} {length}")


@pytest.mark.parametrize("width", [32, 64])
def test_counting_bits(width):
    a, _ = pairs(f"u{width}")
    texts = [f"{x:0{width}b}" for x in python(a)]
    count = [text.count("1") for text in texts]
    np.testing.assert_array_equal(apply(f"popc.b{width}", np.uint32, a), count)
    zeros = [len(text) - len(text.lstrip("0")) for text in texts]
    np.testing.assert_array_equal(apply(f"clz.b{width}", np.uint32, a), zeros)
    highest = wrap([width - 1 - z if z < width else -1 for z in zeros], np.uint32)
    np.testing.assert_array_equal(apply(f"bfind.u{width}", np.uint32, a), highest)
    shift = wrap([z if z < width else -1 for z in zeros], np.uint32)
    np.testing.assert_array_equal(apply(f"bfind.shiftamt.u{width}", np.uint32, a), shift)
    reverse = [int(text[::-1], 2) for text in texts]
    np.testing.assert_array_equal(apply(f"brev.b{width}", a.dtype, a), wrap(reverse, a.dtype))


def test_highest_bit_of_signed_numbers():
    a = np.array([0, 1, -1, -2, 5, -6, 2**31 - 1, -(2**31)], np.int32)
    want = wrap([-1, 0, -1, 0, 2, 2, 30, 30], np.uint32)
    np.testing.assert_array_equal(apply("bfind.s32", np.uint32, a), want)


def test_bytes_in_any_order():
    a, b = np.array([0x83828180], np.uint32), np.array([0x07060504], np.uint32)
    for selector, want in (
        (0x3210, 0x83828180),
        (0x7654, 0x07060504),
        (0x0426, 0x80048206),
        (0x8C19, 0xFF0081FF),
    ):
        got = apply("prmt.b32", np.uint32, a, b, extra=f", {selector}")
        assert got[0] == want, f"{selector:#x} gives {got[0]:#x}"


COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("how", COMPARISONS)
def test_comparisons(how, kind):
    a, b = pairs(kind)
    want = COMPARISONS[how](a, b)
    np.testing.assert_array_equal(apply(f"setp.{how}.{kind}", bool, a, b), want)
    with_p = np.arange(len(a)) % 2 == 0
    np.testing.assert_array_equal(apply(f"setp.{how}.and.{kind}", bool, a, b, with_p), want & with_p)


def test_unsigned_comparisons_by_their_other_names():
    a, b = pairs("u32")
    for how, want in (("lo", a < b), ("ls", a <= b), ("hi", a > b), ("hs", a >= b)):
        np.testing.assert_array_equal(apply(f"setp.{how}.u32", bool, a, b), want)


def test_selection():
    a, b = pairs("u64")
    p = np.arange(len(a)) % 3 == 0
    np.testing.assert_array_equal(apply("selp.b64", np.uint64, a, b, p), np.where(p, a, b))
    x, y, s = (v.view(np.int32) for v in (*pairs("u32"), pairs("u32")[1]))
    np.testing.assert_array_equal(apply("slct.s32.s32", np.int32, x, y, s), np.where(s >= 0, x, y))


@pytest.mark.parametrize("source", ["u8", "s8", *INTEGERS])
@pytest.mark.parametrize("to", ["u8", "s8", *INTEGERS])
def test_conversions(to, source):
    width = max(16, int(source[1:]))
    a, _ = pairs(f"u{width}")
    held = np.dtype(f"{source[0].replace('s', 'i')}{int(source[1:]) // 8}")
    values = python(a.astype(held))
    target = np.dtype(f"{to[0].replace('s', 'i')}{max(16, int(to[1:])) // 8}")
    bits = int(to[1:])
    cut = [v & (1 << bits) - 1 for v in values]
    if to[0] == "s":
        cut = [v - (1 << bits) if v >> bits - 1 else v for v in cut]
    np.testing.assert_array_equal(apply(f"cvt.{to}.{source}", target, a), wrap(cut, target))
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    clamped = wrap([max(low, min(high, v)) for v in values], target)
    np.testing.assert_array_equal(apply(f"cvt.sat.{to}.{source}", target, a), clamped)
