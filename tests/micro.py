"""Device code that micro-kernels share: registers to and from global memory, places in shared memory.

A register file in global memory is [register, lane] 32-bit words, one of them a warp.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from stages.contract import Region
from stages.fragments import registers
from stages.ptx.global_memory import load_global_i32, store_global_i32


def load_f32(address: Int64) -> Float32:
    """The FP32 value at a global address, bit for bit."""
    return load_global_i32(address).bitcast(Float32)


def store_f32(address: Int64, value: Float32) -> None:
    """Store an FP32 value at a global address, bit for bit."""
    store_global_i32(address, value.bitcast(Int32))


def load_registers(kind, base: Int64, count: int) -> cute.Tensor:
    """`count` registers of this lane, from the register file at `base`."""
    held = registers(kind, count)
    fill_registers(held, kind, base)
    return held


def fill_registers(held: cute.Tensor, kind, base: Int64) -> None:
    """Set registers that exist already, from the register file at `base`."""
    lane = cute.arch.lane_idx()
    for i in range(cute.size(held)):
        address = base + Int64(4 * (32 * i + lane))
        held[i] = load_f32(address) if kind is Float32 else load_global_i32(address)


def store_registers(base: Int64, held: cute.Tensor, kind) -> None:
    """Store this lane's registers to the register file at `base`."""
    lane = cute.arch.lane_idx()
    for i in range(cute.size(held)):
        address = base + Int64(4 * (32 * i + lane))
        if kind is Float32:
            store_f32(address, held[i])
        else:
            store_global_i32(address, held[i])


def place(regions: tuple[Region, ...], start: int = 64) -> tuple[dict[str, int], int]:
    """Byte offsets of a stage's regions, and the end of the last; `start` keeps them away from 0."""
    offsets = {}
    for region in regions:
        start = -(-start // region.align) * region.align
        offsets[region.name] = start
        start += region.bytes
    return offsets, -(-start // 16) * 16
