"""The mbarrier instructions, and cp.async.mbarrier.arrive.

Contract
    Waits (`try_wait`, `test_wait`) are for mbarriers of the own CTA, arrivals and bytes for those of any CTA of
    the cluster. The state that an arrival returns is the number of its phase.

    A wait says true for the phase before the present one and blocks for the present one: all that a parity can
    tell. The wait for the phase before the first (parity 1 on a fresh mbarrier) is over at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.interface import (
    Array,
    BarrierFault,
    Group,
    Immediate,
    Instruction,
    Operand,
    Operation,
    Sink,
    operation,
)


def engine(group: Group) -> Any:
    """The asynchronous engine of a group's machine."""
    return group.machine.asynchronous


def space_of(instruction: Instruction) -> str:
    """The state space of an mbarrier operand."""
    if instruction.has("shared::cluster"):
        return "shared::cluster"
    return "shared::cta" if instruction.has("shared", "shared::cta") else "generic"


def shared_offsets(space: str, addresses: Array, size: int, group: Group, instruction: Instruction) -> Array:
    """Offsets in the region of all shared memory. Raises MemoryFault, BarrierFault for other memory."""
    offsets = np.zeros(group.size, np.int64)
    for region, at, elements in group.machine.memory.resolve(space, addresses, size, group, instruction):
        if region.name != "shared":
            raise BarrierFault(
                f"{instruction.parts[0]} outside shared memory, in {region.name}",
                instruction=instruction,
                thread=group.describe(0 if elements is None else int(elements[0])),
            )
        offsets[slice(None) if elements is None else elements] = at
    return offsets


def find(addresses: Array, group: Group, instruction: Instruction) -> Array:
    """The numbers of the mbarriers at these addresses."""
    offsets = shared_offsets(space_of(instruction), addresses, 8, group, instruction)
    numbers: Array = engine(group).mbarriers.find(offsets, group, instruction)
    return numbers


def _own(addresses: Array, group: Group, instruction: Instruction) -> Array:
    """As `find`, for instructions that are for the own CTA's mbarriers alone."""
    numbers = find(addresses, group, instruction)
    offsets = engine(group).mbarriers.offset[numbers]
    foreign = offsets // group.machine.shared_window != group.cta
    if foreign.any():
        raise BarrierFault(
            f"{instruction.parts[0]}.{instruction.parts[1]} is for mbarriers of the own CTA",
            instruction=instruction,
            thread=group.describe(int(np.flatnonzero(foreign)[0])),
        )
    return numbers


@operation("mbarrier.init")
def _init(instruction: Instruction) -> Operation:
    address, count = instruction.operands

    def run(group: Group, at: Array, counts: Array) -> None:
        offsets = shared_offsets(space_of(instruction), at, 8, group, instruction)
        engine(group).mbarriers.start(offsets, counts.astype(np.int64), group, instruction)

    return Operation(run, inputs=((address, "b64"), (count, "u32")))


@operation("mbarrier.inval")
def _inval(instruction: Instruction) -> Operation:
    def run(group: Group, at: Array) -> None:
        offsets = shared_offsets(space_of(instruction), at, 8, group, instruction)
        engine(group).mbarriers.end(offsets, group, instruction)

    return Operation(run, inputs=((instruction.operands[0], "b64"),))


@operation("mbarrier.arrive")
def _arrive(instruction: Instruction) -> Operation:
    operands = list(instruction.operands)
    if instruction.has("noComplete"):
        instruction.refuse("arrivals that must not complete a phase")
    # The state is left out in some forms with a remote mbarrier.
    state: Operand = operands.pop(0) if len(operands) > 1 and not _is_address(operands[0]) else Sink()
    address = operands.pop(0)
    extra: Operand = operands.pop(0) if operands else Immediate(1)
    announces = instruction.has("expect_tx")

    def run(group: Group, at: Array, amounts: Array) -> Array:
        table = engine(group).mbarriers
        barriers = find(at, group, instruction)
        counts = amounts.astype(np.int64)
        if announces:
            table.expect(barriers, counts, group, instruction)
            counts = np.ones(group.size, np.int64)
        phases: Array = table.arrive(barriers, counts, group, instruction)
        return phases.astype(np.uint64)

    return Operation(run, inputs=((address, "b64"), (extra, "u32")), outputs=((state, "b64"),))


def _is_address(operand: Operand) -> bool:
    return type(operand).__name__ == "Address"


@operation("mbarrier.expect_tx")
def _expect(instruction: Instruction) -> Operation:
    def run(group: Group, at: Array, amounts: Array) -> None:
        barriers = find(at, group, instruction)
        engine(group).mbarriers.expect(barriers, amounts.astype(np.int64), group, instruction)

    address, amount = instruction.operands
    return Operation(run, inputs=((address, "b64"), (amount, "u32")))


@operation("mbarrier.complete_tx")
def _complete(instruction: Instruction) -> Operation:
    def run(group: Group, at: Array, amounts: Array) -> None:
        barriers, sizes = find(at, group, instruction), amounts.astype(np.int64)
        table = engine(group).mbarriers
        np.add.at(table.in_flight, barriers, sizes)
        table.complete_bytes(barriers, sizes, group, instruction)

    address, amount = instruction.operands
    return Operation(run, inputs=((address, "b64"), (amount, "u32")))


@operation("mbarrier.try_wait", "mbarrier.test_wait")
def _wait(instruction: Instruction) -> Operation:
    done, address, which = instruction.operands[:3]
    parity = instruction.has("parity")

    def run(group: Group, at: Array, asked: Array) -> Array:
        barriers = _own(at, group, instruction)
        table = engine(group).mbarriers
        present = table.phase[barriers]
        if parity:
            phases = np.where(present % 2 == asked % 2, present, present - 1)
        else:
            phases = asked.astype(np.int64)
        table.wait(barriers, phases, group, instruction)
        return np.ones(group.size, bool)

    kind = "u32" if parity else "u64"
    return Operation(run, inputs=((address, "b64"), (which, kind)), outputs=((done, "pred"),), blocking=True)


@operation("cp.async.mbarrier.arrive")
def _track(instruction: Instruction) -> Operation:
    raises = not instruction.has("noinc")

    def run(group: Group, at: Array) -> None:
        barriers = _own(at, group, instruction)
        if raises:
            engine(group).mbarriers.more_arrivals(barriers)
        engine(group).track(group, barriers, instruction)

    return Operation(run, inputs=((instruction.operands[0], "b64"),))
