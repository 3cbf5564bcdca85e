"""Online softmax over several steps: exact where powers of two are, else within the error of ex2.approx."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int32, Int64

from stages.fragments import TILE, RowState
from stages.mask import KeyRange
from stages.ptx import load_global_i32
from stages.softmax.online import OnlineSoftmax
from tests import layouts, numerics
from tests.device import MicroKernel, compile_kernel, out
from tests.micro import fill_registers, load_registers, store_registers
from tests.numerics import from_bf16, to_bf16

PAGE_SIZE, ROWS = layouts.PAGE_SIZE, layouts.ROWS
HIDDEN = (0, -1)
"""A range of keys that holds none."""


@dataclass(frozen=True)
class Weighing(MicroKernel):
    """Runs `steps` steps on stored scores; o is set from memory after the first step.

    files: [step, score register, lane], then o [32, lane]. facts: the two rows' (first, last), then the first
    key of each page of each step. result: [step, weight register, lane], then m [2], l [2] as `finish` leaves
    them, and o.
    """

    pages: int
    steps: int

    def __str__(self):
        return f"Weighing_{self.pages}_pages_{self.steps}_steps"

    @property
    def weight_registers(self) -> int:
        """Registers of a step's weights; its scores have twice as many."""
        return 2 * self.pages * PAGE_SIZE // TILE

    @cute.jit
    def __call__(
        self,
        files: cute.Pointer,
        facts: cute.Pointer,
        weights: cute.Pointer,
        state: cute.Pointer,
        scale_log2: Float32,
        stream: cuda.CUstream,
    ):
        self.kernel(files.toint(), facts.toint(), weights.toint(), state.toint(), scale_log2).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, files: Int64, facts: Int64, weights: Int64, state: Int64, scale_log2: Float32):
        stage = OnlineSoftmax(PAGE_SIZE, self.pages)
        ends = [load_global_i32(facts + Int64(4 * i)) for i in range(4)]
        visible = (KeyRange(ends[0], ends[1]), KeyRange(ends[2], ends[3]))
        row = RowState.empty(layouts.HEAD_DIM)
        scores_bytes = 2 * self.weight_registers * 128
        for step in cutlass.range_constexpr(self.steps):
            first_keys = [
                load_global_i32(facts + Int64(16 + 4 * (step * self.pages + p))) for p in range(self.pages)
            ]
            scores = load_registers(Float32, files + step * scores_bytes, 2 * self.weight_registers)
            result = stage.weigh(scores, first_keys, visible, scale_log2, row, step == 0)
            store_registers(weights + step * scores_bytes // 2, result, Int32)
            if cutlass.const_expr(step == 0):
                fill_registers(row.o, Float32, files + self.steps * scores_bytes)
        stage.finish(row)
        store_registers(state, row.m, Float32)
        store_registers(state + 256, row.l, Float32)
        store_registers(state + 512, row.o, Float32)


@dataclass
class Case:
    """Raw scores [steps, 16, keys of a step], the keys' numbers [steps, keys], what rows see, and o."""

    scores: np.ndarray
    keys: np.ndarray
    visible: tuple[tuple[int, int], tuple[int, int]]
    scale: float
    o: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        """[steps, 16, keys] which keys each row sees."""
        ends = np.repeat(np.array(self.visible), ROWS // 2, axis=0)
        keys = self.keys[:, None, :]
        return (keys >= ends[:, :1]) & (keys <= ends[:, 1:])

    @property
    def logits(self) -> np.ndarray:
        """The scaled and masked scores: exact, as one product of FP32 each."""
        scaled = numerics.mul(self.scores, np.float32(self.scale))
        return np.where(self.seen, scaled, np.float32(-np.inf))


def make_case(rng, pages: int, steps: int, visible, scores=None, scale=1.0, apart: int = 64) -> Case:
    """A case over pages `apart` pages from each other, as the pages of a walk are."""
    first = PAGE_SIZE * apart * np.arange(steps * pages).reshape(steps, pages)
    keys = (first[..., None] + np.arange(PAGE_SIZE)).reshape(steps, -1)
    if scores is None:
        scores = rng.integers(-12, 5, (steps, ROWS, pages * PAGE_SIZE))
    o = rng.standard_normal((ROWS, layouts.HEAD_DIM)).astype(np.float32)
    return Case(np.float32(scores), keys, visible, scale, o)


def weigh(launch, case: Case):
    """(weights [steps, 16, keys] BF16 bits, m [16], l [16], o [16, 64]) from the device."""
    steps, keys = case.keys.shape
    kernel = Weighing(keys // PAGE_SIZE, steps)
    files = [layouts.fold_scores(step) for step in case.scores] + [layouts.fold_output(case.o)]
    facts = np.concatenate([np.ravel(case.visible), case.keys[:, ::PAGE_SIZE].ravel()]).astype(np.int32)
    weights, state = launch(
        kernel,
        np.concatenate(files),
        facts,
        out(np.uint32, steps, kernel.weight_registers, 32),
        out(np.float32, 36, 32),
        case.scale,
    )
    m, l = (unfold_rows(state[at : at + 2]) for at in (0, 2))
    unfolded = np.stack([layouts.unfold_weights(step) for step in weights])
    return unfolded, m, l, layouts.unfold_output(state[4:])


def unfold_rows(registers: np.ndarray) -> np.ndarray:
    """[2, lane] -> [16]: the four lanes of a row hold the same bits."""
    lanes = numerics.f32_bits(registers).reshape(ROWS, 4)
    assert np.all(lanes == lanes[:, :1])
    return numerics.from_bits(lanes[:, 0])


def exact_reference(case: Case):
    """The documented steps with exact powers of two, in the documented order: bits, not tolerances."""
    m, l, o = np.full((ROWS, 4), -np.inf, np.float32), np.zeros((ROWS, 4), np.float32), case.o
    weights = []
    for step, logits in enumerate(case.logits):
        top = np.fmax(m, np.fmax.reduce(logits, axis=1)[:, None])
        base = np.where(np.isneginf(top), np.float32(0), top)
        weight = numerics.power_of_two(numerics.sub(logits, base[:, :1]))
        # Lane t of a row has keys 2t and 2t + 1 of each tile of 8, and adds them up in ascending order.
        lanes = weight.reshape(ROWS, -1, 4, 2).transpose(1, 3, 0, 2).reshape(-1, ROWS, 4)
        total = lanes[0]
        for part in lanes[1:]:
            total = numerics.add(total, part)
        if step > 0:
            factor = numerics.power_of_two(numerics.sub(m, base))
            total = numerics.add(numerics.mul(l, factor), total)
            o = numerics.mul(o, factor[:, :1])
        m, l = top, total
        weights.append(to_bf16(weight))
    pairs = numerics.add(l[:, 0::2], l[:, 1::2])
    return np.stack(weights), m[:, 0], numerics.add(pairs[:, 0], pairs[:, 1]), o


def check_exactly(launch, case: Case) -> None:
    """The device's bits are the reference's."""
    for got, expected in zip(weigh(launch, case), exact_reference(case), strict=True):
        if got.dtype == np.uint16:
            got, expected = from_bf16(got), from_bf16(expected)
        numerics.assert_same_bits(got, expected)


SHAPES = [(1, 1), (1, 3), (2, 1), (2, 3)]
"""(pages a step, steps): one step alone, and steps that rescale what came before."""


@pytest.mark.parametrize(("pages", "steps"), SHAPES)
def test_compiles(pages, steps, arch):
    """One exponential a score, and one a row and step for the rescaling after the first."""
    ptx = compile_kernel(Weighing(pages, steps), arch).ptx
    assert ptx.count("ex2.approx.ftz.f32") == steps * 4 * pages * PAGE_SIZE // TILE + 2 * (steps - 1)


@pytest.mark.parametrize(("pages", "steps"), SHAPES)
def test_whole_logits(pages, steps, launch):
    """Whole logits give exact weights, so m, l, o and the order of the sums show bit for bit.

    Every key is seen.
    """
    rng = np.random.default_rng(pages)
    every = (0, 2**30)
    check_exactly(launch, make_case(rng, pages, steps, (every, every)))


def test_the_sum_has_its_documented_order(launch):
    """Weights of 1 and of 2**-23 .. 2**-25: which small ones survive depends on the order of the sum."""
    rng = np.random.default_rng(1)
    every = (0, 2**30)
    case = make_case(rng, 2, 3, (every, every), rng.choice([0, -23, -24, -25], (3, ROWS, 32)))
    reversed_keys = Case(case.scores[:, :, ::-1], case.keys, case.visible, 1.0, case.o)
    assert np.any(exact_reference(case)[2] != exact_reference(reversed_keys)[2])
    check_exactly(launch, case)


RANGES = [
    ((0, 5), (0, 6)),  # a verify step's last page
    ((0, 0), HIDDEN),  # one token sees one key, the other none
    (HIDDEN, (0, -3)),  # nobody sees anything
    ((1024, 1100), (1025, 1101)),  # the first step is below both windows
    ((10, 1030), (11, 1031)),  # both edges of a window within pages
    ((1039, 1039), (1040, 1040)),  # the last key of a page, and none of the next step's
    ((2000, 3000), (0, 1023)),  # the rows see different steps; keys between the pages belong to no one
]


@pytest.mark.parametrize("visible", RANGES, ids=str)
@pytest.mark.parametrize(("pages", "steps"), SHAPES)
def test_ranges_of_keys(pages, steps, visible, launch):
    """Each row weighs the keys of its own range, by their numbers; a row without a key stays (-inf, 0, 0).

    Steps that a row does not see, before, between or after those it sees, change nothing.
    """
    rng = np.random.default_rng(2)
    check_exactly(launch, make_case(rng, pages, steps, visible))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_unseen_scores_do_not_matter(value, launch):
    """No score of a key that a row does not see changes a bit, even where the other row sees the key."""
    rng = np.random.default_rng(3)
    case = make_case(rng, 2, 3, ((0, 1030), (7, 2050)))
    reference = weigh(launch, case)
    spoiled = np.where(case.seen, case.scores, np.float32(value))
    got = weigh(launch, Case(spoiled, case.keys, case.visible, case.scale, case.o))
    for a, b in zip(got, reference, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("key", [0, 17, 40, 95])
def test_a_seen_nan_stays_in_its_row(key, launch):
    """A NaN score makes l of its row NaN, and not m; the other rows keep their bits. Keys of each step."""
    rng = np.random.default_rng(4)
    every = (0, 2**30)
    case = make_case(rng, 2, 3, (every, every))
    reference = weigh(launch, case)
    step, column = divmod(key, 32)
    scores = case.scores.copy()
    scores[step, 5, column] = np.nan
    weights, m, l, o = weigh(launch, Case(scores, case.keys, case.visible, case.scale, case.o))
    assert np.isnan(l[5]) and np.isnan(from_bf16(weights[step, 5, column]))
    assert np.isfinite(m[5]) and np.isfinite(o[5]).all()
    others = np.arange(ROWS) != 5
    for a, b in zip((weights, m, l, o), reference, strict=True):
        rows = (slice(None), others) if a.ndim == 3 else others
        assert a[rows].tobytes() == b[rows].tobytes()


def test_a_row_of_nan_alone_is_nan(launch):
    """A row whose every seen score is NaN has l = NaN, also where the first step shows it."""
    rng = np.random.default_rng(5)
    case = make_case(rng, 1, 1, ((0, 100), (0, 100)))
    case.scores[:, 3] = np.nan
    _, _, l, _ = weigh(launch, case)
    assert np.isnan(l[3]) and np.isfinite(np.delete(l, 3)).all()


@pytest.mark.parametrize(("pages", "steps"), SHAPES)
@pytest.mark.parametrize("size", [1.0, 1e4, 1e5])
def test_random_logits(size, pages, steps, launch):
    """Exact m; weights, l and o within the error of ex2.approx (2 ulp) and of the roundings in between.

    With FP32 terms t = 2**-24: a difference of logits is rounded once (relative to logits of size s: s * t in
    the exponent, but the reference takes the rounded one); l has at most 16 + 3 * 3 additions of positive
    terms, o two products a step.
    """
    rng = np.random.default_rng(6)
    scores = rng.standard_normal((steps, ROWS, pages * PAGE_SIZE)) * size
    case = make_case(rng, pages, steps, ((0, 2**30), (3, 2000)), scores, scale=0.125 * np.log2(np.e))
    weights, m, l, o = weigh(launch, case)

    top, total, factor = np.full(ROWS, -np.inf, np.float32), np.zeros(ROWS), np.ones(ROWS)
    for step, logits in enumerate(case.logits):
        before, top = top, np.maximum(top, logits.max(axis=1))
        exact = np.exp2(np.float64(numerics.sub(logits, top[:, None])))
        # Below 2**-126 weights are flushed to zero.
        numerics.assert_rounded_bf16(weights[step], exact, 2.0**-22, absolute=2.0**-126)
        scale = np.exp2(np.float64(numerics.sub(before, top)))
        total = total * scale + exact.sum(axis=1)
        factor = factor * (scale if step > 0 else 1)
    numerics.assert_same_bits(m, top)
    assert np.allclose(l, total, rtol=2.0**-19, atol=0)
    assert np.allclose(o, case.o * factor[:, None], rtol=2.0**-20, atol=2.0**-125)
