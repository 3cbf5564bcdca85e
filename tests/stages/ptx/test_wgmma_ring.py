"""A ring of tensor copies that a warpgroup multiplies out of: the order of barriers, waits and releases."""

import re
from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int32, Int64

import emulator
from emulator import TensorMap
from emulator.errors import EmulatorError, Race, UnfinishedAsync
from stages.fragments import registers
from stages.ptx.async_copy import copy_async_16
from stages.ptx.barrier import cta_sync
from stages.ptx.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_copies,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait,
)
from stages.ptx.proxy import proxy_fence_shared
from stages.ptx.tensor_copy import copy_tensor
from stages.ptx.warp import warp_sync
from stages.ptx.wgmma import (
    descriptor_at,
    matrix_descriptor,
    wgmma_commit,
    wgmma_fence,
    wgmma_shared,
    wgmma_wait,
)
from tests.device import Launch, compile_kernel, out
from tests.micro import store_registers
from tests.numerics import from_bf16, to_bf16
from tests.warpgroup import Warpgroup, listed, set_registers, shared_memory, unfold_sums

STAGE = 64 * 128
"""Bytes of a stage: 64 keys of 64 dims."""

STAGES = 2


@dataclass(frozen=True)
class Ring(Warpgroup):
    """s = the sum over all steps of q @ k[step]^T, by four warps; the fifth brings q and k.

    copies: by cp.async instead of tensor copies. early: stages are released before the wait for the mma_async
    that read them, which is wrong.
    """

    steps: int
    copies: bool = False
    early: bool = False

    def __str__(self):
        return f"Ring_{self.steps}_{self.copies:d}{self.early:d}"

    @property
    def where(self) -> Launch:
        """The stages, q, and mbarriers: full and empty of each stage, then of q."""
        return Launch(block=(160, 1, 1), shared_bytes=(STAGES + 1) * STAGE + 16 * STAGES + 16)

    @cute.jit
    def __call__(self, q: cute.Pointer, k: cute.Pointer, s: cute.Pointer, stream: cuda.CUstream):
        self.kernel(q.toint(), k.toint(), s.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, q: Int64, k: Int64, s: Int64):
        thread, _, _ = cute.arch.thread_idx()
        shared = shared_memory()
        queries = shared + STAGES * STAGE
        full = queries + STAGE
        empty = full + 8 * STAGES
        arrived = empty + 8 * STAGES
        if thread == 0:
            for i in cutlass.range_constexpr(STAGES):
                mbarrier_init(full + 8 * i, 32 if self.copies else 1)
                mbarrier_init(empty + 8 * i, 4)
            mbarrier_init(arrived, 32 if self.copies else 1)
            mbarrier_init_fence()
        cta_sync()
        if cute.arch.warp_idx() == 4:
            self._bring(queries, q, 0, arrived)
            for step in cutlass.range(self.steps, unroll=1):
                stage = step % STAGES
                mbarrier_wait(empty + 8 * stage, step // STAGES & 1 ^ 1)
                self._bring(shared + STAGE * stage, k, step, full + 8 * stage)
        else:
            self._multiply(shared, queries, full, empty, arrived, s)

    @cute.jit
    def _bring(self, shared: Int32, source: Int64, step: Int32, barrier: Int32):
        """64 rows of 128 bytes, those of this step."""
        lane = cute.arch.lane_idx()
        if cutlass.const_expr(self.copies):
            for i in cutlass.range_constexpr(16):
                number = 32 * i + lane
                row, chunk = number // 8, number % 8
                at = shared + 128 * row + 16 * (chunk ^ (row % 8))
                copy_async_16(at, source + Int64(STAGE * step + 16 * number), Int32(16))
            mbarrier_arrive_copies(barrier)
        elif lane == 0:
            mbarrier_arrive_expect(barrier, STAGE)
            copy_tensor(shared, source, [Int32(0), Int32(64 * step)], barrier)

    @cute.jit
    def _multiply(self, shared: Int32, queries: Int32, full: Int32, empty: Int32, arrived: Int32, s: Int64):
        held = registers(Float32, 32)
        held.fill(0.0)
        left = matrix_descriptor(queries)
        mbarrier_wait(arrived, Int32(0))
        for step in cutlass.range(self.steps, unroll=1):
            stage = step % STAGES
            mbarrier_wait(full + 8 * stage, step // STAGES & 1)
            if cutlass.const_expr(self.copies):
                proxy_fence_shared()
            right = matrix_descriptor(shared + STAGE * stage)
            sums = wgmma_fence(listed(held))
            for i in cutlass.range_constexpr(4):
                sums = wgmma_shared(sums, descriptor_at(left, 32 * i), descriptor_at(right, 32 * i))
            wgmma_commit()
            if cutlass.const_expr(self.early):
                self._release(empty + 8 * stage)
            set_registers(held, wgmma_wait(0, sums))
            if cutlass.const_expr(not self.early):
                self._release(empty + 8 * stage)
        store_registers(s + Int64(4096 * cute.arch.warp_idx()), held, Float32)

    @cute.jit
    def _release(self, barrier: Int32):
        warp_sync()
        if cute.arch.lane_idx() == 0:
            mbarrier_arrive(barrier)


STEPS = 5
Q, K = (
    to_bf16(np.random.default_rng(n).integers(-32, 33, (64 * n, 64)).astype(np.float32)) for n in (1, STEPS)
)
SUMS = from_bf16(Q) @ from_bf16(K).reshape(STEPS, 64, 64).sum(axis=0).T


def inputs(kernel: Ring) -> list:
    """q and k, as tensor maps unless they are copied by cp.async."""
    if kernel.copies:
        return [Q, K]
    return [TensorMap(x, (64, len(x)), (128,), (64, 64), 128) for x in (Q, K)]


def emulate(kernel: Ring, ptx: str, seed: int | None) -> np.ndarray:
    """s of the kernel's text, or of an edit."""
    found = np.zeros((4, 32, 32), np.float32)
    where = kernel.where
    emulator.launch(
        ptx,
        grid=1,
        block=where.block,
        shared_bytes=where.shared_bytes,
        arguments=[*inputs(kernel), found],
        unwritten=[2],
        seed=seed,
    )
    return unfold_sums(found)


def reported(kind: type[EmulatorError], match: str, kernel: Ring, ptx: str) -> None:
    """Assert that the emulator finds the fault."""
    with pytest.raises(kind, match=match):
        emulate(kernel, ptx, None)


@pytest.mark.parametrize("copies", [False, True])
def test_ring(launch, copies):
    """Every step is multiplied once, out of stages that are used again."""
    kernel = Ring(STEPS, copies)
    (got,) = launch(kernel, *inputs(kernel), out(np.float32, 4, 32, 32))
    assert np.array_equal(unfold_sums(got), SUMS)


@pytest.mark.parametrize("copies", [False, True])
def test_ring_in_any_order(copies):
    """Warps ahead of each other, bytes that land early and in parts: no report."""
    kernel = Ring(STEPS, copies)
    ptx = compile_kernel(kernel, "sm_90a").ptx
    for seed in range(8):
        assert np.array_equal(emulate(kernel, ptx, seed), SUMS)


@pytest.mark.parametrize("copies", [False, True])
def test_a_stage_released_too_early(copies):
    """Before the wait for what reads it: the next copy overwrites the operand."""
    kernel = Ring(STEPS, copies, early=True)
    match = "of a wgmma that may still read it"
    reported(UnfinishedAsync, match, kernel, compile_kernel(kernel, "sm_90a").ptx)


def test_no_proxy_fence_behind_cp_async():
    """The wait for the mbarrier alone does not tell the async proxy."""
    kernel = Ring(STEPS, copies=True)
    ptx = compile_kernel(kernel, "sm_90a").ptx
    edited, count = re.subn(r"fence\.proxy\.async\.shared::cta;", "", ptx)
    assert count == 1
    reported(Race, "no fence.proxy.async in between", kernel, edited)


def test_no_wait_in_the_loop():
    """The accumulators are in flight when they are read at the end; and stages are free too early."""
    kernel = Ring(STEPS)
    edited, count = re.subn(r"wgmma\.wait_group\.sync\.aligned 0;", "", compile_kernel(kernel, "sm_90a").ptx)
    assert count == 1
    reported(UnfinishedAsync, "may still read it|is used while it is an accumulator", kernel, edited)
