"""Lengths that change under a launch that does not, and fewer pages than there is room for.

More is in `tests.faults.covered`.
"""

import dataclasses

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.tiny import kernel_of, long_length, windows
from verification.problems import make_problem

pytest_plugins = ["tests.kernels.tiny_subject"]


def test_lengths_change_where_nothing_else_does(tiny):
    """As in a captured graph: the same tensors, with lengths from short to long and back.

    What lies behind a shorter length are live pages of the step before. With a window other pages are needed
    for each length, so those of the whole request are there.
    """
    longest = long_length(tiny)
    problem = make_problem([longest, longest - 7, 20], device=tiny.device)
    steps = [8, 0, 3], [longest, 30, 0], [0, 0, 0], [longest - 1, longest - 7, 20], [9, 17, 8]
    for window in windows(tiny):
        held = dataclasses.replace(problem, window=window, seq_lens=problem.seq_lens.clone())
        for lengths in steps if window is None else steps[1::2]:
            held.seq_lens.copy_(torch.tensor(lengths))
            tiny.check(held, 2)


@pytest.mark.parametrize("length", [0, 1, 17])
def test_fewer_pages_than_parts(tiny, length):
    """One page, or none, for all ranks, warps and splits of a launch: empty parts contribute nothing."""
    others = [long_length(tiny), length]
    problem = make_problem(others, device=tiny.device, seed=length)
    alone = bits(tiny.check(problem.requests([1])))
    assert torch.equal(bits(tiny.check(problem, 2))[8:], alone)


def test_more_splits_than_pages(splits):
    """A request just long enough to be spread, over more CTAs than it has pages: some get none."""
    subject = splits["split_tiny"]
    problem = make_problem([long_length(subject)], device=subject.device)
    kernel = kernel_of(subject)
    for num_splits in (3, 9):
        assert kernel.cluster * kernel.row_groups * num_splits > int(problem.needed.sum())
        subject.check(problem, num_splits)
