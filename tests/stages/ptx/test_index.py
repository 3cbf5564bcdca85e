"""Addresses, the block's place in the grid, and copies into shared memory: bits, bytes and instructions."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Int32, Int64

from stages.ptx.async_copy import copy_async_16, copy_async_commit, copy_async_wait
from stages.ptx.global_memory import load_global_x4, store_global_i32
from stages.ptx.index import block_index_again, element_address
from stages.ptx.shared_memory import load_shared_x4
from tests.device import Launch, MicroKernel, compile_kernel, out

GRID = (3, 2, 2)
FURTHER = 48
"""Bytes that a copy's source is behind the address that the instruction is given."""


@dataclass(frozen=True)
class Placing(MicroKernel):
    """[block, lane, word]: an element's address, low and high, the block's (x, y, z), then a copy's 4 words.

    numbers: [lane] index, stride, and the address of element 0, low and high. source: 16 bytes a lane, of
    which lane i reads i / 2.
    """

    @property
    def where(self) -> Launch:
        """16 bytes of shared memory a lane."""
        return Launch(grid=GRID, shared_bytes=16 * 32)

    @cute.jit
    def __call__(
        self, numbers: cute.Pointer, source: cute.Pointer, placed: cute.Pointer, stream: cuda.CUstream
    ):
        self.kernel(numbers.toint(), source.toint(), placed.toint()).launch(
            **self.where.keywords(), stream=stream
        )

    @cute.kernel
    def kernel(self, numbers: Int64, source: Int64, placed: Int64):
        lane = cute.arch.lane_idx()
        x, y, z = cute.arch.block_idx()
        index, stride, low, high = load_global_x4(numbers + Int64(16 * lane))
        base = (Int64(high) << 32) + (Int64(low) & 0xFFFFFFFF)
        address = element_address(base, index, stride)
        mine = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint() + 16 * lane
        copy_async_16(mine, source + Int64(16 * lane - FURTHER), lane // 2, FURTHER)
        copy_async_commit()
        copy_async_wait(0)
        words = [
            Int32(address),
            Int32(address >> 32),
            *block_index_again(),
            *load_shared_x4(mine),
        ]
        at = placed + Int64(4 * 9 * (32 * ((z * GRID[1] + y) * GRID[0] + x) + lane))
        for i in cutlass.range_constexpr(9):
            store_global_i32(at + 4 * i, words[i])


@pytest.mark.pin
def test_compiles(arch):
    """An address takes one instruction, and the block's place is read where that is asked for, again."""
    text = compile_kernel(Placing(), arch).ptx
    assert text.count("mad.wide.u32") == 1
    for axis in "xyz":
        assert text.count(f"%ctaid.{axis};") == 2
    assert f"+{FURTHER}], 16," in text


def test_addresses_places_and_copies(launch):
    """Bit for bit.

    Index and stride are unsigned, their product has 64 bits and so has the sum. A block's place is that of
    the launch. A copy reads `further` bytes behind its address, as many as it is told, and adds zeros.
    """
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 4096, 2**31 - 1, 2**31, 2**32 - 4096, 2**32 - 1], np.uint32)
    index, stride = rng.choice(edges, (2, 32))
    index[:2], stride[:2] = 2**32 - 1, (2**32 - 1, 4096)
    base = rng.integers(0, 2**63, 32).astype(np.uint64)
    low, high = (base & np.uint64(0xFFFFFFFF)).astype(np.uint32), (base >> np.uint64(32)).astype(np.uint32)
    source = rng.integers(1, 256, (32, 16)).astype(np.uint8)
    numbers = np.stack([index, stride, low, high], axis=1)
    (placed,) = launch(Placing(), numbers, source, out(np.uint32, *GRID[::-1], 32, 9))

    address = base + index.astype(np.uint64) * stride.astype(np.uint64)
    assert np.all(np.ascontiguousarray(placed[..., :2]).view(np.uint64)[..., 0] == address)
    z, y, x = np.indices(GRID[::-1])
    assert np.all(placed[..., 2:5] == np.stack([x, y, z], axis=-1)[:, :, :, None])
    copied = np.where(np.arange(16) < np.arange(32)[:, None] // 2, source, 0).astype(np.uint8)
    assert np.all(placed[..., 5:] == copied.view(np.uint32))
