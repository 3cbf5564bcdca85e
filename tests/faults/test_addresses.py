"""Where the data lies; more is in `tests.faults.covered`."""

import dataclasses

import pytest
import torch

from generated import attn2
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


@pytest.mark.parametrize(
    ("elements", "refusal"),
    [
        (2**31 - 8, "q must be a CUDA tensor, got one on meta"),
        (2**31, "kv_cache must have a page stride below 2147483648 elements"),
    ],
)
def test_page_strides_of_4_gib_are_refused(elements, refusal):
    """Kernels multiply with a page stride of 32 bits; what does not fit is never cut short."""
    given = make_problem([40, 64], kv_heads=2).arguments()
    given = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    given["kv_cache"] = torch.empty_strided(
        (2, 2, 16, 128), (elements, 2048, 128, 1), dtype=torch.bfloat16, device="meta"
    )
    with pytest.raises(ValueError, match=refusal):
        attn2.attn2(**given)
