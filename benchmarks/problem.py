"""The tensors of one load, and the float64 reference that every contender is checked against."""

import copy
import itertools

import torch

from benchmarks.loads import (
    HEAD_DIM,
    HEADS_PER_KV,
    PAGE_SIZE,
    TOKENS,
    Load,
    live_pages,
    pages_of,
)

SCALE = HEAD_DIM**-0.5
EPS = 1e-5

#: Device memory that the caches of one load may take: enough for 64 of most loads.
CACHES_LIMIT_BYTES = 8 << 30


def plan_copies(load: Load, calls: int, limit_bytes: int = CACHES_LIMIT_BYTES) -> int:
    """Return how many independent caches `calls` calls take turns in: one each, as far as the memory goes."""
    return min(calls, max(2, limit_bytes // load.cache_bytes))


class Problem:
    """The tensors of one load for `calls` calls; call i reads cache i modulo the number of copies.

    q, gate: slices [8 R, 512 H] of a fused row [q | k | v | gate]. caches: [copies, pages, H, 16, 128], K in
    columns 0:64 and V in 64:128. block_table: int32 [R, pages of max_seq_len], live entries a random
    permutation of all pages, the others 0. seq_lens: int32 [R]. cu_seqlens_q: int32 [R + 1].
    """

    def __init__(
        self,
        load: Load,
        *,
        calls: int,
        copies: int,
        device: torch.device,
        max_seq_len: int | None = None,
        seed: int = 0,
    ):
        self.load, self.calls, self.copies, self.device = load, calls, copies, device
        random = torch.Generator(device=device).manual_seed(seed)

        def normal(*size: int) -> torch.Tensor:
            empty = torch.empty(size, dtype=torch.bfloat16, device=device)
            return empty.normal_(generator=random)

        width = load.query_heads * HEAD_DIM
        kv_width = load.kv_heads * HEAD_DIM
        self.fused = normal(load.tokens, 2 * width + 2 * kv_width)
        self.q = self.fused[:, :width]
        self.gate = self.fused[:, width + 2 * kv_width :]
        size = (copies, load.pages, load.kv_heads, PAGE_SIZE, 2 * HEAD_DIM)
        self.caches = torch.empty(size, dtype=torch.bfloat16, device=device)
        for cache in self.caches:
            cache.normal_(generator=random)
        order = torch.randperm(load.pages, generator=random, device=device).to(torch.int32)
        ends = list(itertools.accumulate(map(pages_of, load.lengths)))
        self.pages = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        self.seq_lens = torch.tensor(load.lengths, dtype=torch.int32, device=device)
        self.cu_seqlens_q = torch.arange(load.requests + 1, dtype=torch.int32, device=device) * TOKENS
        self._references: dict[int, torch.Tensor] = {}
        self._deploy(load.longest if max_seq_len is None else max_seq_len)

    def _deploy(self, max_seq_len: int) -> None:
        if max_seq_len < self.load.longest:
            raise ValueError(f"max_seq_len {max_seq_len} is below the longest length of load {self.load}")
        self.max_seq_len = max_seq_len
        size = (self.load.requests, pages_of(max_seq_len))
        self.block_table = torch.zeros(size, dtype=torch.int32, device=self.device)
        for row, pages in zip(self.block_table, self.pages, strict=True):
            row[: len(pages)] = pages

    def deployed(self, max_seq_len: int) -> "Problem":
        """Return the same problem, on the same tensors, with the block table of another deployment."""
        other = copy.copy(self)
        other._deploy(max_seq_len)
        return other

    def cache(self, call: int) -> torch.Tensor:
        """Return the packed cache [pages, H, 16, 128] of a call."""
        return self.caches[call % self.copies]

    def keys_values(self, call: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same cache as peers address it: K and V, [pages, 16, H, 64], views without a copy."""
        k, v = self.head_major(call)
        return k.transpose(1, 2), v.transpose(1, 2)

    def head_major(self, call: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K and V as views [pages, H, 16, 64] (HND)."""
        cache = self.cache(call)
        return cache[..., :HEAD_DIM], cache[..., HEAD_DIM:]

    def live_table(self) -> torch.Tensor:
        """Return the block table entries of all live pages, one request after the other, int32."""
        found = []
        for length, pages in zip(self.load.lengths, self.pages, strict=True):
            live = live_pages(length, self.load.window)
            found.append(pages[live.start : live.stop])
        return torch.cat(found)

    def outputs(self) -> torch.Tensor:
        """Return an output [8 R, 512 H] for each call, filled with NaN to show a row that nobody writes."""
        size = (self.calls, self.load.tokens, self.load.query_heads * HEAD_DIM)
        return torch.full(size, float("nan"), dtype=torch.bfloat16, device=self.device)

    def attention_reference(self, call: int) -> torch.Tensor:
        """Return float64 attention [8 R, 8 H, 64] of a call, before norm and gate; computed once a cache."""
        index = call % self.copies
        if index not in self._references:
            # One request at a time: the scores of all of them would not fit for the long loads.
            requests = range(self.load.requests)
            self._references[index] = torch.cat([self._attention_of(call, request) for request in requests])
        return self._references[index]

    def _attention_of(self, call: int, request: int) -> torch.Tensor:
        """Return float64 attention [8, 8 H, 64] of one request. Only its live pages are looked at."""
        load, length = self.load, self.load.lengths[request]
        live = live_pages(length, load.window)
        pages = self.cache(call)[self.pages[request][live.start : live.stop].long()]
        packed = pages.transpose(0, 1).reshape(load.kv_heads, len(live) * PAGE_SIZE, 2 * HEAD_DIM)
        keys = torch.arange(live.start * PAGE_SIZE, length, device=self.device)
        packed = packed[:, : len(keys)].double()
        k, v = packed[..., :HEAD_DIM], packed[..., HEAD_DIM:]
        rows = torch.arange(TOKENS, device=self.device).repeat_interleave(HEADS_PER_KV)
        last = length - TOKENS + rows[:, None]
        hidden = keys[None, :] > last
        if load.window is not None:
            hidden |= keys[None, :] <= last - load.window
        q = self.q[TOKENS * request : TOKENS * (request + 1)]
        q = q.reshape(TOKENS, load.kv_heads, HEADS_PER_KV, HEAD_DIM).transpose(0, 1)
        q = q.reshape(load.kv_heads, TOKENS * HEADS_PER_KV, HEAD_DIM).double()
        scores = (q @ k.transpose(1, 2) * SCALE).masked_fill_(hidden, float("-inf"))
        o = torch.softmax(scores, dim=-1) @ v
        o = o.view(load.kv_heads, TOKENS, HEADS_PER_KV, HEAD_DIM).transpose(0, 1)
        return o.reshape(TOKENS, load.query_heads, HEAD_DIM)

    def norm_gate_reference(self, attention: torch.Tensor) -> torch.Tensor:
        """Return what follows attention, in float64, [8 R, 8 H, 64].

        That is RMS norm over each head, without a weight, times the sigmoid of the gate.
        """
        o = attention.double().view(self.load.tokens, self.load.query_heads, HEAD_DIM)
        gate = self.gate.double().reshape(o.shape)
        return o * torch.rsqrt(o.square().mean(dim=-1, keepdim=True) + EPS) * torch.sigmoid(gate)


def worst_row_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest |result - reference| / |reference| over rows and heads; NaN if there is any.

    Each row of a head on its own: a mean over the tensor would hide one wrong row.
    """
    reference = reference.reshape(-1, HEAD_DIM)
    difference = result.double().reshape(-1, HEAD_DIM) - reference
    return float((difference.norm(dim=-1) / reference.norm(dim=-1)).max())
