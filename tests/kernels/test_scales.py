"""Softmax scales that are negative or zero, of each skeleton: the API accepts any finite number.

The kernels negate q where the scale is negative, so that the softmax may have its magnitude.
"""

import dataclasses

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.tiny import long_length, windows
from verification.problems import FLAT_SCALE, MODEL_SCALE, make_problem

pytest_plugins = ["tests.kernels.tiny_subject"]


def problem_of(subject, scale: float, window: int | None):
    """A request that takes all that the kernel has, a short one, padding, and rows without a key."""
    lengths = [max(141, long_length(subject)), 40, 0, 5]
    return make_problem(lengths, device=subject.device, seed=3, scale=scale, window=window)


@pytest.mark.parametrize("scale", [-MODEL_SCALE, -FLAT_SCALE, 0.0])
def test_scales_that_are_not_positive(smallest, scale):
    """Within the tolerance of the reference: the key of the lowest score has the greatest weight, or none."""
    for window in windows(smallest):
        smallest.check(problem_of(smallest, scale, window), 2)


def test_a_negative_scale_is_that_of_the_negated_query(smallest):
    """Bit for bit, in every element: a change of sign is exact."""
    for window in windows(smallest):
        problem = problem_of(smallest, FLAT_SCALE, window)
        negative = dataclasses.replace(problem, q=-problem.q, scale=-FLAT_SCALE)
        want = bits(smallest.run(problem, 2))
        assert torch.equal(bits(smallest.run(negative, 2)), want)
