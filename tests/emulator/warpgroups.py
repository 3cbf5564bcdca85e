"""A kernel by hand around one wgmma: one warpgroup, operands as bytes of shared memory, edits of its text."""

import re

import numpy as np
import pytest

import emulator
from tests.warpgroup import fold_sums, unfold_sums

BYTES = 32768
"""Of the image of each operand."""

START = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry by_hand(.param .u64 image, .param .u64 sums, .param .u64 result)
{
.shared .align 1024 .b8 memory[SIZE];
.reg .b32 %tid, %at, %to, %word, %scale;
.reg .b32 %d<COUNT>;
.reg .b32 %a<4>;
.reg .b32 %v<4>;
.reg .b64 %image, %sums, %result, %offset, %from, %left, %right, %base;
.reg .pred %add, %more;
mov.u32 %tid, %tid.x;
ld.param.u64 %image, [image];
ld.param.u64 %sums, [sums];
ld.param.u64 %result, [result];
shl.b32 %at, %tid, 4;
FILL:
mov.u32 %to, memory;
add.u32 %to, %to, %at;
cvt.u64.u32 %offset, %at;
add.u64 %from, %image, %offset;
ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%from];
st.shared.v4.b32 [%to], {%v0, %v1, %v2, %v3};
add.u32 %at, %at, 2048;
setp.lt.u32 %more, %at, SIZE;
@%more bra FILL;
mov.u32 %to, memory;
shr.u32 %to, %to, 4;
cvt.u64.u32 %base, %to;
add.u64 %left, %base, LEFT;
add.u64 %right, %base, RIGHT;
shr.u32 %at, %tid, 5;
and.b32 %to, %tid, 31;
mad.lo.u32 %at, %at, WARP, %to;
mul.wide.u32 %offset, %at, 4;
add.u64 %sums, %sums, %offset;
add.u64 %result, %result, %offset;
LOADS
mov.b32 %scale, SCALE;
setp.ne.b32 %add, %scale, 0;
fence.proxy.async.shared::cta;
bar.sync 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64nCOLUMNSk16.f32.bf16.bf16 {SUMS}, %left, %right, %add, 1, 1, MAJORS;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
STORES
ret;
}
"""


def descriptor(offset: int, leading: int, stride: int, swizzle: int) -> int:
    """A matrix descriptor as an addend to the shared memory's address / 16."""
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return (offset >> 4) + (leading >> 4 << 16) + (stride >> 4 << 32) + (mode << 62)


def kernel(left: int, right: int, columns: int, majors: str = "0, 0", scale: int = 1) -> str:
    """The text: descriptors as `descriptor` makes them, modifiers, and scale-d."""
    count = columns // 2
    names = [f"%d{i}" for i in range(count)]
    words = {
        "SIZE": 2 * BYTES,
        "COUNT": count,
        "LEFT": f"{left:#x}",
        "RIGHT": f"{right:#x}",
        "WARP": 32 * count,
        "SCALE": scale,
        "COLUMNS": columns,
        "MAJORS": majors,
        "SUMS": ", ".join(names),
        "LOADS": "\n".join(f"ld.global.b32 {name}, [%sums+{128 * i}];" for i, name in enumerate(names)),
        "STORES": "\n".join(f"st.global.b32 [%result+{128 * i}], {name};" for i, name in enumerate(names)),
    }
    return re.sub("|".join(words), lambda found: str(words[found[0]]), START.lstrip())


def run(ptx: str, images: tuple[np.ndarray, np.ndarray], sums: np.ndarray, **more) -> np.ndarray:
    """D [64, columns] of a kernel, from C and the two operands' images of uint16."""
    memory = np.zeros((2, BYTES // 2), np.uint16)
    for half, image in zip(memory, images, strict=True):
        half[: len(image)] = image
    files = fold_sums(sums)
    result = np.zeros_like(files)
    more = {"grid": 1, "block": 128, **more}
    emulator.launch(ptx, arguments=[memory, files, result], **more)
    return unfold_sums(result)


def edited(ptx: str, old: str, new: str) -> str:
    """The text with one place replaced; `new` in as many lines as there were, or behind the others."""
    assert ptx.count(old) == 1, f"{old!r} occurs {ptx.count(old)} times"
    return ptx.replace(old, new)


def raises(
    kind: type | tuple[type, ...], match: str | None, ptx: str, images, sums: np.ndarray, at: str = "", **more
):
    """Assert that a kernel fails with this error, at the one line with this text."""
    with pytest.raises(kind, match=match) as caught:
        run(ptx, images, sums, **more)
    if at:
        lines = [number for number, line in enumerate(ptx.splitlines(), 1) if at in line]
        assert caught.value.line in lines, str(caught.value)
    return caught.value
