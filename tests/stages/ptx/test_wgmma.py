"""Matrix multiplication by a warpgroup against NumPy: layouts of registers, descriptors, swizzles."""

import re

import numpy as np
import pytest

from tests.device import compile_kernel, out
from tests.numerics import from_bf16, to_bf16
from tests.warpgroup import Images, Scores, Values, fold_left, fold_sums, image, strides, unfold_sums

SCORES = [Scores(64), Scores(64, copies=False), Scores(128), Scores(128, tiles=2, accumulate=False)]
VALUES = [Values(64), Values(128, copies=False), Values(16)]


def whole(seed: int, *shape: int) -> np.ndarray:
    """BF16 bits of small whole numbers, whose products and sums are exact."""
    return to_bf16(np.random.default_rng(seed).integers(-64, 65, shape).astype(np.float32))


@pytest.mark.parametrize("kernel", [*SCORES, *VALUES], ids=str)
def test_compiles(kernel):
    """The instructions are there, and the compiler moves no register between them."""
    ptx = compile_kernel(kernel, "sm_90a").ptx
    body = ptx[ptx.index("wgmma.fence") : ptx.index("wgmma.wait_group")]
    assert f"m64n{getattr(kernel, 'columns', 64)}k16.f32.bf16.bf16" in body
    assert "fence.proxy.async.shared::cta;" in ptx and "wgmma.commit_group.sync.aligned;" in body
    assert not re.search(r"mov\.b32\s+%\w+, %", body)


@pytest.mark.parametrize("kernel", SCORES, ids=str)
def test_scores(launch, kernel):
    """S = C + Q K^T, both operands K-major in the 128-byte swizzle: exact, so every element is in place."""
    q, k = whole(1, kernel.tiles, 64, 64), whole(2, kernel.tiles, kernel.columns, 64)
    c = np.random.default_rng(3).integers(-999, 999, (kernel.tiles, 64, kernel.columns)).astype(np.float32)
    files = np.stack([fold_sums(tile) for tile in c])
    (got,) = launch(kernel, q, k, files, out(np.float32, *files.shape))
    expected = from_bf16(q) @ from_bf16(k).transpose(0, 2, 1) + (c if kernel.accumulate else 0)
    assert np.array_equal(np.stack([unfold_sums(file) for file in got]), expected)


@pytest.mark.parametrize("kernel", VALUES, ids=str)
def test_values(launch, kernel):
    """O = P V, P in registers and V in rows of dims (MN-major); what was in the accumulator is not added."""
    p, v = whole(4, 64, kernel.keys), whole(5, kernel.keys, 64)
    (got,) = launch(kernel, fold_left(p), v, out(np.float32, 4, 32, 32))
    assert np.array_equal(unfold_sums(got), from_bf16(p) @ from_bf16(v))


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("mn_major", [False, True])
def test_layouts(launch, columns, swizzle, mn_major):
    """Every swizzle, A and B both K-major or both MN-major."""
    a, b = whole(6, 64, 16), whole(7, columns, 16)
    size = 16384
    images = np.concatenate([image(x, mn_major, swizzle, size) for x in (a, b)])
    left, right = ((size, *strides(len(x), mn_major, swizzle)) for x in (a, b))
    kernel = Images(columns, left, right, swizzle, mn_major)
    (got,) = launch(kernel, images, out(np.float32, 4, columns // 2, 32))
    assert np.array_equal(unfold_sums(got), from_bf16(a) @ from_bf16(b).T)
