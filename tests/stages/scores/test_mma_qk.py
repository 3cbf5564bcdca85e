"""Q K^T on tensor cores: layout by one-hot queries, exact sums, and a slot reaches its own column alone."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int32, Int64

from stages.fragments import ROWS, TILE, pairs
from stages.scores.mma_qk import MmaScores
from tests import layouts
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import load_registers, store_f32
from tests.numerics import assert_same_bits, from_bf16, to_bf16

HEAD_DIM, PAGE_SIZE = layouts.HEAD_DIM, layouts.PAGE_SIZE
PAGE_REGISTERS = PAGE_SIZE // TILE * pairs(HEAD_DIM)
"""Registers of K of a page."""

PAGE_SCORES = 4 * PAGE_SIZE // TILE
"""Registers of a page's scores."""


@dataclass(frozen=True)
class Scoring(MicroKernel):
    """Scores of `cases` problems, one a CTA: q [16 rows, row stride], k of some pages as a register file."""

    pages: int
    cases: int

    def __str__(self):
        return f"Scoring_{self.pages}_pages_{self.cases}"

    @property
    def score_registers(self) -> int:
        """Registers of all pages' scores."""
        return PAGE_SCORES * self.pages

    @property
    def where(self) -> Launch:
        """A warp a problem."""
        return Launch(grid=(self.cases, 1, 1))

    @cute.jit
    def __call__(
        self, q: cute.Pointer, k: cute.Pointer, scores: cute.Pointer, q_stride: Int64, stream: cuda.CUstream
    ):
        self.kernel(q.toint(), k.toint(), scores.toint(), q_stride).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, q: Int64, k: Int64, scores: Int64, q_stride: Int64):
        lane = cute.arch.lane_idx()
        case, _, _ = cute.arch.block_idx()
        stage = MmaScores(HEAD_DIM, PAGE_SIZE)
        first = q + Int64(case * ROWS + lane // 4) * q_stride
        query = stage.load_query(first, first + 8 * q_stride)
        for page in cutlass.range_constexpr(self.pages):
            number = case * self.pages + page
            keys = load_registers(Int32, k + Int64(number * PAGE_REGISTERS * 128), PAGE_REGISTERS)
            result = stage.scores(query, keys)
            for i in cutlass.range_constexpr(PAGE_SCORES):
                store_f32(scores + Int64(4 * (32 * (number * PAGE_SCORES + i) + lane)), result[i])


def score(launch, q, k, row_elements: int = HEAD_DIM) -> np.ndarray:
    """[cases, 16, keys] scores of q [cases, 16, 64] and k [cases, keys, 64], BF16 bits.

    row_elements: from one query row to the next; what lies between rows is NaN.
    """
    kernel = Scoring(k.shape[1] // PAGE_SIZE, len(q))
    rows = np.full((len(q), ROWS, row_elements), 0x7FC0, np.uint16)
    rows[..., :HEAD_DIM] = q
    files = np.stack([layouts.fold_page(case) for case in k])
    (got,) = launch(
        kernel, rows, files, out(np.float32, len(q), kernel.score_registers, 32), 2 * row_elements
    )
    return np.stack([layouts.unfold_scores(case) for case in got])


def random_bf16(rng, *shape: int) -> np.ndarray:
    """Normally distributed BF16 bits."""
    return to_bf16(rng.standard_normal(shape).astype(np.float32))


@pytest.mark.pin
@pytest.mark.parametrize("kernel", [Scoring(1, 1), Scoring(2, 64)], ids=str)
def test_compiles(kernel, arch):
    """4 mma for each tile of 8 keys: 64 head dims, 16 at a time."""
    assert compile_kernel(kernel, arch).ptx.count("mma.sync") == 8 * kernel.pages


@pytest.mark.parametrize("pages", [1, 2])
def test_one_hot_queries_pick_one_dim(pages, launch):
    """With row r = (r + 1) at head dim d and 0 elsewhere, the scores are (r + 1) * k[:, d], exactly.

    One problem for each d: a wrong row, key, dim, tile or page shows, for K is random.
    """
    q = np.zeros((HEAD_DIM, ROWS, HEAD_DIM), np.float32)
    for d in range(HEAD_DIM):
        q[d, :, d] = np.arange(ROWS) + 1
    k = random_bf16(np.random.default_rng(pages), HEAD_DIM, pages * PAGE_SIZE, HEAD_DIM)
    expected = np.einsum(
        "cr,ck->crk", q.max(axis=2), from_bf16(k)[np.arange(HEAD_DIM), :, np.arange(HEAD_DIM)]
    )
    assert_same_bits(score(launch, to_bf16(q), k), expected)


def test_whole_numbers_are_exact(launch):
    """Whole numbers below 2**24 add up without rounding: scores are exact sums over all 64 dims.

    The query rows lie in a wider row, as in a fused row of q, k, v and gate.
    """
    rng = np.random.default_rng(0)
    q, k = rng.integers(-128, 129, (4, ROWS, HEAD_DIM)), rng.integers(-128, 129, (4, 32, HEAD_DIM))
    got = score(launch, to_bf16(q.astype(np.float32)), to_bf16(k.astype(np.float32)), row_elements=1152)
    assert np.array_equal(got, np.einsum("crd,ckd->crk", q, k))


def test_random_numbers(launch):
    """Within 2**-17 of the sum of |q k|, of the float64 sum.

    Tensor cores align the 17 numbers of an mma to the largest and cut them off some 24 bits below it: at most
    17 * 2**-24 of the largest for each of the 4 mma of a score, together less than 2**-17.
    """
    rng = np.random.default_rng(1)
    q, k = random_bf16(rng, 16, ROWS, HEAD_DIM), random_bf16(rng, 16, 32, HEAD_DIM)
    rows, keys = (from_bf16(x).astype(np.float64) for x in (q, k))
    exact = np.einsum("crd,ckd->crk", rows, keys)
    size = np.einsum("crd,ckd->crk", np.abs(rows), np.abs(keys))
    assert np.all(np.abs(score(launch, q, k) - exact) <= size * 2.0**-17)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_slot_reaches_only_its_own_column(value, launch):
    """NaN or Inf in one slot leaves the bits of all other keys' scores as they were, in every row."""
    rng = np.random.default_rng(2)
    q, clean = (np.repeat(random_bf16(rng, 1, n, HEAD_DIM), 32, axis=0) for n in (ROWS, 32))
    spoiled = clean.copy()
    for slot in range(32):
        spoiled[slot, slot] = to_bf16(np.full(HEAD_DIM, value, np.float32))
    got, reference = score(launch, q, spoiled), score(launch, q, clean)
    for slot in range(32):
        others = np.arange(32) != slot
        assert_same_bits(got[slot][:, others], reference[slot][:, others])
        assert not np.isfinite(got[slot][:, slot]).any()
