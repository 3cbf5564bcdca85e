"""A hundred thousand launches have the bits of the first, with other work on the device."""

import pytest
import torch

from tests.kernels.conftest import bits
from tests.modules import VARIANTS
from verification.problems import make_problem
from verification.runner import entry_name

CALLS, REPLAYS = 100, 1000
"""Calls in a graph, and how often it is replayed."""


@pytest.mark.cuda("captures a graph")
@pytest.mark.parametrize("name", VARIANTS)
def test_every_replay_has_the_same_bits(name):
    """Each call's output is compared on the device, element by element; counters are zero in the end.

    Another stream thrashes the L2 cache and keeps multiprocessors busy, so that clusters arrive in other
    orders.
    """
    module, variant = VARIANTS[name]
    attention = getattr(module, entry_name(module))
    lengths = [9000, 0, 4097, 700] if variant.kernel.splits else [2048, 0, 700]
    lengths = [min(length, variant.max_seq_len) for length in lengths]
    problem = make_problem(lengths, kv_heads=2, device="cuda", seed=4, max_seq_len=max(lengths))
    deployment = {"max_seq_len": problem.max_seq_len, "variant": variant.name}
    workspace, counters = module.allocate_scratch(len(lengths), kv_heads=2, **deployment)
    scratch = {"workspace": workspace, "counters": counters} if workspace.numel() else {}
    arguments = problem.arguments() | scratch | {"variant": variant.name}
    module.prepare(kv_heads=2, **deployment)
    want = bits(attention(**arguments))
    out, wrong = problem.poisoned_out(), torch.zeros((), dtype=torch.int64, device="cuda")
    bits(out).ne(want).sum()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            attention(**arguments, out=out)
            wrong += bits(out).ne(want).sum()

    busy, big = torch.cuda.Stream(), torch.empty(64 * 2**20, device="cuda")
    a = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    for replay in range(REPLAYS):
        graph.replay()
        if replay % 4 == 0:
            with torch.cuda.stream(busy):
                torch.mm(a, a)
                big.add_(1.0)
    torch.cuda.synchronize()
    assert wrong.item() == 0
    assert not counters.any()
