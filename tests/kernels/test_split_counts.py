"""What the split kernel asks of the machine, as the emulator counts it wherever the other tests run.

In clusters of 2, two pages a step; requests of more than 8 pages are long. The rings are counted with what is
said of them all, in `test_rings`.
"""

import dataclasses

import pytest
import torch

from emulator.counts import Counts
from tests.kernels.tiny import kernel_of
from verification.attention import HEADS_PER_KV, PAGE_SIZE, ROW_GROUP, TOKENS, first_page, visible_keys
from verification.problems import make_problem
from verification.runner import run_emulated

pytest_plugins = ["tests.kernels.split_subject"]
pytestmark = pytest.mark.pin

MMA = 8
"""Matrix multiplications of 16 rows with the K, or with the V, of one page."""

WINDOW = 300
"""A window that is long itself: 20 pages, or 21."""


@pytest.fixture
def emulated(splits):
    """The variant that launches quickest."""
    return dataclasses.replace(splits["split_tiny"], device="cpu")


def counted(subject, problem, num_splits):
    """(counts of one launch, traffic of its cache)."""
    scratch = subject.scratch(problem, num_splits)
    arguments = {**problem.arguments(), "num_splits": num_splits, **scratch.arguments()}
    counts = Counts()
    run_emulated(subject.module, subject.name, arguments, observers=[counts])
    return counts, counts.buffers[f"argument {list(arguments).index('kv_cache')}"]


@pytest.mark.parametrize("window", [None, WINDOW])
def test_a_long_requests_pages_are_loaded_once_and_a_shorts_by_each_row_group(emulated, window):
    """One CTA loads a page of a long request, each row group's cluster one of a short request; no other page.

    Stale table entries name pages of other requests, page 0 and pages past the end; with a window, those of
    pages before it are stale too. Five clusters share the long requests, so z has two slices, of which the
    second leaves a short request alone. Nothing waits for a bank of shared memory.
    """
    lengths = [701, 0, 45, 333, 128, 129]
    problem = make_problem(lengths, kv_heads=2, window=window)
    kernel = kernel_of(emulated)
    counts, cache = counted(emulated, problem, 5)

    often = torch.zeros(len(problem.kv_cache), dtype=torch.int32)
    for table, needed in zip(problem.block_table, problem.needed, strict=True):
        pages = table[needed].long()
        often[pages] = kernel.row_groups if len(pages) <= kernel.short_pages else 1
    assert sorted(set(often.tolist())) == [0, 1, kernel.row_groups]
    page_bytes = problem.kv_cache.stride(0) * 2
    for page, times in enumerate(often.tolist()):
        assert cache.loads_of_each_byte(page * page_bytes, page_bytes) == (times, times), page
    assert cache.loaded == int(often.sum()) * page_bytes and cache.stored == 0

    assert counts.shared.accesses > 0
    assert counts.shared.extra == 0, counts.conflicts


def test_a_windows_cost_does_not_grow_with_the_length(emulated):
    """A window far into a request takes the bytes and the instructions of one near its beginning, exactly.

    The lengths have one residue mod 16, so both windows begin at the same slot of a page, and end at one.
    """
    near, far = (
        counted(emulated, make_problem([length], window=WINDOW, max_seq_len=70000), 3)
        for length in (405, 405 + 16 * 4096)
    )
    for traffic in (near[1], far[1]):
        # The keys that row 0 sees and those of the later tokens: 98..404 lie in pages 6..25.
        assert traffic.loaded == 20 * 4096
    assert far[0].by_opcode == near[0].by_opcode
    assert far[0].shared == near[0].shared
    for name, traffic in near[0].buffers.items():
        assert (far[0].buffers[name].loaded, far[0].buffers[name].stored) == (traffic.loaded, traffic.stored)


def mma_of_a_long_request(length, window, a_step):
    """Scores and values of each page that a row group sees, steps being `a_step` pages from the first on.

    Each of the row group's tokens takes values of its own, unless both see all keys of all pages of a step.
    """
    pages, together = -(-length // PAGE_SIZE), ROW_GROUP // HEADS_PER_KV
    seen = visible_keys(torch.tensor([length]), pages * PAGE_SIZE, window)[0]
    # [row group, token of it, page, key]
    seen = seen.view(TOKENS // together, together, pages, PAGE_SIZE)[:, :, first_page(length, window) :]
    total = 0
    for step in seen.split(a_step, dim=2):
        whole = step.all(-1).all(-1).all(-1) & (step.shape[2] == a_step)
        some = step.any(-1).any(1).sum(-1)
        total += int((MMA * some * torch.where(whole, 2, 1 + together)).sum())
    return total


@pytest.mark.parametrize("window", [None, WINDOW])
def test_no_warp_multiplies_what_it_need_not(emulated, window):
    """Two products a page that is attended with its step, three a page of a ragged one, none of unseen pages.

    With a full last page and one that only some row groups see, an even and an odd number of pages.
    """
    a_step = kernel_of(emulated).ring_pages_per_step
    for length in (329, 335, 336, 337, 340, 344, 352):
        counts, _ = counted(emulated, make_problem([length], window=window), 2)
        assert counts.mma == mma_of_a_long_request(length, window, a_step), length
