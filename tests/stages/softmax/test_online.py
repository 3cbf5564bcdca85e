"""Online softmax over several steps: exact where powers of two are, else within the error of ex2.approx."""

import numpy as np
import pytest

from stages.fragments import TILE
from tests import numerics
from tests.device import compile_kernel
from tests.numerics import from_bf16
from tests.stages.softmax.weighing import (
    EVERY,
    HIDDEN,
    PAGE_SIZE,
    ROWS,
    Weighing,
    check_exactly,
    exact_reference,
    make_case,
    same_bits,
    weigh,
)

SHAPES = [(1, 1), (1, 3), (2, 3), (4, 2)]
"""(pages a step, steps): one step alone, and steps that rescale what came before."""


@pytest.mark.pin
@pytest.mark.parametrize(("pages", "steps"), SHAPES)
def test_compiles(pages, steps, arch):
    """One fma and one exponential a score, and an exponential a row and step to rescale after the first.

    All that twice, for masked and unmasked steps.
    """
    ptx = compile_kernel(Weighing(pages, steps), arch).ptx
    scores = steps * 4 * pages * PAGE_SIZE // TILE
    assert ptx.count("fma.rn.ftz.f32") == 2 * scores
    assert ptx.count("ex2.approx.ftz.f32") == 2 * (scores + 2 * (steps - 1))


@pytest.mark.parametrize(("pages", "steps"), SHAPES)
def test_whole_logits(pages, steps, launch):
    """Whole logits give exact weights, so m, l, o and the order of the sums show bit for bit.

    Every key is seen, and masking changes nothing.
    """
    case = make_case(np.random.default_rng(pages), pages, steps, (EVERY, EVERY))
    check_exactly(launch, case, case.but(masked=False))


def test_the_sum_has_its_documented_order(launch):
    """Weights of 1 and of 2**-23 .. 2**-25: which small ones survive depends on the order of the sum."""
    rng = np.random.default_rng(1)
    case = make_case(rng, 2, 3, (EVERY, EVERY), rng.choice([0, -23, -24, -25], (3, ROWS, 32)))
    reversed_keys = case.but(scores=case.scores[:, :, ::-1])
    assert np.any(exact_reference(case)[2] != exact_reference(reversed_keys)[2])
    check_exactly(launch, case, case.but(masked=False))


RANGES = [
    ((0, 5), (0, 6)),  # a verify step's last page
    ((0, 0), HIDDEN),  # one token sees one key, the other none
    (HIDDEN, (0, -3)),  # nobody sees anything
    ((1024, 1100), (1025, 1101)),  # the first step is below both windows
    ((10, 1030), (11, 1031)),  # both edges of a window within pages
    ((1039, 1039), (1040, 1040)),  # the last key of a page, and none of the next step's
    ((2000, 3000), (0, 1023)),  # the rows see different steps; keys between the pages belong to no one
    ((-5, 5), (-4, 6)),  # a window that begins before the first key
]


@pytest.mark.parametrize(("pages", "steps"), SHAPES)
def test_ranges_of_keys(pages, steps, launch):
    """Each row weighs the keys of its own range, by their numbers; a row without a key stays (-inf, 0, 0).

    Steps that a row does not see, before, between or after those it sees, change nothing.
    """
    rng = np.random.default_rng(2)
    check_exactly(launch, *(make_case(rng, pages, steps, visible) for visible in RANGES))


def test_a_first_step_need_not_know_that_it_is(launch):
    """Nothing attended is (-inf, 0, 0), which a step rescales to nothing: the bits are those of `first`."""
    rng = np.random.default_rng(7)
    cases = [make_case(rng, 2, 3, visible) for visible in RANGES[:6]]
    cases.append(make_case(rng, 2, 3, (EVERY, EVERY)).but(masked=False))
    check_exactly(launch, *cases, knows_first=False)


@pytest.mark.parametrize("scale", [0.0, 0.25, 2.0**20])
def test_scales(scale, launch):
    """The scale multiplies in the fma; with 0 all seen keys weigh 1; a row without a key keeps its -inf."""
    rng = np.random.default_rng(8)
    scores = 4 * rng.integers(-12, 5, (3, ROWS, 32))
    ragged = make_case(rng, 2, 3, ((0, 1030), HIDDEN), scores, scale)
    whole = ragged.but(visible=(EVERY, EVERY))
    check_exactly(launch, ragged, whole, whole.but(masked=False))
    if scale == 0:
        _, m, l, _ = exact_reference(ragged)
        assert np.array_equal(l[:8], np.full(8, 16 + 7)) and not l[8:].any()
        assert not m[:8].any() and np.isneginf(m[8:]).all()


def test_scores_of_minus_infinity(launch):
    """A seen score of -inf weighs nothing; a row, or a step, that has no other keeps what it had."""
    rng = np.random.default_rng(9)
    case = make_case(rng, 2, 3, (EVERY, (0, 2000)))
    scores = np.where(rng.random(case.scores.shape) < 0.3, np.float32(-np.inf), case.scores)
    scores[:, 4], scores[0, 5], scores[1, 6] = -np.inf, -np.inf, -np.inf
    case = case.but(scores=scores)
    whole = case.but(visible=(EVERY, EVERY))
    check_exactly(launch, case, whole, whole.but(masked=False))
    assert np.isneginf(exact_reference(case)[1][4]) and exact_reference(case)[2][4] == 0


def test_unseen_scores_do_not_matter(launch):
    """No score of a key that a row does not see changes a bit, even where the other row sees the key.

    Nor with a scale of 0, which makes a NaN of an infinity.
    """
    rng = np.random.default_rng(3)
    case = make_case(rng, 2, 3, ((0, 1030), (7, 2050)))
    for scale in (1.0, 0.0):
        cases = [
            case.but(scores=np.where(case.seen, case.scores, np.float32(value)), scale=scale)
            for value in (0.0, np.nan, np.inf, -np.inf, 3e38)
        ]
        reference, *others = weigh(launch, *cases)
        assert all(same_bits(other, reference) for other in others)
        assert np.isfinite(reference[2]).all() and (reference[2] > 0).all()


@pytest.mark.parametrize("masked", [True, False])
def test_a_seen_nan_stays_in_its_row(masked, launch):
    """A NaN score makes l of its row NaN, and not m; the other rows keep their bits. Keys of each step."""
    case = make_case(np.random.default_rng(4), 2, 3, (EVERY, EVERY)).but(masked=masked)
    places = [divmod(key, 32) for key in (0, 17, 40, 95)]
    spoiled = []
    for step, column in places:
        scores = case.scores.copy()
        scores[step, 5, column] = np.nan
        spoiled.append(case.but(scores=scores))
    reference, *found = weigh(launch, case, *spoiled)
    others = np.arange(ROWS) != 5
    for (step, column), (weights, m, l, o) in zip(places, found, strict=True):
        assert np.isnan(l[5]) and np.isnan(from_bf16(weights[step, 5, column]))
        assert np.isfinite(m[5]) and np.isfinite(o[5]).all()
        for a, b in zip((weights, m, l, o), reference, strict=True):
            rows = (slice(None), others) if a.ndim == 3 else others
            assert a[rows].tobytes() == b[rows].tobytes()


def test_a_row_of_nan_alone_is_nan(launch):
    """A row whose every seen score is NaN has l = NaN, also where the first step shows it."""
    case = make_case(np.random.default_rng(5), 1, 1, ((0, 100), (0, 100)))
    case.scores[:, 3] = np.nan
    for _, _, l, _ in weigh(launch, case, case.but(masked=False)):
        assert np.isnan(l[3]) and np.isfinite(np.delete(l, 3)).all()


@pytest.mark.parametrize(("pages", "steps"), SHAPES)
def test_random_logits(pages, steps, launch):
    """Exact m; weights, l and o within the error of ex2.approx (2 ulp) and of the roundings in between.

    The reference takes the exponents as they are rounded. With FP32 terms t = 2**-24, l has at most
    16 + 3 * 3 additions of positive terms, o two products a step. Where every key is seen, masking changes
    no bit.
    """
    rng = np.random.default_rng(6)
    scale = 0.125 * np.log2(np.e)
    cases = []
    for size in (1.0, 1e4, 1e5):
        scores = rng.standard_normal((steps, ROWS, pages * PAGE_SIZE)) * size
        cases.append(make_case(rng, pages, steps, (EVERY, (3, 2000)), scores, scale))
    whole = [
        case.but(visible=(EVERY, EVERY), masked=masked) for case in cases[:2] for masked in (True, False)
    ]
    found = weigh(launch, *cases, *whole)
    assert same_bits(found[3], found[4]) and same_bits(found[5], found[6])
    for case, (weights, m, l, o) in zip([*cases, *whole], found, strict=True):
        top, total, factor = np.full(ROWS, -np.inf, np.float32), np.zeros(ROWS), np.ones(ROWS)
        for step in range(steps):
            before, top = top, case.tops(step, top)
            exact = np.exp2(np.float64(case.exponents(step, top)))
            # Below 2**-126 weights are flushed to zero.
            numerics.assert_rounded_bf16(weights[step], exact, 2.0**-22, absolute=2.0**-126)
            scale = np.exp2(np.float64(numerics.sub(before, top)))
            total = total * scale + exact.sum(axis=1)
            factor = factor * (scale if step > 0 else 1)
        numerics.assert_same_bits(m, top)
        assert np.allclose(l, total, rtol=2.0**-19, atol=0)
        assert np.allclose(o, case.o * factor[:, None], rtol=2.0**-20, atol=2.0**-125)
