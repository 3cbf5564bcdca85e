"""The golden cases: micro-kernels of the stages' tests, each on one fixed set of inputs.

A case says how closely the emulator must come to a recording: `bits` (data movement, integers, conversions,
masks, exact arithmetic), `function` (the tables of one approximate function), `sums` (tensor cores alone), or
`approximate` (whole stages that contain either).
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.epilogue.norm_gate import NormGateEpilogue
from stages.epilogue.plain import PlainEpilogue
from tests import layouts, numerics
from tests.device import MicroKernel, Out, out
from tests.finishing import Finishing
from tests.golden import baselines, inputs, instructions
from tests.golden.kernels import MmaTiles
from tests.stages import test_fragments, test_mask, test_partial, test_ptx, test_ptx_warp
from tests.stages.cluster_merge import test_rank_order
from tests.stages.pages import test_register_prefetch, test_walk
from tests.stages.push import test_dsmem
from tests.stages.scores import test_mma_qk
from tests.stages.softmax import test_online
from tests.stages.values import test_mma_pv
from tests.stages.warp_merge import test_shared

ROOT = Path(__file__).resolve().parents[2]
HEAD_DIM, ROWS = layouts.HEAD_DIM, layouts.ROWS

TABLE = 1 << 16
"""Arguments of each tabulated function."""

TILES = 256
"""Tiles of each kind of mma."""


@dataclass(frozen=True)
class Case:
    """One kernel on one set of inputs.

    arguments: those of the kernel, as `tests.device.run` takes them. stages: the modules under test, "stages.ptx"
    for example. closeness: see the module. baseline: the output's bits from the inputs, that the
    recording is stored relative to; without one it is stored as it is.
    """

    name: str
    kernel: MicroKernel
    arguments: list[Any]
    stages: tuple[str, ...]
    closeness: str = "bits"
    baseline: Callable[..., np.ndarray] | None = None

    @property
    def inputs(self) -> list[np.ndarray]:
        """The arrays among the arguments."""
        return [a for a in self.arguments if isinstance(a, np.ndarray)]

    def inputs_digest(self) -> str:
        """sha256 of all arguments: shapes, types and bytes."""
        digest = hashlib.sha256()
        for a in self.arguments:
            described = (a.dtype.str, a.shape) if isinstance(a, np.ndarray) else a
            digest.update(repr(described).encode())
            digest.update(a.tobytes() if isinstance(a, np.ndarray) else b"")
        return digest.hexdigest()

    def source_digest(self) -> str:
        """sha256 of the source of the stages under test, so that a later change of them shows."""
        paths = [Path(sys.modules[module].__file__) for module in self.stages]
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _function_cases() -> list[Case]:
    quarter = TABLE // 4
    exponents = np.concatenate(
        [
            inputs.uniform(1, -126, 128, 2 * quarter),
            inputs.uniform(2, -1, 1, quarter),
            inputs.magnitudes(3, -30, 9, quarter // 2),
            inputs.uniform(5, -152, -124, quarter // 4),
            inputs.words(6, quarter // 4).view(np.float32),
        ]
    )
    anything = np.concatenate(
        [
            inputs.uniform(7, 1, 2, quarter),
            inputs.uniform(8, 1, 4, quarter),
            inputs.words(9, 2 * quarter - 128).view(np.float32),
            np.resize(instructions.SPECIAL, 128).view(np.float32),
        ]
    )
    positive = numerics.from_bits(anything.view(np.uint32) & np.uint32(0x7FFFFFFF))
    positive[-512:] = anything[-512:]
    tables = {
        "exp2": (exponents, baselines.exp2),
        "reciprocal": (anything, baselines.reciprocal),
        "rsqrt": (positive, baselines.rsqrt),
    }
    return [
        Case(
            f"table_{op}",
            test_ptx.Elementwise(op, 1, TABLE),
            [x[None], out(np.uint32, TABLE)],
            ("stages.ptx",),
            "function",
            baseline,
        )
        for op, (x, baseline) in tables.items()
    ]


def _arithmetic_cases() -> list[Case]:
    cases = []
    for number, (op, (count, _, _)) in enumerate(test_ptx.EXACT.items()):
        x = instructions.operands(2000 + 100 * number, count).view(np.float32)
        kernel = test_ptx.Elementwise(op, count, x.shape[1])
        cases.append(Case(op, kernel, [x, out(np.uint32, x.shape[1])], ("stages.ptx",)))
    for family in instructions.FAMILIES:
        kernel, arguments = instructions.kernel(family)
        closeness = "function" if family in ("functions", "bf16_pairs") else "bits"
        cases.append(Case(f"instructions_{family}", kernel, arguments, (), closeness))
    pairs = inputs.words(20, 1024)
    x = instructions.operands(2500, 2).view(np.float32)
    arguments = [x, pairs, out(np.uint32, 1024), out(np.uint32, 2, 1024)]
    cases.append(Case("packing", test_ptx.Packing(1024), arguments, ("stages.ptx",)))
    keys, words = inputs.words(21, 2, 32).view(np.int32), inputs.words(22, 2, 32)
    cases.append(
        Case("selecting", test_ptx.Selecting(), [keys, words, out(np.uint32, 3, 32)], ("stages.ptx",))
    )
    return cases


MMA_KINDS: dict[str, Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]] = {
    # (seed, depth) -> BF16 bits of a [TILES, 16, depth] and b [TILES, depth, 8], FP32 c [TILES, 16, 8]
    "normal": lambda s, k: (
        inputs.normal_bf16(s, TILES, 16, k),
        inputs.normal_bf16(s + 1, TILES, k, 8),
        inputs.normal(s + 2, TILES, 16, 8),
    ),
    "spread": lambda s, k: (
        numerics.to_bf16(inputs.magnitudes(s, -12, 13, TILES, 16, k)),
        numerics.to_bf16(inputs.magnitudes(s + 2, -12, 13, TILES, k, 8)),
        inputs.magnitudes(s + 4, -20, 21, TILES, 16, 8),
    ),
    "large_c": lambda s, k: (
        inputs.normal_bf16(s, TILES, 16, k),
        inputs.normal_bf16(s + 1, TILES, k, 8),
        inputs.magnitudes(s + 2, 0, 26, TILES, 16, 8),
    ),
    "no_c": lambda s, k: (
        inputs.normal_bf16(s, TILES, 16, k),
        inputs.normal_bf16(s + 1, TILES, k, 8),
        np.zeros((TILES, 16, 8), np.float32),
    ),
    "tiny": lambda s, k: (
        numerics.to_bf16(inputs.magnitudes(s, -75, -55, TILES, 16, k)),
        numerics.to_bf16(inputs.magnitudes(s + 2, -75, -55, TILES, k, 8)),
        numerics.from_bits(inputs.words(s + 4, TILES, 16, 8) & np.uint32(0x81FFFFFF)),
    ),
    "anything": lambda s, k: (
        _sparse(s, TILES, 16, k),
        _sparse(s + 2, TILES, k, 8),
        inputs.words(s + 4, TILES, 16, 8).view(np.float32),
    ),
}
"""Kinds of tiles: what tells models of the tensor cores' summation apart."""


def _sparse(seed: int, *shape: int) -> np.ndarray:
    """BF16 bits: a few of any pattern (NaN, Inf and subnormals among them), small whole numbers, zeros."""
    pattern = (inputs.words(seed, *shape) >> np.uint32(16)).astype(np.uint16)
    special = np.array([0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8001, 0x7F7F, 0xFF7F, 0x8000], np.uint16)
    pick = inputs.whole(seed + 1, 0, 256, *shape)
    small = numerics.to_bf16((pick - 128).astype(np.float32) * np.float32(2.0**-4))
    return np.where(pick < 6, pattern, np.where(pick < 14, special[pick % 8], np.where(pick < 128, small, 0)))


def fold_tiles(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    """The register files of tiles: a [tiles, k / 4, 32], b [tiles, k / 8, 32], c [tiles, 4, 32]."""
    g, t, depth = layouts.G, layouts.T, a.shape[2]
    left = [
        numerics.pack(*(a[:, g + 8 * (i % 2), 8 * (i // 2) + 2 * t + half] for half in range(2)))
        for i in range(depth // 4)
    ]
    right = [numerics.pack(*(b[:, 8 * i + 2 * t + half, g] for half in range(2))) for i in range(depth // 8)]
    start = [c[:, g + 8 * (i // 2), 2 * t + i % 2] for i in range(4)]
    return [np.stack(files, axis=1) for files in (left, right, start)]


def _mma_cases() -> list[Case]:
    cases = []
    for number, (kind, make) in enumerate(MMA_KINDS.items()):
        for depth in (16, 8):
            arguments = [*fold_tiles(*make(3000 + 100 * number + depth, depth)), out(np.uint32, TILES, 4, 32)]
            name, kernel = f"mma_{kind}_k{depth}", MmaTiles(TILES, depth)
            cases.append(Case(name, kernel, arguments, ("stages.ptx",), "sums", baselines.mma))
    return cases


def _movement_cases() -> list[Case]:
    words = inputs.words
    states = words(30, 4, 36, 32).view(np.float32)
    prefetch = test_register_prefetch.Prefetching(4, 2, 1, cases=3)
    cache = test_register_prefetch.make_cache(9, 2)
    table = np.array([[3, 1, 8, 5, 2, 7, 4, 6], [2, 4, 6, 1, -1, -1, -1, -1], [-1] * 8], np.int32)
    lengths = np.array([123, 50, 0], np.int32)
    taken = out(np.uint32, 3, 4, 1, 2, 2, 16, 32)
    strides = (test_register_prefetch.PAGE_BYTES, 2 * test_register_prefetch.PAGE_BYTES)
    mask = test_mask.Masking(8, (None, 5, 17))
    seen = (test_mask.LENGTHS, 3, mask.row_groups, 2)
    del states
    return [
        Case("empty_state", test_fragments.EmptyState(HEAD_DIM), [out(np.uint32, 36, 32)], ("stages.fragments",)),
        Case("exchange", test_ptx_warp.Exchange(), [words(31, 32), out(np.uint32, 6, 32)], ("stages.ptx",)),
        Case("memory", test_ptx_warp.Memory(), [words(32, 32, 8), out(np.uint32, 32, 8)], ("stages.ptx",)),
        Case(
            "neighbours",
            test_ptx_warp.Neighbours(4),
            [words(33, 2, 4, 32, 8), out(np.uint32, 2, 4, 32, 6)],
            ("stages.ptx",),
        ),
        Case(
            "masking",
            mask,
            [out(np.int32, *seen, test_mask.KEYS), out(np.int32, *seen, 2)],
            ("stages.mask",),
        ),
        Case("dealing", test_walk.Dealing(3, 150), [out(np.int32, 150, 3), 0, 9], ("stages.pages.walk",)),
        Case(
            "looking_up",
            test_walk.LookingUp(3),
            [table[0], out(np.int32, 3, test_walk.INDICES, 4), 8, 0x7F12_3456_7890, 2**30 + 16],
            ("stages.pages.walk",),
        ),
        Case(
            "prefetching",
            prefetch,
            [cache, table, lengths, taken, *strides, 8],
            ("stages.pages.register_prefetch", "stages.pages.walk"),
        ),
        Case(
            "pushing",
            test_dsmem.Pushing(4, 4),
            [words(34, 2, 4, ROWS, 66), out(np.uint32, 2, 4, ROWS, 66)],
            ("stages.push.dsmem", "stages.partial"),
        ),
    ]


def _merge_cases() -> list[Case]:
    def partials(seed: int, *shape: int):
        """m and l of this shape, o with 64 dims; some partials are empty."""
        empty = inputs.whole(seed, 0, 6, *shape) == 0
        m = np.where(empty, np.float32(-np.inf), inputs.normal(seed + 1, *shape) * np.float32(8))
        l = np.where(empty, np.float32(0), inputs.uniform(seed + 2, 1, 100, *shape))
        o = np.where(empty[..., None], np.float32(0), inputs.normal(seed + 3, *shape, HEAD_DIM))
        return m, l, o

    m, l, o = partials(40, 4, ROWS)
    files = [
        np.concatenate([layouts.fold_rows(m[w]), layouts.fold_rows(l[w]), layouts.fold_output(o[w])])
        for w in range(4)
    ]
    m, l, o = partials(50, 2, 4, ROWS)
    ranks = np.concatenate([o, m[..., None], l[..., None]], axis=-1)
    records = np.full((ROWS // 4, 4, test_rank_order.WORDS), np.nan, np.float32)
    records[..., : HEAD_DIM + 2] = ranks[0, :, :4].transpose(1, 0, 2)
    m, l, _ = partials(60, test_partial.PARTS, test_partial.THREADS)
    return [
        Case(
            "merging",
            test_partial.Merging(),
            [np.stack([m, l], axis=1), out(np.uint32, 3, test_partial.THREADS)],
            ("stages.partial",),
            "approximate",
        ),
        Case(
            "merging_warps",
            test_shared.MergingWarps(4),
            [np.stack(files), out(np.uint32, ROWS, HEAD_DIM), out(np.uint32, 128, 5)],
            ("stages.warp_merge.shared", "stages.partial"),
            "approximate",
        ),
        Case(
            "merging_ranks",
            test_rank_order.MergingRanks(4),
            [records, out(np.uint32, ROWS // 4, 3, 32)],
            ("stages.cluster_merge.rank_order", "stages.partial"),
            "approximate",
        ),
        Case(
            "pushing_and_merging",
            test_rank_order.PushingAndMerging(4, 2),
            [ranks, out(np.uint32, 2 * ROWS, 3, 32)],
            ("stages.cluster_merge.rank_order", "stages.push.dsmem", "stages.partial"),
            "approximate",
        ),
    ]


def _attention_cases() -> list[Case]:
    q, k = inputs.normal_bf16(70, 2, ROWS, HEAD_DIM), inputs.normal_bf16(71, 2, 32, HEAD_DIM)
    scoring = test_mma_qk.Scoring(2, 2)
    keys = np.stack([layouts.fold_page(case) for case in k])

    scores = inputs.normal(72, 3, ROWS, 32) * np.float32(4)
    ends = ((10, 2000), (11, 2001))
    first_keys = 16 * 64 * np.arange(6)
    facts = np.array([*np.ravel(ends), *first_keys], np.int32)
    o = inputs.normal(73, ROWS, HEAD_DIM)
    files = np.concatenate([layouts.fold_scores(step) for step in scores] + [layouts.fold_output(o)])
    weighing = test_online.Weighing(2, 3)

    ragged = ((1045, 2070), (1046, 2071))
    cases = []
    for name, visible in (("whole", (test_mma_pv.EVERY, test_mma_pv.EVERY)), ("ragged", ragged)):
        weight = numerics.to_bf16(inputs.uniform(74, 0, 1, ROWS, 32))
        weight = np.where(test_mma_pv.seen_keys(visible, 2), weight, np.uint16(0))
        v = inputs.normal_bf16(75, 32, HEAD_DIM)
        v[1, 3], v[20, 5] = (0x7FC0, 0xFF80) if name == "ragged" else (0x3F80, 0x3F80)
        arguments = [
            layouts.fold_weights(weight)[None],
            layouts.fold_page(v)[None],
            layouts.fold_output(o),
            np.array([*np.ravel(visible), *test_mma_pv.FIRST_KEYS], np.int32),
            out(np.uint32, 1, HEAD_DIM // 2, 32),
        ]
        accumulating = test_mma_pv.Accumulating(2, 1)
        cases.append(Case(f"accumulating_{name}", accumulating, arguments, ("stages.values.mma_pv",), "sums"))
    return [
        Case(
            "scoring",
            scoring,
            [q, keys, out(np.uint32, 2, scoring.score_registers, 32), 2 * HEAD_DIM],
            ("stages.scores.mma_qk",),
            "sums",
        ),
        Case(
            "weighing",
            weighing,
            [
                files,
                facts,
                out(np.uint32, 3, weighing.weight_registers, 32),
                out(np.uint32, 36, 32),
                np.float32(0.18),
            ],
            ("stages.softmax.online", "stages.mask"),
            "approximate",
        ),
        *cases,
    ]


def _epilogue_cases() -> list[Case]:
    l = inputs.uniform(80, 1, 2048, 32)
    o = inputs.normal(81, 32, HEAD_DIM) * l[:, None]
    gate = numerics.to_bf16(inputs.normal(82, 32, HEAD_DIM) * np.float32(4))
    l[5], o[5] = 0, 0
    o[7, 3], l[9] = np.nan, np.nan
    o[11] *= np.float32(2.0**-100)
    o[13] *= np.float32(2.0**60)
    gate[15, :8] = (0x7F80, 0xFF80, 0x7FC0, 0x42C8, 0xC2C8, 0x42B0, 0xC2B0, 0x0001)
    result = out(np.uint16, 32, HEAD_DIM)
    return [
        Case(
            f"finishing_{name}",
            Finishing(epilogue, 32),
            [l, o, result, gate, 0, np.float32(1e-5)],
            (f"stages.epilogue.{name}", "stages.epilogue.output"),
            "approximate",
        )
        for name, epilogue in (
            ("norm_gate", NormGateEpilogue(HEAD_DIM)),
            ("plain", PlainEpilogue(HEAD_DIM)),
        )
    ]


def micro_cases() -> list[Case]:
    """All cases, in the order in which they are recorded."""
    return [
        *_function_cases(),
        *_arithmetic_cases(),
        *_mma_cases(),
        *_movement_cases(),
        *_merge_cases(),
        *_attention_cases(),
        *_epilogue_cases(),
    ]


def outputs_of(case: Case) -> list[Out]:
    """The outputs among a case's arguments."""
    return [a for a in case.arguments if isinstance(a, Out)]
