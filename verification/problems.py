"""Inputs for the kernel: requests as unlike as an engine's, in memory where nothing else may be read.

`model_like` draws what the requests hold (`Content`); `place` lays it out in a paged cache, a block table and
a fused activation row (`Problem`). Everything that no row may read is poison: the cache's unused pages, page
0 among them; the slots that no row sees; table entries beyond a request's pages; the fused row's other
columns. Runs on any device, with no loop over pages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from verification import attention as reference
from verification.attention import HEAD_DIM, HEADS_PER_KV, PAGE_SIZE, TOKENS
from verification.comparison import assert_close
from verification.partition import Partition

if TYPE_CHECKING:
    from stages.slots import EpilogueReference

MODEL_SCALE = 0.68413
"""A model's softmax scale for q and k that have been RMS-normalised: no logit is beyond 44."""

FLAT_SCALE = 0.125
"""With the same q and k nearly every key counts, so that one key too many or too few shows in any context."""

INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Content:
    """What the requests hold, by token and by key: q, gate [R, 8, 8H, 64]; k, v [R, keys, H, 64]; BF16."""

    q: Tensor
    gate: Tensor
    k: Tensor
    v: Tensor

    @property
    def kv_heads(self) -> int:
        """H."""
        return self.k.shape[2]


def padded(length: int) -> int:
    """The keys that the live pages of a request of this length hold, of at least one page."""
    return max(1, math.ceil(length / PAGE_SIZE)) * PAGE_SIZE


def model_like(
    requests: int, keys: int, kv_heads: int, *, device: torch.device | str = "cpu", seed: int = 0
) -> Content:
    """Contents with logits spread like a model's.

    q and k are RMS-normalised, and one key in 16 is drawn towards one of the query rows, up to nearly
    parallel, so that rows have a few keys of great weight.
    """
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, device=device)

    def normed(x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).rsqrt()

    rows = TOKENS * HEADS_PER_KV
    q = normed(normal(requests, kv_heads, rows, HEAD_DIM))
    pick = torch.randint(rows, (requests, kv_heads, keys), generator=random, device=device)
    drawn_to = q.gather(2, pick[..., None].expand(-1, -1, -1, HEAD_DIM)).transpose(1, 2)
    chance = torch.rand((2, requests, keys, kv_heads, 1), generator=random, device=device)
    strength = torch.where(chance[0] < 1 / 16, 3.0 * chance[1], 0.0)
    content = Content(
        q=torch.unflatten(q, 2, (TOKENS, HEADS_PER_KV)).transpose(1, 2).flatten(2, 3),
        gate=2.0 * normal(requests, TOKENS, kv_heads * HEADS_PER_KV, HEAD_DIM),
        k=normed(normal(requests, keys, kv_heads, HEAD_DIM) + strength * drawn_to),
        v=normal(requests, keys, kv_heads, HEAD_DIM),
    )
    return Content(*(getattr(content, f.name).to(torch.bfloat16) for f in dataclasses.fields(content)))


@dataclass(frozen=True)
class Layout:
    """Where the content lies, and what lies around it.

    k_poison, v_poison: what a slot that no row sees holds, and every unused page. layers, layer: the cache is
    `layer` of an allocation that interleaves this many. head_gap: slots between the KV heads of a page.
    spare_columns: entries of a table row that belong to it but not to `block_table`. fused: q and gate are
    slices of one row [q | k | v | gate], else they are contiguous. seed: of the pages' physical placement.
    """

    k_poison: float = math.nan
    v_poison: float = math.nan
    layers: int = 1
    layer: int = 0
    head_gap: int = 0
    spare_columns: int = 3
    fused: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Problem:
    """One call's arguments; q and gate are [8R, 512H]."""

    q: Tensor
    gate: Tensor
    kv_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    max_seq_len: int
    scale: float = MODEL_SCALE
    eps: float = 1e-5
    window: int | None = None
    needed: Tensor = field(repr=False, kw_only=True)
    """[R, columns]: the table entries that may be used."""

    def arguments(self) -> dict[str, Any]:
        """What `attn2` is called with, `out` left out; by name, in the order of its parameters."""
        names = (f.name for f in dataclasses.fields(self) if f.name not in ("needed", "window"))
        given = {name: getattr(self, name) for name in names}
        return given if self.window is None else {**given, "window": self.window}

    def poisoned_out(self, padding: int = 0) -> Tensor:
        """A new [8R, 512H] output full of NaN, in rows that are `padding` elements longer."""
        rows, columns = self.q.shape
        return torch.full((rows, columns + padding), math.nan, dtype=torch.bfloat16, device=self.q.device)[
            :, :columns
        ]

    def check(self, out: Tensor, partition: Partition, epilogue: EpilogueReference) -> None:
        """The output is what the kernel must give. Raises AssertionError with the worst element."""
        assert_close(
            out,
            self.expected(partition, epilogue),
            or_to=lambda: self.expected(partition, epilogue, other_way=True),
        )

    def expected(self, partition: Partition, epilogue: EpilogueReference, other_way: bool = False) -> Tensor:
        """What a kernel with this partition must write, in float64: [8R, 8H, 64].

        epilogue: the `Contract.reference` of its epilogue stage. other_way: with the weights near a rounding
        tie rounded the other way, which is right too.
        """
        attended = reference.attention(
            self.q,
            self.kv_cache,
            self.block_table,
            self.seq_lens,
            scale=self.scale,
            partition=partition,
            window=self.window,
            other_way=other_way,
        )
        return reference.finish(epilogue, attended, self.gate, self.eps, self.seq_lens)

    def requests(self, indices: Sequence[int]) -> Problem:
        """These requests alone, in this order, in the same cache; q and gate are contiguous.

        A request may come twice.
        """
        index = torch.tensor(indices, device=self.q.device)
        return dataclasses.replace(
            self,
            q=torch.unflatten(self.q, 0, (-1, TOKENS))[index].flatten(0, 1),
            gate=torch.unflatten(self.gate, 0, (-1, TOKENS))[index].flatten(0, 1),
            block_table=self.block_table[index],
            seq_lens=self.seq_lens[index],
            needed=self.needed[index],
        )

    def relocated(self, seed: int) -> Problem:
        """The same requests, each page but page 0 at another place in a cache of the same layout."""
        pages = self.kv_cache.shape[0]
        random = torch.Generator(self.q.device).manual_seed(seed)
        moved = torch.randperm(pages - 1, generator=random, device=self.q.device) + 1
        cache = torch.empty_strided(
            self.kv_cache.shape, self.kv_cache.stride(), dtype=torch.bfloat16, device=self.q.device
        )
        cache[0] = self.kv_cache[0]
        cache[moved] = self.kv_cache[1:]
        table = self.block_table.clone()
        table[self.needed] = moved[table[self.needed].long() - 1].to(torch.int32)
        return dataclasses.replace(self, kv_cache=cache, block_table=table)


def place(
    content: Content,
    lengths: Sequence[int],
    *,
    max_seq_len: int | None = None,
    scale: float = MODEL_SCALE,
    eps: float = 1e-5,
    window: int | None = None,
    layout: Layout = Layout(),
) -> Problem:
    """Lay out requests of these lengths. max_seq_len: of the deployment; the longest length unless given."""
    device = content.q.device
    random = torch.Generator(device).manual_seed(layout.seed)
    max_seq_len = max_seq_len or max(TOKENS, *lengths)
    columns = math.ceil(max_seq_len / PAGE_SIZE)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)

    seen = reference.visible_keys(seq_lens, columns * PAGE_SIZE, window).any(1)
    needed = torch.unflatten(seen, 1, (columns, PAGE_SIZE)).any(2)
    live = int(needed.sum())
    pages = live + 6
    # Page 0 is never a request's: engines point freed and padded entries there.
    ids = (torch.randperm(pages - 1, generator=random, device=device) + 1)[:live].to(torch.int32)
    table = _stale_entries((len(lengths), columns + layout.spare_columns), ids, pages, random)
    table[:, :columns][needed] = ids

    kv_heads = content.kv_heads
    poison = torch.tensor([layout.k_poison, layout.v_poison], dtype=torch.bfloat16, device=device)
    poison = poison.repeat_interleave(HEAD_DIM)
    storage = poison.repeat(pages, layout.layers, kv_heads, PAGE_SIZE + layout.head_gap, 1)
    cache = storage[:, layout.layer, :, :PAGE_SIZE]
    keys = min(content.k.shape[1], columns * PAGE_SIZE)
    assert not seen[:, keys:].any(), "a request is longer than its content"
    kv = torch.cat((content.k, content.v), -1)[:, :keys]
    kv = torch.where(seen[:, :keys, None, None], kv, poison)
    by_page = torch.unflatten(kv, 1, (-1, PAGE_SIZE)).transpose(2, 3)
    cache[ids.long()] = by_page[needed[:, : keys // PAGE_SIZE]]

    q, gate = content.q.flatten(0, 1).flatten(1), content.gate.flatten(0, 1).flatten(1)
    if layout.fused:
        width = q.shape[1]
        row = torch.full(
            (len(q), 2 * width + 2 * kv_heads * HEAD_DIM), math.nan, dtype=torch.bfloat16, device=device
        )
        row[:, :width], row[:, -width:] = q, gate
        q, gate = row[:, :width], row[:, -width:]
    return Problem(
        q=q,
        gate=gate,
        kv_cache=cache,
        block_table=table[:, :columns],
        seq_lens=seq_lens,
        max_seq_len=max_seq_len,
        scale=scale,
        eps=eps,
        window=window,
        needed=needed,
    )


def _stale_entries(shape: tuple[int, int], ids: Tensor, pages: int, random: torch.Generator) -> Tensor:
    """Table entries that must not be used: -1, INT_MAX, the page count, page 0, pages of other requests."""
    device = ids.device
    wrong = torch.tensor([-1, INT_MAX, pages, 0], dtype=torch.int32, device=device)
    stale = wrong[torch.randint(len(wrong), shape, generator=random, device=device)]
    if len(ids):
        others = ids[torch.randint(len(ids), shape, generator=random, device=device)]
        theirs = torch.rand(shape, generator=random, device=device) < 0.3
        stale = torch.where(theirs, others, stale)
    return stale


def make_problem(
    lengths: Sequence[int],
    *,
    kv_heads: int = 1,
    device: torch.device | str = "cpu",
    seed: int = 0,
    layout: Layout | None = None,
    **deployment: Any,
) -> Problem:
    """`model_like` contents of these lengths, placed; `deployment` goes to `place`."""
    content = model_like(len(lengths), padded(max(lengths)), kv_heads, device=device, seed=seed)
    return place(content, lengths, layout=layout or Layout(seed=seed), **deployment)
