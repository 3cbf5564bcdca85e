"""Cases of wgmma: normal, tiny, huge, spread and cancelling inputs, chains of k, and both places of A."""

from collections.abc import Callable

import numpy as np

from tests import numerics
from tests.device import out
from tests.golden import baselines, inputs
from tests.golden.case import Case
from tests.golden.instruction_cases import sparse
from tests.warpgroup import Scores, Values, fold_left, fold_sums

VALUES = 1 << 13
"""Sums of each case."""

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]


def _cancelling(seed: int, tiles: int, columns: int, depth: int) -> Matrices:
    """Products that come in pairs of opposite sign, all but equal: the sum is far below its terms."""
    half = depth // 2
    a, b = inputs.normal_bf16(seed, tiles, 64, half), inputs.normal_bf16(seed + 1, tiles, columns, half)
    other = b ^ (0x8000 | inputs.words(seed + 2, tiles, columns, half) & 1).astype(np.uint16)
    c = inputs.magnitudes(seed + 3, -20, -4, tiles, 64, columns)
    return np.concatenate([a, a], axis=2), np.concatenate([b, other], axis=2), c


def _magnitudes(low: int, high: int, c: tuple[int, int]) -> Callable[[int, int, int, int], Matrices]:
    """Operands and addends whose exponents are even over a range."""
    return lambda seed, tiles, columns, depth: (
        numerics.to_bf16(inputs.magnitudes(seed, low, high, tiles, 64, depth)),
        numerics.to_bf16(inputs.magnitudes(seed + 2, low, high, tiles, columns, depth)),
        inputs.magnitudes(seed + 4, *c, tiles, 64, columns),
    )


KINDS: dict[str, Callable[[int, int, int, int], Matrices]] = {
    # (seed, tiles, columns, depth) -> BF16 bits of a [tiles, 64, depth] and b [tiles, columns, depth], FP32 c
    "normal": lambda s, tiles, columns, depth: (
        inputs.normal_bf16(s, tiles, 64, depth),
        inputs.normal_bf16(s + 1, tiles, columns, depth),
        inputs.normal(s + 2, tiles, 64, columns),
    ),
    "tiny": lambda s, tiles, columns, depth: (
        *_magnitudes(-75, -55, (0, 1))(s, tiles, columns, depth)[:2],
        numerics.from_bits(inputs.words(s + 4, tiles, 64, columns) & np.uint32(0x81FFFFFF)),
    ),
    "huge": _magnitudes(55, 64, (110, 127)),
    "spread": _magnitudes(-12, 13, (-20, 21)),
    "cancelling": _cancelling,
    "anything": lambda s, tiles, columns, depth: (
        sparse(s, tiles, 64, depth),
        sparse(s + 2, tiles, columns, depth),
        inputs.words(s + 4, tiles, 64, columns).view(np.float32),
    ),
}
"""Kinds of matrices."""


def _rows(matrix: np.ndarray) -> np.ndarray:
    """Rows of 64, as the micro-kernel takes them: zeros behind the depth."""
    return np.pad(matrix, ((0, 0), (0, 0), (0, 64 - matrix.shape[2])))


def _scores(name: str, seed: int, columns: int, depth: int, kind: str) -> Case:
    tiles = VALUES // (64 * columns)
    kernel = Scores(columns, tiles, depth)
    a, b, c = KINDS[kind](seed, tiles, columns, depth)
    files = np.stack([fold_sums(tile) for tile in c])
    arguments = [_rows(a), _rows(b), files, out(np.uint32, *files.shape)]
    return Case(name, kernel, arguments, ("stages.ptx.wgmma",), baselines.wgmma)


def wgmma_cases() -> list[Case]:
    """All cases of this module."""
    cases = []
    for number, kind in enumerate(KINDS):
        for columns in (64, 128):
            name, seed = f"wgmma_{kind}_n{columns}", 5000 + 100 * number + columns // 64
            cases.append(_scores(name, seed, columns, 16, kind))
    # Four mma_async in one accumulator: does it keep more than FP32 in between?
    cases.append(_scores("wgmma_normal_n64_k64", 5700, 64, 64, "normal"))
    cases.append(_scores("wgmma_spread_n64_k64", 5800, 64, 64, "spread"))
    p, v = inputs.normal_bf16(5900, 64, 128), inputs.normal_bf16(5901, 128, 64)
    arguments = [fold_left(p), v, out(np.uint32, 4, 32, 32)]
    return [*cases, Case("wgmma_values", Values(128), arguments, ("stages.ptx.wgmma",))]
