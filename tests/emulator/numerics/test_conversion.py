"""Conversions against exact rational numbers and Python's own: every BF16 neighbour, ties, saturation."""

import struct
from fractions import Fraction

import numpy as np
import pytest

from emulator.numerics import conversion, pairs
from tests.emulator.numerics.exact import EDGES, NAN, flush, rounded, same_bits, value, whole

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROUNDINGS = ("rn", "rz", "rm", "rp")


def around_bf16() -> np.ndarray:
    """FP32 bits: each BF16 number, just below, at and just above the tie after it, just below the next."""
    tails = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (np.arange(65536, dtype=np.uint32)[:, None] << 16 | tails).ravel()


@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_bf16(mode):
    """To the nearest, ties to even, or toward zero; into infinity; subnormals kept; NaN is 0x7fff."""
    bits = around_bf16()
    got = conversion.to_bf16(bits.view(np.float32), rounding=mode)
    upper, tail = bits >> 16, bits & 0xFFFF
    up = (
        (tail > 0x8000) | ((tail == 0x8000) & (upper & 1 == 1)) if mode == "rn" else np.zeros_like(tail, bool)
    )
    expected = np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFF, upper + up)
    assert np.array_equal(got, expected)
    chosen = np.random.default_rng(0).choice(len(bits), 500)
    for word, result in zip(bits[chosen].tolist(), got[chosen].tolist(), strict=True):
        if exact := value(word):
            assert result << 16 == rounded(exact, mode, bits=8)


def test_bf16_relu():
    """What is negative becomes +0, -0 too; a NaN of either sign stays one."""
    x = np.array([0xBF800000, 0x80000000, 0xFF800000, 0xFFC00000, 0x7FC00000, 0x3F800000], np.uint32)
    assert conversion.to_bf16(x.view(np.float32), relu=True).tolist() == [0, 0, 0, 0x7FFF, 0x7FFF, 0x3F80]


@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_f16(mode):
    """As Python packs halves; past the largest to infinity, or the largest if toward zero; NaN is 0x7fff."""
    rng = np.random.default_rng(1)
    ties = np.arange(0x33000000, 0x47900000, 0x1000, dtype=np.uint32)
    bits = np.concatenate(
        [EDGES, rng.choice(ties, 2000), rng.choice(ties, 2000) + 1, rng.choice(ties, 1000) - 1]
    )
    got = conversion.to_f16(bits.view(np.float32), rounding=mode)
    for word, result in zip(bits.tolist(), got.tolist(), strict=True):
        number = float(np.uint32(word).view(np.float32))
        if number != number:
            assert result == 0x7FFF
            continue
        try:
            (nearest,) = struct.unpack("<H", struct.pack("<e", number))
        except OverflowError:
            nearest = 0x7C00 if number > 0 else 0xFC00
        if mode == "rz" and abs(struct.unpack("<e", struct.pack("<H", nearest))[0]) > abs(number):
            nearest -= 1
        assert result == nearest, number
    every = np.arange(65536, dtype=np.uint16)
    back = conversion.from_f16(every)
    assert np.array_equal(conversion.to_f16(back)[~np.isnan(back)], every[~np.isnan(back)])
    assert set(back[np.isnan(back)].view(np.uint32).tolist()) == {NAN}


def test_packing():
    """The first operand goes to the upper half."""
    x, y = np.float32([1.0]), np.float32([-2.0])
    assert conversion.pack_bf16(x, y).tolist() == [0x3F80C000]
    assert conversion.pack_f16(x, y).tolist() == [0x3C00C000]
    low, high = conversion.unpack(np.array([0x3F80C000], np.uint32))
    assert (low.tolist(), high.tolist()) == ([0xC000], [0x3F80])
    assert conversion.from_bf16(high).tolist() == [1.0]


def test_tf32():
    """10 bits of mantissa, ties away from zero; infinity stays, NaN loses its lower bits."""
    words = {0x3F801000: 0x3F802000, 0xBF801000: 0xBF802000, 0x3F800FFF: 0x3F800000, 0x7F800000: 0x7F800000}
    words |= {0x7F800001: 0x7F800000, 0x7FFFFFFF: 0x7FFFE000, 0x7F7FFFFF: 0x7F800000, 0x00001000: 0x00002000}
    got = conversion.to_tf32(np.array(list(words), np.uint32).view(np.float32))
    assert got.tolist() == list(words.values())


def floats_for_integers() -> np.ndarray:
    """FP32 bits: edges, halves around zero, the ends of the integer types, anything."""
    rng = np.random.default_rng(2)
    halves = np.arange(-9, 10, dtype=np.float32) * np.float32(0.25)
    ends = np.float32(
        [s * (2.0**b + d) for b in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, 0, 1) for s in (1, -1)]
    )
    near = np.concatenate([ends, np.nextafter(ends, np.float32(0)), halves]).view(np.uint32)
    sizes = (rng.standard_normal(500) * np.exp2(rng.integers(-3, 66, 500))).astype(np.float32).view(np.uint32)
    return np.concatenate([EDGES, near, sizes])


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("kind", conversion.LIMITS)
def test_to_integers(kind, mode, ftz):
    """Rounded in the direction, clamped to the type; NaN is 0."""
    low, high = conversion.LIMITS[kind]
    bits = floats_for_integers()
    got = conversion.to_integer(bits.view(np.float32), kind, f"{mode}i", ftz=ftz).tolist()
    packed = conversion.to_integer_bits(bits.view(np.float32), kind=kind, rounding=f"{mode}i", ftz=ftz)
    assert packed.dtype.itemsize == int(kind[1:]) // 8
    for word, result, in_bits in zip(bits.tolist(), got, packed.tolist(), strict=True):
        word = flush(word) if ftz else word
        exact = value(word)
        if exact is None:
            nan = (word & 0x7FFFFFFF) > 0x7F800000
            expected = 0 if nan else low if word >> 31 else high
        else:
            expected = min(max(whole(exact, mode), low), high)
        assert result == expected, hex(word)
        assert in_bits == expected % 2 ** int(kind[1:])


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_to_whole_floats(mode):
    """`cvt.rni.f32.f32` and its like: the integer as a float, with the sign of what it was."""
    bits = floats_for_integers()
    got = conversion.to_integral(bits.view(np.float32), f"{mode}i").view(np.uint32).tolist()
    for word, result in zip(bits.tolist(), got, strict=True):
        exact = value(word)
        if exact is None:
            assert result == (NAN if (word & 0x7FFFFFFF) > 0x7F800000 else word)
        else:
            number = whole(exact, mode)
            assert result == (rounded(Fraction(number)) if number else word & 0x80000000)


@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "s16", "u8"])
def test_from_integers(kind, mode):
    """Rounded once in any direction, where 64 bits do not fit float64 too."""
    low, high = conversion.LIMITS[kind]
    rng = np.random.default_rng(3)
    numbers = {
        low,
        high,
        0,
        1,
        2**24 + 1,
        2**25 + 2,
        2**25 + 6,
        high - 1,
        2**53 + 1,
        2**62 + 2**38,
        2**62 + 2**38 + 1,
    }
    numbers |= {
        int(x) >> int(s) for x, s in zip(rng.integers(0, 2**63, 300), rng.integers(0, 60, 300), strict=True)
    }
    numbers |= {-x for x in numbers}
    chosen = sorted(x for x in numbers if low <= x <= high)
    array = np.array(chosen, np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}"))
    same_bits(conversion.from_integer(array, mode), [rounded(Fraction(x), mode) if x else 0 for x in chosen])


def test_saturated_floats():
    """`cvt.sat.f32.f32`: clamped to [+0, 1], NaN to +0."""
    x = np.array([-1, -0.0, 0.5, 2, np.inf, np.nan, 1e-40], np.float32)
    same_bits(
        conversion.f32_to_f32(x, sat=True, ftz=True), np.float32([0, 0, 0.5, 1, 1, 0, 0]).view(np.uint32)
    )


def bf16_words(seed: int) -> np.ndarray:
    """Pairs of BF16: edges of all kinds, and numbers near one."""
    rng = np.random.default_rng(seed)
    edges = np.array([0, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81, 0x0100, 0x4380])
    halves = np.where(
        rng.random((2, 1500)) < 0.5, rng.choice(edges, (2, 1500)), rng.integers(0x3E00, 0x4100, (2, 1500))
    )
    halves = halves ^ (rng.integers(0, 2, (2, 1500)) << 15)
    return (halves[0] | halves[1] << 16).astype(np.uint32)


def test_a_pair_beside_a_tie():
    """1.0625**2 is a tie of BF16 numbers; an addend far below what FP32 could still hold decides it."""
    a = np.full(3, 0x3F883F88, np.uint32)
    c = np.array([0x21802180, 0x00000000, 0xA180A180], np.uint32)  # 2**-60, 0, -2**-60
    assert pairs.fma(a, a, c).tolist() == [0x3F913F91, 0x3F903F90, 0x3F903F90]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_pairs_are_rounded_once(name):
    """bf16x2 arithmetic: both halves rounded once from the exact result, subnormals kept, NaN 0x7fff."""
    count = 3 if name == "fma" else 2
    words = [bf16_words(seed) for seed in range(count)]
    got = getattr(pairs, name)(*words)
    for half in range(2):
        operands = [((w >> 16 * half & 0xFFFF) << 16).tolist() for w in words]
        for *xs, result in zip(*operands, (got >> 16 * half & 0xFFFF).tolist(), strict=True):
            values = [value(x) for x in xs]
            if None in values:
                a, b, *c = (np.float64(np.uint32(x).view(np.float32)) for x in xs)
                total = {"add": a + b, "sub": a - b}.get(name, a * b + (c[0] if c else 0))
                assert result == (0x7FFF if np.isnan(total) else 0x7F80 if total > 0 else 0xFF80)
                continue
            a, b, *c = values
            exact = {"add": a + b, "sub": a - b}.get(name, a * b + (c[0] if c else 0))
            if exact:
                assert result << 16 == rounded(exact, bits=8), [hex(x) for x in xs]
            else:
                assert result & 0x7FFF == 0
