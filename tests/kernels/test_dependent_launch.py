"""Programmatic dependent launch: what the kernel before writes late is seen, all of it, by every variant."""

import dataclasses

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.producer import compile_producer
from tests.modules import VARIANTS
from verification.problems import Layout, Problem, make_problem
from verification.runner import entry_name

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
@pytest.mark.parametrize("name", VARIANTS)
def test_late_writes_of_the_kernel_before_are_seen(name):
    """The kernel starts while the producer sleeps, with the old problem in place, and computes the new one.

    Again and again, so that the launch before, whose counters this one counts with, is still running too.
    """
    module, variant = VARIANTS[name]
    attention = getattr(module, entry_name(module))
    lengths = [20000 if variant.kernel.splits else 2048, 9, 700]
    lengths = [min(length, variant.max_seq_len) for length in lengths]
    device = "cuda"
    old, new = problems(lengths, device)
    longest = max(lengths)
    deployment = {"max_seq_len": longest, "variant": variant.name}
    workspace, counters = module.allocate_scratch(len(lengths), kv_heads=2, **deployment)
    module.prepare(kv_heads=2, pdl=True, **deployment)
    major, minor = torch.cuda.get_device_capability()
    produce = compile_producer(SLEEP, f"sm_{major}{minor}a")

    def call(problem: Problem, pdl: bool) -> torch.Tensor:
        given = [getattr(problem, argument) for argument in WRITTEN]
        scratch = {"workspace": workspace, "counters": counters} if workspace.numel() else {}
        return attention(*given, scale=problem.scale, pdl=pdl, **deployment, **scratch)

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
