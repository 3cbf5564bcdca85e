"""NumPy statements of the arithmetic that stages are built from.

Exact operations give the bits that the hardware must give; approximate instructions are compared with
float64 within the error that the PTX ISA documents.
"""

import numpy as np

TINY = np.float32(2.0**-126)
"""The smallest normal FP32 number."""


def f32_bits(x) -> np.ndarray:
    """The bits of FP32 values."""
    return np.asarray(x, dtype=np.float32).view(np.uint32)


def from_bits(bits) -> np.ndarray:
    """FP32 values with these bits."""
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


def flush(x) -> np.ndarray:
    """FP32 with subnormals replaced by zeros of their sign."""
    x = np.asarray(x, dtype=np.float32)
    return np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)


def _flushed(operation, *operands) -> np.ndarray:
    with np.errstate(all="ignore"):
        return flush(operation(*(flush(x) for x in operands)))


def add(a, b) -> np.ndarray:
    """`add.rn.ftz.f32`."""
    return _flushed(np.add, a, b)


def sub(a, b) -> np.ndarray:
    """`sub.rn.ftz.f32`."""
    return _flushed(np.subtract, a, b)


def mul(a, b) -> np.ndarray:
    """`mul.rn.ftz.f32`."""
    return _flushed(np.multiply, a, b)


def fma(a, b, c) -> np.ndarray:
    """`fma.rn.ftz.f32`: one rounding."""
    return _flushed(_fma, a, b, c)


def _fma(a, b, c):
    # The product is exact in float64. Rounding the sum to odd there keeps what a second rounding, to FP32,
    # needs to know (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
    product, addend = np.float64(a) * np.float64(b), np.broadcast_to(
        np.float64(c), np.broadcast(a, b, c).shape
    )
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64).copy()
    adjust = np.isfinite(total) & np.isfinite(error) & (error != 0) & (bits % 2 == 0)
    bits += np.where(adjust, np.where((error > 0) == (total > 0), 1, -1), 0)
    return bits.view(np.float64).astype(np.float32)


def maximum(a, b) -> np.ndarray:
    """`max.ftz.f32`: a NaN loses to a number, and +0 is larger than -0."""
    a, b = np.broadcast_arrays(flush(a), flush(b))
    zeros = (a == 0) & (b == 0)
    larger = np.where(zeros & np.signbit(a), b, np.where(zeros, a, np.fmax(a, b)))
    return np.where(np.isnan(a) & np.isnan(b), from_bits(0x7FFFFFFF), larger).astype(np.float32)


def power_of_two(x) -> np.ndarray:
    """`ex2.approx.ftz.f32` of whole numbers and -inf, where it is exact."""
    x = np.asarray(x, dtype=np.float32)
    assert np.all((x == np.floor(x)) | np.isneginf(x))
    # NumPy's own float32 exp2 is not exact on every SIMD level.
    return flush(np.exp2(x.astype(np.float64)).astype(np.float32))


def weighted_sum(factors, parts, order=None) -> np.ndarray:
    """The sum of factor * part over axis 0, one product and then fma after fma, in this order of indices."""
    order = range(len(parts)) if order is None else order
    total = None
    for i in order:
        total = mul(factors[i], parts[i]) if total is None else fma(factors[i], parts[i], total)
    return total


def merge(m, l, o, order=None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(M, L, O) of partials along axis 0, m whole numbers or -inf: m, l [n, rows], o [n, rows, dims]."""
    top = np.max(m, axis=0)
    base = np.where(np.isneginf(top), np.float32(0), top)
    factors = power_of_two(sub(m, base))
    return top, weighted_sum(factors, l, order), weighted_sum(factors[..., None], o, order)


def to_bf16(x) -> np.ndarray:
    """FP32 rounded to BF16, nearest even, as 16-bit integers; NaN becomes 0x7FFF."""
    bits = f32_bits(x).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(x, dtype=np.float32)), np.uint16(0x7FFF), rounded)


def from_bf16(bits) -> np.ndarray:
    """BF16 bits widened to FP32."""
    return from_bits(np.asarray(bits, dtype=np.uint32) << 16)


def pack(low, high) -> np.ndarray:
    """Two arrays of BF16 bits as pairs, `low` in bits 0:16."""
    return np.asarray(low, dtype=np.uint32) | (np.asarray(high, dtype=np.uint32) << 16)


def unpack(pairs) -> tuple[np.ndarray, np.ndarray]:
    """The BF16 bits of pairs: (low, high)."""
    return (pairs & 0xFFFF).astype(np.uint16), (pairs >> 16).astype(np.uint16)


def ulp_error(got, exact) -> np.ndarray:
    """How far FP32 values are from float64 ones, in units in the last place of the exact value."""
    got, exact = np.float64(got), np.float64(exact)
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126))) - 23)
    return np.abs(got - exact) / unit


def assert_rounded_bf16(got, exact, relative: float, absolute: float = 0.0) -> None:
    """BF16 bits are a rounding of some number within this error of the exact (float64) one.

    So a number away from a tie has one right answer, and one beside a tie has two.
    """
    got, exact = np.float64(from_bf16(got)), np.asarray(exact, dtype=np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(exact)), "NaN in the wrong place"
    slack = np.abs(exact) * relative + absolute
    slack = np.where(np.isfinite(exact), slack, 0)
    with np.errstate(all="ignore"):
        low = np.float64(from_bf16(to_bf16((exact - slack).astype(np.float32))))
        high = np.float64(from_bf16(to_bf16((exact + slack).astype(np.float32))))
    wrong = ~np.isnan(exact) & ((got < low) | (got > high))
    assert not wrong.any(), f"{wrong.sum()} wrong: got {got[wrong][:4]}, exact {exact[wrong][:4]}"


def assert_same_bits(got, expected) -> None:
    """Equal bits, except that any NaN equals any NaN."""
    got, expected = np.asarray(got, np.float32), np.asarray(expected, np.float32)
    assert got.shape == expected.shape
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan), f"NaN at {np.argwhere(np.isnan(got) != nan)[:4].tolist()}"
    wrong = (f32_bits(got) != f32_bits(expected)) & ~nan
    assert not wrong.any(), f"{np.argwhere(wrong)[:4].tolist()}: {got[wrong][:4]} not {expected[wrong][:4]}"
