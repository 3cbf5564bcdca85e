"""The float64 reference: attention of the verified tokens, then the epilogue, rounded where a kernel rounds.

Contract
    A kernel rounds to BF16 in three places, and so does the reference: the softmax weights before P V, the
    quotient o / l, and the result of the epilogue. `attention` gives the rounded quotient, as the slots
    scores, softmax and values define it in `stages.slots`; how a weight rounds depends on the kernel's
    `Partition`. `finish` applies the reference of an epilogue stage to it. `attention_exact` rounds nothing
    and is written in another way, to test `attention` against.

    All other arithmetic of a kernel is FP32, with errors far below a BF16 ulp. Where such an error decides
    which way a result is rounded, the two are one ulp apart, within the limit of `verification.comparison`.
    Where it decides which way a weight is rounded, the difference may be larger: `other_way` gives the
    result for which all weights near a tie are rounded the other way, and an element that is close to either
    result is right.

    Takes a call's tensors, BF16 or integers, on any device, and returns float64 [8 R, 8 H, 64] for R requests
    and H KV heads. Only live pages that a row sees are read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from verification.partition import Partition
from verification.rounding import round_bf16, round_weights

if TYPE_CHECKING:
    from stages.slots import EpilogueReference

TOKENS = 8
HEADS_PER_KV = 8
HEAD_DIM = 64
PAGE_SIZE = 16

ROW_GROUP = 16
"""Rows that one warp attends."""

KEYS_AT_ONCE = 2**20
"""Keys of one request's KV heads that the reference attends at a time: 0.5 GiB for each of its numbers."""


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
    """bf16(o / l): attention of the 8 verified tokens of each request, which an epilogue starts from.

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


def _attend(
    q: Tensor, kv: Tensor, seen: Tensor, factor: float, steps: Tensor, page_by_page: bool, other_way: bool
) -> Tensor:
    """o / l of one request, [H, tokens, heads, dim].

    q: [H, tokens, heads, dim]. kv: [H, keys, 2 dim]. seen: [tokens, keys]. steps, page_by_page: see
    `Partition`. other_way: see `round_weights`.
    """
    k, v = kv[..., :HEAD_DIM], kv[..., HEAD_DIM:]
    scores = torch.unflatten(q.flatten(1, 2) @ k.mT * factor, 1, q.shape[1:3])
    scores = torch.where(seen[:, None], scores, -math.inf)
    by_page = torch.unflatten(scores, -1, (-1, PAGE_SIZE))
    tops = torch.where(by_page.isnan(), -math.inf, by_page).amax(-1)
    m = pad(tops, (0, 1), value=-math.inf)[..., steps].flatten(-2).cummax(-1).values
    m = torch.unflatten(m, -1, steps.shape[1:])
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


def _whole_steps(seen: Tensor, steps: Tensor) -> Tensor:
    """[tokens, shares, steps, 1]: whether the tokens of a row group see all keys of a step."""
    pages = pad(torch.unflatten(seen, -1, (-1, PAGE_SIZE)).all(-1), (0, 1), value=False)
    whole = pages[:, steps].all(-1, keepdim=True)
    together = ROW_GROUP // HEADS_PER_KV
    return torch.unflatten(whole, 0, (-1, together)).all(1).repeat_interleave(together, 0)


def _base(m: Tensor) -> Tensor:
    """What is subtracted in an exponent: the maximum, or 0 where there is no key."""
    return torch.where(m == -math.inf, 0.0, m)


def finish(
    epilogue: EpilogueReference, attended: Tensor, gate: Tensor, eps: float, seq_lens: Tensor
) -> Tensor:
    """What a kernel stores: the epilogue's reference of attention's result, rounded to BF16 once.

    attended: as `attention` returns it. gate: the call's, [8 R, 512 H]. Rows without a key are zeros,
    whatever their gate holds. Raises ValueError if the reference returns anything but a float64 tensor of the
    shape of `attended`.
    """
    value = epilogue(attended, gate.reshape(attended.shape).to(torch.float64), eps)
    if not isinstance(value, Tensor) or value.shape != attended.shape or value.dtype != torch.float64:
        found = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"the epilogue's reference returned {found}; a float64 tensor of the shape of `attended`, "
            f"{list(attended.shape)}, is needed"
        )
    has_key = visible_keys(seq_lens, 1, None).reshape(-1, 1, 1)
    return torch.where(has_key, round_bf16(value), 0.0)


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
