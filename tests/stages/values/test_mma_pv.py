"""P V on tensor cores: layout by one-hot weights, who may see a NaN, and the two ways' equal bits."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int32, Int64

from stages.fragments import TILE, pairs
from stages.mask import KeyRange
from stages.ptx.global_memory import load_global_i32
from stages.values.mma_pv import MmaValues
from tests import layouts
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import load_registers, store_registers
from tests.numerics import assert_same_bits, from_bf16, to_bf16

HEAD_DIM, PAGE_SIZE, ROWS = layouts.HEAD_DIM, layouts.PAGE_SIZE, layouts.ROWS
FIRST_KEYS = (1040, 2064)
"""The first keys of the pages: a round of 64 pages apart."""

EVERY = (0, 2**30)

PAGE_REGISTERS = PAGE_SIZE // TILE * pairs(HEAD_DIM)
"""Registers of V of a page."""


@dataclass(frozen=True)
class Accumulating(MicroKernel):
    """o += weights @ v, page by page, for `cases` problems that share o and what rows see, one a CTA.

    facts: the two rows' (first, last), then the first key of each page and whether to mask it. v_columns: V
    and o come in columns, and the output is finished. from_zero: the rows' first key is left out, for 0.
    """

    pages: int
    cases: int
    v_columns: bool = False
    from_zero: bool = False

    def __str__(self):
        more = "_columns" * self.v_columns + "_from_zero" * self.from_zero
        return f"Accumulating_{self.pages}_pages_{self.cases}{more}"

    @property
    def where(self) -> Launch:
        """A warp a problem."""
        return Launch(grid=(self.cases, 1, 1))

    @cute.jit
    def __call__(
        self,
        weights: cute.Pointer,
        v: cute.Pointer,
        o: cute.Pointer,
        facts: cute.Pointer,
        result: cute.Pointer,
        stream: cuda.CUstream,
    ):
        self.kernel(weights.toint(), v.toint(), o.toint(), facts.toint(), result.toint()).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, weights: Int64, v: Int64, o: Int64, facts: Int64, result: Int64):
        case, _, _ = cute.arch.block_idx()
        ends = [load_global_i32(facts + Int64(4 * i)) for i in range(4)]
        firsts = (None, None) if cutlass.const_expr(self.from_zero) else (ends[0], ends[2])
        visible = (KeyRange(firsts[0], ends[1]), KeyRange(firsts[1], ends[3]))
        held = load_registers(Float32, o, HEAD_DIM // 2)
        stage = MmaValues(HEAD_DIM, PAGE_SIZE)
        for p in cutlass.range_constexpr(self.pages):
            number = case * self.pages + p
            first_key, masked = [load_global_i32(facts + Int64(16 + 8 * p + 4 * i)) for i in range(2)]
            page_weights = load_registers(Int32, weights + Int64(512 * number), 4)
            a = [page_weights[i] for i in range(4)]
            values = load_registers(Int32, v + Int64(number * 128 * PAGE_REGISTERS), PAGE_REGISTERS)
            if masked != 0:
                stage.accumulate(a, values, self.v_columns, first_key, visible, True, held)
            else:
                stage.accumulate(a, values, self.v_columns, first_key, visible, False, held)
        stage.finish(held, self.v_columns)
        store_registers(result + Int64(case * 64 * HEAD_DIM), held, Float32)


def facts_of(visible, pages: int, masked: bool | None = None) -> np.ndarray:
    """The kernel's facts. masked: None to do as kernels do: pages that a row does not see whole are."""
    whole = seen_keys(visible, pages).reshape(ROWS, pages, PAGE_SIZE).all(axis=(0, 2))
    flags = ~whole if masked is None else np.full(pages, masked)
    return np.array([*np.ravel(visible), *np.stack([FIRST_KEYS[:pages], flags], axis=1).flat], np.int32)


def accumulate(
    launch, weights, v, o=None, visible=(EVERY, EVERY), *, masked=None, v_columns=False, from_zero=False
) -> np.ndarray:
    """[cases, 16, 64] o + weights @ v on the device. masked: see `facts_of`.

    weights [cases, 16, keys] and v [cases, keys, 64] as BF16 bits, either of them for one case or for all.
    """
    fold_v, fold_o = (
        (layouts.fold_page_columns, layouts.fold_output_columns)
        if v_columns
        else (layouts.fold_page, layouts.fold_output)
    )
    weights, v = (x if x.ndim == 3 else x[None] for x in (weights, v))
    cases, pages = max(len(weights), len(v)), v.shape[1] // PAGE_SIZE
    o = np.zeros((ROWS, HEAD_DIM), np.float32) if o is None else o
    (got,) = launch(
        Accumulating(pages, cases, v_columns, from_zero),
        np.stack([layouts.fold_weights(weights[case % len(weights)]) for case in range(cases)]),
        np.stack([fold_v(v[case % len(v)]) for case in range(cases)]),
        fold_o(o),
        facts_of(visible, pages, masked),
        out(np.float32, cases, HEAD_DIM // 2, 32),
    )
    return np.stack([layouts.unfold_output(case) for case in got])


def random_bf16(rng, *shape: int) -> np.ndarray:
    """Normally distributed BF16 bits."""
    return to_bf16(rng.standard_normal(shape).astype(np.float32))


def masked_weights(rng, visible, pages: int) -> np.ndarray:
    """[16, keys] BF16 bits of weights in (0, 1]; +0 where a row does not see the key, as after a softmax."""
    weights = np.exp2(-8 * rng.random((ROWS, pages * PAGE_SIZE))).astype(np.float32)
    return np.where(seen_keys(visible, pages), to_bf16(weights), np.uint16(0))


def seen_keys(visible, pages: int) -> np.ndarray:
    """[16, keys] which keys each row sees; rows 0 .. 7 have the first range."""
    keys = np.concatenate([first + np.arange(PAGE_SIZE) for first in FIRST_KEYS[:pages]])
    ends = np.repeat(np.array(visible), ROWS // 2, axis=0)
    return (keys >= ends[:, :1]) & (keys <= ends[:, 1:])


RANGES = [
    ((0, 1048), (0, 1049)),  # the causal edge in the first page: the later token sees one slot more
    ((0, 2066), (0, 2067)),  # in the second page
    ((1045, 2070), (1046, 2071)),  # a window's low edge in the first page, the causal edge in the second
    ((0, 1039), (0, 1040)),  # the later token sees the first slot of the page, the earlier one none
    ((0, 1055), (0, 2064)),  # the edge on a page boundary
    ((0, -1), (0, 1041)),  # the earlier token sees nothing at all
    ((-9, 1048), (-8, 1049)),  # a window that begins before the first key
    ((0, 1054), (0, 1055)),  # the later token sees the whole page, the earlier all but its last slot
    (
        (1040, 2100),
        (1041, 2101),
    ),  # a window: the earlier token sees the whole page, the later not its first slot
    (
        (1055, 2100),
        (1056, 2101),
    ),  # a window: the later token sees none of a page of which the earlier sees a slot
]


@pytest.mark.pin
@pytest.mark.parametrize("pages", [1, 2])
def test_compiles(pages, arch):
    """A page is transposed pair by pair, 16 movmatrix, on both ways; one mma a pair, or two if ragged."""
    ptx = compile_kernel(Accumulating(pages, 1), arch).ptx
    assert ptx.count("mma.sync") == pages * (8 + 16)
    assert ptx.count("movmatrix.sync") == pages * 2 * 16
    assert ptx.count("shfl.sync") == 0


@pytest.mark.parametrize("visible", [(EVERY, EVERY), ((1, 2**30), (0, 2**30)), *RANGES], ids=str)
@pytest.mark.parametrize("pages", [1, 2])
def test_one_hot_weights_pick_one_slot(pages, visible, launch):
    """A row with weight 1 at one key that it sees becomes that key's value, bit for bit.

    Every row has another key, and all keys come up: a wrong key, dim, tile, page or row shows.
    """
    rng = np.random.default_rng(pages)
    keys = pages * PAGE_SIZE
    v = random_bf16(rng, keys, HEAD_DIM)
    seen = seen_keys(visible, pages)
    shift, row = np.ogrid[:keys, :ROWS]
    chosen = (5 * row + shift) % keys
    weights = np.zeros((keys, ROWS, keys), np.uint16)
    weights[shift, row, chosen] = np.where(seen[row, chosen], 0x3F80, 0)
    expected = np.where(seen[row, chosen][..., None], from_bf16(v)[chosen], np.float32(0))
    assert_same_bits(accumulate(launch, weights, v, visible=visible) + np.float32(0), expected)


def test_whole_numbers_are_exact(launch):
    """The sum o + P V of whole numbers below 2**24 is exact, and o is accumulated on, not replaced."""
    rng = np.random.default_rng(3)
    weights, v = rng.integers(0, 129, (ROWS, 32)), rng.integers(-128, 129, (32, HEAD_DIM))
    o = rng.integers(-(2**20), 2**20, (ROWS, HEAD_DIM)).astype(np.float32)
    (got,) = accumulate(launch, to_bf16(np.float32(weights)), to_bf16(np.float32(v)), o)
    assert np.array_equal(got, o + weights @ v)


def test_pages_accumulate_in_ascending_order(launch):
    """2**25 + 1 - 2**25: the 1 of the first page is lost only if that page comes first."""
    o = np.full((ROWS, HEAD_DIM), 2.0**25, np.float32)
    weights, v = np.zeros((2, ROWS, PAGE_SIZE), np.float32), np.zeros((2, PAGE_SIZE, HEAD_DIM), np.float32)
    weights[:, :, 3] = 1
    v[0, 3], v[1, 3] = 1, -(2.0**25)
    for order, expected in (((0, 1), 0.0), ((1, 0), 1.0)):
        columns = to_bf16(np.concatenate([weights[i] for i in order], axis=1))
        got = accumulate(launch, columns, to_bf16(np.concatenate([v[i] for i in order])), o)
        assert np.all(got == expected), order


@pytest.mark.parametrize("visible", [(EVERY, EVERY), *RANGES], ids=str)
def test_random_numbers(visible, launch):
    """Within 2**-18 of |o| + the sum of |w v|, of the float64 sum, on both ways.

    Tensor cores align the 17 numbers of an mma to the largest and cut them off some 24 bits below it; a
    row has two mma, so 2 * 17 * 2**-24 of the largest.
    """
    rng = np.random.default_rng(4)
    weights, v = masked_weights(rng, visible, 2), random_bf16(rng, 32, HEAD_DIM)
    o = rng.standard_normal((ROWS, HEAD_DIM)).astype(np.float32)
    w64, v64 = from_bf16(weights).astype(np.float64), from_bf16(v).astype(np.float64)
    got = accumulate(launch, weights, v, o, visible)
    size = np.abs(o) + np.abs(w64) @ np.abs(v64)
    assert np.all(np.abs(got - (o + w64 @ v64)) <= size * 2.0**-18)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("visible", RANGES, ids=str)
def test_a_value_reaches_the_rows_that_see_it_and_no_other(visible, value, launch):
    """NaN or Inf in one slot and dim changes no bit of a row that does not see the slot, nor of another dim.

    The two tokens of a row group share an mma, and a weight of 0 would not stop it. Each slot in turn:
    those that both tokens see, one, or none.
    """
    rng = np.random.default_rng(5)
    weights, v = masked_weights(rng, visible, 2), random_bf16(rng, 32, HEAD_DIM)
    o = rng.standard_normal((ROWS, HEAD_DIM)).astype(np.float32)
    seen = seen_keys(visible, 2)
    spoiled = np.repeat(v[None], 33, axis=0)
    slots, dims = np.arange(32), (7 * np.arange(32) + 3) % HEAD_DIM
    spoiled[slots, slots, dims] = to_bf16(value)
    got = accumulate(launch, weights, spoiled, o, visible)
    expected = np.repeat(got[32:], 32, axis=0)  # the last problem has no such value
    for slot, dim in zip(slots, dims, strict=True):
        expected[slot, seen[:, slot], dim] = value
    assert_same_bits(got[:32], expected)


@pytest.mark.parametrize("visible", RANGES, ids=str)
def test_unseen_pages_may_hold_anything(visible, launch):
    """NaN in all slots that no row sees, at once: the same bits as with zeros there."""
    rng = np.random.default_rng(6)
    weights, v = masked_weights(rng, visible, 2), random_bf16(rng, 32, HEAD_DIM)
    unseen = ~seen_keys(visible, 2).any(axis=0)
    both = np.stack([v, v])
    both[0, unseen], both[1, unseen] = 0x7FC0, 0
    got = accumulate(launch, weights, both, visible=visible)
    assert got[0].tobytes() == got[1].tobytes()


def test_whole_and_ragged_pages_have_the_same_bits(launch):
    """The two ways add the same numbers in the same order: equal bits, o's included, for the same weights.

    The slots that the ragged way hides have a weight of 0 on both ways, and finite values.
    """
    rng = np.random.default_rng(7)
    for visible in [(EVERY, EVERY), *RANGES]:
        weights, v = masked_weights(rng, visible, 2), random_bf16(rng, 32, HEAD_DIM)
        o = rng.standard_normal((ROWS, HEAD_DIM)).astype(np.float32)
        ragged, whole = (accumulate(launch, weights, v, o, visible, masked=way) for way in (True, False))
        assert ragged.tobytes() == whole.tobytes(), visible


def test_only_the_ragged_way_hides_a_value(launch):
    """A NaN in a slot that no row sees: hidden if the page is masked, and there in all rows if it is not."""
    rng = np.random.default_rng(10)
    visible = ((0, 1048), (0, 1048))
    weights, v = masked_weights(rng, visible, 1), random_bf16(rng, PAGE_SIZE, HEAD_DIM)
    v[12, 7] = 0x7FC0
    assert np.isfinite(accumulate(launch, weights, v, visible=visible, masked=True)).all()
    spoiled = np.isnan(accumulate(launch, weights, v, visible=visible, masked=False)[0])
    assert spoiled[:, 7].all() and spoiled.sum() == ROWS
