"""How much of each sweep of the split kernel runs: all of it on a GPU, a thinner one on the emulator.

The emulator takes about 0.3 s for each request and KV head in clusters of 16, and a tenth of that in clusters
of 2. So it has `split_tiny` for what must be swept, `split_small` for the real cluster, and only a few long
requests of the variants that are shipped. These are found, and their lengths follow from their kernels. A
case is (variant, ...).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.kernels.scale import GPU
from tests.modules import VARIANTS

NAN, INF = math.nan, math.inf

LONGEST = 1048576
"""What the split variants serve."""


def over_clusters(variants: Mapping[str, tuple[ModuleType, Any]]) -> tuple[str, ...]:
    """The names of those that spread requests over clusters and serve the requests of these tests."""
    return tuple(
        name
        for name, (_, variant) in variants.items()
        if variant.kernel.splits and variant.windows and variant.max_seq_len >= LONGEST
    )


SHIPPED = over_clusters(VARIANTS)
"""The shipped variants that are tested here. Others that are shipped are compiled and verified."""

_KERNELS = {name: VARIANTS[name][1].kernel for name in SHIPPED}

UNITS = {
    **{name: kernel.page_size * kernel.warps * kernel.cluster for name, kernel in _KERNELS.items()},
    **{"split_plain": 1024, "split_small": 1024, "split_tiny": 128},
}
"""Keys of a page for each warp of a cluster, by variant: bounds of rounds, shares and rings are multiples."""

SHORT = {
    **{name: kernel.page_size * kernel.short_pages for name, kernel in _KERNELS.items()},
    **{"split_plain": 4096, "split_small": 1024, "split_tiny": 128},
}
"""The longest request that is attended by one cluster, by variant, where there is no window; 0 for none."""

RING = {
    **{name: kernel.ring.depth for name, kernel in _KERNELS.items()},
    **{"split_plain": 8, "split_small": 8, "split_tiny": 4},
}
"""Pages that the ring of a CTA holds, by variant."""

WITH_SHORT = tuple(name for name in SHIPPED if SHORT[name])
"""Shipped variants that leave short requests to one cluster."""

WITHOUT_SHORT = tuple(name for name in SHIPPED if not SHORT[name])
"""Shipped variants that spread every request."""

GUARD = 256
"""Bytes behind a call's workspace, and numbers behind its counters, that it must leave alone."""

NEAR = range(-9, 10)
EDGES = (-9, -1, 0, 1, 8, 9)
"""Distances from a bound: all that a verify step can tell apart, and those that matter most."""


def around(*bounds: int, off: Iterable[int] = NEAR) -> tuple[int, ...]:
    """Lengths near bounds, each once, in order."""
    return tuple(sorted({b + d for b in bounds for d in off if 0 <= b + d <= LONGEST}))


@dataclass(frozen=True)
class Scale:
    """Sizes of the split kernel's tests.

    variants: what most tests run. batch: requests of one launch at most. splits: values of num_splits, taken
    by turns. lengths: (variant, lengths). shares: (variant, num_splits, lengths). mixed: a batch of padding,
    short and long requests for each variant; batches: (variant, KV heads, num_splits) of launches of it.
    long: (variant, lengths), one a launch. windowed: (variant, window, lengths); window_splits: see splits.
    scales: of softmax. memory: lengths whose last page is partly filled, by variant; poisons: what unread
    slots of K and V hold; poisoned: how many of these, by variant. repeats: (variant, dependent launch, runs
    with the same bits). orders: of the first three requests of a mixed batch in other batches. far: lengths
    of requests whose pages lie beyond 32 bits.
    """

    variants: tuple[str, ...]
    batch: int
    splits: tuple[int, ...]
    lengths: tuple[tuple[str, Sequence[int]], ...]
    shares: tuple[tuple[str, int, Sequence[int]], ...]
    mixed: Mapping[str, tuple[int, ...]]
    batches: tuple[tuple[str, int, int], ...]
    long: tuple[tuple[str, Sequence[int]], ...]
    windowed: tuple[tuple[str, int, Sequence[int]], ...]
    window_splits: tuple[int, ...]
    scales: tuple[float, ...]
    memory: Mapping[str, tuple[int, ...]]
    poisons: tuple[tuple[float, float], ...]
    poisoned: Mapping[str, int]
    repeats: tuple[tuple[str, bool, int], ...]
    orders: tuple[tuple[int, ...], ...]
    far: Mapping[str, tuple[int, ...]]


WINDOWS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 127, 128, 129)
WIDE_WINDOWS = (1024, 2047, 2048, 2049, 8192)
WIDEST_SHORT = {name: keys - 22 for name, keys in SHORT.items() if keys}
"""The widest window with which every request is attended by one cluster, by variant."""

NO_WINDOW = 2000000
"""A window that is longer than any request."""

MANY = (1, 2, 4, 7, 8, 32)


def _gpu_lengths(name: str) -> Iterable[tuple[str, Sequence[int]]]:
    """All lengths of a shipped variant with short requests.

    Of the others all within the first pages, and around every round and share.
    """
    unit = UNITS[name]
    swept = {*range(8, 1100), *around(*range(unit, 16 * unit + 1, unit), *range(1024, 16385, 1024))}
    lengths = range(8, 16384 + 10) if name in WITH_SHORT else sorted(swept)
    return ((name, lengths[part::8]) for part in range(8))


def _gpu_shares(name: str) -> Iterable[tuple[str, int, Sequence[int]]]:
    for num_splits in MANY:
        unit = UNITS[name] * num_splits
        yield name, num_splits, (*around(unit, 2 * unit), *around(RING[name] * unit, off=EDGES))


def _gpu_windows(name: str) -> Iterable[tuple[str, int, Sequence[int]]]:
    for window in (*WINDOWS, *WIDE_WINDOWS):
        yield name, window, (*around(window), *range(window + 32, window + 48), *range(16384, 16400))
        if name in WITH_SHORT:
            yield name, window, range(131072, 131088)
    if name in WIDEST_SHORT:
        for window in (WIDEST_SHORT[name], WIDEST_SHORT[name] + 1):
            yield name, window, range(window + 32, window + 48)
    yield name, NO_WINDOW, (0, 8, 9, *around(SHORT[name]), 20000, 131072)


def _gpu_mixed(short: int, long: int) -> tuple[int, ...]:
    return long, 0, 9, short + 1, short - 24, 2 * short + 100, short, 3


_PLAIN_LONG = (*around(32768, 131072, off=EDGES), LONGEST - 9, LONGEST)

ON_GPU = Scale(
    variants=tuple(UNITS),
    batch=64,
    splits=MANY,
    lengths=tuple(case for name in UNITS for case in _gpu_lengths(name)),
    shares=tuple(case for name in UNITS for case in _gpu_shares(name)),
    mixed={name: _gpu_mixed(SHORT[name] or UNITS[name], 131072) for name in UNITS},
    batches=(
        *((name, 2, num_splits) for name in UNITS for num_splits in MANY),
        *((name, kv_heads, 3) for name in UNITS for kv_heads in (1, 4, 16)),
    ),
    long=(
        *((name, around(32768, 131072, LONGEST)) for name in WITH_SHORT),
        *((name, around(32768, 131072, LONGEST, off=EDGES)) for name in WITHOUT_SHORT),
        ("split_plain", _PLAIN_LONG),
        ("split_small", (32769, 131071)),
        ("split_tiny", (32769,)),
    ),
    windowed=tuple(case for name in UNITS for case in _gpu_windows(name)),
    window_splits=MANY,
    scales=(0.02, 0.125, 0.4),
    memory={name: (13, 1027, 0, SHORT[name] + 9, 20003) for name in UNITS},
    poisons=tuple((k, v) for k in (NAN, INF, -INF, 0.0) for v in (NAN, INF, 0.0)),
    poisoned={name: 12 for name in UNITS},
    repeats=tuple((name, pdl, 200) for name in UNITS for pdl in (False, True)),
    orders=((0,), (1,), (2,), (2, 1, 0), (0, 0, 0, 0), (2, 2, 0), (*range(3), *range(3), 2)),
    far={name: (20000, 200, 9000) for name in UNITS},
)


def _simulated_windows(window: int) -> tuple[str, int, Sequence[int]]:
    """Around the window, and every residue of L mod 16 beyond it."""
    return "split_tiny", window, (*around(window, off=(-8, -1, 0, 1, 8)), *range(window + 32, window + 48))


_SPREAD = tuple((name, UNITS[name]) for name in WITHOUT_SHORT)

ON_EMULATOR = Scale(
    variants=("split_small", *WITHOUT_SHORT, "split_tiny"),
    batch=24,
    splits=(1, 2, 3),
    lengths=(
        ("split_tiny", range(8, 41)),
        ("split_tiny", (*around(128), *around(256, 512, off=(0, 9)))),
        ("split_small", (1023, 1024, 1025, 1032)),
        ("split_plain", (4097,)),
        *((name, (SHORT[name], SHORT[name] + 9)) for name in WITH_SHORT),
        *((name, (8, 9, 40, unit + 1, 2 * unit + 8, 5 * unit + 60)) for name, unit in _SPREAD),
    ),
    shares=(
        ("split_tiny", 1, around(512, off=(0, 1, 9))),
        ("split_tiny", 2, around(256, 1024, off=(0, 9))),
        ("split_tiny", 3, around(384, off=(-1, 0, 1))),
        ("split_small", 3, (3073,)),
        *((name, 5, around(5 * unit, off=(-1, 0, 9))) for name, unit in _SPREAD),
    ),
    mixed={
        "split_small": (1033, 0, 9),
        **{name: (5 * unit + 60, 0, 9, unit + 1) for name, unit in _SPREAD},
        "split_tiny": (700, 0, 9, 129, 128),
    },
    batches=(
        *(("split_tiny", 1, 3), ("split_tiny", 2, 2), ("split_small", 2, 1)),
        *((name, 2, 3) for name, _ in _SPREAD),
    ),
    long=(
        *(("split_small", (8193,)), ("split_tiny", (4097,))),
        *((name, (32 * unit + 1,)) for name, unit in _SPREAD),
    ),
    windowed=(
        *(_simulated_windows(window) for window in WINDOWS),
        *(("split_tiny", window, range(138, 154)) for window in (106, 107)),
        ("split_tiny", NO_WINDOW, (130, 40, 0)),
        ("split_small", 1024, (1035, 1054)),
        *((name, SHORT[name] // 2, (2 * SHORT[name] + 815,)) for name in WITH_SHORT),
        *((name, window, (window + 33, window + 40, 9)) for name, _ in _SPREAD for window in (1, 17, 129)),
        *((name, 24, range(56, 72)) for name, _ in _SPREAD),
        *((name, SHORT[name] + 104, (SHORT[name] + 205,)) for name in WITH_SHORT),
    ),
    window_splits=(1,),
    scales=(0.125,),
    memory={"split_small": (1027,), **dict.fromkeys(WITHOUT_SHORT, (201, 0)), "split_tiny": (13, 201, 0)},
    poisons=((NAN, 0.0), (0.0, NAN), (-INF, INF)),
    poisoned={"split_small": 1, **dict.fromkeys(WITHOUT_SHORT, 2), "split_tiny": 3},
    repeats=(
        *(("split_small", False, 2), ("split_tiny", False, 5)),
        *((name, False, 3) for name in WITHOUT_SHORT),
    ),
    orders=((0,), (2, 1, 0), (0, 2, 2, 1, 0)),
    far={"split_small": (1030,), **dict.fromkeys(WITHOUT_SHORT, (140, 20)), "split_tiny": (140, 20)},
)

SCALE = ON_GPU if GPU else ON_EMULATOR
