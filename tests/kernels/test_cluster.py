"""Cluster variants against the float64 reference: every length, batch and head count, and extreme numbers."""

import math

import pytest
import torch

from stages.epilogue.norm_gate import reference as norm_gate
from tests.kernels.conftest import batches
from tests.kernels.scale import SCALE, lengths_around
from verification.attention import HEAD_DIM, TOKENS
from verification.problems import FLAT_SCALE, MODEL_SCALE, make_problem, model_like, padded, place

BATCH = [2048, 8, 1025, 777, 129, 16, 1500, 31]
"""Unlike requests: full, shortest, a page into the second round, within pages and at their ends."""

UNLIKE = SCALE.unlike
HEADS = SCALE.kv_heads


def test_every_short_length(subject):
    """L in 8..40: one to three pages, each with every number of slots that only the later tokens see."""
    for seed, lengths in enumerate(batches(range(8, 41))):
        subject.check(make_problem(lengths, device=subject.device, seed=seed))


@pytest.mark.parametrize("boundary", range(128, 2049, 128))
def test_lengths_around_boundaries(subject, boundary):
    """Lengths below and above each multiple of 128: see `lengths_around`.

    Among them are the rounds of 64 warps (1024 keys) and of 32 warps (512), and the shares of 8 warps: the
    last page is the first of a warp, a rank or a step, or only the later tokens see it. The softmax is flat,
    so that every key counts. The table has exactly the columns that the longest request needs.
    """
    schedule = SCALE.schedules[boundary // 128 % len(SCALE.schedules)]
    for seed, batch in enumerate(batches(lengths_around(boundary, 2048))):
        problem = make_problem(batch, device=subject.device, seed=boundary + seed, scale=FLAT_SCALE)
        subject.check(problem, seed=schedule)


@pytest.mark.parametrize("kv_heads", SCALE.batches)
def test_batches_of_unlike_requests(subject, kv_heads):
    """Up to 8 requests and any number of KV heads in one launch."""
    for requests in SCALE.batches[kv_heads]:
        lengths = BATCH[:requests]
        problem = make_problem(
            lengths, kv_heads=kv_heads, device=subject.device, seed=requests, max_seq_len=2048
        )
        subject.check(problem)


@pytest.mark.parametrize("scale", [0.02, 0.125, 0.4])
def test_milder_logits(subject, scale):
    """Flat and moderate softmax, where many keys count: MODEL_SCALE, used elsewhere, has few."""
    subject.check(make_problem(UNLIKE, kv_heads=HEADS, device=subject.device, scale=scale))


def test_short_and_padded_requests_are_zeros_where_no_key_is_seen(subject):
    """L = 0 gives zeros, and so do rows without a key of 0 < L < 8.

    Their q and gate hold NaN, as an engine's padding may. Rows with a key and the neighbours are right.
    """
    lengths = [1, 0, 2, 3, 33, 4, 5, 6, 7, 0]
    content = model_like(len(lengths), padded(33), HEADS, device=subject.device)
    keyless = [(r, token) for r, length in enumerate(lengths) for token in range(max(0, TOKENS - length))]
    for r, token in keyless:
        content.q[r, token] = math.nan
        content.gate[r, token] = math.nan
    out = subject.check(place(content, lengths)).unflatten(0, (-1, TOKENS))
    for r, token in keyless:
        assert (out[r, token] == 0.0).all()


def test_a_batch_of_padding_is_zeros(subject):
    """All requests have L = 0; the table has one column, which names no page."""
    out = subject.run(make_problem([0, 0, 0], kv_heads=2, device=subject.device))
    assert (out == 0.0).all()


def one_hot_values(content, block):
    """V of key 64 block + d is the unit vector of dim d, of every other key zero: dims are keys' weights."""
    content.v.zero_()
    keys = range(HEAD_DIM * block, min(HEAD_DIM * (block + 1), content.v.shape[1]))
    index = torch.tensor(keys, device=content.v.device)
    content.v[:, index, :, index - HEAD_DIM * block] = 1.0
    return index


@pytest.mark.parametrize("length", [21, 64, 137, 1025, 2048])
def test_equal_scores_give_exactly_the_mean_of_the_visible_keys(plain, length):
    """With q = 0 and V one-hot, n visible keys have bf16(1 / n) each, and the others exactly 0.

    Looked at in the first and the last keys. Only the last quotient is rounded, and 1 / n is never so close
    to a tie that FP32 could turn it.
    """
    for block in {0, (length - TOKENS) // HEAD_DIM, (length - 1) // HEAD_DIM}:
        content = model_like(1, padded(length), HEADS, device=plain.device)
        content.q.zero_()
        key = one_hot_values(content, block)
        out = plain.run(place(content, [length])).view(TOKENS, -1, HEAD_DIM).float()
        for token in range(TOKENS):
            seen = length - TOKENS + token + 1
            mean = torch.tensor(1.0 / seen).to(torch.bfloat16).float().item()
            want = torch.where(key < seen, mean, 0.0).expand(out.shape[1], -1)
            assert torch.equal(out[token, :, : len(key)], want), (block, token)
            assert (out[token, :, len(key) :] == 0.0).all()


@pytest.mark.parametrize("length", [9, 40, 64])
def test_every_weight_of_a_short_request(plain, length):
    """V one-hot by key, as many dims as keys: the output is the softmax itself."""
    content = model_like(1, padded(length), HEADS, device=plain.device, seed=length)
    one_hot_values(content, 0)
    plain.check(place(content, [length], scale=0.3))


@pytest.mark.parametrize("block", range(0, 32, SCALE.weights_step))
def test_the_weights_of_a_long_request(plain, block):
    """V one-hot by key, 64 keys at a time, four pages of four warps."""
    content = model_like(2, 2048, 1, device=plain.device, seed=block)
    one_hot_values(content, block)
    plain.check(place(content, [2048, 2039], scale=0.3))


def test_huge_logits(subject):
    """Logits up to +-1e4: weights underflow, and a softmax it is all the same."""
    subject.check(make_problem(UNLIKE, kv_heads=HEADS, device=subject.device, scale=1e4 / 64))


def test_equal_logits_of_minus_1e5(plain):
    """Every logit is -1e5, far below any finite stand-in for -inf: the plain mean of the visible values.

    The scores are equal to the bit, so FP32 errors cancel.
    """
    content = model_like(len(UNLIKE), 2048, HEADS, device=plain.device)
    content.q.fill_(1.0)
    content.k.fill_(-1.0)
    plain.check(place(content, UNLIKE, scale=1e5 / 64))


def test_falling_and_rising_maxima(subject):
    """Logits grow along the context, or shrink.

    Each step of a warp moves its maximum, or none after the first does, and the ranks' maxima are far
    apart.
    """
    for sign in (1.0, -1.0):
        content = model_like(2, 2048, 1, device=subject.device, seed=7)
        content.q[..., 0] = 4.0
        content.k[..., 0] = sign * torch.linspace(-8.0, 8.0, 2048, device=subject.device)[:, None]
        subject.check(place(content, [2048, 1500]))


@pytest.mark.parametrize("magnitude", [0.0, 1e-3, 1e19])
def test_magnitudes_of_v(subject, magnitude):
    """V = 0 gives zeros; near 1e-3 and 1e19 it is the norm that must not lose it.

    At 1e-3 eps outweighs the mean square; at 1e19 the squares are close to FP32's largest number.
    """
    content = model_like(len(UNLIKE), 2048, HEADS, device=subject.device)
    size = content.v.float().abs().clamp(max=1.0) * content.v.float().sign() * magnitude
    content.v.copy_(size)
    out = subject.check(place(content, UNLIKE, scale=MODEL_SCALE))
    assert out.isfinite().all()


def test_extreme_gates(subject):
    """Gates of +-88, +-100 and +-inf close or open fully, and NaN makes its own element NaN alone.

    A plain epilogue does not read the gate.
    """
    content = model_like(len(UNLIKE), 2048, HEADS, device=subject.device)
    values = torch.tensor([0.0, 88.0, -88.0, 100.0, -100.0, math.inf, -math.inf, math.nan])
    values = values.to(subject.device, torch.bfloat16)
    count = content.gate.numel()
    content.gate.copy_(values.repeat(count // len(values)).view_as(content.gate))
    out = subject.check(place(content, UNLIKE)).view(-1, HEAD_DIM)
    has_key = (out.nan_to_num(1.0) != 0.0).any(1)
    nan = out.isnan()
    assert not nan[:, [i for i in range(HEAD_DIM) if i % 8 != 7]].any()
    assert (nan[has_key][:, 7::8] == (subject.epilogue is norm_gate)).all()
