"""FP32 arithmetic against exact rational numbers, with the processor's help and without."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.numerics import arithmetic, environment
from tests.emulator.numerics.exact import EDGES, NAN, flush, pairs, rounded, same_bits, value
from tests.emulator.numerics.exact import way as way

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROUNDINGS = ("rn", "rz", "rm", "rp")


def special(name: str, a: float, b: float, c: float = 0.0) -> int | None:
    """Bits of the result if an operand is infinite or NaN: IEEE 754, in Python's floats; else None."""
    if all(math.isfinite(x) for x in (a, b, c)):
        return None
    result = {"add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "fma": lambda: a * b + c}[
        name
    ]()
    if math.isnan(result):
        return NAN
    return 0x7F800000 if result > 0 else 0xFF800000


def expected(name: str, words: tuple[int, ...], mode: str, ftz: bool) -> int:
    """Bits of add, sub, mul or fma of FP32 bits."""
    words = tuple(flush(w) if ftz else w for w in words)
    floats = [float(np.uint32(w).view(np.float32)) for w in words]
    if (bits := special(name, *floats)) is not None:
        return bits
    a, b, *rest = (value(w) for w in words)
    if name == "sub":
        b, words = -b, (words[0], words[1] ^ 0x80000000)
    exact = a + b if name in ("add", "sub") else a * b + (rest[0] if rest else 0)
    if exact:
        return rounded(exact, mode, ftz)
    # An exact zero: the sign that the terms share, else + (- if rounded down).
    signs = [w >> 31 for w in words]
    terms = [signs[0] ^ signs[1], *signs[2:]] if name in ("mul", "fma") else signs
    if len(set(terms)) == 1:
        return terms[0] << 31
    return 0x80000000 if mode == "rm" else 0


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_two_operands(name, mode, ftz, way):
    """All pairs of edges, in all directions: rounded once, flushed after rounding, NaN canonical."""
    a, b = pairs()
    got = getattr(arithmetic, name)(a, b, rounding=mode, ftz=ftz)
    words = zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True)
    same_bits(got, [expected(name, pair, mode, ftz) for pair in words])


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_fma_of_edges(mode, ftz, way):
    """Edges times edges plus edges, drawn at random."""
    rng = np.random.default_rng(0)
    x = rng.choice(EDGES, (3, 3000))
    got = arithmetic.fma(*x.view(np.float32), rounding=mode, ftz=ftz)
    same_bits(got, [expected("fma", words, mode, ftz) for words in zip(*x.tolist(), strict=True)])


def near_a_midpoint(a: int, b: int, mantissa: int, exponent: int, offset: int) -> tuple[int, int, int]:
    """Operands with a * b + c at a midpoint of FP32 numbers, or as close to one as c can bring it."""
    midpoint = Fraction(2 * mantissa + 1) * Fraction(2) ** exponent
    missing = midpoint - value(a) * value(b)
    c = rounded(missing) if missing else 0
    return a, b, min(max((c & 0x7FFFFFFF) + offset, 0), 0x7F7FFFFF) | (c & 0x80000000)


def finite(least: int, largest: int) -> st.SearchStrategy:
    """FP32 bits of either sign, exponents from least to largest, with few or many bits of mantissa."""
    mantissas = st.one_of(
        st.integers(0, 2**23 - 1),
        st.integers(0, 255).map(lambda m: m << 15),
        st.sampled_from([0, 1, 2**23 - 1]),
    )
    return st.builds(
        lambda sign, e, m: sign << 31 | e + 127 << 23 | m,
        st.integers(0, 1),
        st.integers(least, largest),
        mantissas,
    )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.builds(
                near_a_midpoint,
                finite(-20, 20),
                finite(-20, 20),
                st.integers(2**23, 2**24 - 1),
                st.integers(-60, 20),
                st.integers(-1, 1),
            ),
            st.tuples(finite(-80, -50), finite(-80, -50), finite(-126, -120)),
            # Products just beside 2**-150, half a unit of the subnormal numbers.
            st.tuples(
                st.just(0x1A000001), st.sampled_from([0x19FFFFFE, 0x1A000000]), st.integers(1, 0x800000)
            ),
            st.tuples(finite(-126, 127), finite(-126, 127), finite(-126, 127)),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_fma_near_midpoints(operands):
    """Where float64's own rounding would decide wrongly, and where results are about to be flushed."""
    x = np.array(operands, np.uint32).T
    with np.errstate(all="ignore"):
        for ftz in (True, False):
            for processor in {environment.processor, None}:
                kept, environment.processor = environment.processor, processor
                try:
                    got = arithmetic.fma(*x.view(np.float32), ftz=ftz)
                finally:
                    environment.processor = kept
                same_bits(got, [expected("fma", words, "rn", ftz) for words in operands])


def test_a_naive_fma_would_fail():
    """The cases above are such that float64 rounded to FP32 is wrong for some of them."""
    a, b, c = (np.uint32(x).view(np.float32) for x in (0x3F800001, 0x3F800001, 0x33000000))
    # (1 + 2**-23)**2 + 2**-25: 1 + 2**-22 + 2**-25 + 2**-46, just above the tie only by its last bit.
    c = np.float32(2.0**-24)
    naive = np.float32(np.float64(a) * np.float64(b) + np.float64(c) - 2.0**-46)
    exact = arithmetic.fma(*(np.array([x], np.float32) for x in (a, b, c)))[0]
    assert naive != exact
    assert exact == np.float32(1 + 2.0**-22 + 2.0**-23)


def test_saturated():
    """Clamped to [+0, 1]: -0, NaN and what is below become +0."""
    x = np.array([-np.inf, -1, -0.0, 0.0, 0.25, 1.0, 1.5, np.inf, np.nan], np.float32)
    same_bits(arithmetic.saturated(x), np.float32([0, 0, 0, 0, 0.25, 1, 1, 1, 0]).view(np.uint32))


@pytest.mark.parametrize("nan", [False, True], ids=["number", "NaN"])
@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
@pytest.mark.parametrize("larger", [True, False], ids=["max", "min"])
def test_extremum(larger, ftz, nan, way):
    """By value, -0 below +0; a NaN loses to a number or wins, and two of them give the canonical one."""

    def pick(a: int, b: int) -> int:
        a, b = (flush(w) if ftz else w for w in (a, b))
        numbers = [w for w in (a, b) if (w & 0x7FFFFFFF) <= 0x7F800000]
        if not numbers or (nan and len(numbers) < 2):
            return NAN
        key = lambda w: -(w & 0x7FFFFFFF) - 1 if w >> 31 else w  # noqa: E731
        return max(numbers, key=key) if larger else min(numbers, key=key)

    a, b = pairs()
    got = (arithmetic.maximum if larger else arithmetic.minimum)(a, b, ftz=ftz, nan=nan)
    words = zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True)
    same_bits(got, [pick(*pair) for pair in words])


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
def test_signs(ftz, way):
    """neg and abs change the sign alone; NaN becomes canonical."""
    x = EDGES.view(np.float32)
    nan = (EDGES & 0x7FFFFFFF) > 0x7F800000
    plain = np.array([flush(int(w)) if ftz else int(w) for w in EDGES], np.uint32)
    same_bits(arithmetic.negative(x, ftz=ftz), np.where(nan, NAN, plain ^ np.uint32(0x80000000)))
    same_bits(arithmetic.absolute(x, ftz=ftz), np.where(nan, NAN, plain & np.uint32(0x7FFFFFFF)))


@pytest.mark.parametrize("ftz", [True, False], ids=["ftz", "no_ftz"])
@pytest.mark.parametrize("how", arithmetic.COMPARISONS)
def test_comparisons(how, ftz, way):
    """Ordered forms are false with a NaN, unordered ones true; with ftz subnormals equal zero."""
    a, b = pairs()
    got = arithmetic.compare(how, a, b, ftz=ftz)
    python = {
        "eq": float.__eq__,
        "ne": float.__ne__,
        "lt": float.__lt__,
        "le": float.__le__,
        "gt": float.__gt__,
        "ge": float.__ge__,
        "num": lambda x, y: True,
        "nan": lambda x, y: False,
    }
    for x, y, result in zip(
        a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), got.tolist(), strict=True
    ):
        x, y = (float(np.uint32(flush(w) if ftz else w).view(np.float32)) for w in (x, y))
        if math.isnan(x) or math.isnan(y):
            assert result == (how.endswith("u") or how == "nan")
        else:
            assert result == python[how if how in python else how[:-1]](x, y), (x, how, y)


@pytest.mark.skipif(environment.processor is None, reason="this processor cannot be told to flush")
def test_the_processor_is_left_as_it_was():
    """Flushing and rounding end with the operation, also where it raises, and may be nested."""
    tiny, third = np.full(100, 1e-40, np.float32), np.full(100, 1 / 3, np.float32)
    run = environment.processor.run

    def undisturbed() -> bool:
        return bool(
            (tiny * np.float32(1) == tiny).all() and (third * third == np.float32(third[0] * third[0])).all()
        )

    def fail(x):
        raise KeyError(x)

    assert not run("rp", True, np.multiply, tiny, np.float32(1)).any()
    assert undisturbed()
    with pytest.raises(KeyError):
        run("rm", True, fail, 1)
    assert undisturbed()
    nested = run(
        "rp", False, lambda x: (run("rn", True, np.multiply, x, np.float32(1)), x * np.float32(1)), tiny
    )
    assert not nested[0].any() and nested[1].all()
    assert undisturbed()
