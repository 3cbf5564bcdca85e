"""Numbers at which a softmax, a norm or a gate goes wrong; more is in `tests.faults.covered`."""

import math

import pytest
import torch

from tests.kernels.scale import GPU
from tests.kernels.split_scale import WITH_SHORT
from tests.kernels.tiny import long_length, windows
from tests.modules import VARIANTS, epilogue_of
from verification.attention import HEAD_DIM, TOKENS
from verification.problems import MODEL_SCALE, model_like, padded, place

pytest_plugins = ["tests.kernels.tiny_subject"]


def test_equal_logits_of_minus_1e5(tiny):
    """Far below any finite stand-in for -inf, in whole and in partly visible pages: the mean of the values.

    The scores are equal to the bit, so FP32 errors cancel.
    """
    lengths = [long_length(tiny), 9, 3]
    content = model_like(len(lengths), padded(max(lengths)), 1, device=tiny.device)
    content.q.fill_(1.0)
    content.k.fill_(-1.0)
    for window in windows(tiny):
        tiny.check(place(content, lengths, scale=1e5 / HEAD_DIM, window=window), 2)


@pytest.mark.parametrize("window", [1, 3, 7, 8, 9, 17])
def test_each_token_has_its_own_edge(splits, window):
    """V one-hot by key, equal scores: a row's dims are its keys, of a window as wide as the tokens or so."""
    subject, length = splits["split_tiny"], 45
    content = model_like(1, padded(length), 1, device=subject.device)
    content.q.zero_()
    content.v[0, :, 0] = torch.eye(HEAD_DIM)[: padded(length)].to(content.v)
    out = subject.run(place(content, [length], window=window)).view(TOKENS, -1, HEAD_DIM).float().cpu()
    for token in range(TOKENS):
        last = length - TOKENS + token
        want = torch.zeros(HEAD_DIM)
        want[last - window + 1 : last + 1] = torch.tensor(1 / window).to(torch.bfloat16).float()
        assert torch.equal(out[token], want.expand_as(out[token])), token


LARGE = [name for name in WITH_SHORT if epilogue_of(VARIANTS[name][1].kernel) == "norm_gate"] if GPU else []


@pytest.fixture(params=["split_small", *LARGE])
def normed(request, splits):
    """A split variant that ends in norm and gate, and lengths of a request for each of its ways."""
    subject = splits[request.param]
    return subject, [long_length(subject), 9]


@pytest.mark.parametrize("magnitude", [0.0, 1e-3, 1e19])
def test_magnitudes_of_v(normed, magnitude):
    """At 1e-3 eps outweighs the mean square; at 1e19 the squares are close to FP32's largest number."""
    subject, lengths = normed
    content = model_like(len(lengths), padded(max(lengths)), 1, device=subject.device)
    size = content.v.float().abs().clamp(max=1.0) * content.v.float().sign() * magnitude
    content.v.copy_(size)
    assert subject.check(place(content, lengths, scale=MODEL_SCALE)).isfinite().all()


def test_extreme_gates(normed):
    """Gates of +-88, +-100 and +-inf close or open fully, and NaN makes its own element NaN alone."""
    subject, lengths = normed
    content = model_like(len(lengths), padded(max(lengths)), 1, device=subject.device)
    values = torch.tensor([0.0, 88.0, -88.0, 100.0, -100.0, math.inf, -math.inf, math.nan])
    content.gate.copy_(values.repeat(content.gate.numel() // len(values)).view_as(content.gate))
    out = subject.check(place(content, lengths)).view(-1, HEAD_DIM)
    assert torch.equal(out.isnan().nonzero()[:, 1] % len(values), torch.full_like(out[:, ::8], 7).flatten())
