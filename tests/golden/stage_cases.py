"""Cases of the stages: the micro-kernels of their tests on one set of inputs each."""

import numpy as np

from stages.epilogue.norm_gate import NormGateEpilogue
from stages.epilogue.plain import PlainEpilogue
from tests import layouts, numerics
from tests.device import out
from tests.finishing import Finishing
from tests.golden import inputs
from tests.golden.case import Case
from tests.stages import test_fragments, test_mask, test_partial
from tests.stages.cluster_merge import test_rank_order
from tests.stages.pages import test_register_prefetch, test_walk
from tests.stages.ptx import test_warp
from tests.stages.push import test_dsmem
from tests.stages.scores import test_mma_qk
from tests.stages.softmax import weighing
from tests.stages.values import test_mma_pv
from tests.stages.warp_merge import test_shared

HEAD_DIM, ROWS = layouts.HEAD_DIM, layouts.ROWS


def _movement_cases() -> list[Case]:
    words = inputs.words
    prefetch = test_register_prefetch.Prefetching(4, 2, 1, cases=3)
    cache = test_register_prefetch.make_cache(9, 2)
    table = np.array([[3, 1, 8, 5, 2, 7, 4, 6], [2, 4, 6, 1, -1, -1, -1, -1], [-1] * 8], np.int32)
    lengths = np.array([123, 50, 0], np.int32)
    taken = out(np.uint32, 3, 4, 1, 2, 2, 16, 32)
    strides = (test_register_prefetch.PAGE_BYTES, 2 * test_register_prefetch.PAGE_BYTES)
    mask = test_mask.Masking(8, (None, 5, 17))
    seen = (test_mask.LENGTHS, 3, mask.row_groups, 2)
    return [
        Case(
            "empty_state",
            test_fragments.EmptyState(HEAD_DIM),
            [out(np.uint32, 36, 32)],
            ("stages.fragments",),
        ),
        Case(
            "exchange",
            test_warp.Exchange(),
            [words(31, 32), out(np.uint32, 6, 32)],
            ("stages.ptx.warp", "stages.ptx.matrix"),
        ),
        Case(
            "memory",
            test_warp.Memory(),
            [words(32, 32, 8), out(np.uint32, 32, 8)],
            ("stages.ptx.shared_memory", "stages.ptx.global_memory"),
        ),
        Case(
            "neighbours",
            test_warp.Neighbours(4),
            [words(33, 2, 4, 32, 8), out(np.uint32, 2, 4, 32, 6)],
            ("stages.ptx.cluster", "stages.ptx.mbarrier"),
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
        ),
        Case(
            "merging_warps",
            test_shared.MergingWarps(4),
            [np.stack(files), out(np.uint32, ROWS, HEAD_DIM), out(np.uint32, 128, 5)],
            ("stages.warp_merge.shared", "stages.partial"),
        ),
        Case(
            "merging_ranks",
            test_rank_order.MergingRanks(4),
            [records, out(np.uint32, ROWS // 4, 3, 32)],
            ("stages.cluster_merge.rank_order", "stages.partial"),
        ),
        Case(
            "pushing_and_merging",
            test_rank_order.PushingAndMerging(4, 2),
            [ranks, out(np.uint32, 2 * ROWS, 3, 32)],
            ("stages.cluster_merge.rank_order", "stages.push.dsmem", "stages.partial"),
        ),
    ]


def _attention_cases() -> list[Case]:
    q, k = inputs.normal_bf16(70, 2, ROWS, HEAD_DIM), inputs.normal_bf16(71, 2, 32, HEAD_DIM)
    scoring = test_mma_qk.Scoring(2, 2)
    keys = np.stack([layouts.fold_page(case) for case in k])

    scores = inputs.normal(72, 3, ROWS, 32) * np.float32(4)
    o = inputs.normal(73, ROWS, HEAD_DIM)
    numbers = 16 * 64 * np.arange(6)[:, None] + np.arange(16)
    step = weighing.Case(scores, numbers.reshape(3, 32), ((10, 2000), (11, 2001)), 0.18, o)
    steps = [step.but(masked=masked, scale=scale) for masked in (True, False) for scale in (0.18, 3.1)]
    online = weighing.Weighing(2, 3)

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
            test_mma_pv.facts_of(visible, 2),
            out(np.uint32, 1, HEAD_DIM // 2, 32),
        ]
        accumulating = test_mma_pv.Accumulating(2, 1)
        cases.append(Case(f"accumulating_{name}", accumulating, arguments, ("stages.values.mma_pv",)))
    return [
        Case(
            "scoring",
            scoring,
            [q, keys, out(np.uint32, 2, scoring.score_registers, 32), 2 * HEAD_DIM],
            ("stages.scores.mma_qk",),
        ),
        Case(
            "weighing",
            online,
            weighing.arguments(online, steps),
            ("stages.softmax.online", "stages.mask"),
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
            [l, o, result, gate, 0, 1e-5],
            (f"stages.epilogue.{name}", "stages.epilogue.output"),
        )
        for name, epilogue in (
            ("norm_gate", NormGateEpilogue(HEAD_DIM)),
            ("plain", PlainEpilogue(HEAD_DIM)),
        )
    ]


def stage_cases() -> list[Case]:
    """All cases of this module."""
    return [*_movement_cases(), *_merge_cases(), *_attention_cases(), *_epilogue_cases()]
