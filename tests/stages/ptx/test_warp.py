"""Warp-wide, memory and cluster primitives: data movement bit for bit, and the instructions they emit."""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass import Float32, Int32, Int64

from stages.fragments import registers
from stages.ptx.barrier import cluster_arrive, cluster_wait, cta_sync, griddep_launch_dependents, griddep_wait
from stages.ptx.cluster import map_to_rank, store_async_f32x2, store_async_f32x4
from stages.ptx.global_memory import load_global_i32, load_global_x4, store_global_i32, stream_global_x4
from stages.ptx.matrix import mma_bf16, movmatrix
from stages.ptx.mbarrier import (
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait_cluster,
)
from stages.ptx.shared_memory import (
    load_shared_f32x2,
    load_shared_f32x4,
    store_shared_f32x2,
    store_shared_f32x4,
)
from stages.ptx.warp import shuffle_xor
from tests import layouts
from tests.device import Launch, MicroKernel, compile_kernel, out
from tests.micro import load_registers, store_f32, store_registers
from tests.numerics import from_bf16, to_bf16


@dataclass(frozen=True)
class Mma(MicroKernel):
    """d = c + a @ b, all as register files."""

    @cute.jit
    def __call__(
        self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, d: cute.Pointer, stream: cuda.CUstream
    ):
        self.kernel(a.toint(), b.toint(), c.toint(), d.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, a: Int64, b: Int64, c: Int64, d: Int64):
        left, right = load_registers(Int32, a, 4), load_registers(Int32, b, 2)
        start, result = load_registers(Float32, c, 4), registers(Float32, 4)
        product = mma_bf16(
            [left[i] for i in range(4)], [right[i] for i in range(2)], [start[i] for i in range(4)]
        )
        for i in cutlass.range_constexpr(4):
            result[i] = product[i]
        store_registers(d, result, Float32)


@dataclass(frozen=True)
class Exchange(MicroKernel):
    """Register 0: movmatrix of the word; then the word of the lane 1, 2, 4, 8 and 16 bits away."""

    @cute.jit
    def __call__(self, x: cute.Pointer, y: cute.Pointer, stream: cuda.CUstream):
        self.kernel(x.toint(), y.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, x: Int64, y: Int64):
        at = Int64(4 * cute.arch.lane_idx())
        word = load_global_i32(x + at)
        store_global_i32(y + at, movmatrix(word))
        for i in cutlass.range_constexpr(5):
            store_f32(y + at + 128 * (i + 1), shuffle_xor(word.bitcast(Float32), 1 << i))


@dataclass(frozen=True)
class Memory(MicroKernel):
    """Moves 8 words a lane through shared memory, after PDL's two instructions.

    Words 0:4 come by `load_global_x4`, go to shared memory 16 bytes at a time and back 8 at a time; words
    4:8 come by `stream_global_x4` and go the other way round. The lanes exchange their places in between.
    """

    @property
    def where(self) -> Launch:
        """32 bytes a lane, from byte 64 on."""
        return Launch(shared_bytes=64 + 32 * 32)

    @cute.jit
    def __call__(self, x: cute.Pointer, y: cute.Pointer, stream: cuda.CUstream):
        self.kernel(x.toint(), y.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, x: Int64, y: Int64):
        lane = cute.arch.lane_idx()
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint() + 64
        griddep_launch_dependents()
        griddep_wait()
        low = [word.bitcast(Float32) for word in load_global_x4(x + Int64(32 * lane))]
        high = [word.bitcast(Float32) for word in stream_global_x4(x + Int64(32 * lane + 16))]
        mine, other = shared + 32 * lane, shared + 32 * (31 - lane)
        store_shared_f32x4(mine, low)
        store_shared_f32x2(mine + 16, high[:2])
        store_shared_f32x2(mine + 24, high[2:])
        cta_sync()
        words = [*load_shared_f32x2(other), *load_shared_f32x2(other + 8)]
        words += load_shared_f32x4(other + 16)
        for i in cutlass.range_constexpr(8):
            store_f32(y + Int64(32 * lane + 4 * i), words[i])


@dataclass(frozen=True)
class Neighbours(MicroKernel):
    """Each CTA sends 6 words a lane to the next rank of its cluster, with 16- and 8-byte stores."""

    cluster: int

    @property
    def where(self) -> Launch:
        """An mbarrier at byte 0, then 32 bytes a lane; two clusters."""
        return Launch(grid=(2 * self.cluster, 1, 1), cluster=(self.cluster, 1, 1), shared_bytes=16 + 32 * 32)

    @cute.jit
    def __call__(self, x: cute.Pointer, y: cute.Pointer, stream: cuda.CUstream):
        self.kernel(x.toint(), y.toint()).launch(**self.where.keywords(), stream=stream)

    @cute.kernel
    def kernel(self, x: Int64, y: Int64):
        lane = cute.arch.lane_idx()
        block, _, _ = cute.arch.block_idx()
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, alignment=16).toint()
        if lane == 0:
            mbarrier_init(shared, 1)
            mbarrier_init_fence()
            mbarrier_arrive_expect(shared, 24 * 32)
        cluster_arrive()
        cluster_wait()
        peer = (block % self.cluster + 1) % self.cluster
        words = load_global_x4(x + Int64(32 * (32 * block + lane)))
        words += load_global_x4(x + Int64(32 * (32 * block + lane) + 16))
        values = [word.bitcast(Float32) for word in words]
        remote, barrier = map_to_rank(shared + 16 + 32 * lane, peer), map_to_rank(shared, peer)
        store_async_f32x4(remote, values[:4], barrier)
        store_async_f32x2(remote + 16, values[4:6], barrier)
        mbarrier_wait_cluster(shared, 0)
        received = [*load_shared_f32x4(shared + 16 + 32 * lane)]
        received += load_shared_f32x2(shared + 32 + 32 * lane)
        for i in cutlass.range_constexpr(6):
            store_f32(y + Int64(24 * (32 * block + lane) + 4 * i), received[i])


INSTRUCTIONS = {
    Mma(): ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"],
    Exchange(): ["movmatrix.sync.aligned.m8n8.trans.b16", "shfl.sync.bfly.b32"],
    Memory(): [
        "ld.global.v4.b32",
        "ld.global.L1::no_allocate.v4.b32",
        "st.shared::cta.v4.b32",
        "st.shared::cta.v2.b32",
        "ld.shared::cta.v4.b32",
        "ld.shared::cta.v2.b32",
        "bar.sync 0;",
        "griddepcontrol.wait;",
        "griddepcontrol.launch_dependents;",
    ],
    Neighbours(4): [
        "mapa.shared::cluster.u32",
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32",
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32",
        "mbarrier.init.shared::cta.b64",
        "fence.mbarrier_init.release.cluster;",
        "mbarrier.arrive.expect_tx.shared::cta.b64",
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
        "barrier.cluster.arrive.relaxed.aligned;",
        "barrier.cluster.wait.acquire.aligned;",
    ],
}


def words(*shape: int) -> np.ndarray:
    """Distinct bit patterns that differ in both halves; among them NaN, Inf and subnormals."""
    count = int(np.prod(shape))
    halves = np.random.default_rng(0).permutation(65536)[: 2 * count].astype(np.uint32)
    return (halves[:count] | halves[count:] << 16).reshape(shape)


@pytest.mark.pin
@pytest.mark.parametrize("kernel", INSTRUCTIONS, ids=str)
def test_compiles(kernel, arch):
    """Each primitive emits its instruction."""
    compiled = compile_kernel(kernel, arch)
    for instruction in INSTRUCTIONS[kernel]:
        assert instruction in compiled.ptx


def test_mma(launch):
    """The sum c + a @ b in the documented layout of registers: whole numbers, so that every sum is exact."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(-128, 129, (16, 16)), rng.integers(-128, 129, (16, 8))
    c = rng.integers(-1000, 1000, (16, 8)).astype(np.float32)
    columns = to_bf16(b.astype(np.float32)).astype(np.uint32)
    pairs = [columns[8 * i + 2 * layouts.T, layouts.G] for i in range(2)]
    pairs = [low | columns[8 * i + 2 * layouts.T + 1, layouts.G] << 16 for i, low in enumerate(pairs)]
    left = to_bf16(a.astype(np.float32))
    assert np.array_equal(from_bf16(left), a)
    (d,) = launch(
        Mma(), layouts.fold_weights(left), np.stack(pairs), layouts.fold_scores(c), out(np.float32, 4, 32)
    )
    assert np.array_equal(layouts.unfold_scores(d), a @ b + c)


def test_exchange(launch):
    """A movmatrix transposes; shuffle_xor takes the word of lane ^ distance: bit for bit."""
    x = words(32)
    (got,) = launch(Exchange(), x, out(np.uint32, 6, 32))
    matrix = x.view(np.uint16).reshape(8, 8)
    assert np.array_equal(got[0].view(np.uint16).reshape(8, 8), matrix.T)
    assert np.array_equal(got[1:], np.stack([x[layouts.LANES ^ (1 << i)] for i in range(5)]))


def test_memory(launch):
    """Loads and stores of 4, 8 and 16 bytes move each word to its place."""
    x = words(32, 8)
    (got,) = launch(Memory(), x, out(np.uint32, 32, 8))
    assert np.array_equal(got, x[::-1])


def test_neighbours(launch):
    """st.async reaches the mapped rank of the sender's own cluster, and its bytes complete the barrier."""
    kernel = Neighbours(4)
    x = words(2, 4, 32, 8)
    (got,) = launch(kernel, x, out(np.uint32, 2, 4, 32, 6))
    assert np.array_equal(got, np.roll(x, 1, axis=1)[..., :6])
