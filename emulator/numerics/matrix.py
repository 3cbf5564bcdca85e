"""Warp-wide matrix instructions on registers of whole warps: mma, movmatrix, ldmatrix.

A register is an array of 32 words a warp, [32 * warps] or [warps, 32], lane by lane; lane 4 g + t. All
layouts are such that a register's words are an 8 x 8 matrix of 16-bit elements in row-major order, row g,
columns 2t and 2t + 1 (of B its transpose), so no index arrays are needed. For mma, warps come last: then each
step of a sum is one operation on long contiguous rows.

Run under `np.errstate(all="ignore")`. Layouts: PTX ISA 8.8, "Matrix Fragments for mma.m16n8k16" and
"... m16n8k8", "ldmatrix", "movmatrix".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from emulator.arrays import Array
from emulator.numerics.summation import Operand, fused_sum

_KEPT = 8
"""Operands of the last mma that are kept: weights meet several tiles of values, and queries of keys."""


class _Recent:
    """What was made of the last few lists of registers, found again by the identity of their arrays."""

    def __init__(self, make: Callable[[Sequence[Array]], Operand]):
        self.make = make
        self.kept: list[tuple[tuple[Array, ...], Operand]] = []

    def __call__(self, registers: Sequence[Array]) -> Operand:
        for known, operand in self.kept:
            if len(known) == len(registers) and all(a is b for a, b in zip(known, registers, strict=True)):
                return operand
        operand = self.make(registers)
        self.kept = [(tuple(registers), operand), *self.kept[: _KEPT - 1]]
        return operand


def _halves(register: Array) -> tuple[Array, Array]:
    """FP32 numbers of the low and the high BF16 of each word: [8, 4, warps], g, t, warp."""
    words = np.ascontiguousarray(np.reshape(register, (-1, 32)).T).view(np.uint32).reshape(8, 4, -1)
    return (words << np.uint32(16)).view(np.float32), (words & np.uint32(0xFFFF0000)).view(np.float32)


def load_a(registers: Sequence[Array]) -> Operand:
    """A of m16n8k16 (4 registers) or m16n8k8 (2): [k, 16, warps]."""
    parts = [_halves(register) for register in registers]
    a = np.empty((len(parts) // 2, 4, 2, 2, 8, parts[0][0].shape[-1]), np.float32)
    for i, part in enumerate(parts):
        for half in range(2):
            a[i // 2, :, half, i % 2] = part[half].transpose(1, 0, 2)
    return Operand(a.reshape(4 * len(parts), 16, -1))


def load_b(registers: Sequence[Array]) -> Operand:
    """B of m16n8k16 (2 registers) or m16n8k8 (1): [k, 8, warps]."""
    parts = [_halves(register) for register in registers]
    b = np.empty((len(parts), 4, 2, 8, parts[0][0].shape[-1]), np.float32)
    for i, part in enumerate(parts):
        for half in range(2):
            b[i, :, half] = part[half].transpose(1, 0, 2)
    return Operand(b.reshape(8 * len(parts), 8, -1))


def load_c(registers: Sequence[Array]) -> Array:
    """C or D of m16n8 as FP32 [16, 8, warps], from 4 registers."""
    warps = np.size(registers[0]) // 32
    c = np.empty((2, 8, 4, 2, warps), np.float32)
    for i, register in enumerate(registers):
        c[i // 2, :, :, i % 2] = np.reshape(register, (warps, 32)).T.reshape(8, 4, warps)
    return c.reshape(16, 8, warps)


def store_c(d: Array) -> tuple[Array, ...]:
    """The 4 registers, FP32 [32 * warps], of D as FP32 [16, 8, warps]."""
    parts = d.reshape(2, 8, 4, 2, -1)
    return tuple(
        np.ascontiguousarray(parts[i // 2, :, :, i % 2].reshape(32, -1).T).reshape(-1) for i in range(4)
    )


_recent_a, _recent_b = _Recent(load_a), _Recent(load_b)


def mma(a: Sequence[Array], b: Sequence[Array], c: Sequence[Array]) -> tuple[Array, ...]:
    """`mma.sync.aligned.m16n8k16/m16n8k8.row.col.f32.bf16.bf16.f32`: the 4 registers of c + a @ b.

    a, b: words (uint32) of BF16 pairs, not to be written to afterwards; c: FP32. Summed as tensor cores do it
    (`summation`); NaN is the canonical one.
    """
    return store_c(fused_sum(_recent_a(a), _recent_b(b), load_c(c)))


def movmatrix(register: Array) -> Array:
    """`movmatrix.sync.aligned.m8n8.trans.b16`: the transposed 8 x 8 matrix of each warp."""
    matrices = np.ascontiguousarray(register).view(np.uint16).reshape(-1, 8, 8)
    return np.ascontiguousarray(matrices.transpose(0, 2, 1)).reshape(-1).view(np.uint32)


def ldmatrix(rows: Array, *, transposed: bool = False) -> tuple[Array, ...]:
    """`ldmatrix.sync.aligned.m8n8.x1/.x2/.x4{.trans}.shared.b16`: the registers, one a matrix.

    rows: uint8 [warps, 8 * matrices, 16], the 16 bytes that lane i's address points to in row i; lanes past
    8 * matrices give addresses that are not used.
    """
    matrices = np.ascontiguousarray(rows).view(np.uint16).reshape(len(rows), -1, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 1, 3, 2)
    return tuple(
        np.ascontiguousarray(matrices[:, i]).reshape(-1).view(np.uint32) for i in range(matrices.shape[1])
    )
