"""Fixtures of all tests."""

import pytest
import torch

from tests.device import ARCHITECTURES, compile_kernel, run

# The tensors of tests on the CPU are small, and threads that share a core wait for each other.
torch.set_num_threads(1)


@pytest.fixture(params=ARCHITECTURES)
def arch(request) -> str:
    """Each architecture that micro-kernels are compiled for."""
    return request.param


@pytest.fixture
def launch():
    """A function that compiles a micro-kernel for every architecture, then runs it and returns its outputs.

    See `tests.device.run` for the arguments, and for where it runs.
    """

    def compile_and_run(kernel, *arguments):
        for arch in ARCHITECTURES:
            compile_kernel(kernel, arch)
        return run(kernel, list(arguments))

    return compile_and_run
