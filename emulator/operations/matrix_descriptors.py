"""Matrix descriptors of wgmma: which bytes of shared memory a matrix is.

Contract
    A matrix is read in chunks of 16 bytes, 8 BF16 numbers. It consists of atoms: 8 rows of 16, 32, 64 or 128
    bytes, swizzled by the bits of their addresses. Raises MemoryFault for what the format does not allow:
    a start or strides that do not fit the swizzle's atoms; and Unsupported for a base offset other than 0.

Source: PTX ISA 8.8, "Shared memory matrix layout", "Matrix descriptor format".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Array
from emulator.errors import MemoryFault
from emulator.ptx.instruction import Instruction
from emulator.wave.threads import Group

WIDTHS = (16, 128, 64, 32)
"""Bytes of an atom's row, by the descriptor's swizzle mode: none, 128, 64 and 32 bytes."""

CHUNK = 16
"""Bytes of a chunk: what a swizzle keeps together."""

_RESERVED = np.uint64(0x3FF1_C000_C000_C000)
"""Bits that no field has: 14, 15, 30, 31, 46 .. 48, 52 .. 61."""


@dataclass(frozen=True)
class Facts:
    """What a descriptor says but for the start address. width: bytes of an atom's row."""

    leading: int
    stride: int
    width: int


def decode(descriptors: Array, name: str, group: Group, instruction: Instruction) -> tuple[Array, Facts]:
    """Start addresses, a warp of the group each, and the facts, which have to be the same in all.

    descriptors: uint64, of each thread of whole warps. name: of the operand, in errors.
    """
    per_cta = -(-group.geometry.block_size // 32)
    warp = group.warp[::32]
    warpgroup = warp // per_cta * per_cta + warp % per_cta // 4
    _, first, inverse = np.unique(warpgroup, return_index=True, return_inverse=True)
    warps = descriptors.reshape(-1, 32)
    other = (warps != warps[first[inverse], :1]).ravel()
    if other.any():
        raise MemoryFault(
            f"the descriptor of {name} is not the same in all threads of a warpgroup",
            place=instruction.place,
            thread=group.describe(int(np.flatnonzero(other)[0])),
        )
    facts = warps[:, 0] >> np.uint64(16)
    if (facts != facts[0]).any():
        instruction.refuse(f"descriptors of {name} with unlike strides, in warpgroups that come together")
    word = int(descriptors[0])
    if word & int(_RESERVED):
        instruction.refuse(f"the descriptor of {name}, {word:#x}, has bits that mean nothing")
    if word >> 49 & 7:
        instruction.refuse(f"the descriptor of {name} has base offset {word >> 49 & 7}, not 0")
    found = Facts((word >> 16 & 0x3FFF) << 4, (word >> 32 & 0x3FFF) << 4, WIDTHS[word >> 62])
    return (warps[:, 0] & np.uint64(0x3FFF)).astype(np.int64) << 4, found


def chunks(
    starts: Array,
    facts: Facts,
    extent: int,
    mn_major: bool,
    name: str,
    group: Group,
    instruction: Instruction,
) -> Array:
    """Shared addresses of a matrix's chunks, int64 [warps, ...].

    K-major: [warps, extent of m or n, 2 chunks of k]. MN-major: [warps, 16 of k, extent / 8 chunks].
    """
    width = facts.width
    across = width // CHUNK
    strides: tuple[int, ...]
    if mn_major:
        k, along = np.arange(16)[:, None], np.arange(extent // 8)[None, :]
        near, far = (facts.leading, facts.stride) if width > CHUNK else (facts.stride, facts.leading)
        offsets = k % 8 * width + k // 8 * far + along % across * CHUNK + along // across * near
        used, strides = CHUNK * min(across, extent // 8), (near, far) if extent // 8 > across else (far,)
    else:
        row, half = np.arange(extent)[:, None], np.arange(2)[None, :]
        step = CHUNK if width > CHUNK else facts.leading
        offsets = row % 8 * width + row // 8 * facts.stride + half * step
        used, strides = (2 * CHUNK, (facts.stride,)) if width > CHUNK else (CHUNK, ())
    if width > CHUNK:
        _check(starts, strides, used, width, name, group, instruction)
    linear = starts.reshape(-1, 1, 1) + offsets
    swizzled: Array = linear ^ (linear >> 7 & across - 1) << 4
    return swizzled


def _check(
    starts: Array,
    strides: tuple[int, ...],
    used: int,
    width: int,
    name: str,
    group: Group,
    instruction: Instruction,
) -> None:
    """Raise MemoryFault unless atoms are aligned to their size and each row has all that is used of it."""
    atom = 8 * width
    bad = (starts % atom >= width) | (starts % width + used > width)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise MemoryFault(
            f"{name} begins {int(starts[at]) % atom} bytes into an atom of the {width}-byte swizzle, which "
            f"is aligned to {atom}; it has to begin in the atom's first row, with {used} bytes of it left",
            place=instruction.place,
            thread=group.describe(32 * at),
            address=f"shared {int(starts[at]):#x}",
        )
    for stride in strides:
        if stride % atom:
            raise MemoryFault(
                f"{name} has a stride of {stride} bytes, and atoms of the {width}-byte swizzle are aligned "
                f"to {atom}",
                place=instruction.place,
                thread=group.describe(0),
            )
