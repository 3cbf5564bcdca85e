"""The asynchronous copies and stores: st.async, cp.async and its groups, cp.async.bulk and its groups.

Contract
    Operations check operands and addresses, and give the engine flights. Not covered: multicast, reductions,
    tensor maps, prefetches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.engine import engine
from emulator.asynchronous.flights import Flight
from emulator.asynchronous.mbarrier_operations import find, shared_offsets
from emulator.errors import BarrierFault, MemoryFault
from emulator.ptx.instruction import Immediate, Instruction, Operand, Register, Vector
from emulator.ptx.operation import Operation, operation
from emulator.wave.observing import Access
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

_PIECE = 16
"""Bytes of a bulk copy that land together."""


@operation("st.async")
def _store(instruction: Instruction) -> Operation:
    address, source, barrier = instruction.operands
    if not instruction.has("mbarrier::complete_tx::bytes"):
        instruction.refuse("only with an mbarrier")
    elements = source.elements if isinstance(source, Vector) else (source,)
    kind = "b64" if instruction.type.endswith("64") else "b32"
    size = len(elements) * (8 if kind == "b64" else 4)

    def run(machine: Machine, group: Group, at: Array, to: Array, *values: Array) -> None:
        offsets = shared_offsets(machine, "shared::cluster", at, size, group, instruction)
        barriers = find(machine, to, group, instruction)
        _same_cta(machine, offsets, barriers, group, instruction)
        rows = np.stack(values, axis=1).view(np.uint8)
        _issue_shared(machine, group, instruction, "st.async", offsets, size, values=rows, barriers=barriers)

    inputs = ((address, "b64"), (barrier, "b64"), *((element, kind) for element in elements))
    return Operation(run, inputs=inputs)


def _same_cta(
    machine: Machine, offsets: Array, barriers: Array, group: Group, instruction: Instruction
) -> None:
    """Data and the mbarrier that counts it have to be in one CTA."""
    window = machine.shared_window
    other = engine(machine).mbarriers.offset[barriers] // window != offsets // window
    if other.any():
        raise BarrierFault(
            "the data and its mbarrier are in different CTAs",
            place=instruction.place,
            thread=group.describe(int(np.flatnonzero(other)[0])),
        )


def _issue_shared(
    machine: Machine,
    group: Group,
    instruction: Instruction,
    kind: str,
    offsets: Array,
    size: int,
    **more: Any,
) -> None:
    region = machine.shared
    engine(machine).issue(Flight(kind, group, instruction, "shared", region, offsets, size, 0, **more))


# ---- cp.async ----------------------------------------------------------------------------------------


@operation("cp.async.ca", "cp.async.cg")
def _copy(instruction: Instruction) -> Operation:
    operands = list(instruction.operands)
    target, source, size_operand = operands[:3]
    if not isinstance(size_operand, Immediate):
        instruction.refuse("the size has to be a constant")
    size = size_operand.bits
    if size not in ((16,) if instruction.has("cg") else (4, 8, 16)):
        instruction.refuse(f"a size of {size} bytes")
    extra: Operand = Immediate(size)
    ignored = False
    if len(operands) > 3 and not instruction.has("L2::cache_hint"):
        extra = operands[3]
        ignored = isinstance(extra, Register) and extra.kind == "pred"
    elif len(operands) > 4:
        instruction.refuse("a source size together with a cache policy")

    def run(machine: Machine, group: Group, at: Array, start: Array, given: Array) -> None:
        valid = np.where(given, 0, size) if ignored else given.astype(np.int64)
        if (valid > size).any():
            raise MemoryFault(
                f"a source of more than the {size} bytes that are copied",
                place=instruction.place,
                thread=group.describe(int(np.flatnonzero(valid > size)[0])),
            )
        offsets = shared_offsets(machine, "shared::cta", at, size, group, instruction)
        turns = engine(machine).committed["cp.async"][group.threads]
        for region, elements, source_offsets in _read(
            machine, "global", start, size, valid, group, instruction
        ):
            _issue_shared(
                machine,
                group.take(elements),
                instruction,
                "cp.async",
                offsets[elements],
                size,
                source=region,
                source_offsets=source_offsets,
                source_bytes=valid[elements],
                turns=turns[elements],
            )

    return Operation(run, inputs=((target, "b64"), (source, "b64"), (extra, "pred" if ignored else "u32")))


def _read(
    machine: Machine,
    space: str,
    addresses: Array,
    align: int,
    valid: Array,
    group: Group,
    instruction: Instruction,
) -> list[tuple[Any, Array, Array]]:
    """Check and report the reads of sources: (region, elements of the group, offsets).

    valid: bytes that each element reads; nothing is asked of an address of which nothing is read.
    """
    found: list[tuple[Any, Array, Array]] = []
    unread = np.flatnonzero(valid == 0)
    if len(unread):
        found.append((None, unread, np.zeros(len(unread), np.int64)))
    bad = (addresses % align != 0) & (valid > 0)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise MemoryFault(
            f"the source is not aligned to {align} bytes",
            place=instruction.place,
            thread=group.describe(at),
            address=f"{space} {int(addresses[at]):#x}",
        )
    for size in sorted(set(valid.tolist()) - {0}):
        sub = np.flatnonzero(valid == size)
        part = group.take(sub)
        for region, offsets, elements in machine.memory.resolve(
            space, addresses[sub], size, part, instruction
        ):
            group_of = part if elements is None else part.take(elements)
            access = Access("async read", region.space, region, offsets, size, group_of, instruction)
            machine.hooks.access(access)
            found.append((region, sub if elements is None else sub[elements], offsets))
    return found


@operation("cp.async.commit_group", "cp.async.bulk.commit_group")
def _commit(instruction: Instruction) -> Operation:
    kind = "bulk" if instruction.has("bulk") else "cp.async"
    return Operation(lambda machine, group: engine(machine).commit(kind, group))


@operation("cp.async.wait_group", "cp.async.bulk.wait_group")
def _wait_group(instruction: Instruction) -> Operation:
    kind = "bulk" if instruction.has("bulk") else "cp.async"
    count = instruction.operands[0]
    if not isinstance(count, Immediate):
        instruction.refuse("the number of groups has to be a constant")
    pending = count.bits
    # With .read the sources are free, the destinations not yet written; waiting for more hides no fault in a
    # kernel that only goes on to overwrite the sources.
    return Operation(lambda machine, group: engine(machine).wait(kind, group, pending, instruction))


@operation("cp.async.wait_all")
def _wait_all(instruction: Instruction) -> Operation:
    def run(machine: Machine, group: Group) -> None:
        engine(machine).commit("cp.async", group)
        engine(machine).wait("cp.async", group, None, instruction)

    return Operation(run)


# ---- cp.async.bulk -----------------------------------------------------------------------------------


@operation("cp.async.bulk.shared::cluster", "cp.async.bulk.shared::cta")
def _bulk_to_shared(instruction: Instruction) -> Operation:
    if instruction.has("multicast::cluster") or not instruction.has("mbarrier::complete_tx::bytes"):
        instruction.refuse()
    to, source = instruction.parts[3], instruction.parts[4]
    if source not in ("global", "shared::cta"):
        instruction.refuse(f"from {source}")
    target, start, size, barrier = instruction.operands[:4]

    def run(
        machine: Machine, group: Group, at: Array, source_at: Array, sizes: Array, to_barrier: Array
    ) -> None:
        offsets = shared_offsets(machine, to, to_barrier, 8, group, instruction)
        barriers = engine(machine).mbarriers.find(offsets, group, instruction)
        pieces, index, step = _pieces(sizes, (at, source_at), group, instruction)
        barriers = barriers[index]
        targets = shared_offsets(machine, to, at[index] + step, _PIECE, pieces, instruction)
        _same_cta(machine, targets, barriers, pieces, instruction)
        for region, elements, offsets in _read_pieces(
            machine, source, source_at[index] + step, pieces, instruction
        ):
            _issue_shared(
                machine,
                pieces.take(elements),
                instruction,
                "bulk",
                targets[elements],
                _PIECE,
                source=region,
                source_offsets=offsets,
                source_bytes=np.full(len(elements), _PIECE),
                barriers=barriers[elements],
            )

    inputs = ((target, "b64"), (start, "b64"), (size, "u32"), (barrier, "b64"))
    return Operation(run, inputs=inputs)


@operation("cp.async.bulk.global.shared::cta")
def _bulk_to_global(instruction: Instruction) -> Operation:
    if not instruction.has("bulk_group") or instruction.has("cp_mask"):
        instruction.refuse()
    target, start, size = instruction.operands[:3]

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
                0,
                source=region,
                source_offsets=offsets[elements],
                source_bytes=np.full(len(elements), _PIECE),
                turns=turns[elements],
            )
            engine(machine).issue(flight)

    return Operation(run, inputs=((target, "b64"), (start, "b64"), (size, "u32")))


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
) -> list[tuple[Any, Array, Array]]:
    return _read(machine, space, addresses, _PIECE, np.full(pieces.size, _PIECE), pieces, instruction)
