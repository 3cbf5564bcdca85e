"""wgmma on the emulator: every swizzle, both majors, both operands; what it refuses by name."""

import numpy as np
import pytest

from emulator.errors import Divergence, MemoryFault, Unsupported
from tests.emulator.warpgroups import BYTES, descriptor, edited, kernel, raises, run
from tests.numerics import from_bf16, to_bf16
from tests.warpgroup import image, strides

SWIZZLES = (0, 32, 64, 128)
SUMS = np.random.default_rng(9).integers(-999, 999, (64, 256)).astype(np.float32)


def whole(seed: int, *shape: int) -> np.ndarray:
    """BF16 bits of small whole numbers."""
    return to_bf16(np.random.default_rng(seed).integers(-64, 65, shape).astype(np.float32))


def text(columns: int, mn_major: bool = False, swizzle: int = 128, **more) -> str:
    """The kernel for images of this layout."""
    majors = f"{mn_major:d}, {mn_major:d}"
    left = descriptor(0, *strides(64, mn_major, swizzle), swizzle)
    right = descriptor(BYTES, *strides(columns, mn_major, swizzle), swizzle)
    return kernel(more.get("left", left), more.get("right", right), columns, majors, more.get("scale", 1))


@pytest.mark.parametrize("columns", [8, 64, 128, 256])
@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("mn_major", [False, True])
def test_layouts(columns, swizzle, mn_major):
    """A and B in every layout of shared memory: exact, so each element is read from its place."""
    a, b, c = whole(1, 64, 16), whole(2, columns, 16), SUMS[:, :columns]
    images = image(a, mn_major, swizzle, BYTES), image(b, mn_major, swizzle, BYTES)
    got = run(text(columns, mn_major, swizzle), images, c, seed=columns)
    assert np.array_equal(got, from_bf16(a) @ from_bf16(b).T + c)


def test_what_is_not_added_may_be_anything():
    """Without scale-d the accumulator does not matter, NaN neither."""
    a, b = whole(1, 64, 16), whole(2, 64, 16)
    c = np.full((64, 64), np.nan, np.float32)
    got = run(text(64, scale=0), (image(a, False, 128, BYTES), image(b, False, 128, BYTES)), c)
    assert np.array_equal(got, from_bf16(a) @ from_bf16(b).T)


IMAGES = image(whole(1, 64, 16), False, 128, BYTES), image(whole(2, 64, 16), False, 128, BYTES)


@pytest.mark.parametrize(
    ("right", "match"),
    [
        (descriptor(BYTES + 128, 0, 1024, 128), "128 bytes into an atom of the 128-byte swizzle"),
        (descriptor(BYTES + 112, 0, 1024, 128), "with 32 bytes of it left"),
        (descriptor(BYTES + 512, 0, 512, 64), None),
        (descriptor(BYTES + 64, 0, 512, 64), "64 bytes into an atom of the 64-byte swizzle"),
        (descriptor(BYTES, 0, 1040, 128), "has a stride of 1040 bytes"),
        (descriptor(BYTES, 0, 8192, 128), "out of bounds"),
        (descriptor(2 * BYTES, 0, 1024, 128), "out of bounds"),
    ],
)
def test_a_descriptor_that_does_not_fit(right, match):
    """Outside shared memory, or not aligned for its swizzle."""
    if match is None:
        run(text(64, right=right), IMAGES, SUMS[:, :64])
        return
    raises(MemoryFault, match, text(64, right=right), IMAGES, SUMS[:, :64], at="wgmma.mma_async")


def test_a_descriptor_that_differs():
    """All threads of a warpgroup give one."""
    ptx = edited(text(64), "add.u64 %left, %base,", "add.u64 %base, %base, %offset; add.u64 %left, %base,")
    raises(MemoryFault, "of A is not the same in all threads", ptx, IMAGES, SUMS[:, :64])
    by_warp = "{ .reg .b64 w; shr.u32 %to, %tid, 5; cvt.u64.u32 w, %to; add.u64 %base, %base, w; }\n"
    ptx = edited(text(64), "add.u64 %left, %base,", by_warp + "add.u64 %left, %base,")
    raises(MemoryFault, "of A is not the same in all threads", ptx, IMAGES, SUMS[:, :64])


def test_several_ctas():
    """Each CTA's descriptors are for its own shared memory."""
    for seed in (None, 0):
        got = run(text(64), IMAGES, SUMS[:, :64], grid=3, seed=seed, checks=False)
        assert np.array_equal(got, run(text(64), IMAGES, SUMS[:, :64]))


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (", 1, 1, 0, 0;", ", -1, 1, 0, 0;", "a modifier other than 1"),
        (", 1, 1, 0, 0;", ", 1, 1, 0, 2;", "a modifier other than 0 or 1"),
        ("m64n64k16.f32.bf16.bf16", "m64n64k16.f32.f16.f16", "is not covered"),
        ("m64n64k16.f32.bf16.bf16", "m64n64k32.f32.e4m3.e4m3", "is not covered"),
        ("wgmma.commit_group.sync", "@%add wgmma.commit_group.sync", "with a predicate"),
        ("wgmma.mma_async.sync", "@%add wgmma.mma_async.sync", "with a predicate"),
    ],
)
def test_what_is_refused(old, new, match):
    """Other types, negation and predicates are named before anything runs."""
    raises(Unsupported, match, edited(text(64), old, new), IMAGES, SUMS[:, :64])


def test_a_base_offset_is_refused():
    """Atoms that are not aligned are outside the coverage."""
    ptx = text(64, left=descriptor(0, 0, 1024, 128) + (1 << 49))
    raises(Unsupported, "base offset 1", ptx, IMAGES, SUMS[:, :64])


@pytest.mark.parametrize(("block", "match"), [(96, "warpgroups of four"), (112, "16 of 32 lanes")])
def test_part_of_a_warpgroup(block, match):
    """Four whole warps, or none."""
    raises(Divergence, match, text(64), IMAGES, SUMS[:, :64], block=block, checks=False)
