"""Where the data lies; more is in `tests.faults.covered`."""

import dataclasses

import torch

from tests.kernels.conftest import bits
from tests.kernels.tiny import long_length
from verification.problems import make_problem

pytest_plugins = ["tests.kernels.tiny_subject"]


def with_stride(tensor, dim, stride):
    """The same tensor with another stride of a dimension of size 1, by which nobody may go."""
    assert tensor.shape[dim] == 1
    strides = list(tensor.stride())
    strides[dim] = stride
    return tensor.as_strided(tensor.shape, strides)


def test_strides_of_dimensions_of_size_1_do_not_matter(tiny):
    """PyTorch leaves any number there: one request, one KV head, one page, one column."""
    for length in (long_length(tiny), 9):
        problem = make_problem([length], device=tiny.device)
        want = bits(tiny.check(problem))
        odd = dataclasses.replace(
            problem,
            kv_cache=with_stride(problem.kv_cache, 1, 3),
            block_table=with_stride(problem.block_table, 0, 1),
            seq_lens=with_stride(problem.seq_lens, 0, 5),
        )
        assert torch.equal(bits(tiny.run(odd)), want), length

    page = problem.kv_cache[problem.block_table[0, 0].long()].clone()[None]
    alone = dataclasses.replace(
        problem,
        kv_cache=with_stride(page, 0, 7),
        block_table=with_stride(torch.zeros_like(problem.block_table), 1, 9),
    )
    assert torch.equal(bits(tiny.run(alone)), want)
