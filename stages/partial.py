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

from cutlass import Float32, Int32

from stages.ptx import exp2, fma, maximum, mul, select, sub

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
class MergedUnits:
    """One thread's share of a CTA's merged partials: some units of 4 head dims of one row.

    row: 0 .. 15 within the row group. unit, unit_stride: the thread has units unit, unit + unit_stride,
    ... m, l: the row's, the same in all threads of the row. o: four FP32 values a unit.
    """

    row: Int32
    unit: Int32
    unit_stride: int
    m: Float32
    l: Float32
    o: list[list[Float32]]
