"""What the kernel may read, and where it finds it: poison, visible NaN, strides, addresses past 32 bits."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import emulator
from stages.epilogue.norm_gate import reference as norm_gate
from tests.kernels.conftest import bits
from tests.kernels.scale import SCALE
from verification.attention import HEAD_DIM, HEADS_PER_KV, PAGE_SIZE, TOKENS
from verification.problems import Layout, make_problem, model_like, place

LENGTHS = SCALE.memory_lengths


def test_what_no_row_sees_changes_no_bit(subject):
    """NaN, Inf or zeros where no row may look give the same bits.

    In K and in V separately: in slots that no row sees, in unused pages, and behind other stale table
    entries.
    """
    content = model_like(len(LENGTHS), 2048, SCALE.kv_heads, device=subject.device)
    clean = place(content, LENGTHS, layout=Layout(k_poison=0.0, v_poison=0.0))
    want = subject.check(clean)
    for k_poison, v_poison in SCALE.poisons:
        problem = place(content, LENGTHS, layout=Layout(k_poison=k_poison, v_poison=v_poison, seed=1))
        assert torch.equal(bits(subject.run(problem)), bits(want)), (k_poison, v_poison)


@pytest.mark.parametrize("extra", [0, 1, 64])
def test_the_length_comes_from_seq_lens_alone(subject, extra):
    """Columns to spare change nothing, and none are needed.

    L = 16 k is where an allocator may already have given one page more. With no column to spare the table
    ends with its memory.
    """
    lengths = [16, 1024, 48]
    layout = Layout(spare_columns=0)
    problem = make_problem(lengths, device=subject.device, max_seq_len=1024 + 16 * extra, layout=layout)
    subject.check(problem)


def visible_nan_cases(problem):
    """Lists of (request, KV head, key), one of each request: its first key, and each of its tokens' own.

    A list holds as many cases as there are requests; together they hold every token's own key once.
    """
    lengths = problem.seq_lens.tolist()
    for first in range(0, TOKENS + 1, len(lengths)):
        offsets = range(first, min(first + len(lengths), TOKENS + 1))
        yield [
            (
                request,
                offset % problem.kv_cache.shape[1],
                0 if offset == TOKENS else lengths[request] - TOKENS + offset,
            )
            for request, offset in enumerate(offsets)
        ]


@pytest.mark.parametrize("half", ["k", "v"])
def test_visible_nan_reaches_the_rows_that_see_it_and_no_other(subject, half):
    """Two tokens share an mma, and a slot may be seen by one of them alone.

    NaN in K makes the seeing rows NaN, NaN in V their dim, or all dims where a norm follows; every other
    row keeps its bits.
    """
    problem = make_problem([40, 1030, 19], kv_heads=SCALE.kv_heads, device=subject.device)
    clean = subject.run(problem).view(TOKENS * 3, -1, HEAD_DIM)
    dim = 37
    whole_row = half == "k" or subject.epilogue is norm_gate
    dims = slice(None) if whole_row else slice(dim, dim + 1)
    for cases in visible_nan_cases(problem):
        cache = problem.kv_cache.clone()
        sees = torch.zeros(clean.shape, dtype=torch.bool, device=clean.device)
        for request, kv_head, key in cases:
            page = problem.block_table[request, key // PAGE_SIZE].long()
            cache[page, kv_head, key % PAGE_SIZE, dim + (HEAD_DIM if half == "v" else 0)] = math.nan
            first_token = max(0, key - (int(problem.seq_lens[request]) - TOKENS))
            tokens = slice(request * TOKENS + first_token, (request + 1) * TOKENS)
            sees[tokens, kv_head * HEADS_PER_KV : (kv_head + 1) * HEADS_PER_KV, dims] = True
        out = subject.run(dataclasses.replace(problem, kv_cache=cache)).view_as(clean)
        assert torch.equal(out.isnan(), sees), cases
        assert torch.equal(bits(out)[~sees], bits(clean)[~sees]), cases


def test_nan_in_q_stays_in_its_row(subject):
    """A NaN in one query row makes that row NaN and no other of the 16 that share an mma."""
    layout = Layout(fused=False)
    problem = make_problem([40, 1030], kv_heads=SCALE.kv_heads, device=subject.device, layout=layout)
    clean = subject.run(problem).view(TOKENS * 2, -1, HEAD_DIM)
    problem.q.view_as(clean)[10, 3, 20] = math.nan
    out = subject.run(problem).view_as(clean)
    hit = torch.zeros_like(clean, dtype=torch.bool)
    hit[10, 3] = True
    assert torch.equal(out.isnan(), hit)
    assert torch.equal(bits(out)[~hit], bits(clean)[~hit])


LAYOUTS = {
    "contiguous rows": Layout(fused=False),
    "one layer of three": Layout(layers=3, layer=1),
    "gaps between heads": Layout(head_gap=4),
    "all at once": Layout(layers=2, layer=1, head_gap=1, spare_columns=7, seed=5),
}


def test_strides_are_honoured(subject):
    """The same content in another layout gives the same bits."""
    lengths = SCALE.layout_lengths
    content = model_like(len(lengths), 2048, 2, device=subject.device)
    want = subject.check(place(content, lengths))
    for name, layout in LAYOUTS.items():
        assert torch.equal(bits(subject.run(place(content, lengths, layout=layout))), bits(want)), name


def test_heads_may_be_a_dimension_and_out_a_slice(subject):
    """Rows may be [8R, 8H, 64] as well as [8R, 512H], and slices of longer rows.

    The bits are the same, the output is written in full, and what lies between its rows is not touched.
    """
    problem = make_problem(LENGTHS, kv_heads=SCALE.kv_heads, device=subject.device)
    want = subject.check(problem)
    split = {name: getattr(problem, name).unflatten(1, (-1, HEAD_DIM)) for name in ("q", "gate")}
    out = problem.poisoned_out(padding=24)
    subject.run(dataclasses.replace(problem, **split), out=out.unflatten(1, (-1, HEAD_DIM)))
    assert torch.equal(bits(out), bits(want))
    rows = out.as_strided((len(out), out.stride(0)), out.stride())
    assert rows[:, out.shape[1] :].isnan().all()


def test_inputs_are_left_alone(subject):
    """A call writes to `out` and to nothing else."""
    problem = make_problem(LENGTHS, kv_heads=SCALE.kv_heads, device=subject.device)
    inputs = (problem.q, problem.gate, problem.kv_cache, problem.block_table, problem.seq_lens)
    before = [tensor.clone() for tensor in inputs]
    subject.run(problem)
    for tensor, copy in zip(inputs, before, strict=True):
        kind = torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
        assert torch.equal(tensor.view(kind), copy.view(kind))


def far_cache(pages, layers, device):
    """[pages, layers, 4, 16, 128] of many GiB: NaN on a GPU; zeros that take no memory on the CPU."""
    shape = (pages, layers, 4, PAGE_SIZE, 2 * HEAD_DIM)
    if device == "cuda":
        return torch.full(shape, math.nan, dtype=torch.bfloat16, device=device)
    return torch.from_numpy(emulator.sparse(math.prod(shape), np.int16)).view(torch.bfloat16).view(shape)


@pytest.mark.parametrize("layers", [1, 4])
def test_addresses_past_32_bits(subject, layers):
    """Pages beyond 2**31 and 2**32 bytes and 2**31 elements are found.

    With H = 4 these are pages 131072 and (both) 262144, or a quarter of that where four layers interleave.
    Pages lie on both sides of each.
    """
    if subject.device == "cuda" and torch.cuda.mem_get_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GiB of free device memory")
    problem = make_problem(SCALE.far_lengths, kv_heads=4, device=subject.device)
    want = subject.check(problem)
    count = int(problem.needed.sum())
    half, whole = 131072 // layers, 262144 // layers
    around = [edge + i - count // 4 for i in range(-(-count // 2)) for edge in (half, whole)]
    places = torch.tensor(around[:count], device=subject.device)
    for edge in (half, whole):
        assert (places == edge - 1).any() and (places == edge).any()
    cache = far_cache(whole + count, layers, subject.device)[:, layers - 1]
    table = problem.block_table.clone()
    cache[places] = problem.kv_cache[table[problem.needed].long()]
    table[problem.needed] = places.to(torch.int32)
    far = dataclasses.replace(problem, kv_cache=cache, block_table=table)
    out = subject.run(far)
    assert torch.equal(bits(out), bits(want))
    subject.compare(out, far)
