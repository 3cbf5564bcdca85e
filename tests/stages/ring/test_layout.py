"""How a page lies: the sizes that rings count with, against the cache's shape."""

import numpy as np
import pytest

from stages.fragments import chunks, pairs
from stages.ring.layout import page_bytes, slot_bytes, tiles
from tests import layouts


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("page_size", [8, 16, 32])
def test_sizes(head_dim, page_size):
    """A page is [page_size, 2 * head_dim] BF16, slots of K and V side by side, in tiles of 8 slots."""
    page = np.zeros((page_size, 2 * head_dim), np.uint16)
    assert slot_bytes(head_dim) == page[0].nbytes
    assert page_bytes(head_dim, page_size) == page.nbytes
    assert tiles(page_size) * layouts.fold_page(page[:8, :64]).shape[0] == page_size // 8 * pairs(64)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_slots_begin_in_the_same_bank(head_dim):
    """Neighbouring slots are a multiple of all 32 banks apart: why rings move chunks about."""
    assert slot_bytes(head_dim) % (32 * 4) == 0


def test_a_lane_reads_whole_chunks():
    """The 16-byte chunks that four lanes read of a slot's K are all of it, and as many as V has."""
    assert 4 * chunks(layouts.HEAD_DIM) * 16 == slot_bytes(layouts.HEAD_DIM) // 2
