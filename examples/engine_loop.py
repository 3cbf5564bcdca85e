"""A serving loop around the kernel in plain PyTorch: prepare, capture once, replay for every step.

    python -m examples.engine_loop              # in the checkout, on a Hopper GPU

It shows what an engine does around `attn2`, with random numbers in the place of a model:

- the kernel is compiled before the capture (`prepare`), and scratch memory is allocated for the largest
  batch;
- one CUDA graph is captured for a batch of `MAX_REQUESTS` and replayed for every batch: the kernel reads the
  lengths, the block table and the activations at replay;
- a step verifies 8 tokens a request; those that are rejected are overwritten by the next step;
- pages come from a pool, go back to it when a request ends, and are given out again with what they held;
- places of the batch without a request have length 0 and a table row of zeros, and get rows of zeros.

Every step is compared with attention, norm and gate in FP32.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from generated import attn2  # where stagewright is installed: from stagewright import attn2

TOKENS, HEADS_PER_KV, HEAD_DIM, PAGE_SIZE = 8, 8, 64, 16
"""What the kernel serves: verified tokens, query heads a KV head, head dim, cache entries of a page."""

KV_HEADS = 2
MAX_REQUESTS = 4
MAX_SEQ_LEN = 8192
SCALE = HEAD_DIM**-0.5
EPS = 1e-5


@dataclass
class Request:
    """A sequence that is being served. length: cache entries in use. pages: of the pool, in order."""

    length: int
    last: int
    pages: list[int] = field(default_factory=list)


class Engine:
    """The tensors of a batch, which keep their addresses, and the requests that have a place in it.

    pages: of the pool. device: of all tensors. ended: how many requests are done.
    """

    def __init__(self, pages: int, device: torch.device, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator(device).manual_seed(seed)
        width = KV_HEADS * HEADS_PER_KV * HEAD_DIM
        rows = MAX_REQUESTS * TOKENS

        def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # q and gate are slices of what a model's fused projection gives.
        self.fused = zeros(rows, 2 * width)
        self.q, self.gate = self.fused[:, :width], self.fused[:, width:]
        self.cache = zeros(pages, KV_HEADS, PAGE_SIZE, 2 * HEAD_DIM)
        self.table = zeros(MAX_REQUESTS, MAX_SEQ_LEN // PAGE_SIZE, dtype=torch.int32)
        self.lengths = zeros(MAX_REQUESTS, dtype=torch.int32)
        self.out = zeros(rows, width)
        self.free = list(range(pages))
        self.places: list[Request | None] = [None] * MAX_REQUESTS
        self.ended = 0

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        """Random numbers of a tensor's shape, as a model's activations would be."""
        return torch.randn(like.shape, generator=self.generator, device=like.device).to(like.dtype)

    def admit(self, prompt: int, last: int) -> None:
        """Give a request the first free place: its prompt is in the cache, and it ends at `last` entries."""
        place = self.places.index(None)
        request = self.places[place] = Request(prompt, last)
        self.reserve(place, prompt)
        for page in request.pages:
            self.cache[page] = self.noise(self.cache[page])

    def reserve(self, place: int, length: int) -> None:
        """Pages for so many entries, from the pool into the request's row of the table."""
        request = self.places[place]
        assert request is not None
        while len(request.pages) * PAGE_SIZE < length:
            page = self.free.pop(self.random.randrange(len(self.free)))
            self.table[place, len(request.pages)] = page
            request.pages.append(page)

    def release(self, place: int) -> None:
        """End a request: its pages go back to the pool, its place is padded from now on."""
        request = self.places[place]
        assert request is not None
        self.free += request.pages
        self.ended += 1
        self.places[place] = None
        self.table[place] = 0
        self.lengths[place] = 0

    def begin_step(self) -> None:
        """Write the keys and values of each request's 8 tokens, and the step's lengths and activations."""
        for place, request in enumerate(self.places):
            if request is None:
                continue
            end = request.length + TOKENS
            self.reserve(place, end)
            for entry in range(request.length, end):
                slot = self.cache[request.pages[entry // PAGE_SIZE], :, entry % PAGE_SIZE]
                slot.copy_(self.noise(slot))
            self.lengths[place] = end
        self.fused.copy_(self.noise(self.fused))

    def end_step(self) -> None:
        """Accept 1 to 8 of each request's tokens, and end those that are long enough."""
        for place, request in enumerate(self.places):
            if request is None:
                continue
            request.length += self.random.randint(1, TOKENS)
            if request.length >= request.last:
                self.release(place)

    def reference(self) -> torch.Tensor:
        """What the step's output has to be, in FP32."""
        want = torch.zeros(self.out.shape, device=self.out.device)
        rows = MAX_REQUESTS, TOKENS, KV_HEADS, HEADS_PER_KV, HEAD_DIM
        q, gate, y = self.q.float().view(rows), self.gate.float().view(rows), want.view(rows)
        for place, request in enumerate(self.places):
            if request is None:
                continue
            length = request.length + TOKENS
            kv = self.cache[request.pages].float().transpose(0, 1).flatten(1, 2)[:, :length]
            k, v = kv[..., :HEAD_DIM], kv[..., HEAD_DIM:]
            logits = torch.einsum("thgd,hkd->thgk", q[place], k) * SCALE
            last = torch.arange(length - TOKENS, length, device=k.device)
            hidden = torch.arange(length, device=k.device) > last[:, None]
            logits = logits.masked_fill(hidden[:, None, None], -torch.inf)
            attended = torch.einsum("thgk,hkd->thgd", logits.softmax(-1), v)
            norm = torch.rsqrt(attended.square().mean(-1, keepdim=True) + EPS)
            y[place] = attended * norm * gate[place].sigmoid()
        return want


def serve(engine: Engine, launch: Callable[[], object], steps: int) -> float:
    """Serve some requests of unlike lengths; returns the largest error of any step."""
    worst = 0.0
    waiting = [(3, 30), (700, 710), (16, 400), (2100, 2200), (5, 12), (1000, 1020), (40, 45)]
    for _ in range(steps):
        while waiting and None in engine.places:
            engine.admit(*waiting.pop(0))
        engine.begin_step()
        launch()
        worst = max(worst, (engine.out.float() - engine.reference()).abs().max().item())
        engine.end_step()
    return worst


def main(steps: int = 40) -> float:
    """Capture one graph and serve with it; returns the largest error."""
    device = torch.device("cuda")
    engine = Engine(pages=400, device=device)
    deployment = {"max_seq_len": MAX_SEQ_LEN, "window": None}
    attn2.prepare(kv_heads=KV_HEADS, device=device, **deployment)
    workspace, counters = attn2.allocate_scratch(MAX_REQUESTS, kv_heads=KV_HEADS, device=device, **deployment)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attn2.attn2(
            *(engine.q, engine.gate, engine.cache, engine.table, engine.lengths),
            **deployment,
            scale=SCALE,
            eps=EPS,
            workspace=workspace,
            counters=counters,
            out=engine.out,
        )
    worst = serve(engine, graph.replay, steps)
    print(f"{steps} steps, one graph; the largest error is {worst:.4f}, of numbers up to 8")
    return worst


if __name__ == "__main__":
    main()
