"""Cases of single instructions: tables of the approximate functions, exact arithmetic, packing, mma tiles."""

from collections.abc import Callable

import numpy as np

from tests import layouts, numerics
from tests.device import out
from tests.golden import baselines, inputs, instructions
from tests.golden.case import Case
from tests.golden.kernels import MmaTiles
from tests.stages.ptx import test_arithmetic

TABLE = 1 << 16
"""Arguments of each tabulated function."""

TILES = 256
"""Tiles of each kind of mma."""


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
            test_arithmetic.Elementwise(op, 1, TABLE),
            [x[None], out(np.uint32, TABLE)],
            ("stages.ptx.arithmetic",),
            baseline,
        )
        for op, (x, baseline) in tables.items()
    ]


def _arithmetic_cases() -> list[Case]:
    cases = []
    for number, (op, (count, _, _)) in enumerate(test_arithmetic.EXACT.items()):
        x = instructions.operands(2000 + 100 * number, count).view(np.float32)
        kernel = test_arithmetic.Elementwise(op, count, x.shape[1])
        cases.append(Case(op, kernel, [x, out(np.uint32, x.shape[1])], ("stages.ptx.arithmetic",)))
    for family in instructions.FAMILIES:
        kernel, arguments = instructions.kernel(family)
        cases.append(Case(f"instructions_{family}", kernel, arguments, ()))
    pairs = inputs.words(20, 1024)
    x = instructions.operands(2500, 2).view(np.float32)
    arguments = [x, pairs, out(np.uint32, 1024), out(np.uint32, 2, 1024)]
    cases.append(Case("packing", test_arithmetic.Packing(1024), arguments, ("stages.ptx.bf16",)))
    keys, words = inputs.words(21, 2, 32).view(np.int32), inputs.words(22, 2, 32)
    cases.append(
        Case(
            "selecting",
            test_arithmetic.Selecting(),
            [keys, words, out(np.uint32, 3, 32)],
            ("stages.ptx.arithmetic",),
        )
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
        sparse(s, TILES, 16, k),
        sparse(s + 2, TILES, k, 8),
        inputs.words(s + 4, TILES, 16, 8).view(np.float32),
    ),
}
"""Kinds of tiles: what tells models of the tensor cores' summation apart."""


def sparse(seed: int, *shape: int) -> np.ndarray:
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
            cases.append(Case(name, kernel, arguments, ("stages.ptx.matrix",), baselines.mma))
    return cases


def instruction_cases() -> list[Case]:
    """All cases of this module."""
    return [*_function_cases(), *_arithmetic_cases(), *_mma_cases()]
