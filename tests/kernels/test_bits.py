"""The same bits, whatever else changes: runs, schedules, batches, placement, graphs, load, earlier calls."""

import dataclasses
import math

import pytest
import torch

from generator.compiled import load_module
from tests.kernels.conftest import SHIPPED, bits, subject_of
from tests.kernels.scale import SCALE
from tests.modules import KERNELS, SPEC, folder_of, module_of
from tests.modules import SHIPPED as MODULES
from verification.attention import TOKENS
from verification.problems import Layout, Problem, make_problem

GRAPH_LENGTHS = [2048, 9, 1025, 0, 777, 130, 16, 1500]


@pytest.fixture
def problem(device) -> Problem:
    """Unlike requests."""
    return make_problem(SCALE.bits_lengths, kv_heads=SCALE.kv_heads, device=device, seed=11)


@pytest.fixture
def graph_problem(device) -> Problem:
    """Eight unlike requests of two KV heads, of which graphs are captured."""
    return make_problem(GRAPH_LENGTHS, kv_heads=2, device=device, seed=11)


@pytest.mark.parametrize("pdl", [False, True])
def test_every_run_has_the_same_bits(subject, pdl):
    """200 runs, launched without a pause, have the bits of the first; so have runs with dependent launch.

    On the emulator each run has its own order of warps, CTAs, clusters and of asynchronous writes.
    """
    problem = make_problem(SCALE.repeated_lengths, kv_heads=SCALE.kv_heads, device=subject.device, seed=11)
    want = bits(subject.check(problem))
    outs = [subject.run(problem, pdl=pdl, seed=seed) for seed in range(SCALE.repeats[pdl])]
    assert all(torch.equal(bits(out), want) for out in outs)


def test_a_request_does_not_mind_its_batch(subject, problem):
    """Alone, at another position, twice, next to padding, in a larger batch: a request's bits are its own."""
    want = bits(subject.run(problem)).unflatten(0, (-1, TOKENS))
    for order in SCALE.bits_orders:
        out = bits(subject.run(problem.requests(order))).unflatten(0, (-1, TOKENS))
        assert torch.equal(out, want[list(order)]), order


def test_pages_may_lie_anywhere(subject, problem):
    """The physical placement of the pages does not matter."""
    want = bits(subject.run(problem))
    for seed in range(SCALE.placements):
        assert torch.equal(bits(subject.run(problem.relocated(seed + 1))), want), seed


def test_kv_heads_are_independent(subject):
    """A KV head alone has the bits that it has among others."""
    problem = make_problem(SCALE.bits_lengths[:2], kv_heads=2, device=subject.device, seed=11)
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


REPLAYS = [
    [9, 8, 16, 0, 21, 7, 16, 40],
    GRAPH_LENGTHS,
    [8, 8, 8, 0, 8, 8, 8, 8],
    [2047, 9, 1024, 0, 1, 129, 0, 1499],
    [0] * 8,
    [33, 9, 2, 0, 700, 130, 15, 1024],
    GRAPH_LENGTHS,
]
"""Lengths of a captured graph's replays: up to the longest and back, none above a request's pages."""


@pytest.mark.cuda("captures a graph")
def test_a_graph_captured_short_serves_every_length(subject, graph_problem):
    """Captured at the first of REPLAYS and replayed at all of them, a graph has the bits of eager calls.

    Whatever the table and the cache hold past each length is still there; and the results are right.
    """
    problem = graph_problem
    subject.prepare(problem)
    lengths = problem.seq_lens
    lengths.copy_(torch.tensor(REPLAYS[0]))
    captured = problem.poisoned_out()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        subject.run(problem, out=captured)
    for step in REPLAYS:
        lengths.copy_(torch.tensor(step))
        captured.fill_(math.nan)
        graph.replay()
        assert torch.equal(bits(captured), bits(subject.run(problem))), step
        subject.compare(captured, problem)


@pytest.mark.cuda("captures a graph")
def test_a_graph_sees_new_pages_and_activations(subject, graph_problem):
    """The table, the cache, q and gate are read at replay: another problem copied in gives its bits."""
    problem = graph_problem
    subject.prepare(problem)
    names = ("q", "gate", "kv_cache", "block_table", "seq_lens")
    held = dataclasses.replace(problem, **{name: getattr(problem, name).clone() for name in names})
    captured = problem.poisoned_out()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        subject.run(held, out=captured)
    other = make_problem(GRAPH_LENGTHS, kv_heads=2, device=subject.device, seed=12)
    assert other.kv_cache.shape == held.kv_cache.shape
    for source in (other, problem.relocated(5)):
        for name in names:
            getattr(held, name).copy_(getattr(source, name))
        captured.fill_(math.nan)
        graph.replay()
        assert torch.equal(bits(captured), bits(subject.run(source)))


@pytest.mark.cuda("keeps its SMs and its L2 cache busy")
def test_a_loaded_device_changes_nothing(subject, problem):
    """Another stream keeps the SMs and the L2 cache busy, so that CTAs start and finish in other orders."""
    want = bits(subject.run(problem))
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
        outs += [subject.run(problem) for _ in range(10)]
    torch.cuda.synchronize()
    assert all(torch.equal(bits(out), want) for out in outs)


@pytest.mark.cuda("its memory outlives a launch")
def test_nothing_is_left_over_from_a_call_full_of_nan(subject):
    """NaN that one call leaves in shared memory and registers of all SMs does not reach the next.

    Clean calls with short requests, whose warps are mostly idle, have the bits that they had before.
    """
    clean = make_problem([8, 20, 0, 9], kv_heads=4, device=subject.device)
    want = bits(subject.check(clean))
    dirty = make_problem([2048] * 8, kv_heads=4, device=subject.device, layout=Layout(fused=False))
    for tensor in (dirty.q, dirty.gate, dirty.kv_cache):
        tensor.fill_(math.nan)
    for _ in range(5):
        assert subject.run(dirty).isnan().all()
        assert torch.equal(bits(subject.run(clean)), want)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_checked_in_module_has_the_bits_of_a_fresh_one(name, problem, device):
    """A module in `generated/` computes what one made from the spec and the stages as they are computes."""
    old = subject_of(name, device)
    fresh = dataclasses.replace(old, module=module_of(SPEC, name.partition(".")[0]))
    assert torch.equal(bits(old.run(problem)), bits(fresh.check(problem)))


@pytest.mark.cuda("the module's own launch chooses")
@pytest.mark.parametrize("module", MODULES)
def test_the_first_variant_that_serves_is_the_one(module, problem, device):
    """Unless a variant is named, a deployment is served by the first of the module that can."""
    served = problem.max_seq_len, problem.window
    first = next(v for v in MODULES[module].VARIANTS if v.serves(*served))
    subject = subject_of(f"{module}.{first.name}", device)
    assert torch.equal(bits(subject.entry(**problem.arguments())), bits(subject.check(problem)))


@pytest.mark.cuda("captures a graph")
def test_a_first_call_inside_capture_says_what_to_do(problem):
    """A kernel is not compiled during a capture; the error names `prepare`, and afterwards all is well."""
    module = load_module(folder_of(KERNELS) / "generated" / "attn2.py")
    out = problem.poisoned_out()
    with pytest.raises(RuntimeError, match=r"cluster.*prepare\(\)"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        module.attn2(**problem.arguments(), out=out)
    module.prepare(kv_heads=2, max_seq_len=problem.max_seq_len)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.attn2(**problem.arguments(), out=out)
    graph.replay()
    want = module.attn2(**problem.arguments())
    assert torch.equal(bits(out), bits(want))
