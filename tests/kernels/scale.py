"""How much of each sweep runs: all of it on a GPU, a thinner one on the emulator.

A launch takes microseconds on a GPU. The emulator, with all of its checks on, takes about 0.1 s for each
request and KV head, and twice that with a seed. So the emulator gets fewer requests, KV heads and repetitions
of every kind of test, and no kind of test is left out: `SCALE` and `lengths_around` alone decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

NAN, INF = math.nan, math.inf

GPU = torch.cuda.is_available()
"""Whether kernels run on a GPU, or on the emulator."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the kernel tests.

    kv_heads: where their number does not matter. repeats: runs that must have the same bits, without and with
    dependent launch, each with a schedule of its own on the emulator; repeated_lengths: theirs. schedules:
    the emulator's seeds of the sweep over lengths, by turn. batches: numbers of requests for each number of
    KV heads. bits_lengths: of the batch whose bits are compared; bits_orders: of its requests, in other
    batches; placements: how often its pages move. unlike: lengths that leave warps with no page, one and
    more. memory_lengths: each ends within a page, so that there are slots behind the last token. poisons:
    what unread slots of K and V hold. layout_lengths: of requests in other strides. weights_step: from one
    block of 64 keys that is looked at to the next. far_lengths: of requests whose pages lie beyond 32 bits.
    """

    kv_heads: int
    repeats: Mapping[bool, int]
    repeated_lengths: tuple[int, ...]
    schedules: tuple[int | None, ...]
    batches: Mapping[int, tuple[int, ...]]
    bits_lengths: tuple[int, ...]
    bits_orders: tuple[tuple[int, ...], ...]
    placements: int
    unlike: tuple[int, ...]
    memory_lengths: tuple[int, ...]
    poisons: tuple[tuple[float, float], ...]
    layout_lengths: tuple[int, ...]
    weights_step: int
    far_lengths: tuple[int, ...]


ON_GPU = Scale(
    kv_heads=2,
    repeats={False: 200, True: 200},
    repeated_lengths=(2048, 9, 1025, 0, 777, 130, 16, 1500),
    schedules=(None,),
    batches={kv_heads: tuple(range(1, 9)) for kv_heads in (1, 2, 4, 16)},
    bits_lengths=(2048, 9, 1025, 0, 777, 130, 16, 1500),
    bits_orders=(
        *((i,) for i in range(8)),
        *((0, 2, 4), (7, 6, 5, 4, 3, 2, 1, 0), (4,) * 5, (3, 3, 1), (*range(8), *range(8), 2)),
    ),
    placements=3,
    unlike=(40, 0, 1033, 2048, 5, 129),
    memory_lengths=(13, 1027, 0, 40, 2041, 3),
    poisons=tuple((k, v) for k in (NAN, INF, -INF, 0.0) for v in (NAN, INF, 0.0)),
    layout_lengths=(13, 1027, 0, 40, 2041, 3),
    weights_step=3,
    far_lengths=(200, 77, 1000),
)

ON_EMULATOR = Scale(
    kv_heads=1,
    repeats={False: 6, True: 1},
    repeated_lengths=(1033,),
    schedules=(None, 1, None, 2, None, 3),
    batches={1: (4,), 2: (2,), 3: (1,)},
    bits_lengths=(1500, 0, 9),
    bits_orders=((2,), (2, 1, 0), (0, 2, 2, 1)),
    placements=1,
    unlike=(1033, 5, 129),
    memory_lengths=(13, 1027, 0),
    poisons=((NAN, 0.0), (0.0, NAN), (INF, NAN), (-INF, INF)),
    layout_lengths=(45,),
    weights_step=15,
    far_lengths=(60,),
)

SCALE = ON_GPU if GPU else ON_EMULATOR


def lengths_around(boundary: int, longest: int) -> list[int]:
    """Lengths near a multiple of 128, none above the longest.

    On a GPU all within 9 keys. On the emulator the full page and a last page that only the later tokens see,
    or all of them just so: 1 to 8 keys, another number at each boundary in turn.
    """
    if GPU:
        return [length for length in range(boundary - 9, boundary + 10) if length <= longest]
    behind = boundary + 1 + boundary // 128 % 8
    return [boundary, behind if behind <= longest else boundary - 1]
