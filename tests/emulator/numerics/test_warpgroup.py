"""Matrix multiplication by warpgroups on arrays: registers, and its sums."""

import numpy as np

from emulator.numerics import matrix, warpgroup
from tests.golden import inputs

WARPS = 3


def registers(seed: int, count: int) -> list[np.ndarray]:
    """FP32 registers of some warps."""
    return list(inputs.magnitudes(seed, -8, 9, count, 32 * WARPS))


def test_accumulators_there_and_back():
    """A register's place in D is the documented one, and the way back its inverse."""
    given = registers(1, 32)
    sums = warpgroup.load_sums(given)
    for lane in (0, 5, 31):
        g, t = divmod(lane, 4)
        for number in (0, 1, 2, 3, 17, 30):
            tile, half, column = number // 4, number % 4 // 2, number % 2
            assert sums[g + 8 * half, 8 * tile + 2 * t + column, 2] == given[number][64 + lane]
    for back, register in zip(warpgroup.store_sums(sums), given, strict=True):
        assert np.array_equal(back, register)


def test_sums_are_those_of_mma():
    """As recorded on an H200: tile by tile, an m64n64k16 has the bits of mma.m16n8k16."""
    a = list(inputs.words(2, 4, 32 * WARPS) & np.uint32(0xBFFFBFFF))
    bits = (inputs.words(3, WARPS, 64, 16) & np.uint32(0xBFFF)).astype(np.uint16)
    c = registers(4, 32)
    with np.errstate(all="ignore"):
        got = warpgroup.multiply(
            warpgroup.left_registers(a), warpgroup.from_rows(bits), warpgroup.load_sums(c)
        )
        found = warpgroup.store_sums(got)
        for tile in range(8):
            rows = np.ascontiguousarray(bits[:, 8 * tile : 8 * tile + 8]).view(np.uint32)
            b = [rows[:, :, 4 * half : 4 * half + 4].reshape(-1) for half in range(2)]
            expected = matrix.mma(a, b, c[4 * tile : 4 * tile + 4])
            for ours, theirs in zip(found[4 * tile : 4 * tile + 4], expected, strict=True):
                assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_columns_are_rows_transposed():
    """MN-major memory holds the same matrix as K-major memory, the other way round."""
    bits = (inputs.words(5, WARPS, 64, 16) & np.uint32(0xFFFF)).astype(np.uint16)
    rows = warpgroup.from_rows(bits).numbers
    columns = warpgroup.from_columns(np.ascontiguousarray(bits.transpose(0, 2, 1))).numbers
    assert rows.tobytes() == columns.tobytes()
