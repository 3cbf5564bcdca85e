"""Where the rows and the pages of one request and KV head are, and where its clusters meet.

Contract
    Plain numbers, alike in all threads of a CTA; nothing here touches memory.
"""

from dataclasses import dataclass

from cutlass import Float32, Int32, Int64

from stages.pages.walk import PageWalk
from stages.ptx.arithmetic import divide_u32, multiply_high_u32, select


@dataclass(frozen=True)
class Rows:
    """Where the rows of one request and KV head are: global addresses and strides in bytes."""

    request: Int32
    kv_head: Int32
    q: Int64
    q_stride: Int64
    gate: Int64
    gate_stride: Int64
    out: Int64
    out_stride: Int64
    scale_log2: Float32
    eps: Float32


@dataclass(frozen=True)
class Pages:
    """Where the pages of one request and KV head are, and which of them are needed.

    first: the page of the first key that row 0 sees. count: pages from there to the last live one.
    """

    table: Int64
    columns: Int32
    cache: Int64
    page_stride: Int32
    length: Int32
    first: Int32
    count: Int32

    def walk(self, first: Int32, stride: int) -> PageWalk:
        """A walk from page `first` of the request."""
        return PageWalk(self.table, self.columns, self.cache, self.page_stride, first, stride)


@dataclass(frozen=True)
class Scratch:
    """Where the clusters of a launch meet: global addresses, and how many share a request."""

    workspace: Int64
    counters: Int64
    clusters: Int32


@dataclass(frozen=True)
class Shares:
    """A number of shares, ready to divide by: the slow part is done before the length is known.

    number: at least 1. fraction: floor((2**32 - 1) / number).
    """

    number: Int32
    fraction: Int32

    @classmethod
    def prepare(cls, number: Int32) -> "Shares":
        """Divide once."""
        return cls(number, divide_u32(Int32(-1), number))

    def divide(self, total: Int32) -> tuple[Int32, Int32]:
        """(total // number, total % number); total is not negative."""
        # total * fraction / 2**32 lies less than 1 below total / number.
        quotient = multiply_high_u32(total, self.fraction)
        rest = total - quotient * self.number
        low = rest >= self.number
        return select(low, quotient + 1, quotient), select(low, rest - self.number, rest)
