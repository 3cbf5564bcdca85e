"""The norm-gate epilogue against float64, row by row, where eps, the range of FP32 or the gate decide."""

import numpy as np
import pytest

from stages.epilogue.norm_gate import NormGateEpilogue
from tests.device import compile_kernel
from tests.finishing import Finishing, finish, random_rows
from tests.numerics import assert_rounded_bf16, from_bf16, to_bf16

EPILOGUE = NormGateEpilogue(64)

NORM_ERROR = 2.0**-20
"""The mean's 8 roundings (halved by the root), rsqrt's 2**-22.9, three products: below 2**-20 relative."""

FLUSHED = 2.0**-126 * 8
"""A sigmoid below 2**-126 is flushed; what it would multiply is at most sqrt(head_dim) = 8."""


def reference(y: np.ndarray, gate: np.ndarray, eps: float) -> np.ndarray:
    """y * rsqrt(mean(y**2) + eps) * sigmoid(gate) in float64; y and gate are numbers, not bits."""
    y, gate = np.float64(y), np.float64(gate)
    with np.errstate(all="ignore"):
        norm = 1 / np.sqrt(np.mean(y * y, axis=1, keepdims=True) + np.float64(np.float32(eps)))
        return y * norm * (1 / (1 + np.exp(-gate)))


def check(launch, l, o, y, gate, eps: float = 1e-5) -> np.ndarray:
    """The device's rows are the reference's; gate as numbers. Returns the rows.

    The exponent of the sigmoid is rounded once: relative to a gate of size x, x * 2**-23 in the result.
    """
    bits = to_bf16(np.float32(gate))
    got = finish(launch, EPILOGUE, l, o, bits, eps)
    gate = from_bf16(bits)
    size = np.where(np.isfinite(gate), np.abs(gate), 0).max()
    exact = reference(y, gate, eps)
    assert_rounded_bf16(got[: len(l)], exact, NORM_ERROR + size * 2.0**-23, FLUSHED)
    return got[: len(l)]


@pytest.mark.pin
def test_compiles(arch):
    """A fixed butterfly over 32 lanes, and one approximate instruction for each function."""
    ptx = compile_kernel(Finishing(EPILOGUE, 4), arch).ptx
    assert ptx.count("shfl.sync.bfly.b32") == 5
    assert ptx.count("rsqrt.approx.ftz.f32") == 1
    assert ptx.count("ex2.approx.ftz.f32") == 2
    assert ptx.count("rcp.approx.ftz.f32") == 3  # 1 / l, and two sigmoids


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-2])
@pytest.mark.parametrize("scale", [0.0, 1e-25, 1e-3, 1.0, 1e4, 0.25e19])
def test_scales(scale, eps, launch):
    """y near 1e-3 is where eps matters, near 1e19 where squares come close to the end of FP32; 0 gives 0.

    At 0.25e19 the largest of the values are 1e19. The norm hides any other scale: each row has its own.
    """
    rng = np.random.default_rng(0)
    l, o, y = random_rows(rng, 64, scale * np.exp2(-rng.integers(0, 3, (64, 1))))
    check(launch, l, o, y, rng.standard_normal((64, 64)), eps)


def test_largest_values(launch):
    """A row of values of 1e19 in all dims does not overflow: it is normalised to 1."""
    y = np.full((4, 64), from_bf16(to_bf16(np.float32(1e19))), np.float32)
    y[:, 1::2] *= -1
    got = check(launch, np.ones(4, np.float32), y, y, np.full((4, 64), np.inf))
    assert np.array_equal(np.abs(from_bf16(got)), np.ones((4, 64)))


@pytest.mark.parametrize("gate", [np.inf, -np.inf, 100.0, -100.0, 88.0, -88.0, -87.0, 20.0, -20.0, 0.0])
def test_gates(gate, launch):
    """The sigmoid at both ends: 1 from some 17 on, 0 at -inf and where it would be subnormal, no NaN."""
    rng = np.random.default_rng(1)
    l, o, y = random_rows(rng, 16)
    got = from_bf16(check(launch, l, o, y, np.full((16, 64), gate)))
    if gate <= -100:
        assert np.all(got == 0)
    if gate >= 20:
        # Bit for bit what no gate at all would give.
        assert np.array_equal(
            got, from_bf16(finish(launch, EPILOGUE, l, o, np.full((16, 64), 0x7F80, np.uint16)))
        )


def test_each_dim_has_its_own_gate(launch):
    """Gates from -inf to inf side by side: each multiplies its own row and dim."""
    rng = np.random.default_rng(2)
    l, o, y = random_rows(rng, 64)
    gate = rng.standard_normal((64, 64)) * 8
    gate[rng.random((64, 64)) < 0.1] = np.inf
    gate[rng.random((64, 64)) < 0.1] = -np.inf
    check(launch, l, o, y, gate)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_rows_without_a_key_are_zeros(eps, launch):
    """l = 0 gives +0 in every dim, whatever the gate holds, without an eps too; rows beside it do not."""
    rng = np.random.default_rng(3)
    l, o, y = random_rows(rng, 16)
    l[::2], o[::2] = 0, 0
    gate = rng.choice([0.0, 100.0, -100.0, np.inf, -np.inf, np.nan], (16, 64))
    gate[1::2] = 1.0
    got = finish(launch, EPILOGUE, l, o, to_bf16(gate), eps)
    assert np.all(got[::2] == 0)
    assert_rounded_bf16(got[1::2], reference(y, gate, eps)[1::2], NORM_ERROR + 2.0**-23)


def test_nan_stays_in_its_row(launch):
    """A NaN in one dim makes its row NaN (the norm takes all dims), a NaN gate its dim, and no other row."""
    rng = np.random.default_rng(4)
    l, o, y = random_rows(rng, 16)
    gate = rng.standard_normal((16, 64))
    o[5, 40], y[5, 40], gate[9, 3] = np.nan, np.nan, np.nan
    got = from_bf16(check(launch, l, o, y, gate))
    assert np.argwhere(np.isnan(got)).tolist() == [[5, d] for d in range(64)] + [[9, 3]]


def test_y_is_rounded_to_bf16_first(launch):
    """The norm is of bf16(o / l), not of o / l: one large dim on a tie, and 63 that its rounding moves.

    257 * 256 lies between two BF16 numbers and goes down to 65536; the other dims show the norm, which would
    be 0.4% smaller, a whole BF16 ulp, were the large dim not rounded.
    """
    y = np.full((4, 64), 1.0, np.float32)
    y[:, 10] = 257 * 256
    rounded = from_bf16(to_bf16(y))
    assert rounded[0, 10] == 65536
    exact, wrong = (reference(x, np.full(1, np.inf), 1e-5) for x in (rounded, y))
    assert np.all(to_bf16(np.float32(exact[:, 0])) != to_bf16(np.float32(wrong[:, 0])))
    check(launch, np.ones(4, np.float32), y, rounded, np.full((4, 64), np.inf))
