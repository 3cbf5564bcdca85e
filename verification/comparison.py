"""Comparison of an output with its reference, in BF16 ulps.

Contract
    `out` is what a kernel wrote, in any shape of as many elements; `expected` is the float64 reference,
    [rows, heads, head_dim]. An error is measured in ulps of the expected element, or in units of 2**-10 of
    the row's largest magnitude where that is larger. NaN and infinities have to be where they are expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from verification.attention import TOKENS
from verification.rounding import bf16_ulp

LIMIT = 2.0
"""Ulps by which an element may be off. Two, since an FP32 error may decide which way a result rounds."""

FLUSHED = 8 * 2.0**-126
"""Outputs below this may be zero: a sigmoid below 2**-126 is flushed, and a normalised value is at most 8."""


def errors_in_ulps(out: Tensor, expected: Tensor) -> Tensor:
    """Each element's error, [8R, 8H, 64], in ulps: of itself, or 2**-10 of its row's largest magnitude.

    The larger unit counts. A flushed zero is no error; a NaN or an infinity on one side alone is an infinite
    one.
    """
    want = expected
    got = out.reshape(want.shape).to(device=want.device, dtype=torch.float64)
    largest = torch.where(want.isfinite(), want.abs(), 0.0).amax(-1, keepdim=True)
    unit = torch.maximum(bf16_ulp(torch.where(want.isfinite(), want, 0.0)), 2.0**-10 * largest)
    error = (got - want).abs() / unit
    error = torch.where((got == 0.0) & (want.abs() < FLUSHED), 0.0, error)
    same = (got == want) | (got.isnan() & want.isnan())
    return torch.where(same, 0.0, torch.where(got.isfinite() & want.isfinite(), error, math.inf))


def worst_ulps(out: Tensor, expected: Tensor) -> float:
    """The largest of `errors_in_ulps`."""
    return errors_in_ulps(out, expected).max().item()


def assert_close(
    out: Tensor,
    expected: Tensor,
    limit: float = LIMIT,
    or_to: Callable[[], Tensor] | None = None,
) -> None:
    """Raise AssertionError unless every element is within `limit` ulps, as `errors_in_ulps` measures them.

    or_to: gives a second reference, to which an element may be close instead; called only if one is not close
    to `expected`. The message names the worst element.
    """
    errors = errors_in_ulps(out, expected)
    if or_to is not None and (errors > limit).any():
        errors = torch.minimum(errors, errors_in_ulps(out, or_to()))
    wrong = errors > limit
    if not wrong.any():
        return
    row, head, dim = (int(i) for i in torch.unravel_index(errors.argmax(), errors.shape))
    got = out.reshape(errors.shape)[row, head, dim].item()
    want = expected[row, head, dim].item()
    raise AssertionError(
        f"request {row // TOKENS}, token {row % TOKENS}, head {head}, dim {dim}: got {got:.6g}, "
        f"want {want:.6g}, off by {errors[row, head, dim].item():.4g} ulps where {limit:g} are allowed; "
        f"{int(wrong.sum())} elements of {int(wrong.any(-1).sum())} rows are wrong"
    )
