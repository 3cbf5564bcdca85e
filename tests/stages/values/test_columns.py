"""V in columns: the same bits as V in rows, once `finish` has given each lane the dims of its pairs."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int64

from stages.values.mma_pv import MmaValues
from tests import layouts
from tests.device import MicroKernel, compile_kernel, out
from tests.micro import load_registers, store_registers
from tests.numerics import assert_same_bits, to_bf16
from tests.stages.values.test_mma_pv import (
    EVERY,
    RANGES,
    Accumulating,
    accumulate,
    masked_weights,
    random_bf16,
)

HEAD_DIM, PAGE_SIZE, ROWS = layouts.HEAD_DIM, layouts.PAGE_SIZE, layouts.ROWS


@dataclass(frozen=True)
class FinishingOutput(MicroKernel):
    """The output [32, lane] after `finish`."""

    v_columns: bool

    def __str__(self):
        return f"FinishingOutput_{'columns' if self.v_columns else 'rows'}"

    @cute.jit
    def __call__(self, o: cute.Pointer, result: cute.Pointer, stream: cuda.CUstream):
        self.kernel(o.toint(), result.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, o: Int64, result: Int64):
        held = load_registers(Float32, o, HEAD_DIM // 2)
        MmaValues(HEAD_DIM, PAGE_SIZE).finish(held, self.v_columns)
        store_registers(result, held, Float32)


@pytest.mark.pin
@pytest.mark.parametrize("pages", [1, 2])
def test_compiles(pages, arch):
    """V in columns needs no movmatrix; the output is put right at the end, one shuffle for each number."""
    ptx = compile_kernel(Accumulating(pages, 1, v_columns=True), arch).ptx
    assert ptx.count("mma.sync") == pages * (8 + 16)
    assert ptx.count("movmatrix.sync") == 0
    assert ptx.count("shfl.sync") == HEAD_DIM // 2
    assert compile_kernel(FinishingOutput(False), arch).ptx.count("shfl.sync") == 0


def test_finish_moves_every_number_to_the_lane_of_its_pair(launch):
    """An output whose tiles are 8 dims in order becomes one whose tiles are the lanes' own pairs.

    All numbers are different, and they are moved bit for bit: -0, NaN and subnormals too.
    """
    bits = np.arange(ROWS * HEAD_DIM, dtype=np.uint32).reshape(ROWS, HEAD_DIM) * np.uint32(0x00410041)
    bits[3, 5], bits[12, 60], bits[7, 33] = 0x80000000, 0x7FC12345, 0x00000001
    assert len(np.unique(bits)) == bits.size
    columns = layouts.fold_output_columns(bits)
    assert not np.array_equal(columns, layouts.fold_output(bits))
    (moved,) = launch(FinishingOutput(True), columns, out(np.uint32, HEAD_DIM // 2, 32))
    assert np.array_equal(moved, layouts.fold_output(bits))
    (kept,) = launch(FinishingOutput(False), columns, out(np.uint32, HEAD_DIM // 2, 32))
    assert np.array_equal(kept, columns)


@pytest.mark.parametrize("visible", [(EVERY, EVERY), *RANGES], ids=str)
def test_v_in_columns_gives_the_same_bits(visible, launch):
    """V in columns, with the output finished, has the bits of V in rows; o, NaN and Inf included.

    The numbers span many magnitudes, so that another order of the slots or pages has other bits, and so has
    another place of a dim.
    """
    rng = np.random.default_rng(8)
    weights = masked_weights(rng, visible, 2)
    wide = rng.standard_normal((32, HEAD_DIM)) * np.exp2(rng.integers(-12, 13, (32, HEAD_DIM)))
    v = to_bf16(wide.astype(np.float32))
    v[3, 9], v[20, 40] = 0x7FC0, 0xFF80
    o = (rng.standard_normal((ROWS, HEAD_DIM)) * 30).astype(np.float32)
    rows = accumulate(launch, weights, v, o, visible)
    columns = accumulate(launch, weights, v, o, visible, v_columns=True)
    assert_same_bits(columns, rows)
    order = np.r_[16:32, 0:16]
    other = accumulate(launch, weights[:, order], v[order], o)
    if visible == (EVERY, EVERY):
        assert not np.array_equal(other, rows, equal_nan=True)


def test_ranges_from_zero(launch):
    """A first key that is left out is 0: the same bits as with 0 in its place, for whole and ragged pages."""
    rng = np.random.default_rng(9)
    ranges = [visible for visible in (*RANGES, (EVERY, EVERY)) if visible[0][0] == visible[1][0] == 0]
    assert len(ranges) > 5
    for visible in ranges:
        weights, v = masked_weights(rng, visible, 2), random_bf16(rng, 32, HEAD_DIM)
        v[5] = 0x7FC0
        given = accumulate(launch, weights, v, visible=visible)
        left_out = accumulate(launch, weights, v, visible=visible, from_zero=True)
        assert given.tobytes() == left_out.tobytes(), visible
