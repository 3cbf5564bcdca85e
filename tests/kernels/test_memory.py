"""What the kernel may read, and where it finds it: poison, visible NaN, strides, addresses past 32 bits."""

import dataclasses
import math

import pytest
import torch

from tests.kernels.conftest import bits
from tests.problems import Layout, make_problem, model_like, place
from tests.reference import HEAD_DIM, HEADS_PER_KV, PAGE_SIZE, TOKENS, assert_close

LENGTHS = [13, 1027, 0, 40, 2041, 3]
"""Each ends within a page, so that there are slots behind the last token; one is padding."""


@pytest.mark.parametrize("k_poison", [math.nan, math.inf, -math.inf, 0.0])
def test_what_no_row_sees_changes_no_bit(subject, k_poison):
    """NaN, Inf or zeros where no row may look give the same bits.

    In K and in V separately: in slots that no row sees, in unused pages, and behind other stale table
    entries.
    """
    content = model_like(len(LENGTHS), 2048, 2, device=subject.device)
    clean = place(content, LENGTHS, layout=Layout(k_poison=0.0, v_poison=0.0))
    want = subject.check(clean)
    for v_poison in (math.nan, math.inf, 0.0):
        problem = place(content, LENGTHS, layout=Layout(k_poison=k_poison, v_poison=v_poison, seed=1))
        assert torch.equal(bits(subject.run(problem)), bits(want)), v_poison


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
    """(request, KV head, key): the first key, and each of the last tokens' own, in turn over the requests."""
    lengths = problem.seq_lens.tolist()
    for offset in range(TOKENS + 1):
        request = offset % len(lengths)
        key = 0 if offset == TOKENS else lengths[request] - TOKENS + offset
        yield request, offset % problem.kv_cache.shape[1], key


@pytest.mark.parametrize("half", ["k", "v"])
def test_visible_nan_reaches_the_rows_that_see_it_and_no_other(subject, half):
    """Two tokens share an mma, and a slot may be seen by one of them alone.

    NaN in K makes the seeing rows NaN, NaN in V their dim, or all dims where a norm follows; every other
    row keeps its bits.
    """
    problem = make_problem([40, 1030, 19], kv_heads=2, device=subject.device)
    clean = subject.run(problem).view(-1, 2 * HEADS_PER_KV, HEAD_DIM)
    dim = 37
    for request, kv_head, key in visible_nan_cases(problem):
        cache = problem.kv_cache.clone()
        page = problem.block_table[request, key // PAGE_SIZE].long()
        cache[page, kv_head, key % PAGE_SIZE, dim + (HEAD_DIM if half == "v" else 0)] = math.nan
        out = subject.run(dataclasses.replace(problem, kv_cache=cache)).view_as(clean)

        sees = torch.zeros(clean.shape, dtype=torch.bool, device=clean.device)
        first_token = max(0, key - (int(problem.seq_lens[request]) - TOKENS))
        tokens = slice(request * TOKENS + first_token, (request + 1) * TOKENS)
        whole_row = half == "k" or subject.epilogue == "norm_gate"
        dims = slice(None) if whole_row else slice(dim, dim + 1)
        sees[tokens, kv_head * HEADS_PER_KV : (kv_head + 1) * HEADS_PER_KV, dims] = True
        where = f"request {request}, KV head {kv_head}, key {key}"
        assert torch.equal(out.isnan(), sees), where
        assert torch.equal(bits(out)[~sees], bits(clean)[~sees]), where


def test_nan_in_q_stays_in_its_row(subject):
    """A NaN in one query row makes that row NaN and no other of the 16 that share an mma."""
    problem = make_problem([40, 1030], kv_heads=2, device=subject.device, layout=Layout(fused=False))
    clean = subject.run(problem).view(-1, 2 * HEADS_PER_KV, HEAD_DIM)
    problem.q.view_as(clean)[10, 3, 20] = math.nan
    out = subject.run(problem).view_as(clean)
    hit = torch.zeros_like(clean, dtype=torch.bool)
    hit[10, 3] = True
    assert torch.equal(out.isnan(), hit)
    assert torch.equal(bits(out)[~hit], bits(clean)[~hit])


@pytest.mark.parametrize(
    "layout",
    [
        Layout(fused=False),
        Layout(layers=3, layer=1),
        Layout(head_gap=4),
        Layout(layers=2, layer=1, head_gap=1, spare_columns=7, seed=5),
    ],
    ids=["contiguous rows", "one layer of three", "gaps between heads", "all at once"],
)
def test_strides_are_honoured(subject, layout):
    """The same content in another layout gives the same bits."""
    content = model_like(len(LENGTHS), 2048, 2, device=subject.device)
    want = subject.check(place(content, LENGTHS))
    assert torch.equal(bits(subject.run(place(content, LENGTHS, layout=layout))), bits(want))


def test_heads_may_be_a_dimension_and_out_a_slice(subject):
    """Rows may be [8R, 8H, 64] as well as [8R, 512H], and slices of longer rows.

    The bits are the same, the output is written in full, and what lies between its rows is not touched.
    """
    problem = make_problem(LENGTHS, kv_heads=2, device=subject.device)
    want = subject.check(problem)
    split = {name: getattr(problem, name).unflatten(1, (-1, HEAD_DIM)) for name in ("q", "gate")}
    out = problem.poisoned_out(padding=24)
    subject.run(dataclasses.replace(problem, **split), out=out.unflatten(1, (-1, HEAD_DIM)))
    assert torch.equal(bits(out), bits(want))
    rows = out.as_strided((len(out), out.stride(0)), out.stride())
    assert rows[:, out.shape[1] :].isnan().all()


def test_inputs_are_left_alone(subject):
    """A call writes to `out` and to nothing else."""
    problem = make_problem(LENGTHS, kv_heads=2, device=subject.device)
    inputs = (problem.q, problem.gate, problem.kv_cache, problem.block_table, problem.seq_lens)
    before = [tensor.clone() for tensor in inputs]
    subject.run(problem)
    for tensor, copy in zip(inputs, before, strict=True):
        kind = torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
        assert torch.equal(tensor.view(kind), copy.view(kind))


@pytest.mark.parametrize("layers", [1, 4])
def test_addresses_past_32_bits(subject, layers):
    """Pages beyond 2**31 and 2**32 bytes and 2**31 elements are found.

    With H = 4 these are pages 131072 and (both) 262144, or a quarter of that where four layers interleave.
    Pages lie on both sides of each.
    """
    if subject.device != "cuda" or torch.cuda.mem_get_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GiB of free device memory")
    problem = make_problem([200, 77, 1000], kv_heads=4, device=subject.device)
    want = subject.check(problem)
    count = int(problem.needed.sum())
    half, whole = 131072 // layers, 262144 // layers
    around = [edge + offset for edge in (half, whole) for offset in range(-count // 4 - 1, count // 4 + 1)]
    places = torch.tensor(around[:count], device=subject.device)
    assert len(places) == count and places.unique().numel() == count
    storage = torch.full(
        (whole + count, layers, 4, PAGE_SIZE, 2 * HEAD_DIM),
        math.nan,
        dtype=torch.bfloat16,
        device=subject.device,
    )
    cache = storage[:, layers - 1]
    table = problem.block_table.clone()
    cache[places] = problem.kv_cache[table[problem.needed].long()]
    table[problem.needed] = places.to(torch.int32)
    far = dataclasses.replace(problem, kv_cache=cache, block_table=table)
    out = subject.run(far)
    assert torch.equal(bits(out), bits(want))
    assert_close(out, subject.expected(far))
