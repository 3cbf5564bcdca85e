"""Matrix multiplication by warpgroups: registers and shared memory to matrices, and their product.

Each warp of a warpgroup has 16 of the 64 rows, so a warp is the unit here. Matrices are FP32 numbers with
warps last, as in `numerics.matrix`: A [16 of k, 16, warps], B [16 of k, N, warps], D [16, N, warps].

One m64nNk16 sums as one `mma.sync.m16n8k16` does (`summation`), all 16 products and the addend at once: these
are the bits of an H200 in all cases of `tests.golden.wgmma_cases`.

Run under `np.errstate(all="ignore")`. Layouts: PTX ISA 8.8, "Register fragments for
wgmma.mma_async.m64nNk16".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.arrays import Array
from emulator.numerics.matrix import load_a
from emulator.numerics.summation import Operand, fused_sum


def left_registers(registers: Sequence[Array]) -> Operand:
    """A from 4 registers of BF16 pairs [32 * warps]: as of mma.m16n8k16."""
    return load_a(registers)


def from_rows(rows: Array) -> Operand:
    """A or B from BF16 bits as they lie in K-major memory, uint16 [warps, m or n, 16 of k]."""
    return _numbers(rows.transpose(2, 1, 0))


def from_columns(columns: Array) -> Operand:
    """A or B from BF16 bits as they lie in MN-major memory, uint16 [warps, 16 of k, m or n]."""
    return _numbers(columns.transpose(1, 2, 0))


def _numbers(bits: Array) -> Operand:
    words = np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)
    return Operand(words.view(np.float32))


def load_sums(registers: Sequence[Array]) -> Array:
    """D from N / 2 registers of FP32 [32 * warps]."""
    tiles = np.stack(registers).reshape(len(registers) // 4, 2, 2, -1, 8, 4)
    # tile, half of the rows, column of a pair, warp, g, t
    ordered = np.ascontiguousarray(tiles.transpose(1, 4, 0, 5, 2, 3))
    return ordered.reshape(16, 2 * len(registers), -1)


def store_sums(sums: Array) -> tuple[Array, ...]:
    """The N / 2 registers of D, the inverse of `load_sums`."""
    tiles = sums.reshape(2, 8, sums.shape[1] // 8, 4, 2, -1)
    ordered = np.ascontiguousarray(tiles.transpose(2, 0, 4, 5, 1, 3))
    return tuple(ordered.reshape(sums.shape[1] // 2, -1))


def multiply(a: Operand, b: Operand, c: Array) -> Array:
    """c + a @ b as `wgmma.mma_async.m64nNk16.f32.bf16.bf16` sums it; see the module."""
    return fused_sum(a, b, c)
