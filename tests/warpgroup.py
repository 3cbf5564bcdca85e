"""Micro-kernels of a warpgroup's matrix multiplications, and where registers and swizzled rows lie.

A register file here is [warp, register, lane] 32-bit words, four warps.
"""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int32, Int64

from stages.fragments import registers
from stages.ptx.async_copy import copy_async_16, copy_async_commit, copy_async_wait
from stages.ptx.barrier import cta_sync
from stages.ptx.global_memory import load_global_x4
from stages.ptx.proxy import proxy_fence_shared
from stages.ptx.shared_memory import store_shared_f32x4
from stages.ptx.wgmma import (
    descriptor_at,
    matrix_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_registers,
    wgmma_shared,
    wgmma_wait,
)
from tests import layouts
from tests.device import Launch, MicroKernel
from tests.micro import fill_registers, load_registers, store_registers

ROW_BYTES = 128
"""Bytes of a row: 64 BF16 numbers, the width of the 128-byte swizzle."""


def put_rows(shared: Int32, source: Int64, rows: int, copies: bool) -> None:
    """Put rows of 128 bytes, one behind the other in global memory, into swizzled atoms of 8; 128 threads."""
    thread, _, _ = cute.arch.thread_idx()
    for i in range(rows * 8 // 128):
        number = 128 * i + thread
        row, chunk = number // 8, number % 8
        at = shared + ROW_BYTES * row + 16 * (chunk ^ (row % 8))
        if copies:
            copy_async_16(at, source + Int64(16 * number), Int32(16))
        else:
            words = load_global_x4(source + Int64(16 * number))
            store_shared_f32x4(at, [word.bitcast(Float32) for word in words])


def shared_memory() -> Int32:
    """The dynamic shared memory, aligned to atoms of 1,024 bytes."""
    return cute.arch.get_dyn_smem(cutlass.Uint8, alignment=1024).toint()


def set_registers(held: cute.Tensor, values) -> None:
    """Set all registers to what a primitive has returned."""
    for i in range(cute.size(held)):
        held[i] = values[i]


def listed(held: cute.Tensor) -> list:
    """The registers as the list that a primitive takes."""
    return [held[i] for i in range(cute.size(held))]


@dataclass(frozen=True)
class Warpgroup(MicroKernel):
    """One warpgroup; wgmma is sm_90a's alone."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Hopper alone."""
        return ("sm_90a",)


@dataclass(frozen=True)
class Scores(Warpgroup):
    """s = c + q @ k^T; q [tiles, 64, 64], k [tiles, columns, 64] BF16; c, s register files, a tile a CTA.

    depth: how many of the 64 dims, in sixteens. copies: whether operands come by cp.async, else st.shared.
    accumulate: whether c is added.
    """

    columns: int
    tiles: int = 1
    depth: int = 64
    copies: bool = True
    accumulate: bool = True

    def __str__(self):
        return f"Scores_{self.columns}_{self.tiles}_{self.depth}_{self.copies:d}{self.accumulate:d}"

    @property
    def where(self) -> Launch:
        """q, then k."""
        return Launch(
            grid=(self.tiles, 1, 1), block=(128, 1, 1), shared_bytes=ROW_BYTES * (64 + self.columns)
        )

    @cute.jit
    def __call__(
        self, q: cute.Pointer, k: cute.Pointer, c: cute.Pointer, s: cute.Pointer, stream: cuda.CUstream
    ):
        self.kernel(q.toint(), k.toint(), c.toint(), s.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, q: Int64, k: Int64, c: Int64, s: Int64):
        tile, _, _ = cute.arch.block_idx()
        shared = shared_memory()
        keys = shared + 64 * ROW_BYTES
        put_rows(shared, q + Int64(64 * ROW_BYTES * tile), 64, self.copies)
        put_rows(keys, k + Int64(self.columns * ROW_BYTES * tile), self.columns, self.copies)
        copy_async_commit()
        copy_async_wait(0)
        proxy_fence_shared()
        cta_sync()

        count = self.columns // 2
        files = Int64(128 * count * (4 * tile + cute.arch.warp_idx()))
        held = registers(Float32, count)
        fill_registers(held, Float32, c + files)
        left, right = matrix_descriptor(shared), matrix_descriptor(keys)
        sums = wgmma_fence(listed(held))
        for i in cutlass.range_constexpr(self.depth // 16):
            a, b = descriptor_at(left, 32 * i), descriptor_at(right, 32 * i)
            sums = wgmma_shared(sums, a, b, self.accumulate or i > 0)
        wgmma_commit()
        set_registers(held, wgmma_wait(0, sums))
        store_registers(s + files, held, Float32)


@dataclass(frozen=True)
class Values(Warpgroup):
    """o = p @ v: p [keys / 4 registers] of BF16 pairs, v [keys, 64] BF16 in rows; o a register file.

    The accumulator is whatever was in the registers: `accumulate` is a run-time 0 for the first 16 keys.
    """

    keys: int
    copies: bool = True

    def __str__(self):
        return f"Values_{self.keys}_{self.copies:d}"

    @property
    def where(self) -> Launch:
        """v."""
        return Launch(block=(128, 1, 1), shared_bytes=ROW_BYTES * self.keys)

    @cute.jit
    def __call__(self, p: cute.Pointer, v: cute.Pointer, o: cute.Pointer, stream: cuda.CUstream):
        self.kernel(p.toint(), v.toint(), o.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, p: Int64, v: Int64, o: Int64):
        shared, warp = shared_memory(), cute.arch.warp_idx()
        put_rows(shared, v, self.keys, self.copies)
        copy_async_commit()
        copy_async_wait(0)
        cta_sync()
        # Here the fence is behind the barrier, where the readers are.
        proxy_fence_shared()

        count = self.keys // 4
        weights = load_registers(Int32, p + Int64(128 * count * warp), count)
        held = registers(Float32, 32)
        held.fill(float("nan"))
        columns = matrix_descriptor(shared)
        sums, a = wgmma_fence(listed(held), listed(weights))
        for i in cutlass.range_constexpr(self.keys // 16):
            b = descriptor_at(columns, 16 * ROW_BYTES * i)
            sums = wgmma_registers(sums, a[4 * i : 4 * i + 4], b, Int32(i), b_mn_major=True)
        wgmma_commit()
        sums, a = wgmma_wait(0, sums, a)
        set_registers(held, sums)
        store_registers(o + Int64(128 * 32 * warp), held, Float32)


@dataclass(frozen=True)
class Images(Warpgroup):
    """d = a @ b of one m64nNk16, from images of shared memory in any layout.

    left, right: (bytes of the image, leading, stride) of each operand. swizzle, mn_major: of both.
    """

    columns: int
    left: tuple[int, int, int]
    right: tuple[int, int, int]
    swizzle: int
    mn_major: bool

    def __str__(self):
        return f"Images_{self.columns}_{self.swizzle}_{self.mn_major:d}"

    @property
    def where(self) -> Launch:
        """The images of a and b."""
        return Launch(block=(128, 1, 1), shared_bytes=self.left[0] + self.right[0])

    @cute.jit
    def __call__(self, images: cute.Pointer, d: cute.Pointer, stream: cuda.CUstream):
        self.kernel(images.toint(), d.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, images: Int64, d: Int64):
        thread, _, _ = cute.arch.thread_idx()
        shared, size = shared_memory(), self.left[0] + self.right[0]
        for i in cutlass.range_constexpr(size // 2048):
            at = 2048 * i + 16 * thread
            copy_async_16(shared + at, images + Int64(at), Int32(16))
        copy_async_commit()
        copy_async_wait(0)
        proxy_fence_shared()
        cta_sync()
        held = registers(Float32, self.columns // 2)
        held.fill(0.0)
        a = matrix_descriptor(shared, self.left[2], self.left[1], self.swizzle)
        b = matrix_descriptor(shared + self.left[0], self.right[2], self.right[1], self.swizzle)
        sums = wgmma_fence(listed(held))
        sums = wgmma_shared(sums, a, b, False, a_mn_major=self.mn_major, b_mn_major=self.mn_major)
        wgmma_commit()
        set_registers(held, wgmma_wait(0, sums))
        store_registers(d + Int64(64 * self.columns * cute.arch.warp_idx()), held, Float32)


def strides(extent: int, mn_major: bool, swizzle: int) -> tuple[int, int]:
    """(leading, stride) of a matrix [m or n, 16 of k] of whole atoms one behind the other."""
    atom = 8 * max(swizzle, 16)
    if not mn_major:
        return (atom * (extent // 8), atom) if swizzle == 0 else (0, atom)
    wide = -(-extent * 2 // max(swizzle, 16))
    return (atom * wide, atom) if swizzle == 0 else (2 * atom, 2 * atom * wide)


def image(matrix: np.ndarray, mn_major: bool, swizzle: int, size: int) -> np.ndarray:
    """A matrix [m or n, 16 of k] as `size` bytes of shared memory, by element, from the canonical layouts."""
    leading, stride = strides(len(matrix), mn_major, swizzle)
    width = max(swizzle, 16)
    memory = np.full(size // 2, 0xFFFF, np.uint16)
    for mn in range(len(matrix)):
        for k in range(16):
            if mn_major:
                atom, inside = divmod(2 * mn, width)
                far = (stride, leading) if swizzle == 0 else (leading, stride)
                at = atom * far[0] + k // 8 * far[1] + k % 8 * width + inside
            else:
                atom, inside = divmod(2 * k, width)
                at = mn // 8 * stride + atom * leading + mn % 8 * width + inside
            at ^= (at >> 7 & (width // 16 - 1)) << 4
            memory[at // 2] = matrix[mn, k]
    return memory


def fold_sums(values: np.ndarray) -> np.ndarray:
    """[64, columns] -> the register file of an accumulator, [4, columns / 2, 32]."""
    return np.stack([layouts.fold_scores(values[16 * w : 16 * w + 16]) for w in range(4)])


def unfold_sums(files: np.ndarray) -> np.ndarray:
    """The inverse of `fold_sums`."""
    return np.concatenate([layouts.unfold_scores(file) for file in files])


def fold_left(weights: np.ndarray) -> np.ndarray:
    """[64, keys] BF16 bits -> A in registers, [4, keys / 4, 32] pairs."""
    return np.stack([layouts.fold_weights(weights[16 * w : 16 * w + 16]) for w in range(4)])
