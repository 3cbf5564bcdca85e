"""The loads that are measured: batches of requests with their lengths, KV heads and window, as data.

A load is drawn from its seed alone, by Python's `random.Random(seed).random()`, whose sequence does not
change between versions: the same load has the same lengths on every machine. Lengths are in cache entries,
the verified tokens included.
"""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

HEAD_DIM = 64
HEADS_PER_KV = 8
TOKENS = 8
PAGE_SIZE = 16

#: Bytes of one page of one KV head, K and V.
HEAD_PAGE_BYTES = PAGE_SIZE * 2 * HEAD_DIM * 2

#: A deployment that serves long contexts, in cache entries.
LONG_DEPLOYMENT = 131072


class Distribution(Protocol):
    """How the lengths of a batch are drawn."""

    @property
    def is_random(self) -> bool:
        """Whether the lengths depend on the seed."""

    def draw(self, requests: int, seed: int) -> tuple[int, ...]:
        """Return a length for each request."""


@dataclass(frozen=True)
class Even:
    """Every request has the same length."""

    length: int
    is_random = False

    def draw(self, requests: int, seed: int) -> tuple[int, ...]:
        """Return the length, as often as there are requests."""
        return (self.length,) * requests


@dataclass(frozen=True)
class OneLong:
    """The first request is long, all others have the same shorter length."""

    long: int
    others: int
    is_random = False

    def draw(self, requests: int, seed: int) -> tuple[int, ...]:
        """Return the long length first."""
        return (self.long,) + (self.others,) * (requests - 1)


@dataclass(frozen=True)
class Uniform:
    """Every length from `least` to `most`, both included, is equally likely."""

    least: int
    most: int
    is_random = True

    def draw(self, requests: int, seed: int) -> tuple[int, ...]:
        """Return lengths by inversion of the distribution."""
        generator = random.Random(seed)
        return tuple(
            self.least + int(generator.random() * (self.most - self.least + 1)) for _ in range(requests)
        )


@dataclass(frozen=True)
class Exponential:
    """Exponentially distributed lengths of this mean, rounded to the nearest, none below `least`."""

    mean: int
    least: int
    is_random = True

    def draw(self, requests: int, seed: int) -> tuple[int, ...]:
        """Return lengths by inversion of the distribution."""
        generator = random.Random(seed)
        return tuple(
            max(self.least, round(-self.mean * math.log(1 - generator.random()))) for _ in range(requests)
        )


@dataclass(frozen=True)
class Load:
    """A batch: requests, KV heads of the rank, lengths, the keys that a row sees, None for all."""

    name: str
    requests: int
    kv_heads: int
    distribution: Distribution
    window: int | None = None
    seed: int = 0

    @classmethod
    def even(cls, requests: int, kv_heads: int, length: int, window: int | None = None) -> "Load":
        """Return the load whose requests all have one length; its name is "R H L" or "R H L W"."""
        name = f"{requests} {kv_heads} {length}" + (f" {window}" if window is not None else "")
        return cls(name, requests, kv_heads, Even(length), window)

    @classmethod
    def parse(cls, text: str) -> "Load":
        """Return the load that "R H L" or "R H L W" names, commas allowed. Raises ValueError."""
        words = text.replace(",", " ").split()
        if len(words) not in (3, 4) or not all(word.isdecimal() for word in words):
            raise ValueError(
                f"a shape is whole numbers, requests, KV heads, length and maybe a window, not {text!r}"
            )
        requests, kv_heads, length, *window = map(int, words)
        if window == [0]:
            raise ValueError(f"shape {text!r}: a window holds at least 1 key")
        if requests < 1 or kv_heads < 1 or length < TOKENS:
            raise ValueError(
                f"shape {text!r}: at least 1 request, 1 KV head and a length of {TOKENS} are needed"
            )
        return cls.even(requests, kv_heads, length, *window)

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """Length of each request."""
        return self.distribution.draw(self.requests, self.seed)

    @property
    def longest(self) -> int:
        """The longest length: the `max_seq_len` of the deployment that fits."""
        return max(self.lengths)

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
        """Pages of the cache of one call, each holding all KV heads."""
        return sum(map(pages_of, self.lengths))

    @property
    def cache_bytes(self) -> int:
        """Bytes of one call's cache, unused slots of last pages included."""
        return self.pages * self.kv_heads * HEAD_PAGE_BYTES

    @property
    def live_pages(self) -> int:
        """Pages that hold a key which some row sees: all of them, or those of the windows."""
        return sum(len(live_pages(length, self.window)) for length in self.lengths)

    @property
    def live_page_bytes(self) -> int:
        """Bytes of the live pages: what a kernel has to read that reads whole pages."""
        return self.live_pages * self.kv_heads * HEAD_PAGE_BYTES

    @property
    def read_bytes(self) -> int:
        """Bytes of the keys that some row sees, and of their values."""
        seen = sum(length - first_key(length, self.window) for length in self.lengths)
        return seen * self.kv_heads * 2 * HEAD_DIM * 2

    def seeded(self, seed: int) -> "Load":
        """Return the same load drawn from another seed, which its name tells."""
        return replace(self, name=f"{self.name}/{seed}", seed=seed)


def pages_of(length: int) -> int:
    """Return the pages that `length` cache entries take."""
    return -(-length // PAGE_SIZE)


def first_key(length: int, window: int | None) -> int:
    """Return the first key that some row of a request sees: the first of row 0's window."""
    return 0 if window is None else max(0, length - TOKENS + 1 - window)


def live_pages(length: int, window: int | None) -> range:
    """Return the pages of a request, counted from its first, that hold a key which some row sees."""
    return range(first_key(length, window) // PAGE_SIZE, pages_of(length))


#: Requests, KV heads, length and window of the loads whose requests are all alike.
POINTS = tuple(
    Load.parse(text)
    for text in (
        "1 1 512",
        "1 2 2048",
        "8 2 2048",
        "32 2 2048",
        "64 4 2048",
        "1 2 8192 2048",
        "8 2 8192 2048",
        "32 2 32768 2048",
        "64 4 32768 2048",
        "1 2 8192",
        "1 2 32768",
        "1 1 131072",
        "1 2 131072",
        "8 2 8192",
        "8 2 32768",
        "32 2 8192",
        "32 2 32768",
        "8 4 131072",
    )
)

#: Batches whose requests differ in length.
UNEVEN = (
    Load("uniform-32k", 32, 2, Uniform(8, 32768)),
    Load("uniform-8k", 32, 2, Uniform(8, 8192)),
    Load("one-131k", 64, 2, OneLong(131072, 500)),
    Load("one-32k", 16, 2, OneLong(32768, 1000)),
    Load("uniform-32k-w2048", 32, 2, Uniform(8, 32768), window=2048),
    Load("exponential-2k", 64, 1, Exponential(2000, 8)),
)

GROUPS = {"points": POINTS, "uneven": UNEVEN}


def choose(names: Sequence[str], seeds: int = 0) -> list[Load]:
    """Return the loads of these names, each once; a group's name stands for all of it.

    seeds: how many more seeds of each random load are added. Raises ValueError for an unknown name.
    """
    known = {load.name: load for group in GROUPS.values() for load in group}
    chosen: dict[str, Load] = {}
    for name in names:
        if name not in GROUPS and name not in known:
            raise ValueError(f"no load {name!r}; there are {', '.join([*GROUPS, *map(repr, known)])}")
        for load in GROUPS.get(name) or (known[name],):
            chosen[load.name] = load
            if load.distribution.is_random:
                further = (load.seeded(seed) for seed in range(1, seeds + 1))
                chosen |= {drawn.name: drawn for drawn in further}
    return list(chosen.values())


def deployments(load: Load, wanted: Sequence[int | None]) -> list[int]:
    """Return the longest contexts to run a load with, each once: None is the load's own longest length.

    A deployment that is too short for the load is left out.
    """
    found = (load.longest if max_seq_len is None else max_seq_len for max_seq_len in wanted)
    return [max_seq_len for max_seq_len in dict.fromkeys(found) if max_seq_len >= load.longest]
