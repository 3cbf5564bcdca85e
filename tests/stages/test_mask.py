"""The mask against a plain statement of its rule, over every short length and window."""

import re
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int32, Int64

from stages.fragments import ROWS
from stages.mask import CausalMask
from stages.ptx.arithmetic import select
from stages.ptx.global_memory import store_global_i32
from tests.device import Launch, MicroKernel, compile_kernel, out

TOKENS = 8
LENGTHS = 41
"""Lengths 0 .. 40: shorter than the verify step, around one page and two."""

KEYS = 56
"""Keys 0 .. 55: some after the last. No kernel asks for one before the first."""

SPAN = 16
"""How many keys `sees_all` and `sees_any` are asked about: a page."""

WINDOWS = (None, *range(1, 21))
"""No window; windows below and above the number of tokens, a page and a page and more."""


@dataclass(frozen=True)
class Masking(MicroKernel):
    """sees[length, mask, row group, half, key]: sees(key) + 2 sees_all(key, SPAN) + 4 sees_any(key, SPAN).

    `ranges` has first and last of each [length, mask, row group, half].
    """

    heads_per_kv: int
    windows: tuple[int | None, ...]

    def __str__(self):
        return f"Masking_{self.heads_per_kv}_heads_{len(self.windows)}_windows"

    @property
    def row_groups(self) -> int:
        """Row groups of one request and KV head."""
        return TOKENS * self.heads_per_kv // ROWS

    @property
    def where(self) -> Launch:
        """A CTA a length and row group, a thread a key."""
        return Launch(grid=(LENGTHS, self.row_groups, 1), block=(KEYS, 1, 1))

    @cute.jit
    def __call__(self, sees: cute.Pointer, ranges: cute.Pointer, stream: cuda.CUstream):
        self.kernel(sees.toint(), ranges.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, sees: Int64, ranges: Int64):
        key, _, _ = cute.arch.thread_idx()
        length, row_group, _ = cute.arch.block_idx()
        for w in cutlass.range_constexpr(len(self.windows)):
            mask = CausalMask(TOKENS, self.heads_per_kv, self.windows[w])
            visible = mask.key_ranges(length, row_group)
            for half in cutlass.range_constexpr(2):
                index = ((length * len(self.windows) + w) * self.row_groups + row_group) * 2 + half
                bits = select(visible[half].sees(key), Int32(1), Int32(0))
                bits = bits | select(visible[half].sees_all(key, SPAN), Int32(2), Int32(0))
                bits = bits | select(visible[half].sees_any(key, SPAN), Int32(4), Int32(0))
                store_global_i32(sees + Int64(4 * (index * KEYS + key)), bits)
                first = 0 if visible[half].first is None else visible[half].first
                end = select(key % 2 == 0, Int32(first), Int32(visible[half].last))
                if key < 2:
                    store_global_i32(ranges + Int64(4 * (2 * index + key)), end)


def visible_keys(length: int, token: int, window: int | None) -> range:
    """The keys that a token sees, as the verify step defines them: the last TOKENS entries are the tokens.

    What of a window lies before the first key is in the range.
    """
    last = length - TOKENS + token
    return range(0 if window is None else last - window + 1, last + 1)


KERNELS = [Masking(8, WINDOWS), Masking(16, (None, 1, 17))]
"""8 heads: the two rows of a lane belong to two tokens. 16 heads: to one."""


@pytest.mark.pin
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_compiles(kernel, arch):
    """Compiles for every architecture; nothing is read from memory."""
    assert "ld.global" not in compile_kernel(kernel, arch).ptx


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_each_row_sees_its_keys(kernel, launch):
    """Each row sees exactly the keys of its token's rule, for every length, window, row and key.

    No key from L on is seen; a token without a key (L < 8) sees none. `sees_all` holds where every key of
    the span is seen, `sees_any` where one of them is. A window begins where it does, before the first key
    too.
    """
    shape = (LENGTHS, len(kernel.windows), kernel.row_groups, 2)
    sees, ranges = launch(kernel, out(np.int32, *shape, KEYS), out(np.int32, *shape, 2))
    keys = range(KEYS)
    expected, expected_ranges = np.zeros_like(sees), np.zeros_like(ranges)
    for length, w, row_group, half in np.ndindex(shape):
        row = row_group * ROWS + 8 * half
        seen = visible_keys(length, row // kernel.heads_per_kv, kernel.windows[w])
        one = [key in seen for key in keys]
        some = [not set(range(key, key + SPAN)).isdisjoint(seen) for key in keys]
        whole = [set(range(key, key + SPAN)) <= set(seen) for key in keys]
        expected[length, w, row_group, half] = np.array([one, whole, some]).T @ (1, 2, 4)
        expected_ranges[length, w, row_group, half] = seen.start, seen.stop - 1
    assert np.array_equal(sees, expected)
    assert np.array_equal(ranges, expected_ranges)


@pytest.mark.parametrize("heads_per_kv", [8, 16])
def test_a_lanes_two_rows_have_one_token_each(heads_per_kv):
    """Rows g of a row group share a token for g in 0 .. 7, and so do rows g + 8: one range serves 8 rows."""
    tokens = np.arange(TOKENS * heads_per_kv) // heads_per_kv
    assert all(len(set(rows)) == 1 for rows in tokens.reshape(-1, ROWS // 2))


@pytest.mark.parametrize("window", [None, 5])
def test_only_a_window_has_a_first_key(window):
    """Without a window `first` is None, so that kernels without one have nothing to compare with.

    A row's three questions then take two comparisons (`sees` and `sees_any` share one), and four with it.
    """
    ptx = compile_kernel(Masking(8, (window,)), "sm_90a").ptx
    ranges = [key_range.first for key_range in CausalMask(TOKENS, 8).key_ranges(40, 0)]
    assert ranges == [None, None]
    assert len(re.findall(r"setp\.\w+\.s32", ptx)) == 2 * (2 if window is None else 4)
