"""The inputs of one shape, and the float64 reference that every contender is checked against."""

from dataclasses import dataclass

import torch

HEAD_DIM = 64
HEADS_PER_KV = 8
TOKENS = 8
PAGE_SIZE = 16
SCALE = HEAD_DIM**-0.5
EPS = 1e-5

#: Device memory that the caches of one shape may take: enough for 64 of most shapes.
CACHES_LIMIT_BYTES = 8 << 30


@dataclass(frozen=True)
class Shape:
    """Requests, KV heads of the rank, context length (verified tokens included) and window."""

    requests: int
    kv_heads: int
    length: int
    window: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Return the shape that `text` names, "R H L" or "R H L W", commas allowed; or ValueError."""
        words = text.replace(",", " ").split()
        if len(words) not in (3, 4) or not all(word.isdecimal() for word in words):
            raise ValueError(
                f"a shape is whole numbers, requests, KV heads, length and maybe a window, not {text!r}"
            )
        shape = cls(*map(int, words))
        if shape.window == 0:
            raise ValueError(f"shape {text!r}: a window holds at least 1 key")
        if shape.requests < 1 or shape.kv_heads < 1 or shape.length < TOKENS:
            raise ValueError(
                f"shape {text!r}: at least 1 request, 1 KV head and a length of {TOKENS} are needed"
            )
        return shape

    def __str__(self) -> str:
        return f"{self.requests} {self.kv_heads} {self.length}" + (f" {self.window}" if self.window else "")

    @property
    def query_heads(self) -> int:
        """Query heads of the rank."""
        return HEADS_PER_KV * self.kv_heads

    @property
    def tokens(self) -> int:
        """Query rows of the call: the verified tokens of all requests."""
        return TOKENS * self.requests

    @property
    def pages(self) -> int:
        """Live pages of one call, each holding all KV heads."""
        return self.requests * pages_of(self.length)

    @property
    def read_bytes(self) -> int:
        """Bytes of keys and values that one call has to read."""
        seen = self.length if self.window is None else min(self.length, self.window + TOKENS - 1)
        return self.requests * self.kv_heads * seen * 2 * HEAD_DIM * 2

    @property
    def cache_bytes(self) -> int:
        """Bytes of one call's cache, its last pages' unused slots included."""
        return self.pages * self.kv_heads * PAGE_SIZE * 2 * HEAD_DIM * 2


def pages_of(length: int) -> int:
    """Return the pages that `length` cache entries take."""
    return -(-length // PAGE_SIZE)


def plan_copies(shape: Shape, calls: int, limit_bytes: int = CACHES_LIMIT_BYTES) -> int:
    """Return how many independent caches `calls` calls take turns in: one each, as far as the memory goes."""
    return min(calls, max(2, limit_bytes // shape.cache_bytes))


class Problem:
    """The tensors of one shape for `calls` calls; call i reads cache i modulo the number of copies.

    q, gate: slices [8 R, 512 H] of a fused row [q | k | v | gate]. caches: [copies, pages, H, 16, 128], K in
    columns 0:64 and V in 64:128. block_table: int32 [R, pages of max_seq_len], live entries a random
    permutation of all pages, the others 0. seq_lens: int32 [R]. cu_seqlens_q: int32 [R + 1].
    """

    def __init__(
        self, shape: Shape, *, calls: int, copies: int, max_seq_len: int, device: torch.device, seed: int = 0
    ):
        if max_seq_len < shape.length:
            raise ValueError(f"max_seq_len {max_seq_len} is below the length of shape {shape}")
        self.shape, self.calls, self.copies, self.max_seq_len = shape, calls, copies, max_seq_len
        self.device = device
        random = torch.Generator(device=device).manual_seed(seed)

        def normal(*size: int) -> torch.Tensor:
            empty = torch.empty(size, dtype=torch.bfloat16, device=device)
            return empty.normal_(generator=random)

        width = shape.query_heads * HEAD_DIM
        kv_width = shape.kv_heads * HEAD_DIM
        self.fused = normal(shape.tokens, 2 * width + 2 * kv_width)
        self.q = self.fused[:, :width]
        self.gate = self.fused[:, width + 2 * kv_width :]
        size = (copies, shape.pages, shape.kv_heads, PAGE_SIZE, 2 * HEAD_DIM)
        self.caches = torch.empty(size, dtype=torch.bfloat16, device=device)
        for cache in self.caches:
            cache.normal_(generator=random)
        live = pages_of(shape.length)
        self.block_table = torch.zeros(
            (shape.requests, pages_of(max_seq_len)), dtype=torch.int32, device=device
        )
        order = torch.randperm(shape.pages, generator=random, device=device)
        self.block_table[:, :live] = order.view(shape.requests, live).to(torch.int32)
        self.seq_lens = torch.full((shape.requests,), shape.length, dtype=torch.int32, device=device)
        self.cu_seqlens_q = torch.arange(shape.requests + 1, dtype=torch.int32, device=device) * TOKENS

    def cache(self, call: int) -> torch.Tensor:
        """Return the packed cache [pages, H, 16, 128] of a call."""
        return self.caches[call % self.copies]

    def keys_values(self, call: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same cache as peers address it: K and V, [pages, 16, H, 64], views without a copy."""
        cache = self.cache(call).transpose(1, 2)
        return cache[..., :HEAD_DIM], cache[..., HEAD_DIM:]

    def outputs(self) -> torch.Tensor:
        """Return an output [8 R, 512 H] for each call, filled with NaN to show a row that nobody writes."""
        size = (self.calls, self.shape.tokens, self.shape.query_heads * HEAD_DIM)
        return torch.full(size, float("nan"), dtype=torch.bfloat16, device=self.device)

    def attention_reference(self, call: int) -> torch.Tensor:
        """Return float64 attention [8 R, 8 H, 64] of a call, before norm and gate."""
        shape, live = self.shape, pages_of(self.shape.length)
        rows = torch.arange(TOKENS, device=self.device).repeat_interleave(HEADS_PER_KV)
        keys = torch.arange(shape.length, device=self.device)
        last = shape.length - TOKENS + rows[:, None]
        hidden = keys[None, :] > last
        if shape.window is not None:
            hidden |= keys[None, :] <= last - shape.window
        q = self.q.reshape(shape.requests, TOKENS, shape.kv_heads, HEADS_PER_KV, HEAD_DIM)
        results = []
        for request in range(shape.requests):
            # One request at a time: the scores of all of them would not fit for the long shapes.
            pages = self.cache(call)[self.block_table[request, :live].long()]
            packed = pages.transpose(0, 1).reshape(shape.kv_heads, live * PAGE_SIZE, 2 * HEAD_DIM)
            packed = packed[:, : shape.length].double()
            k, v = packed[..., :HEAD_DIM], packed[..., HEAD_DIM:]
            rows_q = q[request].transpose(0, 1).reshape(shape.kv_heads, -1, HEAD_DIM).double()
            scores = (rows_q @ k.transpose(1, 2) * SCALE).masked_fill_(hidden, float("-inf"))
            o = torch.softmax(scores, dim=-1) @ v
            o = o.view(shape.kv_heads, TOKENS, HEADS_PER_KV, HEAD_DIM).transpose(0, 1)
            results.append(o.reshape(TOKENS, shape.query_heads, HEAD_DIM))
        return torch.cat(results)

    def norm_gate_reference(self, attention: torch.Tensor) -> torch.Tensor:
        """Return what follows attention, in float64, [8 R, 8 H, 64].

        That is RMS norm over each head, without a weight, times the sigmoid of the gate.
        """
        o = attention.double().view(self.shape.tokens, self.shape.query_heads, HEAD_DIM)
        gate = self.gate.double().reshape(o.shape)
        return o * torch.rsqrt(o.square().mean(dim=-1, keepdim=True) + EPS) * torch.sigmoid(gate)


def worst_row_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest |result - reference| / |reference| over rows and heads; NaN if there is any.

    Each row of a head on its own: a mean over the tensor would hide one wrong row.
    """
    reference = reference.reshape(-1, HEAD_DIM)
    difference = result.double().reshape(-1, HEAD_DIM) - reference
    return float((difference.norm(dim=-1) / reference.norm(dim=-1)).max())
