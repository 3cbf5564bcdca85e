"""The entries of a long walk: the right one for every page, looked up ahead and inside the table."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int32, Int64

import emulator
from emulator.counts import Counts
from stages.pages.walk import PageWalk
from stages.ptx.global_memory import store_global_i32
from stages.ring.entries import BATCH, WalkEntries
from tests.device import ARCHITECTURES, Launch, MicroKernel, compile_kernel, out

WARPS = 2


@dataclass(frozen=True)
class LookingAhead(MicroKernel):
    """[warp, page, lane] the entries of a walk's first `pages` pages, asked for in steps."""

    pages_per_step: int
    stride: int

    def __str__(self):
        return f"LookingAhead_{self.pages_per_step}_pages_stride_{self.stride}"

    @property
    def where(self) -> Launch:
        """Two warps, each with entries of its own."""
        return Launch(block=(32 * WARPS, 1, 1))

    @cute.jit
    def __call__(
        self,
        table: cute.Pointer,
        found: cute.Pointer,
        columns: Int32,
        first: Int32,
        pages: Int32,
        stream: cuda.CUstream,
    ):
        self.kernel(table.toint(), found.toint(), columns, first, pages).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, table: Int64, found: Int64, columns: Int32, first: Int32, pages: Int32):
        lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
        walk = PageWalk(table, columns, Int64(0), Int32(0), first, self.stride)
        entries = WalkEntries.begin(walk)
        for step in cutlass.range(pages // self.pages_per_step, unroll=1):
            entries.advance(walk, step * self.pages_per_step)
            for p in cutlass.range_constexpr(self.pages_per_step):
                index = step * self.pages_per_step + p
                at = found + Int64(4 * ((warp * pages + index) * 32 + lane))
                store_global_i32(at, entries.at(index))


KERNELS = [LookingAhead(1, 1), LookingAhead(2, 1), LookingAhead(2, 3)]
LENGTHS = (2, 30, 32, 34, 64, 66, 96, 98, 160)
"""Pages around each of the first advances, and enough for four of them."""


def make_table(columns: int) -> np.ndarray:
    """Entries that are all different."""
    return np.random.default_rng(columns).permutation(2**20)[:columns].astype(np.int32)


@pytest.mark.pin
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """A warp looks up 32 entries with one load: two at the beginning, one whenever it advances."""
    ptx = compile_kernel(kernel, arch).ptx
    assert ptx.count("ld.global.b32") == 3
    assert ptx.count("shfl.sync.idx.b32") >= kernel.pages_per_step


@pytest.mark.parametrize("pages", LENGTHS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_page_has_its_entry(kernel, pages, launch):
    """All lanes of each warp get the table's entry of the walk's page, whatever page the walk begins with.

    The table ends with the walk's last page and its memory with the table: a look ahead past the end would
    leave it.
    """
    for first in (0, 7):
        columns = first + (pages - 1) * kernel.stride + 1
        table = make_table(columns)
        (got,) = launch(kernel, table, out(np.int32, WARPS, pages, 32), columns, first, pages)
        expected = table[first + kernel.stride * np.arange(pages)]
        assert np.array_equal(got, np.broadcast_to(expected[:, None], got.shape)), first


def test_an_entry_past_the_table_is_its_last(launch):
    """Of pages that the table does not have, the last entry is given: it is in the table, and not used."""
    kernel, pages, columns = LookingAhead(2, 1), 100, 41
    table = make_table(columns)
    (got,) = launch(kernel, table, out(np.int32, WARPS, pages, 32), columns, 0, pages)
    assert np.array_equal(got[:, :, 0], np.tile(table[np.minimum(np.arange(pages), columns - 1)], (WARPS, 1)))


@pytest.mark.pin
@pytest.mark.parametrize(("pages", "advances"), [(2, 0), (32, 0), (34, 1), (64, 1), (66, 2), (160, 4)])
def test_entries_are_looked_up_once_and_ahead(pages, advances):
    """A warp has 64 entries from the start, and 32 more each time it has used up 32: none is read twice."""
    kernel = LookingAhead(2, 1)
    compiled, counts = compile_kernel(kernel, ARCHITECTURES[0]), Counts()
    table = make_table((2 + advances) * BATCH)
    found = np.zeros((WARPS, pages, 32), np.int32)
    emulator.launch(
        compiled.ptx,
        grid=1,
        block=32 * WARPS,
        arguments=[table, found, len(table), 0, pages],
        observers=[counts],
    )
    traffic = counts.buffers["argument 0"]
    assert traffic.loaded == WARPS * 4 * (2 + advances) * BATCH
    assert traffic.loads_of_each_byte(0, table.nbytes) == (WARPS, WARPS)
