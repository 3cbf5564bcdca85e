"""Verify attention in float64, with the roundings that the kernel documents, and the comparison with it.

The kernel rounds in three documented places: the softmax weights to BF16 before P V, the quotient o / l to
BF16, and the result of the epilogue to BF16. How a weight rounds depends on the maximum it is relative to,
so the reference needs to know which warp attends which page, and in which step (`Partition`).

Everything else the kernel does in FP32, with errors far below a BF16 ulp. Where such an error decides which
way a result is rounded, the two are one ulp apart, which the tolerance of two has room for. Where it decides
which way a weight is rounded, more may come of it: so a result is right, too, that is close to what comes out
where all weights that near to a tie are rounded the other way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

TOKENS = 8
HEADS_PER_KV = 8
HEAD_DIM = 64
PAGE_SIZE = 16

ROW_GROUP = 16
"""Rows that one warp attends."""

KEYS_AT_ONCE = 2**20
"""Keys of one request's KV heads that the reference attends at a time: 0.5 GiB for each of its numbers."""

NEAR_TIE = 2.0**-8
"""How near to half way between two BF16 numbers, in ulps, either may be what the kernel rounds a weight to.

Its relative error is the error of its logit: of terms of some hundred, accumulated with 24 bits, 2**-16.
"""

FLUSHED = 8 * 2.0**-126
"""Outputs below this may be zero: a sigmoid below 2**-126 is flushed, and a normalised value is at most 8."""


@dataclass(frozen=True)
class Partition:
    """Which pages a step attends, and which steps share a running maximum: of the cluster kernel.

    Pages are counted from the first that row 0 sees. Warp w of cluster * warps takes pages w, w + cluster *
    warps, ..., pages_per_step of them per step, relative to one maximum, which runs on from step to step.
    """

    cluster: int
    warps: int
    pages_per_step: int

    @property
    def stride(self) -> int:
        """Warps that share a request's pages, and so the distance between the pages of one warp."""
        return self.cluster * self.warps

    def steps(self, count: int, device: Any = None) -> Tensor:
        """[shares, steps, pages_per_step]: the pages of each step, of a request that needs `count` pages.

        A share is what one running maximum goes through, in the order of its steps. Where a step has fewer
        pages, and where a share has fewer steps, stands `count`.
        """
        steps = max(1, math.ceil(count / (self.stride * self.pages_per_step)))
        pages = torch.arange(steps * self.pages_per_step * self.stride, device=device)
        return pages.clamp(max=count).view(-1, self.stride).T.unflatten(1, (steps, -1))

    def page_by_page(self, count: int) -> bool:
        """Whether the maximum moves on page by page where a row group does not see all keys of a step."""
        return False


@dataclass(frozen=True)
class SplitPartition(Partition):
    """Which pages a step attends, and which steps share a running maximum: of the split kernel.

    A request that needs at most short_rounds pages a warp of one cluster is attended as the cluster kernel
    does it. The pages of a longer one make n steps of ring_pages_per_step, dealt out in order to
    s = cluster * num_splits shares: n // s to each, and one more to each of the first n % s. A step of which
    a row group does not see every key goes page by page.
    """

    short_rounds: int
    ring_pages_per_step: int
    num_splits: int

    @property
    def short_pages(self) -> int:
        """The most pages that a short request needs."""
        return self.short_rounds * self.stride

    @property
    def shares(self) -> int:
        """Shares of a long request, one for each CTA."""
        return self.cluster * self.num_splits

    def steps(self, count: int, device: Any = None) -> Tensor:
        """See `Partition.steps`."""
        if count <= self.short_pages:
            return super().steps(count, device)
        a_step = self.ring_pages_per_step
        total = math.ceil(count / a_step)
        each, rest = divmod(total, self.shares)
        shares = torch.arange(self.shares + 1, device=device)
        bounds = a_step * (each * shares + shares.clamp(max=rest))
        steps = math.ceil(total / self.shares)
        pages = bounds[:-1, None] + torch.arange(steps * a_step, device=device)
        pages = torch.where(pages < bounds[1:, None], pages, count).clamp(max=count)
        return pages.unflatten(1, (steps, a_step))

    def page_by_page(self, count: int) -> bool:
        """See `Partition.page_by_page`."""
        return count > self.short_pages


def partition_of(kernel: Any, num_splits: int = 1) -> Partition:
    """The partition of a kernel (`variants`), with this many clusters for a long request."""
    cluster, warps = kernel.cluster, kernel.warps
    if not kernel.splits:
        return Partition(cluster, warps, kernel.pages_per_step)
    # A kernel without short requests has no steps of its own for them.
    pages_per_step = kernel.pages_per_step if kernel.short_pages else 1
    short_rounds = kernel.short_pages // (cluster * warps)
    return SplitPartition(
        cluster, warps, pages_per_step, short_rounds, kernel.ring_pages_per_step, num_splits
    )


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


def attention(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    partition: Partition,
    window: int | None = None,
    other_way: bool = False,
) -> Tensor:
    """bf16(o / l): attention of the 8 verified tokens of each request, as the plain epilogue stores it.

    A row without a key is zeros; a NaN that a row sees makes it NaN, and no other row. Only the pages that a
    row sees are read, some KV heads of a request at a time. other_way: see `round_weights`.
    """
    requests, kv_heads = len(seq_lens), kv_cache.shape[1]
    query = q.reshape(requests, TOKENS, kv_heads, HEADS_PER_KV, HEAD_DIM).to(torch.float64)
    out = torch.zeros_like(query)
    for r, length in enumerate(seq_lens.tolist()):
        first = first_page(length, window)
        end = math.ceil(length / PAGE_SIZE)
        if first == end:
            continue
        assert end <= block_table.shape[1], "a row sees a key beyond the block table"
        entries = block_table[r, first:end].long()
        seen = visible_keys(seq_lens[r : r + 1], end * PAGE_SIZE, window)[0, :, first * PAGE_SIZE :]
        steps = partition.steps(end - first, q.device)
        by_page = partition.page_by_page(end - first)
        at_once = max(1, KEYS_AT_ONCE // seen.shape[1])
        for heads in (slice(h, h + at_once) for h in range(0, kv_heads, at_once)):
            kv = kv_cache[entries, heads].to(torch.float64).transpose(0, 1).flatten(1, 2)
            rows = query[r, :, heads].transpose(0, 1)
            out[r, :, heads] = _attend(
                rows, kv, seen, log2_scale(scale), steps, by_page, other_way
            ).transpose(0, 1)
    return round_bf16(out.reshape(requests * TOKENS, kv_heads * HEADS_PER_KV, HEAD_DIM))


def first_page(length: int, window: int | None) -> int:
    """The page of the first key that row 0 sees; page 0 if it sees none."""
    return 0 if window is None else max(0, length - TOKENS - window + 1) // PAGE_SIZE


def _attend(q, kv, seen, factor, steps, page_by_page, other_way):
    """o / l of one request, [H, tokens, heads, dim].

    q: [H, tokens, heads, dim]. kv: [H, keys, 2 dim]. seen: [tokens, keys]. steps, page_by_page: see
    `Partition`. other_way: see `round_weights`.
    """
    k, v = kv[..., :HEAD_DIM], kv[..., HEAD_DIM:]
    scores = (q.flatten(1, 2) @ k.mT * factor).unflatten(1, q.shape[1:3])
    scores = torch.where(seen[:, None], scores, -math.inf)
    by_page = scores.unflatten(-1, (-1, PAGE_SIZE))
    tops = torch.where(by_page.isnan(), -math.inf, by_page).amax(-1)
    m = pad(tops, (0, 1), value=-math.inf)[..., steps].flatten(-2).cummax(-1).values
    m = m.unflatten(-1, steps.shape[1:])
    top = _base(m.amax((-3, -2, -1)))[..., None, None]
    of_step = m[..., -1:].expand_as(m)
    m = torch.where(_whole_steps(seen, steps)[:, None], of_step, m) if page_by_page else of_step

    # The place of each page; `steps` holds each page once, and behind the last page what is not there.
    place_of = torch.empty(tops.shape[-1] + 1, dtype=torch.long, device=steps.device)
    place_of[steps] = torch.arange(steps.numel(), device=steps.device).view(steps.shape)
    m = m.flatten(-3)[..., place_of[:-1], None]
    weights = torch.exp2(by_page - _base(m))
    carried = torch.exp2(m - top)
    rounded = (carried * round_weights(weights, other_way)).flatten(-2)
    l = (carried * weights).sum((-2, -1))[..., None]
    l = torch.where(l == 0.0, 1.0, l)
    o = [rounded[:, t] @ torch.where(seen[t, :, None], v, 0.0) for t in range(TOKENS)]
    return torch.stack(o, 1) / l


def _whole_steps(seen, steps):
    """[tokens, shares, steps, 1]: whether the tokens of a row group see all keys of a step."""
    pages = pad(seen.unflatten(-1, (-1, PAGE_SIZE)).all(-1), (0, 1), value=False)
    whole = pages[:, steps].all(-1, keepdim=True)
    together = ROW_GROUP // HEADS_PER_KV
    return whole.unflatten(0, (-1, together)).all(1).repeat_interleave(together, 0)


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


def assert_close(
    out: Tensor,
    expected: Tensor,
    limit: float = 2.0,
    or_to: Callable[[], Tensor] | None = None,
) -> None:
    """Every element is within `limit` ulps: 2 of its own, or 2**-9 of its row's largest magnitude.

    or_to: what an element may be close to instead, asked for only if one is not close to `expected`.
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
