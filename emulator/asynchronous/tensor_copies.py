"""Tensor copies: cp.async.bulk.tensor from global to shared memory, and prefetch.tensormap.

Contract
    A box arrives row by row, packed, its rows swizzled by the bits of their shared addresses. What lies
    outside the tensor is zeros, and counts among the bytes that complete on the mbarrier. Pieces of up to 16
    bytes land one by one, as those of a bulk copy. Not covered: multicast, im2col, copies to global memory.

    Faults: an address that is no tensor map's; a destination that is not aligned to 128 bytes, or with a
    swizzle to its atoms of 8 rows.

Source: PTX ISA 8.8, "Tensors", cp.async.bulk.tensor, prefetch.tensormap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.addresses import check_same_cta, find, shared_offsets
from emulator.asynchronous.engine import engine
from emulator.asynchronous.flights import Flight
from emulator.errors import MemoryFault
from emulator.ptx.instruction import Instruction, TensorAddress
from emulator.ptx.operation import Operation, operation
from emulator.wave.observing import Access
from emulator.wave.protocols import Machine
from emulator.wave.tensor_maps import TensorMapRegion
from emulator.wave.threads import Group

_PIECE = 16
_RANKS = ("1d", "2d", "3d", "4d", "5d")


@dataclass
class _Box:
    """A box in pieces.

    targets: bytes from its destination, not swizzled. sources: bytes in the tensor's region. valid: how many
    bytes of each piece, its first ones, lie in the tensor.
    """

    piece: int
    targets: Array
    sources: Array
    valid: Array


@operation(
    *(f"cp.async.bulk.tensor.{rank}" for rank in _RANKS),
    forms=[
        "cp.async.bulk.tensor.1d|2d|3d|4d|5d.shared::cluster|shared::cta.global{.tile}"
        ".mbarrier::complete_tx::bytes{.L2::cache_hint}"
    ],
)
def _tensor_to_shared(instruction: Instruction) -> Operation:
    to = instruction.parts[5]
    target, tensor, barrier = instruction.operands[:3]
    rank = _RANKS.index(instruction.parts[4]) + 1
    if not isinstance(tensor, TensorAddress) or len(tensor.coordinates) != rank:
        raise ValueError("a wrong number of coordinates")

    def run(machine: Machine, group: Group, at: Array, maps: Array, to_barrier: Array, *where: Array) -> None:
        barriers = find(machine, to_barrier, group, instruction)
        found = _maps(machine, maps, group, instruction)
        for element, region in enumerate(found):
            one = group.take(np.array([element]))
            if len(region.map.dims) != rank:
                _fail(f"a tensor map of {len(region.map.dims)} dims", one, instruction)
            start = [int(each[element]) for each in where]
            _issue(machine, to, int(at[element]), region, start, barriers[element], one, instruction)

    inputs = (
        (target, "b64"),
        (tensor.base, "b64"),
        (barrier, "b64"),
        *((each, "s32") for each in tensor.coordinates),
    )
    return Operation(run, inputs=inputs)


@operation("prefetch.tensormap", forms=["prefetch.tensormap"])
def _prefetch(instruction: Instruction) -> Operation:
    def run(machine: Machine, group: Group, at: Array) -> None:
        _maps(machine, at, group, instruction)

    return Operation(run, inputs=((instruction.operands[0], "b64"),))


def _maps(machine: Machine, at: Array, group: Group, instruction: Instruction) -> list[TensorMapRegion]:
    """The tensor maps at generic addresses, one a thread."""
    found: list[TensorMapRegion] = []
    for element in range(group.size):
        one = group.take(np.array([element]))
        ((region, offset, _),) = machine.memory.resolve(
            "generic", at[element : element + 1], 64, one, instruction
        )
        if not isinstance(region, TensorMapRegion) or offset[0]:
            _fail(f"there is no tensor map at byte {int(offset[0])} of {region.name}", one, instruction)
        assert isinstance(region, TensorMapRegion)
        found.append(region)
    return found


def _issue(
    machine: Machine,
    to: str,
    at: int,
    region: TensorMapRegion,
    start: list[int],
    barrier: int,
    one: Group,
    instruction: Instruction,
) -> None:
    """One thread's copy."""
    swizzle = region.map.swizzle
    align = max(128, 8 * swizzle)
    if at % align:
        kind = f" of the {swizzle}-byte swizzle" if swizzle else ""
        _fail(f"the destination of a tensor copy{kind} has to be aligned to {align} bytes", one, instruction)
    box = _cut(region, start)
    pieces = Group(one.geometry, np.repeat(one.threads, len(box.targets)))
    addresses = at + box.targets
    if swizzle:
        addresses ^= (addresses >> 7 & swizzle // 16 - 1) << 4
    barriers = np.full(len(addresses), barrier)
    targets = shared_offsets(machine, to, addresses, box.piece, pieces, instruction)
    check_same_cta(machine, targets, barriers, pieces, instruction)
    for size in sorted(set(box.valid.tolist()) - {0}):
        some = np.flatnonzero(box.valid == size)
        reads = Access(
            "async read", "global", region.tensor, box.sources[some], size, pieces.take(some), instruction
        )
        machine.hooks.access(reads)
    flight = Flight(
        "bulk",
        pieces,
        instruction,
        "shared",
        machine.shared,
        targets,
        box.piece,
        source=region.tensor,
        source_offsets=box.sources,
        source_bytes=box.valid,
        barriers=barriers,
    )
    engine(machine).issue(flight)


def _cut(region: TensorMapRegion, start: list[int]) -> _Box:
    """The box at these coordinates in pieces, in the order of shared memory."""
    tensor = region.map
    first, width, row = start[0] * tensor.element, tensor.dims[0] * tensor.element, tensor.box[0]
    # Of a piece that begins before the tensor nothing may be left: bytes are taken from a piece's beginning.
    piece = _PIECE if first >= 0 else math.gcd(_PIECE, -first)
    inner = first + np.arange(0, row * tensor.element, piece)
    valid = np.where(inner < 0, 0, np.clip(width - inner, 0, piece))
    outer, inside = np.zeros(1, np.int64), np.ones(1, bool)
    for coordinate, dim, extent, stride in zip(
        start[1:], tensor.dims[1:], tensor.box[1:], tensor.strides, strict=True
    ):
        index = coordinate + np.arange(extent)[:, None]
        outer = (index * stride + outer).ravel()
        inside = ((index >= 0) & (index < dim) & inside).ravel()
    sources = region.first + (outer[:, None] + inner).ravel()
    valid = (inside[:, None] * valid).ravel()
    return _Box(piece, np.arange(len(valid)) * piece, np.where(valid > 0, sources, 0), valid)


def _fail(why: str, one: Group, instruction: Instruction) -> None:
    raise MemoryFault(why, place=instruction.place, thread=one.describe(0))
