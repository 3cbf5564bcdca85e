"""What the split kernel may read, and where: poison, visible NaN, scratch memory, addresses past 32 bits."""

import dataclasses
import math

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.split_scale import SCALE, SHORT
from tests.kernels.test_memory import far_cache
from verification.attention import HEAD_DIM, PAGE_SIZE, TOKENS
from verification.problems import Layout, make_problem, model_like, padded, place

pytest_plugins = ["tests.kernels.split_subject"]

by_variant = pytest.mark.parametrize("name", SCALE.variants)


@pytest.mark.parametrize("window", [None, 150])
@by_variant
def test_what_no_row_sees_changes_no_bit(splits, name, window):
    """NaN, Inf or zeros where no row may look give the same bits.

    In K and in V separately: in slots behind the last token and before a window, in unused pages, and behind
    stale table entries on both sides of the needed ones.
    """
    subject, lengths = splits[name], SCALE.memory[name]
    content = model_like(len(lengths), padded(max(lengths)), 1, device=subject.device)
    deployment = {"window": window, "max_seq_len": max(lengths)}
    clean = place(content, lengths, layout=Layout(k_poison=0.0, v_poison=0.0), **deployment)
    want = bits(subject.check(clean, 2))
    for k_poison, v_poison in SCALE.poisons[: SCALE.poisoned[name]]:
        layout = Layout(k_poison=k_poison, v_poison=v_poison, seed=1)
        problem = place(content, lengths, layout=layout, **deployment)
        assert torch.equal(bits(subject.run(problem, 2)), want), (k_poison, v_poison)


@pytest.mark.parametrize("length", [64, 128, 144])
def test_the_length_comes_from_seq_lens_alone(splits, length):
    """Columns to spare change nothing, and none are needed: the table ends with its memory.

    L = 16 k is where an allocator may already have given one page more.
    """
    subject = splits["split_tiny"]
    for columns in (0, 64):
        layout = Layout(spare_columns=0)
        longest = length + PAGE_SIZE * columns
        subject.check(make_problem([length], device=subject.device, max_seq_len=longest, layout=layout))


@pytest.mark.parametrize("half", ["k", "v"])
@pytest.mark.parametrize("window", [None, 3, 137])
def test_visible_nan_reaches_the_rows_that_see_it_and_no_other(splits, window, half):
    """At the first and the last key of each token, at both edges of a window: other rows keep their bits.

    The tokens of a request see unlike keys in its first and last pages, and two tokens share an mma. NaN in K
    makes the seeing rows NaN, NaN in V their dim. One request for each token, short and long by turns.
    """
    subject, dim = splits["split_tiny"], 37
    lengths = [90, 203] * (TOKENS // 2) if half == "k" else [203, 90] * (TOKENS // 2)
    problem = make_problem(lengths, device=subject.device, window=window)
    clean = subject.run(problem).view(TOKENS, TOKENS, -1, HEAD_DIM)
    token = torch.arange(TOKENS)
    for edge in ("last",) if window is None else ("first", "last"):
        cache = problem.kv_cache.clone()
        sees = torch.zeros(clean.shape, dtype=torch.bool)
        for r, length in enumerate(lengths):
            last = length - TOKENS + token
            first = last - (window or length) + 1
            key = int((first if edge == "first" else last)[r].clamp(min=0))
            page = problem.block_table[r, key // PAGE_SIZE].long()
            cache[page, 0, key % PAGE_SIZE, dim + (HEAD_DIM if half == "v" else 0)] = math.nan
            sees[r, (first <= key) & (key <= last), :, slice(None) if half == "k" else dim] = True
        out = subject.run(dataclasses.replace(problem, kv_cache=cache)).view_as(clean)
        hit = sees.to(out.device)
        assert torch.equal(out.isnan(), hit), edge
        assert torch.equal(bits(out)[~hit], bits(clean)[~hit]), edge


@pytest.mark.parametrize(
    "layout", [Layout(fused=False), Layout(layers=2, layer=1, head_gap=1, seed=5)], ids=str
)
def test_strides_are_honoured(splits, layout):
    """The same content in another layout gives the same bits."""
    subject, lengths = splits["split_tiny"], SCALE.memory["split_tiny"]
    content = model_like(len(lengths), padded(max(lengths)), 2, device=subject.device)
    want = bits(subject.check(place(content, lengths)))
    assert torch.equal(bits(subject.run(place(content, lengths, layout=layout))), want)


def test_inputs_are_left_alone(splits):
    """A call writes to `out`, not between its rows, to the scratch memory, and to nothing else."""
    subject = splits["split_tiny"]
    problem = make_problem([200, 0, 40], kv_heads=2, device=subject.device)
    inputs = (problem.q, problem.gate, problem.kv_cache, problem.block_table, problem.seq_lens)
    before = [tensor.clone() for tensor in inputs]
    out = problem.poisoned_out(padding=24)
    want = bits(subject.run(problem, 2))
    assert torch.equal(bits(subject.run(problem, 2, out=out)), want)
    rows = out.as_strided((len(out), out.stride(0)), out.stride())
    assert rows[:, out.shape[1] :].isnan().all()
    for tensor, copy in zip(inputs, before, strict=True):
        kind = torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
        assert torch.equal(tensor.view(kind), copy.view(kind))


@pytest.mark.parametrize("layers", [1, 4])
def test_addresses_past_32_bits(splits, layers):
    """Pages beyond 2**31 and 2**32 bytes and 2**31 elements are found, by the ring and by the short path.

    With H = 4 these are pages 131072 and (both) 262144, or a quarter of that where four layers interleave.
    Pages lie on both sides of each.
    """
    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB of free device memory")
    subject = splits["split_tiny"]
    problem = make_problem(SCALE.far["split_tiny"], kv_heads=4, device=subject.device)
    want = bits(subject.check(problem))
    count = int(problem.needed.sum())
    half, whole = 131072 // layers, 262144 // layers
    edges = [edge + i - count // 4 for i in range(-(-count // 2)) for edge in (half, whole)]
    places = torch.tensor(edges[:count], device=subject.device)
    cache = far_cache(whole + count, layers, subject.device)[:, layers - 1]
    table = problem.block_table.clone()
    cache[places] = problem.kv_cache[table[problem.needed].long()]
    table[problem.needed] = places.to(torch.int32)
    far = dataclasses.replace(problem, kv_cache=cache, block_table=table)
    out = subject.run(far)
    assert torch.equal(bits(out), want)
    subject.compare(out, far)


@pytest.mark.cuda("its shared memory outlives a launch")
@by_variant
def test_nothing_is_left_over_from_a_call_full_of_nan(splits, name):
    """NaN that one call leaves in shared memory, registers and the workspace does not reach the next."""
    subject = splits[name]
    clean = make_problem([SHORT[name] + 20, 20, 0, 9], kv_heads=4, device=subject.device)
    want = bits(subject.check(clean))
    layout = Layout(fused=False)
    dirty = make_problem([2 * SHORT[name] + 64, 1000], kv_heads=4, device=subject.device, layout=layout)
    for tensor in (dirty.q, dirty.gate, dirty.kv_cache):
        tensor.fill_(math.nan)
    scratch = subject.scratch(clean)
    for _ in range(5):
        assert subject.call(dirty, scratch).isnan().all()
        scratch.check()
        assert torch.equal(bits(subject.call(clean, scratch)), want)
        scratch.check()
