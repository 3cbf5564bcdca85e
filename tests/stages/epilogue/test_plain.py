"""The plain epilogue: attention itself, o / l, rounded once."""

import numpy as np
import pytest

from stages.epilogue.plain import PlainEpilogue
from tests.device import compile_kernel
from tests.finishing import Finishing, finish, random_rows
from tests.numerics import assert_rounded_bf16, from_bf16

EPILOGUE = PlainEpilogue(64)

QUOTIENT_ERROR = 2.0**-22
"""1 / l within 1 ulp (at most 2**-23 relative), and a product rounded once."""


@pytest.mark.pin
def test_compiles(arch):
    """Neither a gate nor an eps is used: one reciprocal, two products, and no read but that of l and o."""
    ptx = compile_kernel(Finishing(EPILOGUE, 4), arch).ptx
    assert ptx.count("rcp.approx.ftz.f32") == 1
    assert ptx.count("ld.global") == 3
    assert ptx.count(".ftz.f32") == 3


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e19])
def test_exact_quotients(scale, launch):
    """Where o / l is a BF16 number, that number comes out, every row and dim in its place."""
    l, o, y = random_rows(np.random.default_rng(0), 64, scale)
    assert np.array_equal(from_bf16(finish(launch, EPILOGUE, l, o)), y)


def test_random_quotients(launch):
    """bf16(o / l) for l as sums of weights are; a quotient beside a tie may be rounded either way."""
    rng = np.random.default_rng(1)
    l, o = 1 + 2047 * rng.random(256).astype(np.float32), rng.standard_normal((256, 64)).astype(np.float32)
    assert_rounded_bf16(
        finish(launch, EPILOGUE, l, o), np.float64(o) / np.float64(l)[:, None], QUOTIENT_ERROR
    )


def test_rows_without_a_key_are_zeros(launch):
    """l = 0 gives +0 in every dim, beside rows that have keys."""
    l, o, y = random_rows(np.random.default_rng(2), 16)
    l[::3], o[::3], y[::3] = 0, 0, 0
    got = finish(launch, EPILOGUE, l, o)
    assert np.all(got[::3] == 0)
    assert np.array_equal(from_bf16(got), y)


def test_nan_stays_in_its_dim(launch):
    """A NaN in one dim of o reaches that dim; a NaN in l reaches the whole row, and no other."""
    l, o, y = random_rows(np.random.default_rng(3), 16)
    o[5, 40], l[9] = np.nan, np.nan
    y[5, 40], y[9] = np.nan, np.nan
    assert np.array_equal(from_bf16(finish(launch, EPILOGUE, l, o)), y, equal_nan=True)
