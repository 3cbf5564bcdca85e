"""Rounding to BF16, in float64: values, softmax weights near a tie, and the size of an ulp.

Contract
    Takes and returns float64 tensors whose values are BF16 numbers after rounding. Values are rounded by way
    of FP32, as a kernel has them before it rounds. A kernel's FP32 weight may lie on the other side of a tie
    than the float64 one, so for weights within `NEAR_TIE` of a tie both neighbours are right.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEAR_TIE = 2.0**-8
"""Distance from a tie, in BF16 ulps, within which a weight may be rounded to either neighbour.

The relative error of a weight is the error of its logit: of terms of some hundred, accumulated with 24 bits,
2**-16.
"""


def round_bf16(x: Tensor) -> Tensor:
    """x rounded to BF16 by way of FP32, as the kernel has it, in float64 again."""
    return x.to(torch.float32).to(torch.bfloat16).to(torch.float64)


def round_weights(x: Tensor, other_way: bool = False) -> Tensor:
    """Softmax weights as the kernel has them in P V: in BF16. other_way: near a tie, the other neighbour."""
    rounded = round_bf16(x)
    if not other_way:
        return rounded
    ulp = bf16_ulp(torch.minimum(x, rounded))
    tie = (x - rounded).abs() > (0.5 - NEAR_TIE) * ulp
    return torch.where(tie, rounded + torch.copysign(ulp, x - rounded), rounded)


def bf16_ulp(x: Tensor) -> Tensor:
    """The distance between BF16 numbers at x, in float64."""
    _, exponent = torch.frexp(x.abs().clamp(min=2.0**-126))
    return torch.exp2((exponent - 8).to(torch.float64))
