"""Programmatic dependent launch: what the kernel before writes late is seen, all of it, by both variants."""

import dataclasses

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.producer import compile_producer
from verification.problems import Layout, Problem, make_problem

SLEEP = 100_000
"""Nanoseconds between the producer's trigger and its first write: ten times as long as a kernel takes."""

WRITTEN = ("q", "gate", "kv_cache", "block_table", "seq_lens")
"""What the producer writes."""


def test_the_producer_compiles(arch):
    """It triggers before it sleeps, and writes after that."""
    compile_producer(SLEEP, arch)


def problems(lengths, device) -> tuple[Problem, Problem]:
    """Two problems of one deployment that share nothing: other lengths, pages, activations."""
    layout, longest = Layout(fused=False, spare_columns=0), max(lengths)
    first, second = (
        make_problem(order, kv_heads=2, device=device, seed=seed, layout=layout, max_seq_len=longest)
        for order, seed in ((lengths, 1), (lengths[::-1], 2))
    )
    assert first.kv_cache.shape == second.kv_cache.shape
    return first, second


@pytest.mark.cuda("overlaps launches")
@pytest.mark.parametrize(("name", "lengths"), [("cluster", [2048, 9, 700]), ("split", [20000, 9, 700])])
def test_late_writes_of_the_kernel_before_are_seen(name, lengths):
    """The kernel starts while the producer sleeps, with the old problem in place, and computes the new one.

    Again and again, so that the launch before, whose counters this one counts with, is still running too.
    """
    from generated import attn2

    device = "cuda"
    old, new = problems(lengths, device)
    longest = max(lengths)
    deployment = {"max_seq_len": longest, "variant": name}
    workspace, counters = attn2.allocate_scratch(len(lengths), kv_heads=2, **deployment)
    attn2.prepare(kv_heads=2, pdl=True, **deployment)
    major, minor = torch.cuda.get_device_capability()
    produce = compile_producer(SLEEP, f"sm_{major}{minor}a")

    def call(problem: Problem, pdl: bool) -> torch.Tensor:
        given = [getattr(problem, argument) for argument in WRITTEN]
        scratch = {"workspace": workspace, "counters": counters} if workspace.numel() else {}
        return attn2.attn2(*given, scale=problem.scale, pdl=pdl, **deployment, **scratch)

    wants = [bits(call(problem, False)) for problem in (old, new)]
    assert not torch.equal(*wants)
    held = dataclasses.replace(old, **{key: getattr(old, key).clone() for key in WRITTEN})
    targets = [getattr(held, key) for key in WRITTEN]
    stream = torch.cuda.current_stream().cuda_stream
    torch.cuda.synchronize()
    outs = []
    for turn in range(20):
        source = (new, old)[turn % 2]
        produce([getattr(source, key) for key in WRITTEN], targets, stream)
        outs.append(call(held, True))
    torch.cuda.synchronize()
    for turn, out in enumerate(outs):
        assert torch.equal(bits(out), wants[1 - turn % 2]), turn
