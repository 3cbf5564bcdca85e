"""Verify attention in float64, with the roundings that the kernel documents, and the comparison with it.

The kernel rounds in three documented places: the softmax weights to BF16 before P V, the quotient o / l to
BF16, and the result of the epilogue to BF16. How a weight rounds depends on the maximum it is relative to,
so the reference needs to know which warp attends which page, and in which step (`Partition`).

Everything else the kernel does in FP32, with errors far below a BF16 ulp. Where such an error decides which
way a number is rounded, the two results are one ulp apart, which the tolerance of two has room for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TOKENS = 8
HEADS_PER_KV = 8
HEAD_DIM = 64
PAGE_SIZE = 16

FLUSHED = 8 * 2.0**-126
"""Outputs below this may be zero: a sigmoid below 2**-126 is flushed, and a normalised value is at most 8."""


@dataclass(frozen=True)
class Partition:
    """Which warp attends which page: warp w of cluster * warps takes pages w, w + cluster * warps, ...

    A warp attends pages_per_step of them per step, relative to one maximum, which runs on from step to step.
    """

    cluster: int
    warps: int
    pages_per_step: int

    @property
    def stride(self) -> int:
        """Warps that share a request's pages, and so the distance between the pages of one warp."""
        return self.cluster * self.warps


def round_bf16(x: Tensor) -> Tensor:
    """x rounded to BF16 by way of FP32, as the kernel has it, in float64 again."""
    return x.to(torch.float32).to(torch.bfloat16).to(torch.float64)


def bf16_ulp(x: Tensor) -> Tensor:
    """The distance between BF16 numbers at x, in float64."""
    _, exponent = torch.frexp(x.abs().clamp(min=2.0**-126))
    return torch.exp2((exponent - 8).to(torch.float64))


def log2_scale(scale: float) -> float:
    """scale * log2(e), rounded to FP32 once as the host folds it."""
    return torch.tensor(scale * math.log2(math.e), dtype=torch.float32).item()


def visible_keys(seq_lens: Tensor, keys: int, window: int | None) -> Tensor:
    """[R, 8, keys]: whether a token sees a key."""
    key = torch.arange(keys, device=seq_lens.device)
    token = torch.arange(TOKENS, device=seq_lens.device)
    last = (seq_lens.long()[:, None] - TOKENS + token)[:, :, None]
    seen = key <= last
    return seen if window is None else seen & (key > last - window)


def gather(kv_cache: Tensor, block_table: Tensor, visible: Tensor) -> Tensor:
    """Each request's K and V side by side, [R, H, keys, 128] float64.

    A page that no row sees is replaced by page 0.
    """
    requests, _, keys = visible.shape
    pages = keys // PAGE_SIZE
    needed = visible.any(1).unflatten(1, (pages, PAGE_SIZE)).any(2)
    entries = torch.zeros(requests, pages, dtype=torch.long, device=block_table.device)
    columns = min(pages, block_table.shape[1])
    assert not needed[:, columns:].any(), "a row sees a key beyond the block table"
    entries[:, :columns] = block_table[:, :columns]
    entries = torch.where(needed, entries, 0)
    return kv_cache[entries].to(torch.float64).permute(0, 2, 1, 3, 4).flatten(2, 3)


def attention(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    partition: Partition,
    window: int | None = None,
) -> Tensor:
    """bf16(o / l): attention of the 8 verified tokens of each request, as the plain epilogue stores it.

    A row without a key is zeros; a NaN that a row sees makes it NaN, and no other row.
    """
    requests, kv_heads = len(seq_lens), kv_cache.shape[1]
    a_step = partition.stride * partition.pages_per_step * PAGE_SIZE
    keys = max(1, math.ceil(int(seq_lens.max()) / a_step)) * a_step
    visible = visible_keys(seq_lens, keys, window)
    kv = gather(kv_cache, block_table, visible)
    k, v = kv[..., :HEAD_DIM], kv[..., HEAD_DIM:]
    query = q.reshape(requests, TOKENS, kv_heads, HEADS_PER_KV, HEAD_DIM).to(torch.float64)
    rows = [
        _attend(query[:, t], k, v, visible[:, t, None], log2_scale(scale), partition) for t in range(TOKENS)
    ]
    shape = (requests * TOKENS, kv_heads * HEADS_PER_KV, HEAD_DIM)
    return round_bf16(torch.stack(rows, 1).reshape(shape))


def _attend(q, k, v, seen, factor, partition):
    """o / l of one token of all requests, [R, H, heads, dim].

    q: [R, H, heads, dim]. k, v: [R, H, keys, dim]. seen: [R, 1, keys].
    """
    v = torch.where(seen[..., None], v, 0.0)
    scores = torch.where(seen[:, :, None], (q @ k.mT) * factor, -math.inf)
    # The keys of a request in order are [step, page of the step, warp, slot].
    by_warp = scores.unflatten(-1, (-1, partition.pages_per_step, partition.stride, PAGE_SIZE))
    tops = torch.where(by_warp.isnan(), -math.inf, by_warp).amax((-3, -1))
    m = tops.cummax(-2).values
    relative_to = _base(m)[..., :, None, :, None].expand_as(by_warp).flatten(-4)
    weights = torch.exp2(scores - relative_to)
    rounded = round_bf16(weights)
    top = _base(m.amax((-2, -1)))[..., None, None]
    carried = torch.exp2(m - top)[..., :, None, :, None].expand_as(by_warp).flatten(-4)

    l = (carried * weights).sum(-1, keepdim=True)
    l = torch.where(l == 0.0, 1.0, l)
    return (carried * rounded) @ v / l


def _base(m: Tensor) -> Tensor:
    """What is subtracted in an exponent: the maximum, or 0 where there is no key."""
    return torch.where(m == -math.inf, 0.0, m)


def norm_gate(attended: Tensor, gate: Tensor, eps: float, seq_lens: Tensor) -> Tensor:
    """The norm-gate epilogue of attention's result y: bf16(y * rsqrt(mean(y**2) + eps) * sigmoid(gate)).

    A row without a key is zeros whatever its gate holds.
    """
    gated = torch.sigmoid(gate.reshape(attended.shape).to(torch.float64))
    mean_square = attended.square().mean(-1, keepdim=True) + eps
    value = round_bf16(attended * mean_square.rsqrt() * gated)
    has_key = visible_keys(seq_lens, 1, None).reshape(-1, 1, 1)
    return torch.where(has_key, value, 0.0)


def attention_exact(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attention in float64, nothing rounded, a token of a request at a time.

    This is the reference's own reference.
    """
    requests, kv_heads = len(seq_lens), kv_cache.shape[1]
    query = q.reshape(requests, TOKENS, kv_heads, HEADS_PER_KV, HEAD_DIM).to(torch.float64)
    out = torch.zeros_like(query)
    for r, length in enumerate(seq_lens.tolist()):
        for t in range(TOKENS):
            end = length - TOKENS + t + 1
            start = 0 if window is None else max(0, end - window)
            if end <= 0:
                continue
            first_page = start // PAGE_SIZE
            entries = block_table[r, first_page : math.ceil(end / PAGE_SIZE)].long()
            pages = kv_cache[entries].to(torch.float64).transpose(0, 1).flatten(1, 2)
            kv = pages[:, start - first_page * PAGE_SIZE : end - first_page * PAGE_SIZE]
            logits = query[r, t] @ kv[..., :HEAD_DIM].mT * scale
            out[r, t] = torch.softmax(logits, -1) @ kv[..., HEAD_DIM:]
    return out.reshape(requests * TOKENS, kv_heads * HEADS_PER_KV, HEAD_DIM)


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


def assert_close(out: Tensor, expected: Tensor, limit: float = 2.0) -> None:
    """Every element is within `limit` ulps: 2 of its own, or 2**-9 of its row's largest magnitude."""
    errors = errors_in_ulps(out, expected)
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
