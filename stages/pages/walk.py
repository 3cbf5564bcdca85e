"""The pages that one warp attends, in order, and where they are.

Contract
    The warps of a cluster deal a request's pages out among them: warp number `first` (rank * warps +
    warp) takes pages first, first + stride, first + 2 * stride, ... of the live ones, where stride is
    the number of warps in the cluster. A page of the walk is its place in that list.

    An entry of the block table may be read before the length is known, as long as it lies in the table;
    what it says is used only if the page is live. All addresses are 64-bit byte addresses.
"""

from dataclasses import dataclass

from cutlass import Int32, Int64

from stages.ptx.arithmetic import select
from stages.ptx.global_memory import load_global_i32
from stages.ptx.index import element_address


@dataclass(frozen=True)
class PageWalk:
    """One warp's walk through one request's block table, for one KV head.

    table: address of the request's first entry. columns: entries that may be read, at least 1.
    cache: address of the KV head in page 0. page_stride: bytes from page to page, an unsigned number.
    first, stride: which pages are the warp's, as page numbers within the request.
    """

    table: Int64
    columns: Int32
    cache: Int64
    page_stride: Int32
    first: Int32
    stride: int

    def page(self, index):
        """The page number within the request of the walk's page `index`."""
        return self.first + index * self.stride

    def step(self, step, pages_per_step: int) -> list:
        """The page numbers of one step of the walk."""
        return [self.page(step * pages_per_step + p) for p in range(pages_per_step)]

    def entry(self, index) -> Int32:
        """The block-table entry of the walk's page `index`; the last column's if it has none."""
        page = self.page(index)
        last = self.columns - 1
        column = select(page < last, page, last)
        return load_global_i32(self.table + Int64(column) * 4)

    def address(self, entry: Int32) -> Int64:
        """Where the page lies that the block table gives as `entry`."""
        return element_address(self.cache, entry, self.page_stride)

    def pages(self, length: Int32, page_size: int) -> Int32:
        """How many pages of a request of this length are the walk's."""
        live = (length + (page_size - 1)) // page_size
        live = select(live < self.columns, live, self.columns)
        mine = (live - self.first + (self.stride - 1)) // self.stride
        return select(mine > 0, mine, Int32(0))
