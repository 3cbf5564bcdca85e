"""The same bits for any timing: fifty orders of everything that a launch leaves open."""

import torch

from tests.kernels.conftest import bits
from tests.kernels.tiny import long_length
from verification.problems import make_problem

pytest_plugins = ["tests.kernels.tiny_subject"]

ORDERS = 50
"""Runs, on the emulator each with a seed of its own: of warps, CTAs, clusters and asynchronous writes."""


def test_timing_changes_no_bit(tiny):
    """Every fourth run is of a request for which clusters exchange and merge, the others are of shorter ones.

    Each has the bits of its first run, in which everything goes in step.
    """
    lengths = long_length(tiny), 9, 17, 30
    problems = [make_problem([length], device=tiny.device, seed=17) for length in lengths]
    wants = [bits(tiny.check(problem)) for problem in problems]
    for seed in range(ORDERS):
        which = seed % len(lengths)
        assert torch.equal(bits(tiny.run(problems[which], seed=seed)), wants[which]), seed
