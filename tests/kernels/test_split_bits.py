"""The same bits, whatever else changes: runs, schedules, batches, placement, scratch memory, graphs, load."""

import dataclasses
import math

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.split_scale import GUARD, SCALE, SHIPPED, SHORT, UNITS
from tests.modules import SPEC, module_of
from verification.attention import TOKENS
from verification.problems import Problem, make_problem

pytest_plugins = ["tests.kernels.split_subject"]

by_variant = pytest.mark.parametrize("name", SCALE.variants)
every = pytest.mark.parametrize("name", UNITS)


def mixed(name, device, **more) -> Problem:
    """Padding, short and long requests of a variant."""
    return make_problem(SCALE.mixed[name], device=device, seed=11, **more)


@pytest.mark.parametrize(("name", "pdl", "runs"), SCALE.repeats)
def test_every_run_has_the_same_bits(splits, name, pdl, runs):
    """Runs without a pause, all with one workspace, have the bits of the first; also with dependent launch.

    On the emulator each run has its own order of warps, CTAs, clusters and of asynchronous writes.
    """
    subject = splits[name]
    problem = (
        mixed(name, subject.device) if subject.device == "cuda" else make_problem([SHORT[name] + 5], seed=11)
    )
    want = bits(subject.check(problem, 2))
    scratch = subject.scratch(problem, 2)
    for seed in range(runs):
        out = subject.call(problem, scratch, num_splits=2, pdl=pdl, seed=seed)
        assert torch.equal(bits(out), want), seed
    scratch.check()


@by_variant
def test_a_request_does_not_mind_its_batch(splits, name):
    """Alone, at another position, twice, next to padding, in a larger batch: a request's bits are its own."""
    subject = splits[name]
    problem = mixed(name, subject.device).requests([0, 1, 2])
    want = bits(subject.run(problem)).unflatten(0, (-1, TOKENS))
    for order in SCALE.orders[: 1 if name == "split_small" and subject.device == "cpu" else None]:
        out = bits(subject.run(problem.requests(order))).unflatten(0, (-1, TOKENS))
        assert torch.equal(out, want[list(order)]), order


@pytest.mark.parametrize("window", [None, 140])
def test_pages_may_lie_anywhere(splits, window):
    """The physical placement of the pages does not matter."""
    subject = splits["split_tiny"]
    problem = make_problem([300, 45], device=subject.device, seed=11, window=window)
    want = bits(subject.run(problem, 2))
    for seed in range(2):
        assert torch.equal(bits(subject.run(problem.relocated(seed + 1), 2)), want), seed


def test_kv_heads_are_independent(splits):
    """A KV head alone has the bits that it has among others."""
    subject = splits["split_tiny"]
    problem = make_problem([200, 40], kv_heads=2, device=subject.device, seed=11)
    want = bits(subject.run(problem)).unflatten(1, (2, -1))
    for head in range(2):
        columns = slice(head * 512, (head + 1) * 512)
        alone = dataclasses.replace(
            problem,
            q=problem.q[:, columns],
            gate=problem.gate[:, columns],
            kv_cache=problem.kv_cache[:, head : head + 1],
        )
        assert torch.equal(bits(subject.run(alone)), want[:, head])


def test_what_the_workspace_holds_does_not_matter(splits):
    """Zeros, large numbers, the partials of another batch, and a larger one than is needed."""
    subject = splits["split_tiny"]
    problem = make_problem([200, 0, 140], device=subject.device, seed=11)
    want = bits(subject.run(problem, 2))
    scratch = subject.scratch(make_problem([300] * 4, device=subject.device), 3)
    want = want.unflatten(0, (-1, TOKENS))
    for filling, order in ((0x00, [0, 1, 2]), (None, [2, 0]), (0x7F, [1, 2])):
        if filling is not None:
            scratch.workspace[:-GUARD].fill_(filling)
        out = subject.call(problem.requests(order), scratch, num_splits=2)
        assert torch.equal(bits(out).unflatten(0, (-1, TOKENS)), want[order])
        scratch.check()


@pytest.mark.parametrize("window", [None, 40, 300])
def test_short_requests_do_not_mind_the_splits(splits, window):
    """One cluster attends them, whatever the number of splits and whatever the longest context may be."""
    subject = splits["split_tiny"]
    problem = make_problem([100, 0, 9, 128], device=subject.device, seed=11, window=window)
    want = bits(subject.run(problem))
    longer = make_problem([100, 0, 9, 128], device=subject.device, seed=11, window=window, max_seq_len=4096)
    assert torch.equal(bits(subject.run(longer, 3)), want)


REPLAYS = (8, 131072, 20000, 1, 131072, 8192, 0, 8193, 8)
"""Lengths of a captured graph's replays: short, long and back."""


@pytest.mark.cuda("captures a graph")
@pytest.mark.parametrize("window", [None, 2048])
@every
def test_a_graph_captured_short_serves_every_length(splits, name, window):
    """Captured at L = 8 and replayed at 131,072 and back, a graph has the bits of eager calls, and is right.

    Next to it are a request that stays and padding. The counters are zero after every replay.
    """
    subject = splits[name]
    problem = make_problem([131072, 9000, 0], kv_heads=2, device=subject.device, seed=3)
    problem = dataclasses.replace(problem, window=window)
    subject.prepare(problem)
    captured, scratch = problem.poisoned_out(), subject.scratch(problem, 4)
    problem.seq_lens[0] = REPLAYS[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        subject.call(problem, scratch, num_splits=4, out=captured)
    for length in REPLAYS:
        problem.seq_lens[0] = length
        captured.fill_(math.nan)
        graph.replay()
        scratch.check()
        assert torch.equal(bits(captured), bits(subject.run(problem, 4))), length
        subject.compare(captured, problem, 4)


@pytest.mark.cuda("keeps its SMs and its L2 cache busy")
@every
def test_a_loaded_device_changes_nothing(splits, name):
    """Another stream keeps the SMs and the L2 cache busy, so that clusters arrive in other orders."""
    subject = splits[name]
    problem = mixed(name, subject.device, kv_heads=2)
    want, scratch = bits(subject.run(problem, 4)), subject.scratch(problem, 4)
    busy = torch.cuda.Stream()
    a = torch.randn(2048, 2048, device=subject.device)
    big = torch.empty(64 * 2**20, device=subject.device)
    torch.cuda.synchronize()
    outs = []
    for _ in range(20):
        with torch.cuda.stream(busy):
            for _ in range(4):
                torch.mm(a, a)
                big.add_(1.0)
        outs += [subject.call(problem, scratch, num_splits=4) for _ in range(10)]
    torch.cuda.synchronize()
    scratch.check()
    assert all(torch.equal(bits(out), want) for out in outs)


@pytest.mark.cuda("launches on streams")
@every
def test_two_streams_with_two_workspaces_do_not_meet(splits, name):
    """Calls that run at the same time, each with scratch memory of its own, have the bits of calls alone."""
    subject = splits[name]
    problems = [
        mixed(name, subject.device),
        make_problem([SHORT[name] + 300, 9], device=subject.device, seed=12),
    ]
    wants = [bits(subject.run(problem, 2)) for problem in problems]
    scratches = [subject.scratch(problem, 2) for problem in problems]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    outs = ([], [])
    for _ in range(100):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                outs[i].append(subject.call(problems[i], scratches[i], num_splits=2))
    torch.cuda.synchronize()
    for scratch, want, got in zip(scratches, wants, outs, strict=True):
        scratch.check()
        assert all(torch.equal(bits(out), want) for out in got)


@pytest.mark.cuda("the module's own launch chooses")
@pytest.mark.parametrize("name", SHIPPED)
def test_a_fresh_module_has_the_bits_of_the_checked_in_one(splits, name):
    """A module in `generated/` computes what one made from the spec and the stages as they are computes."""
    old = splits[name]
    fresh = dataclasses.replace(old, module=module_of(SPEC, name.partition(".")[0]))
    problem = mixed(name, old.device)
    assert torch.equal(bits(fresh.run(problem, 3)), bits(old.run(problem, 3)))
