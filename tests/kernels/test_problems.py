"""The input builder puts what it must where it must, and poison everywhere else."""

import math

import pytest
import torch

from stages.epilogue.norm_gate import reference as norm_gate
from verification.attention import HEAD_DIM, PAGE_SIZE, TOKENS
from verification.partition import Partition
from verification.problems import INT_MAX, Layout, make_problem, model_like, place

PARTITION = Partition(cluster=16, warps=4, pages_per_step=2)
LENGTHS = [100, 0, 9, 16, 33, 5]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_everything_that_no_row_sees_is_poison(window, poison):
    """What is not poison is exactly the requests' visible keys.

    So page 0, pages of no request, other layers and the gaps between heads are poison, and in live pages
    the slots before the window and after the last token.
    """
    layout = Layout(k_poison=poison, v_poison=poison, layers=3, layer=1, head_gap=2)
    problem = make_problem(LENGTHS, kv_heads=2, window=window, layout=layout)
    storage = torch.as_strided(problem.kv_cache, (problem.kv_cache.untyped_storage().nbytes() // 2,), (1,), 0)
    first = [0 if window is None else max(0, length - TOKENS - window + 1) for length in LENGTHS]
    seen = sum(length - low for length, low in zip(LENGTHS, first, strict=True))
    assert (storage.isfinite().sum() == seen * 2 * 2 * HEAD_DIM).item()
    assert not problem.kv_cache[0].isfinite().any()
    for r, (length, low) in enumerate(zip(LENGTHS, first, strict=True)):
        for key in range(low, length):
            page = problem.block_table[r, key // PAGE_SIZE]
            assert problem.kv_cache[page, :, key % PAGE_SIZE].isfinite().all()


def test_table_entries_that_are_not_needed_are_wrong_on_purpose():
    """Stale entries are -1, INT_MAX, the page count, page 0 and other requests' pages.

    The live ones are pages that are nobody else's, in no order.
    """
    problem = make_problem([500, 40, 8, 0], max_seq_len=2048)
    live = problem.block_table[problem.needed]
    assert problem.needed.sum(1).tolist() == [32, 3, 1, 0]
    assert live.unique().numel() == live.numel() and live.min() > 0
    assert not torch.equal(live, live.sort().values)
    stale = problem.block_table[~problem.needed]
    for entry in (-1, INT_MAX, problem.kv_cache.shape[0], 0):
        assert (stale == entry).any()
    assert torch.isin(stale, live).any()
    assert problem.block_table.shape == (4, 128)


def test_q_and_gate_are_slices_of_a_fused_row_of_nan():
    """[q | k | v | gate]: stride 1152 H, and the k and v columns are NaN."""
    problem = make_problem([20, 8], kv_heads=2)
    row = torch.as_strided(problem.q, (16, 1152 * 2), (1152 * 2, 1), 0)
    assert problem.q.stride() == problem.gate.stride() == (1152 * 2, 1)
    assert problem.gate.data_ptr() - problem.q.data_ptr() == 2 * 640 * 2
    assert torch.equal(row[:, : 512 * 2], problem.q) and torch.equal(row[:, 640 * 2 :], problem.gate)
    assert row[:, 512 * 2 : 640 * 2].isnan().all()
    assert problem.poisoned_out(padding=8).stride() == (512 * 2 + 8, 1)
    assert problem.poisoned_out().isnan().all()


def test_layout_does_not_change_what_a_problem_means():
    """The same content in another layout, physical order or batch has the same reference results."""
    content = model_like(len(LENGTHS), 112, 2, seed=2)
    problem = place(content, LENGTHS)
    want = problem.expected(PARTITION, norm_gate)
    other = place(content, LENGTHS, layout=Layout(layers=2, head_gap=1, fused=False, seed=9))
    assert torch.equal(other.expected(PARTITION, norm_gate), want)
    moved = problem.relocated(seed=4)
    assert not torch.equal(moved.block_table[moved.needed], problem.block_table[problem.needed])
    assert torch.equal(moved.expected(PARTITION, norm_gate), want)
    order = [4, 0, 0, 2]
    chosen = problem.requests(order).expected(PARTITION, norm_gate)
    assert torch.equal(chosen.unflatten(0, (-1, TOKENS)), want.unflatten(0, (-1, TOKENS))[order])


def test_logits_are_spread_like_a_models():
    """With normalised q and k no logit is beyond 44; most keys are far below a row's largest, a few near."""
    content = model_like(1, 2048, 1, seed=1)
    q = content.q[0].double().flatten(0, 1)
    logits = 0.68413 * q @ content.k[0, :, 0].double().T
    top = logits.amax(1)
    assert logits.abs().max() < 44
    assert top.median() > 25
    assert 4 < logits.std() < 8


def test_problems_are_reproducible():
    """A seed gives the same problem, another seed another."""
    first, again, other = (make_problem([40, 17], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.q, again.q)
    assert torch.equal(first.kv_cache.nan_to_num(7.0), again.kv_cache.nan_to_num(7.0))
    assert torch.equal(first.block_table, again.block_table)
    assert not torch.equal(first.q, other.q)
