"""Bulk copies: cp.async.bulk between global and shared memory, and between the shared memory of CTAs.

Contract
    A bulk copy is cut into pieces of 16 bytes, which land one by one. Not covered: multicast, reductions,
    prefetches. Tensor copies are in `tensor_copies`.
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.addresses import Source, check_same_cta, read_sources, shared_offsets
from emulator.asynchronous.engine import engine
from emulator.asynchronous.flights import Flight
from emulator.errors import MemoryFault
from emulator.ptx.instruction import Instruction, Operand
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

_PIECE = 16
"""Bytes of a bulk copy that land together."""


@operation(
    *("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta"),
    forms=[
        "cp.async.bulk.shared::cluster|shared::cta.global.mbarrier::complete_tx::bytes{.L2::cache_hint}",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    ],
)
def _bulk_to_shared(instruction: Instruction) -> Operation:
    if instruction.has("multicast::cluster") or not instruction.has("mbarrier::complete_tx::bytes"):
        instruction.refuse()
    to, source = instruction.parts[3], instruction.parts[4]
    if source not in ("global", "shared::cta"):
        instruction.refuse(f"from {source}")
    target, start, size, barrier = _without_policy(instruction, 4)

    def run(
        machine: Machine, group: Group, at: Array, source_at: Array, sizes: Array, to_barrier: Array
    ) -> None:
        offsets = shared_offsets(machine, to, to_barrier, 8, group, instruction)
        barriers = engine(machine).mbarriers.find(offsets, group, instruction)
        pieces, index, step = _pieces(sizes, (at, source_at), group, instruction)
        barriers = barriers[index]
        targets = shared_offsets(machine, to, at[index] + step, _PIECE, pieces, instruction)
        check_same_cta(machine, targets, barriers, pieces, instruction)
        for region, elements, offsets in _read_pieces(
            machine, source, source_at[index] + step, pieces, instruction
        ):
            flight = Flight(
                "bulk",
                pieces.take(elements),
                instruction,
                "shared",
                machine.shared,
                targets[elements],
                _PIECE,
                source=region,
                source_offsets=offsets,
                source_bytes=np.full(len(elements), _PIECE),
                barriers=barriers[elements],
            )
            engine(machine).issue(flight)

    inputs = ((target, "b64"), (start, "b64"), (size, "u32"), (barrier, "b64"))
    return Operation(run, inputs=inputs)


@operation(
    "cp.async.bulk.global.shared::cta",
    forms=["cp.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}"],
)
def _bulk_to_global(instruction: Instruction) -> Operation:
    if not instruction.has("bulk_group") or instruction.has("cp_mask"):
        instruction.refuse()
    target, start, size = _without_policy(instruction, 3)

    def run(machine: Machine, group: Group, at: Array, source_at: Array, sizes: Array) -> None:
        pieces, index, step = _pieces(sizes, (at, source_at), group, instruction)
        turns = engine(machine).committed["bulk"][pieces.threads]
        ((region, _, offsets),) = _read_pieces(
            machine, "shared::cta", source_at[index] + step, pieces, instruction
        )
        memory = machine.memory
        for to, targets, some in memory.resolve("global", at[index] + step, _PIECE, pieces, instruction):
            elements = np.arange(pieces.size) if some is None else some
            part = pieces.take(elements)
            if not to.writable:
                why = f"a write to {to.name}, which is read-only"
                raise MemoryFault(why, place=instruction.place, thread=part.describe(0))
            flight = Flight(
                "bulk",
                part,
                instruction,
                "global",
                to,
                targets,
                _PIECE,
                source=region,
                source_offsets=offsets[elements],
                source_bytes=np.full(len(elements), _PIECE),
                turns=turns[elements],
            )
            engine(machine).issue(flight)

    return Operation(run, inputs=((target, "b64"), (start, "b64"), (size, "u32")))


def _without_policy(instruction: Instruction, count: int) -> tuple[Operand, ...]:
    """The operands but for a cache policy, which has no effect on what is copied."""
    if len(instruction.operands) != count + instruction.has("L2::cache_hint"):
        raise ValueError("operands")
    return instruction.operands[:count]


def _pieces(
    sizes: Array, addresses: tuple[Array, ...], group: Group, instruction: Instruction
) -> tuple[Group, Array, Array]:
    """Cut bulk copies into pieces: (their threads, which copy each is of, its first byte in the copy).

    Raises MemoryFault unless sizes and addresses are multiples of a piece.
    """
    bad = (sizes % _PIECE != 0) | (sizes == 0)
    for each in addresses:
        bad |= each % _PIECE != 0
    if bad.any():
        raise MemoryFault(
            "size and addresses of a bulk copy have to be multiples of 16 bytes, the size not 0",
            place=instruction.place,
            thread=group.describe(int(np.flatnonzero(bad)[0])),
        )
    counts = sizes.astype(np.int64) // _PIECE
    index = np.repeat(np.arange(len(sizes)), counts)
    first = np.cumsum(counts) - counts
    step = (np.arange(len(index)) - first[index]) * _PIECE
    return Group(group.geometry, group.threads[index]), index, step


def _read_pieces(
    machine: Machine, space: str, addresses: Array, pieces: Group, instruction: Instruction
) -> list[Source]:
    """`read_sources` of whole pieces."""
    return read_sources(machine, space, addresses, _PIECE, np.full(pieces.size, _PIECE), pieces, instruction)
