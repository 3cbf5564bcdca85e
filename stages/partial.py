"""The record of a partial: what attention over some of the keys leaves for one row.

Contract
    A partial is (m, l, o): m the running maximum of the row's scores (base-2 logits), l the sum of its
    weights 2**(score - m), o the unnormalised output, the sum of weight * value. Over no visible key it
    is (-inf, 0, 0). Partials are merged by bringing them to the larger maximum:

        M = max(m_i),  L = sum(l_i * 2**(m_i - M)),  O = sum(o_i * 2**(m_i - M))

    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).

    Where every m is -inf, M stands in the exponents as 0, so that 2**(-inf - M) is 0 and not NaN. PTX `max`
    drops a NaN beside a number, so m need not show one; it travels in l and o and so reaches the result.

    In shared memory a record is FP32 [o, head_dim of them | m | l | 8 bytes of padding]. The padding
    keeps records 16-byte aligned and puts neighbouring records 4 banks apart.

    Any thread may call these; they read and write no memory.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from stages.fragments import RowState, chunk_dim, chunks
from stages.ptx.arithmetic import exp2, fma, maximum, mul, select, sub

NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True)
class PartialRecord:
    """Byte offsets within one partial in shared memory."""

    head_dim: int

    @property
    def stats(self) -> int:
        """The pair (m, l)."""
        return 4 * self.head_dim

    @property
    def bytes(self) -> int:
        """From one record to the next."""
        return 4 * self.head_dim + 16

    @property
    def payload(self) -> int:
        """Bytes that carry something: all but the padding."""
        return 4 * self.head_dim + 8


def merge_weights(maxima) -> tuple[Float32, list[Float32]]:
    """M and the factors 2**(m_i - M) that bring partials with these maxima together."""
    top = maxima[0]
    for other in maxima[1:]:
        top = maximum(top, other)
    base = exponent_base(top)
    return top, [exp2(sub(m, base)) for m in maxima]


def exponent_base(m: Float32) -> Float32:
    """What to subtract in an exponent where the maximum is m: m itself, or 0 for no key at all."""
    return select(m == NEGATIVE_INFINITY, Float32(0.0), m)


def weighted_sum(factors, parts) -> Float32:
    """The sum of factor * part, added up in ascending order."""
    total = mul(factors[0], parts[0])
    for factor, part in zip(factors[1:], parts[1:], strict=True):
        total = fma(factor, part, total)
    return total


@dataclass(frozen=True)
class RowUnits:
    """One thread's share of one row's partial: some units of 4 head dims.

    row: within the rows that are exchanged. units: which units, ascending. m, l: the row's, the same in all
    threads that share it. o: four FP32 values a unit.
    """

    row: Int32
    units: list[Int32]
    m: Float32
    l: Float32
    o: list[list[Float32]]


def lane_units(state: RowState, half: int, row: Int32, head_dim: int) -> RowUnits:
    """What a lane holds of one of its two rows (half 0: row g, 1: row g + 8) while a warp attends."""
    quarter = cute.arch.lane_idx() % 4
    units, parts = [], []
    for chunk in range(chunks(head_dim)):
        # The 4 pairs of a chunk are its 8 dims: two accumulator tiles a unit.
        for unit in range(2):
            pairs = range(4 * chunk + 2 * unit, 4 * chunk + 2 * unit + 2)
            units.append(chunk_dim(chunk, quarter) // 4 + unit)
            parts.append([state.o[4 * pair + 2 * half + e] for pair in pairs for e in range(2)])
    return RowUnits(row, units, state.m[half], state.l[half], parts)
