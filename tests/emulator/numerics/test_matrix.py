"""Warp-wide matrix instructions: layouts from the PTX ISA's formulas, sums from exact integers."""

from fractions import Fraction

import numpy as np
import pytest

from emulator.numerics import matrix, summation
from tests.emulator.numerics.exact import NAN, exponent_of, rounded, same_bits, value

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHAPES = pytest.mark.parametrize("depth", [16, 8])


def place_a(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of BF16 element i of a lane of A: PTX ISA, both shapes."""
    group, thread = lane >> 2, lane % 4
    return group + 8 * (i // 2 % 2), 2 * thread + i % 2 + 8 * (i // 4)


def place_b(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of BF16 element i of a lane of B."""
    return 2 * (lane % 4) + i % 2 + 8 * (i // 2), lane >> 2


def place_c(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of FP32 element i of a lane of C and D."""
    return (lane >> 2) + 8 * (i // 2), 2 * (lane % 4) + i % 2


def registers(numbers: np.ndarray, place, count: int) -> list[np.ndarray]:
    """Registers of BF16 pairs of matrices [warps, rows, columns] of BF16 bits."""
    words = np.zeros((count, len(numbers), 32), np.uint32)
    for lane in range(32):
        for i in range(2 * count):
            words[i // 2, :, lane] |= numbers[(slice(None), *place(lane, i))].astype(np.uint32) << 16 * (
                i % 2
            )
    return [word.ravel() for word in words]


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """FP32 bits [warps, 16, 8] of mma on BF16 bits a, b and FP32 bits c."""
    depth = a.shape[2]
    start = np.zeros((4, len(c), 32), np.uint32)
    for lane in range(32):
        for i in range(4):
            start[i, :, lane] = c[(slice(None), *place_c(lane, i))]
    got = matrix.mma(
        registers(a, place_a, depth // 4),
        registers(b, place_b, depth // 8),
        [register.view(np.float32).ravel() for register in start],
    )
    d = np.zeros((len(c), 16, 8), np.uint32)
    for lane in range(32):
        for i in range(4):
            d[(slice(None), *place_c(lane, i))] = got[i].view(np.uint32).reshape(-1, 32)[:, lane]
    return d


def bf16(numbers: np.ndarray) -> np.ndarray:
    """BF16 bits of numbers that fit."""
    return (np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@SHAPES
def test_one_hot(depth):
    """Each element of A alone, times B, is that row of B in that row of D; and c is added in its place."""
    rng = np.random.default_rng(0)
    warps = 16 * depth
    rows, columns = np.divmod(np.arange(warps), depth)
    a, b = np.zeros((warps, 16, depth)), rng.integers(-128, 129, (warps, depth, 8))
    a[np.arange(warps), rows, columns] = 3
    c = rng.integers(-1000, 1000, (warps, 16, 8)).astype(np.float32)
    expected = c.copy()
    expected[np.arange(warps), rows] += 3 * b[np.arange(warps), columns]
    same_bits(multiply(bf16(a), bf16(b), c.view(np.uint32)), expected.view(np.uint32))


def exponent_field(bits: int) -> int:
    """The exponent as tensor cores read it: of subnormals that of the smallest normal number."""
    return max(bits >> 23 & 0xFF, 1) - 127


def exact_sum(a: list[int], b: list[int], c: int) -> int:
    """The documented sum of one element, FP32 bits in and out, all finite, in exact arithmetic."""
    terms = [(value(x) * value(y), exponent_field(x) + exponent_field(y)) for x, y in zip(a, b, strict=True)]
    terms = [(term, e) for term, e in [*terms, (value(c), exponent_field(c))] if term]
    if not terms:
        return 0
    unit = Fraction(2) ** (max(e for _, e in terms) - summation.KEPT)
    total = sum(int(abs(term) / unit) * (1 if term > 0 else -1) for term, _ in terms) * unit
    if not total:
        return 0
    return (0x80000000 if total < 0 else 0) | 0x7F800000 if abs(total) >= 2**128 else rounded(total, "rz")


KINDS = {
    # exponents of a and b, of c; share of zeros
    "near one": ((-2, 3), (-2, 3), 0.0),
    "far apart": ((-20, 20), (-40, 40), 0.2),
    "tiny": ((-80, -55), (-149, -110), 0.2),
    "huge": ((50, 66), (110, 128), 0.2),
    "subnormal": ((-130, -120), (-149, -120), 0.3),
    "large c": ((-10, 3), (8, 20), 0.0),
}


@SHAPES
@pytest.mark.parametrize("kind", KINDS)
def test_sums(kind, depth):
    """The documented sum in exact arithmetic: cut off below the largest exponent, then rounded to FP32."""
    (low, high), (c_low, c_high), zeros = KINDS[kind]
    rng = np.random.default_rng(1)

    def numbers(shape, low, high):
        x = rng.uniform(1, 2, shape) * np.exp2(rng.integers(low, high, shape)) * rng.choice([-1, 1], shape)
        return np.where(rng.random(shape) < zeros, 0, x).astype(np.float32)

    a, b = bf16(numbers((3, 16, depth), low, high)), bf16(numbers((3, depth, 8), low, high))
    c = numbers((3, 16, 8), c_low, c_high).view(np.uint32)
    wide_a, wide_b = (x.astype(np.uint32) << 16 for x in (a, b))
    expected = [
        exact_sum(wide_a[w, m].tolist(), wide_b[w, :, n].tolist(), int(c[w, m, n]))
        for w in range(3)
        for m in range(16)
        for n in range(8)
    ]
    same_bits(multiply(a, b, c), expected)


@SHAPES
def test_cancelling_sums(depth):
    """Products that cancel all but the cut-off parts of the others."""
    rng = np.random.default_rng(2)
    a = bf16(rng.uniform(1, 2, (2, 16, depth)) * np.exp2(rng.integers(-14, 0, (2, 16, depth))))
    b = bf16(rng.uniform(1, 2, (2, depth, 8)))
    a[:, :, 1], b[:, 1] = a[:, :, 0] ^ 0x8000, b[:, 0]
    a[:, :, :2] = a[:, :, :2] & 0x807F | 0x3F80
    c = np.zeros((2, 16, 8), np.uint32)
    got = multiply(a, b, c)
    wide_a, wide_b = (x.astype(np.uint32) << 16 for x in (a, b))
    for w, m, n in np.ndindex(got.shape):
        assert got[w, m, n] == exact_sum(wide_a[w, m].tolist(), wide_b[w, :, n].tolist(), 0)
    naive = np.matmul(*(x.view(np.float32).astype(np.float64) for x in (wide_a, wide_b))).astype(np.float32)
    assert (got != naive.view(np.uint32)).mean() > 0.3


@SHAPES
def test_what_is_not_finite_stays_in_its_row_and_column(depth):
    """Infinity and NaN reach the sums that they are operands of, as in IEEE 754, and change no other bit."""
    rng = np.random.default_rng(3)
    a = np.repeat(bf16(rng.standard_normal((1, 16, depth))), 6, axis=0)
    b = np.repeat(bf16(rng.standard_normal((1, depth, 8))), 6, axis=0)
    c = np.repeat(rng.standard_normal((1, 16, 8)).astype(np.float32).view(np.uint32), 6, axis=0)
    b[4, 2, 6] = 0
    plain = multiply(a, b, c)
    a[1, 3, 2] = 0x7F80  # infinity times numbers of either sign
    b[2, 4, 5] = 0x7FC1
    c[3, 7, 1] = 0xFF800000
    a[4, 3, 2] = 0xFF80  # infinity times numbers of either sign, and times zero
    a[5, 3, 2], c[5, 3] = 0x7F80, 0xFF800000  # infinities that may cancel
    got = multiply(a, b, c)
    expected = plain.copy()
    sign = (b[0, 2] >> 15).astype(bool)
    expected[1, 3] = np.where(sign, 0xFF800000, 0x7F800000)
    expected[2, :, 5] = NAN
    expected[3, 7, 1] = 0xFF800000
    expected[4, 3] = np.where(sign, 0x7F800000, 0xFF800000)
    expected[4, 3, 6] = NAN
    expected[5, 3] = np.where(sign, 0xFF800000, NAN)
    same_bits(got, expected)


def test_many_warps():
    """More warps than are summed at once give what each gives alone, extreme ones among them."""
    rng = np.random.default_rng(4)
    a, b = bf16(rng.standard_normal((600, 16, 16))), bf16(rng.standard_normal((600, 16, 8)))
    c = rng.standard_normal((600, 16, 8)).astype(np.float32)
    a[300] = bf16(np.full((16, 16), 1e30))
    c[17] = np.inf
    got = multiply(a, b, c.view(np.uint32))
    for w in (0, 17, 255, 256, 300, 511, 512, 599):
        same_bits(got[w], multiply(a[w : w + 1], b[w : w + 1], c[w : w + 1].view(np.uint32)))


def test_operands_are_found_again_by_identity_alone():
    """The same numbers in other arrays, and other numbers in arrays that live where old ones did."""
    c = np.zeros((1, 16, 8), np.uint32)
    b = np.broadcast_to(bf16(np.eye(8))[None].repeat(2, axis=1), (1, 16, 8))
    for seed in range(40):
        a = bf16(np.random.default_rng(seed).integers(-8, 9, (1, 16, 16)))
        numbers = (a.astype(np.uint32) << 16).view(np.float32)
        same_bits(
            multiply(a, b, c), (numbers @ (b.astype(np.uint32) << 16).view(np.float32) + 0.0).view(np.uint32)
        )


def test_movmatrix():
    """Lane 4 g + t gets column g, rows 2t and 2t + 1, of the matrix of which it gave row g."""
    matrices = np.arange(5 * 64, dtype=np.uint16).reshape(5, 8, 8)
    words = matrices.reshape(5, 32, 2).astype(np.uint32)
    got = matrix.movmatrix((words[..., 0] | words[..., 1] << 16).ravel()).reshape(5, 32)
    for warp in range(5):
        for lane in range(32):
            g, t = divmod(lane, 4)
            low, high = matrices[warp, 2 * t, g], matrices[warp, 2 * t + 1, g]
            assert got[warp, lane] == int(low) | int(high) << 16


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, transposed):
    """Register m of lane 4 g + t has row g (column g if transposed) of matrix m, elements 2t and 2t + 1."""
    rows = np.arange(3 * 8 * count * 8, dtype=np.uint16).reshape(3, 8 * count, 8)
    got = matrix.ldmatrix(rows.view(np.uint8).reshape(3, 8 * count, 16), transposed=transposed)
    assert len(got) == count
    for m, warp, lane in np.ndindex(count, 3, 32):
        g, t = divmod(lane, 4)
        held = rows[warp, 8 * m : 8 * m + 8]
        held = held.T if transposed else held
        assert got[m].reshape(3, 32)[warp, lane] == int(held[g, 2 * t]) | int(held[g, 2 * t + 1]) << 16


def test_the_exponents_of_products_are_not_normalised():
    """1.5 * 1.5 counts as 2**0: what 2.25's own exponent would cut off is kept."""
    a, b = np.zeros((1, 16, 16)), np.zeros((1, 16, 8))
    a[0, 0, :3], b[0, :3, 0] = (1.5, -1.5, 2.0**-13), (1.5, 1.5, 2.0**-12)
    assert exponent_of(Fraction(9, 4)) == 1
    got = multiply(bf16(a), bf16(b), np.zeros((1, 16, 8), np.uint32)).view(np.float32)
    assert got[0, 0, 0] == 2.0**-25
