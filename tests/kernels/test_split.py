"""Split variants against the float64 reference: lengths, windows, batches, splits, and extreme numbers."""

import math

import pytest
import torch

from tests.kernels.conftest import batches
from tests.kernels.split_scale import SCALE, SHORT
from verification.attention import HEAD_DIM, PAGE_SIZE, TOKENS
from verification.problems import FLAT_SCALE, MODEL_SCALE, make_problem, model_like, padded, place

pytest_plugins = ["tests.kernels.split_subject"]

MOST_KEYS = 2**20
"""Of one launch: some GiB of content on a GPU."""


def case_id(value):
    """Lists of lengths by their ends."""
    return str(value) if value is None or isinstance(value, str | int) else f"{value[0]}..{value[-1]}"


def check_each(subject, lengths, splits, **deployment):
    """All lengths in batches of unlike ones, every batch with the next number of splits."""
    size = max(1, min(SCALE.batch, MOST_KEYS // max(lengths)))
    for i, batch in enumerate(batches(lengths, size)):
        problem = make_problem(batch, device=subject.device, seed=i, **deployment)
        subject.check(problem, splits[i % len(splits)])


@pytest.mark.parametrize(("name", "lengths"), SCALE.lengths, ids=case_id)
def test_lengths(splits, name, lengths):
    """Lengths within 9 of a bound: of pages, rounds, rings, shares, and of what one cluster attends alone.

    L in 8..40: one to three pages, each with every number of slots that only the later tokens see. The
    table has exactly the columns that the longest request needs.
    """
    check_each(splits[name], lengths, SCALE.splits)


@pytest.mark.parametrize(("name", "num_splits", "lengths"), SCALE.shares, ids=case_id)
def test_lengths_around_the_bounds_of_shares(splits, name, num_splits, lengths):
    """Where every CTA of a long request gets one page more, and where that fills their rings."""
    check_each(splits[name], lengths, [num_splits], max_seq_len=max(SHORT[name] + 16, *lengths))


@pytest.mark.parametrize(("name", "kv_heads", "num_splits"), SCALE.batches)
def test_batches_of_padding_short_and_long_requests(splits, name, kv_heads, num_splits):
    """Requests go their ways side by side in one launch, with any number of KV heads and of splits."""
    lengths = SCALE.mixed[name] if kv_heads < 16 else SCALE.mixed[name][:4]
    problem = make_problem(lengths, kv_heads=kv_heads, device=splits[name].device, seed=kv_heads)
    splits[name].check(problem, num_splits)


@pytest.mark.parametrize(("name", "lengths"), SCALE.long, ids=case_id)
def test_long_contexts(splits, name, lengths):
    """Contexts that keep every CTA busy for many steps; on a GPU up to the longest that is served."""
    for i, length in enumerate(lengths):
        problem = make_problem([length], device=splits[name].device, seed=i)
        splits[name].check(problem, SCALE.splits[i % len(SCALE.splits)])


@pytest.mark.parametrize("scale", [MODEL_SCALE, FLAT_SCALE], ids=["model", "flat"])
@pytest.mark.parametrize(("name", "window", "lengths"), SCALE.windowed, ids=case_id)
def test_windows(splits, name, window, lengths, scale):
    """Windows within the tokens, a page, a round, and wider than a request, with L around the window.

    Beyond it L has every residue mod 16, so the first key that a row sees is in every slot of a page. What
    lies before the first key of all rows is poison, and so are the table entries before its page. A key that
    one row sees and the next does not is none: with flat logits each such key counts.
    """
    longest = max(SHORT[name] + 16, *lengths)
    deployment = {"window": window, "max_seq_len": longest, "scale": scale}
    check_each(splits[name], lengths, SCALE.window_splits, **deployment)


@pytest.mark.parametrize("scale", SCALE.scales)
def test_milder_logits(splits, scale):
    """Flat and moderate softmax, where many keys count: the model's scale, used elsewhere, has few."""
    name = SCALE.variants[-1]
    problem = make_problem(SCALE.mixed[name], device=splits[name].device, scale=scale)
    splits[name].check(problem, 2)


@pytest.mark.parametrize("window", [None, 200])
def test_extreme_logits(splits, window):
    """Logits of about +-1e5, of which one key takes all, in a long and in a short request."""
    problem = make_problem([333, 40], device=splits["split_tiny"].device, scale=2000.0, window=window)
    splits["split_tiny"].check(problem, 2)


def test_short_and_padded_requests_are_zeros_where_no_key_is_seen(splits):
    """L = 0 gives zeros, and so do rows without a key of 0 < L < 8, whatever their q and gate hold.

    The neighbours, one of them long, are right.
    """
    name = SCALE.variants[0]
    subject, lengths = splits[name], [1, 0, SHORT[name] + 1, 7]
    content = model_like(len(lengths), padded(max(lengths)), 1, device=subject.device)
    keyless = [(r, token) for r, length in enumerate(lengths) for token in range(max(0, TOKENS - length))]
    for r, token in keyless:
        content.q[r, token] = math.nan
        content.gate[r, token] = math.nan
    out = subject.check(place(content, lengths)).unflatten(0, (-1, TOKENS))
    for r, token in keyless:
        assert (out[r, token] == 0.0).all()


@pytest.mark.parametrize("window", [None, 4])
def test_a_batch_of_padding_is_zeros(splits, window):
    """All requests have L = 0, in a deployment that splits and in one that does not."""
    for name in SCALE.variants[-1:]:
        problem = make_problem(
            [0, 0], kv_heads=2, device=splits[name].device, max_seq_len=4096, window=window
        )
        assert (splits[name].run(problem) == 0.0).all()


@pytest.mark.parametrize(
    ("window", "lengths"),
    [(None, (77, 333)), (1, (77, 333)), (20, range(77, 93)), (200, (77, *range(326, 342)))],
    ids=case_id,
)
def test_equal_scores_give_exactly_the_mean_of_the_visible_keys(splits, window, lengths):
    """With q = 0 and V one-hot, n visible keys have bf16(1 / n) each, and the others exactly 0.

    In the first visible and in the last keys of short and of long requests: a share that is counted twice
    or left out changes all of them. With a window, that of each token begins in every slot of a page.
    """
    subject = splits["split_tiny"]
    lows = [0 if window is None else max(0, length - TOKENS - window + 1) for length in lengths]
    for bases in ([low // PAGE_SIZE * PAGE_SIZE for low in lows], [n - HEAD_DIM for n in lengths]):
        content = model_like(len(lengths), padded(max(lengths)), 1, device=subject.device)
        content.q.zero_()
        content.v.zero_()
        keys = [torch.arange(b, min(b + HEAD_DIM, n)) for b, n in zip(bases, lengths, strict=True)]
        for r, (key, base) in enumerate(zip(keys, bases, strict=True)):
            content.v[r, key, :, key - base] = 1.0
        problem = place(content, lengths, window=window, max_seq_len=1000)
        out = subject.run(problem, 3).view(len(lengths), TOKENS, -1, HEAD_DIM).float().cpu()
        for r, (length, key) in enumerate(zip(lengths, keys, strict=True)):
            for token in range(TOKENS):
                last = length - TOKENS + token
                low = 0 if window is None else max(0, last - window + 1)
                mean = torch.tensor(1.0 / (last - low + 1)).to(torch.bfloat16).float().item()
                want = torch.where((key >= low) & (key <= last), mean, 0.0).expand(out.shape[2], -1)
                assert torch.equal(out[r, token, :, : len(key)], want), (length, bases, token)
