"""The reference's rounding in the split kernel, against exact attention and a literal loop."""

import itertools
import math

import pytest
import torch

from stages.epilogue.norm_gate import reference as norm_gate
from stages.epilogue.plain import reference as plain
from verification import attention as reference
from verification.attention import HEAD_DIM, PAGE_SIZE, TOKENS
from verification.partition import Partition, SplitPartition
from verification.problems import Problem, make_problem
from verification.rounding import round_bf16

SPLIT = SplitPartition(16, 4, 1, short_rounds=4, ring_pages_per_step=4, num_splits=8)
SMALL = SplitPartition(1, 2, 1, short_rounds=2, ring_pages_per_step=2, num_splits=4)
"""Short up to 4 pages, in 2 shares; long in 4 shares, two pages a step."""


@pytest.mark.parametrize(
    "partition",
    [
        Partition(2, 2, 1),
        Partition(2, 1, 2),
        SMALL,
        SplitPartition(1, 2, 2, 2, 1, 12),
        SplitPartition(3, 2, 1, 4, 4, 5),
    ],
    ids=str,
)
def test_every_page_is_in_one_step(partition):
    """And each share has its pages in order, as the kernels deal them out."""
    for count in range(70):
        short = not isinstance(partition, SplitPartition) or count <= partition.short_pages
        if short:
            shares = [list(range(w, count, partition.stride)) for w in range(partition.stride)]
        else:
            n, a_step = partition.cluster * partition.num_splits, partition.ring_pages_per_step
            total = math.ceil(count / a_step)
            sizes = [total // n + (i < total % n) for i in range(n)]
            bounds = [min(count, a_step * sum(sizes[:i])) for i in range(n + 1)]
            shares = [list(range(*bound)) for bound in itertools.pairwise(bounds)]
        steps = partition.steps(count)
        assert steps.shape[0] == len(shares)
        assert steps.shape[2] == (partition.pages_per_step if short else partition.ring_pages_per_step)
        for pages, dealt in zip(shares, steps.flatten(1).tolist(), strict=True):
            assert dealt == pages + [count] * (len(dealt) - len(pages)), count


def exact(problem: Problem) -> torch.Tensor:
    """Attention with nothing rounded."""
    names = ("q", "kv_cache", "block_table", "seq_lens", "scale", "window")
    return reference.attention_exact(**{name: getattr(problem, name) for name in names})


@pytest.mark.parametrize("window", [None, 1, 9, 200, 1024, 5000])
@pytest.mark.parametrize("partition", [SPLIT, SMALL], ids=["split", "small"])
def test_only_rounded_weights_separate_it_from_exact_attention(partition, window):
    """As for the cluster kernel's partition: no output is off by more than the two roundings explain."""
    lengths = [0, 3, 8, 75, 333] + ([8300] if partition is SPLIT and window in (None, 200) else [])
    problem = make_problem(lengths, kv_heads=2, window=window, seed=1)
    absolute = torch.cat((problem.kv_cache[..., :HEAD_DIM], problem.kv_cache[..., HEAD_DIM:].abs()), -1)
    bound = exact(Problem(**{**vars(problem), "kv_cache": absolute}))
    got, want = problem.expected(partition, plain), exact(problem)
    assert not want.isnan().any()
    assert ((got - want).abs() <= 2.0**-8 * (bound + want.abs()) * (1 + 2.0**-8)).all()


def literal(problem: Problem, request: int, token: int, head: int) -> torch.Tensor:
    """One row in SMALL by the documented steps, in Python floats and loops.

    One page a step if short; if long two, but one where the row group does not see all of both.
    """
    length, window = int(problem.seq_lens[request]), problem.window or 2**30
    query = problem.q[request * TOKENS + token].unflatten(0, (-1, HEAD_DIM))[head].tolist()
    factor = reference.log2_scale(problem.scale)
    first = max(0, length - TOKENS - window + 1) // PAGE_SIZE
    count = math.ceil(length / PAGE_SIZE) - first
    shares = [[[page] for page in range(w, count, 2)] for w in range(2)]
    last = length - TOKENS + token
    if count > 4:
        total, ends = math.ceil(count / 2), (
            length - TOKENS + token // 2 * 2,
            length - TOKENS + token // 2 * 2 + 1,
        )
        shares = []
        for i in range(4):
            begin = total // 4 * i + min(i, total % 4)
            dealt = range(begin, begin + total // 4 + (i < total % 4))
            steps = [range(2 * s, min(count, 2 * s + 2)) for s in dealt]
            shares.append([])
            for step in steps:
                low, high = (first + step[0]) * PAGE_SIZE, (first + step[0] + 2) * PAGE_SIZE - 1
                whole = all(end - window < low and high <= end for end in ends)
                shares[-1] += [list(step)] if whole else [[page] for page in step]
    partials = []
    for share in shares:
        m, l, o = -math.inf, 0.0, [0.0] * HEAD_DIM
        for step in share:
            entries = problem.block_table[request, first + step[0] : first + step[-1] + 1].long()
            slots = problem.kv_cache[entries, head // 8].flatten(0, 1).tolist()
            keys = range((first + step[0]) * PAGE_SIZE, (first + step[-1] + 1) * PAGE_SIZE)
            seen = [kv for key, kv in zip(keys, slots, strict=True) if last - window < key <= last]
            if not seen:
                continue
            scores = [
                math.fsum(a * b for a, b in zip(query, kv[:HEAD_DIM], strict=True)) * factor for kv in seen
            ]
            top = max(m, *scores)
            rescale, weights = 2.0 ** (m - top), [2.0 ** (score - top) for score in scores]
            rounded = torch.tensor(weights).to(torch.bfloat16).tolist()
            l = l * rescale + sum(weights)
            for d in range(HEAD_DIM):
                here = sum(w * kv[HEAD_DIM + d] for w, kv in zip(rounded, seen, strict=True))
                o[d] = o[d] * rescale + here
            m = top
        partials.append((m, l, o))
    top = max(m for m, _, _ in partials)
    factors = [2.0 ** (m - top) for m, _, _ in partials]
    total = sum(f * l for f, (_, l, _) in zip(factors, partials, strict=True))
    row = [sum(f * o[d] for f, (_, _, o) in zip(factors, partials, strict=True)) / total for d in range(64)]
    return round_bf16(torch.tensor(row, dtype=torch.float64))


@pytest.mark.parametrize("window", [None, 1, 17, 60, 90])
def test_it_follows_the_documented_steps(window):
    """The vectorised reference is the literal loop, rounded to BF16.

    Short and long requests, with and without a first page that is not the table's; a short one just below
    and just above the edge of 4 pages.
    """
    problem = make_problem([9, 64, 65, 203], kv_heads=2, seed=3, scale=0.3, window=window)
    got = problem.expected(SMALL, plain)
    for request, token, head in [(0, 0, 0), (1, 7, 3), (2, 0, 15), (2, 4, 8), (3, 7, 9), (3, 3, 0)]:
        row = got[request * TOKENS + token, head]
        assert torch.equal(row, literal(problem, request, token, head)), (request, token, head)


def test_partitions_round_differently():
    """The test above would not see a wrong partition if they all gave the same."""
    problem = make_problem([203], seed=3, scale=0.3)
    coarse = problem.expected(SMALL, plain)
    others = SplitPartition(1, 2, 1, 2, 1, 4), SplitPartition(1, 2, 1, 2, 2, 8), Partition(1, 2, 1)
    for other in others:
        assert not torch.equal(problem.expected(other, plain), coarse)


def test_kv_heads_may_be_attended_one_at_a_time(monkeypatch):
    """Where a request is too long for all of them at once; nothing changes."""
    problem = make_problem([40, 203, 0], kv_heads=3, window=100)
    at_once = problem.expected(SMALL, norm_gate)
    monkeypatch.setattr(reference, "KEYS_AT_ONCE", 8)
    assert torch.equal(problem.expected(SMALL, norm_gate), at_once)


@pytest.mark.parametrize("window", [None, 5, 100])
def test_a_visible_nan_reaches_its_rows(window):
    """NaN in K at a key of a long request reaches the rows that see it and no other."""
    length = 203
    for key in (length - TOKENS - (window or 60) + 4, length - 4):
        problem = make_problem([length], window=window)
        page = problem.block_table[0, key // PAGE_SIZE]
        problem.kv_cache[page, 0, key % PAGE_SIZE, 5] = math.nan
        last = length - TOKENS + torch.arange(TOKENS)
        sees = (key <= last) & (key > last - (window or length))
        got = problem.expected(SMALL, norm_gate)
        assert window is None or (sees.any() and not sees.all())
        assert torch.equal(got.isnan().all((1, 2)), sees) and torch.equal(got.isnan().any(-1).any(-1), sees)
