"""What the kernel asks of the machine, as the emulator counts it, and how long the emulator takes."""

import math

import pytest

from emulator.counts import Counts
from tests.kernels.conftest import NAMES, Subject, subject_of
from verification.attention import HEADS_PER_KV, PAGE_SIZE, ROW_GROUP, TOKENS
from verification.problems import make_problem
from verification.runner import run_emulated

pytestmark = pytest.mark.pin

MAX_SECONDS = 0.5
"""For one launch of one request and KV head with all checks on, so that tests of every length stay quick."""

MMA = 8
"""Matrix multiplications of 16 rows with the K, or with the V, of one page."""


@pytest.fixture(params=NAMES)
def emulated(request) -> Subject:
    """Each variant in turn, on the emulator wherever the other tests run."""
    return subject_of(request.param, "cpu")


def mma_of_a_row_group(row_group, length, partition):
    """Scores and values of each page of a step; values twice in steps of which a token does not see all."""
    last_key_of_both = length - TOKENS + row_group * ROW_GROUP // HEADS_PER_KV
    pages, a_step = math.ceil(length / PAGE_SIZE), partition.pages_per_step
    total = 0
    for warp in range(partition.stride):
        walk = range(warp, pages, partition.stride)
        for at in range(0, len(walk), a_step):
            # A step with fewer pages reaches past the last key.
            end = walk[at] + (a_step - 1) * partition.stride
            whole = (end + 1) * PAGE_SIZE - 1 <= last_key_of_both
            total += MMA * a_step * (2 if whole else 3)
    return total


@pytest.mark.parametrize("lengths", [[2048], [45, 0, 1033]], ids=str)
def test_traffic_and_arithmetic(emulated, lengths):
    """Each byte of a live page is loaded once by each row group, and of other pages none.

    Stale table entries name pages of other requests, page 0 and pages past the end: none of them is loaded
    because of that. Nothing waits for a bank of shared memory, and no warp multiplies what it need not.
    """
    counts = Counts()
    problem = make_problem(lengths, kv_heads=2, max_seq_len=2048)
    arguments = problem.arguments()
    kernel = emulated.kernel
    run_emulated(emulated.module, emulated.name, arguments, observers=[counts])

    live = set(problem.block_table[problem.needed].tolist())
    pages, kv_heads, *_ = problem.kv_cache.shape
    page_bytes = problem.kv_cache.stride(0) * 2
    cache = counts.buffers[f"argument {list(arguments).index('kv_cache')}"]
    assert cache.bytes == pages * page_bytes and len(live) < pages
    for page in range(pages):
        often = kernel.row_groups if page in live else 0
        assert cache.loads_of_each_byte(page * page_bytes, page_bytes) == (often, often), page
    assert cache.loaded == kernel.row_groups * len(live) * page_bytes and cache.stored == 0

    assert counts.shared.accesses > 0
    assert counts.shared.extra == 0, counts.conflicts
    expected = [
        mma_of_a_row_group(row_group, length, emulated.partition)
        for row_group in range(kernel.row_groups)
        for length in lengths
    ]
    assert counts.mma == kv_heads * sum(expected)


def test_a_launch_is_quick(emulated):
    """R = 1, H = 1, L = 2048, all checks on, once compiled; the best of three: others may use the machine."""
    arguments = make_problem([2048]).arguments()
    run_emulated(emulated.module, emulated.name, arguments)
    seconds = [run_emulated(emulated.module, emulated.name, arguments)[1].seconds for _ in range(3)]
    assert min(seconds) < MAX_SECONDS, seconds
