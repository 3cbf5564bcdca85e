"""Memory that must not matter, and how engines fill it; more is in `tests.faults.covered`."""

import dataclasses

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.tiny import long_length, windows
from verification.problems import INT_MAX, make_problem

pytest_plugins = ["tests.kernels.tiny_subject"]


def with_entries(problem, value):
    """The problem with another entry wherever the table names no page that is needed."""
    table = problem.block_table.clone()
    table[~problem.needed] = value
    return dataclasses.replace(problem, block_table=table)


def test_freed_and_padded_entries_are_page_0(tiny):
    """Page 0 is NaN, and all entries that are not needed name it: a padded request's row is all zeros."""
    lengths = [0, long_length(tiny), 9]
    for window in windows(tiny):
        problem = make_problem(lengths, device=tiny.device, window=window, max_seq_len=max(lengths) + 64)
        assert problem.kv_cache[0].isnan().all()
        want = bits(tiny.check(problem, 2))
        zeroed = with_entries(problem, 0)
        assert not zeroed.block_table[0].any()
        assert torch.equal(bits(tiny.run(zeroed, 2)), want), window


STALE = {
    "none": -1,
    "the largest": INT_MAX,
    "the smallest": -(2**31),
    "behind the last page": None,
    "another request's": "theirs",
}


@pytest.mark.parametrize("kind", STALE)
def test_entries_that_are_not_live_are_not_followed(tiny, kind):
    """Behind a request's pages, and before those of its window: whatever stands there, the bits are the same.

    The longest request leaves some columns, and the table ends with its memory.
    """
    longest = long_length(tiny)
    for window in windows(tiny):
        deployment = {"window": window, "max_seq_len": longest + 64}
        problem = make_problem([longest, 0, 35], device=tiny.device, seed=1, **deployment)
        want = bits(tiny.run(problem, 2))
        value = STALE[kind]
        if value is None:
            value = len(problem.kv_cache)
        elif value == "theirs":
            value = problem.block_table[problem.needed][0]
        stale = with_entries(problem, value)
        assert stale.block_table.is_contiguous()
        assert torch.equal(bits(tiny.run(stale, 2)), want), window
