"""The approximate functions: the documented errors and special values, and an H200's every mantissa.

`test_golden` compares them with recordings argument by argument.
"""

from fractions import Fraction

import numpy as np
import pytest

from emulator.numerics import functions
from emulator.numerics.interpolation import truncated_squares
from tests.emulator.numerics.exact import EDGES, NAN, flush, same_bits, value
from tests.golden import store, survey
from tests.numerics import flush as flushed
from tests.numerics import ulp_error

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INF, NONE = np.inf, np.nan


def test_every_mantissa_has_the_bits_of_the_h200():
    """2**x over four ranges, 1 / x over one power of two, 1 / sqrt(x) over two: 58 million results."""
    got = survey.digests(lambda op, x: getattr(functions, op)(x).view(np.uint32))
    assert got == store.facts()["exhaustive"]


FUNCTIONS = {
    # (function, float64, bound in ulps or, for absolute ones, None): as the PTX ISA documents
    "exp2": (functions.exp2, np.exp2, 2.0),
    "reciprocal": (functions.reciprocal, np.reciprocal, 1.0),
    "rsqrt": (functions.rsqrt, lambda x: 1 / np.sqrt(x), 2.2),
    "sqrt": (functions.sqrt, np.sqrt, 1.0),
    "log2": (functions.log2, np.log2, None),
    "tanh": (lambda x, ftz: functions.tanh(x), np.tanh, 2.0**12),
}


def arguments() -> np.ndarray:
    """FP32 numbers of all sizes, and those between -126 and 128."""
    rng = np.random.default_rng(0)
    sizes = rng.uniform(1, 2, 20000) * np.exp2(rng.integers(-126, 127, 20000)) * rng.choice([-1, 1], 20000)
    return np.concatenate([sizes, rng.uniform(-125.9, 127.9, 20000), rng.uniform(-2, 2, 20000)]).astype(
        np.float32
    )


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors(name, ftz):
    """Within the documented error of the function, as float64 has it, wherever that is a normal number."""
    function, exact, bound = FUNCTIONS[name]
    x = arguments()
    got, wanted = function(x, ftz=ftz), exact(np.float64(x))
    normal = np.isfinite(wanted) & (np.abs(wanted) >= 2.0**-126) & (np.abs(wanted) < 2.0**128)
    if bound is None:
        assert np.all(
            np.abs(got - wanted)[normal] <= np.maximum(2.0**-22, np.abs(wanted[normal]) * 2.0**-22.6)
        )
    else:
        assert ulp_error(got[normal], wanted[normal]).max() <= bound
    assert np.array_equal(np.isnan(got), np.isnan(wanted))


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
def test_sines(ftz):
    """sin and cos within 2**-20.5 in [-pi, pi], and their special values."""
    x = np.linspace(-np.pi, np.pi, 20001).astype(np.float32)
    assert np.abs(functions.sin(x, ftz=ftz) - np.sin(np.float64(x))).max() <= 2.0**-20.5
    assert np.abs(functions.cos(x, ftz=ftz) - np.cos(np.float64(x))).max() <= 2.0**-20.5
    same_bits(functions.sin(np.float32([0.0, -0.0, INF, -INF, np.nan])), [0, 0x80000000, NAN, NAN, NAN])
    same_bits(functions.cos(np.float32([0.0, -0.0, INF])), [0x3F800000, 0x3F800000, NAN])


SPECIAL_VALUES = {
    # (argument, result)
    "exp2": [(-INF, 0.0), (INF, INF), (0.0, 1.0), (-0.0, 1.0), (128.0, INF), (-127.0, 0.0), (-1e30, 0.0)],
    "reciprocal": [(-INF, -0.0), (INF, 0.0), (0.0, INF), (-0.0, -INF), (2.0**127, 0.0), (-2.0, -0.5)],
    "rsqrt": [(-INF, NONE), (INF, 0.0), (0.0, INF), (-0.0, -INF), (-1.0, NONE), (4.0**60, 2.0**-60)],
    "sqrt": [(-INF, NONE), (INF, INF), (0.0, 0.0), (-0.0, -0.0), (-1.0, NONE), (4.0**60, 2.0**60)],
    "log2": [
        (-INF, NONE),
        (INF, INF),
        (0.0, -INF),
        (-0.0, -INF),
        (-1.0, NONE),
        (1.0, 0.0),
        (2.0**100, 100.0),
    ],
}


@pytest.mark.parametrize("name", SPECIAL_VALUES)
def test_special_values(name):
    """The tables of the PTX ISA; subnormals act as zeros of their sign; NaN gives the canonical NaN."""
    given, wanted = np.float32(SPECIAL_VALUES[name]).T
    function = getattr(functions, name)
    same_bits(function(np.ascontiguousarray(given)), np.where(np.isnan(wanted), NAN, bits(wanted)))
    tiny = np.float32([1e-40, -1e-40])
    same_bits(function(tiny), bits(function(np.float32([0.0, -0.0]))))
    same_bits(function(np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)), [NAN, NAN])


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of FP32 numbers."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def test_whole_powers_are_exact():
    """2**n, 1 / 2**n and 1 / sqrt(4**n) have no error; 2**n is flushed below -126."""
    n = np.arange(-149, 129, dtype=np.float32)
    same_bits(functions.exp2(n), flushed(np.exp2(np.float64(n)).astype(np.float32)).view(np.uint32))
    powers = np.exp2(np.arange(-126, 127)).astype(np.float32)
    same_bits(functions.reciprocal(powers), (1 / powers).view(np.uint32))
    same_bits(
        functions.rsqrt(powers[::2]),
        (1 / np.sqrt(np.float64(powers[::2]))).astype(np.float32).view(np.uint32),
    )


def test_subnormals_without_ftz():
    """Subnormal arguments and results count."""
    x = np.float32([1e-40, -3e-39, 2.0**-149])
    assert np.allclose(
        functions.rsqrt(np.abs(x), ftz=False), 1 / np.sqrt(np.abs(np.float64(x))), rtol=2.0**-22
    )
    assert np.allclose(
        functions.reciprocal(np.float32([2e38, -3e38]), ftz=False), [5e-39, -1 / 3e38], rtol=1e-6
    )
    assert functions.exp2(np.float32([-140.0]), ftz=False)[0] == np.float32(2.0**-140)
    assert functions.exp2(np.float32([-140.0]))[0] == 0


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
def test_rounded_once(ftz):
    """div.rn, rcp.rn and sqrt.rn: exact quotients and roots to nearest, by comparing products."""
    rng = np.random.default_rng(1)
    a, b = (
        np.concatenate([rng.choice(EDGES, 500), arguments().view(np.uint32)[rng.integers(0, 60000, 500)]])
        for _ in "ab"
    )
    got = functions.exact_quotient(a.view(np.float32), b.view(np.float32), ftz=ftz)
    same_bits(
        functions.exact_reciprocal(b.view(np.float32), ftz=ftz),
        functions.exact_quotient(np.ones_like(got), b.view(np.float32), ftz=ftz).view(np.uint32),
    )
    for x, y, quotient in zip(a.tolist(), b.tolist(), got.view(np.uint32).tolist(), strict=True):
        x, y = (flush(w) if ftz else w for w in (x, y))
        if not value(x) or not value(y):
            continue
        exact, size = value(x) / value(y), abs(value(quotient)) if value(quotient) is not None else None
        if size is not None and 2 * Fraction(1, 2**126) < abs(exact):
            assert nearest(abs(exact), quotient & 0x7FFFFFFF)
    roots = np.abs(a.view(np.float32))
    for x, root in zip(
        roots.view(np.uint32).tolist(),
        functions.exact_sqrt(roots, ftz=ftz).view(np.uint32).tolist(),
        strict=True,
    ):
        x = flush(x) if ftz else x
        if value(x):
            low, high = (halfway(root, d) for d in (-1, 1))
            assert low * low < value(x) < high * high


def halfway(bits: int, direction: int) -> Fraction:
    """The midpoint of a positive FP32 number and its neighbour."""
    return (value(bits) + value(bits + direction)) / 2


def nearest(exact: Fraction, bits: int) -> bool:
    """Whether positive FP32 bits are those nearest to an exact number."""
    if bits == 0x7F7FFFFF:
        return exact >= halfway(bits, -1)
    return halfway(bits, -1) <= exact <= halfway(bits, 1)


@pytest.mark.parametrize(("bits", "column"), [(6, 0), (6, 5), (7, 8), (16, 17), (17, 19)])
def test_truncated_squares(bits, column):
    """The partial products of a folded square, one by one, from a column on."""
    table = truncated_squares(min(bits, 17), column) if column else truncated_squares(bits, 0)
    for x in np.random.default_rng(2).integers(0, 1 << bits, 200).tolist():
        ones = [i for i in range(bits) if x >> i & 1]
        columns = [2 * i for i in ones] + [i + j + 1 for i in ones for j in ones if i < j]
        kept = sum(1 << c for c in columns if c >= column)
        assert table[x] == kept >> column
        if column == 0:
            assert kept == x * x
