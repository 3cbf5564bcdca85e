"""The mbarrier instructions, and cp.async.mbarrier.arrive.

Contract
    Waits (`try_wait`, `test_wait`) are for mbarriers of the own CTA, arrivals and bytes for those of any CTA
    of the cluster. The state that an arrival returns is the number of its phase.

    A wait says true for the phase before the present one and blocks for the present one: all that a parity
    can tell. The wait for the phase before the first (parity 1 on a fresh mbarrier) is over at once.
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.addresses import find, shared_offsets, space_of
from emulator.asynchronous.engine import engine
from emulator.errors import BarrierFault
from emulator.ptx.forms import ANY_SHARED, OWN
from emulator.ptx.instruction import Address, Immediate, Instruction, Operand, Sink
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group


def _own(machine: Machine, addresses: Array, group: Group, instruction: Instruction) -> Array:
    """As `find`, for instructions that are for the own CTA's mbarriers alone."""
    numbers = find(machine, addresses, group, instruction)
    offsets = engine(machine).mbarriers.offset[numbers]
    foreign = offsets // machine.shared_window != group.cta
    if foreign.any():
        raise BarrierFault(
            f"{instruction.parts[0]}.{instruction.parts[1]} is for mbarriers of the own CTA",
            place=instruction.place,
            thread=group.describe(int(np.flatnonzero(foreign)[0])),
        )
    return numbers


@operation("mbarrier.init", forms=[f"mbarrier.init{OWN}.b64"])
def _init(instruction: Instruction) -> Operation:
    address, count = instruction.operands

    def run(machine: Machine, group: Group, at: Array, counts: Array) -> None:
        offsets = shared_offsets(machine, space_of(instruction), at, 8, group, instruction)
        engine(machine).mbarriers.start(offsets, counts.astype(np.int64), group, instruction)

    return Operation(run, inputs=((address, "b64"), (count, "u32")))


@operation("mbarrier.inval", forms=[f"mbarrier.inval{OWN}.b64"])
def _inval(instruction: Instruction) -> Operation:
    def run(machine: Machine, group: Group, at: Array) -> None:
        offsets = shared_offsets(machine, space_of(instruction), at, 8, group, instruction)
        engine(machine).mbarriers.end(offsets, group, instruction)

    (address,) = instruction.operands
    return Operation(run, inputs=((address, "b64"),))


@operation(
    "mbarrier.arrive",
    forms=[f"mbarrier.arrive{{.expect_tx}}{{.release|relaxed}}{{.cta|cluster}}{ANY_SHARED}.b64"],
)
def _arrive(instruction: Instruction) -> Operation:
    operands = list(instruction.operands)
    if instruction.has("noComplete"):
        instruction.refuse("arrivals that must not complete a phase")
    # The state is left out in some forms with a remote mbarrier.
    state: Operand = operands.pop(0) if len(operands) > 1 and not _is_address(operands[0]) else Sink()
    address = operands.pop(0)
    extra: Operand = operands.pop(0) if operands else Immediate(1)
    if operands:
        raise ValueError("operands")
    announces = instruction.has("expect_tx")

    def run(machine: Machine, group: Group, at: Array, amounts: Array) -> Array:
        table = engine(machine).mbarriers
        barriers = find(machine, at, group, instruction)
        counts = amounts.astype(np.int64)
        if announces:
            table.expect(barriers, counts, group, instruction)
            counts = np.ones(group.size, np.int64)
        phases = table.arrive(barriers, counts, group, instruction)
        return phases.astype(np.uint64)

    return Operation(run, inputs=((address, "b64"), (extra, "u32")), outputs=((state, "b64"),))


def _is_address(operand: Operand) -> bool:
    return isinstance(operand, Address)


@operation("mbarrier.expect_tx", forms=[f"mbarrier.expect_tx{{.relaxed}}{{.cta|cluster}}{ANY_SHARED}.b64"])
def _expect(instruction: Instruction) -> Operation:
    def run(machine: Machine, group: Group, at: Array, amounts: Array) -> None:
        barriers = find(machine, at, group, instruction)
        engine(machine).mbarriers.expect(barriers, amounts.astype(np.int64), group, instruction)

    address, amount = instruction.operands
    return Operation(run, inputs=((address, "b64"), (amount, "u32")))


@operation(
    "mbarrier.complete_tx", forms=[f"mbarrier.complete_tx{{.relaxed}}{{.cta|cluster}}{ANY_SHARED}.b64"]
)
def _complete(instruction: Instruction) -> Operation:
    def run(machine: Machine, group: Group, at: Array, amounts: Array) -> None:
        barriers, sizes = find(machine, at, group, instruction), amounts.astype(np.int64)
        table = engine(machine).mbarriers
        np.add.at(table.in_flight, barriers, sizes)
        table.complete_bytes(barriers, sizes, group, instruction)

    address, amount = instruction.operands
    return Operation(run, inputs=((address, "b64"), (amount, "u32")))


@operation(
    *("mbarrier.try_wait", "mbarrier.test_wait"),
    forms=[f"mbarrier.try_wait|test_wait{{.parity}}{{.acquire|relaxed}}{{.cta|cluster}}{OWN}.b64"],
)
def _wait(instruction: Instruction) -> Operation:
    done, address, which, *limit = instruction.operands
    if len(limit) > instruction.has("try_wait"):
        raise ValueError("operands")
    parity = instruction.has("parity")

    def run(machine: Machine, group: Group, at: Array, asked: Array) -> Array:
        barriers = _own(machine, at, group, instruction)
        table = engine(machine).mbarriers
        present = table.phase[barriers]
        if parity:
            phases = np.where(present % 2 == asked % 2, present, present - 1)
        else:
            phases = asked.astype(np.int64)
        table.wait(barriers, phases, group, instruction)
        return np.ones(group.size, bool)

    kind = "u32" if parity else "u64"
    return Operation(run, inputs=((address, "b64"), (which, kind)), outputs=((done, "pred"),), blocking=True)


@operation("cp.async.mbarrier.arrive", forms=[f"cp.async.mbarrier.arrive{{.noinc}}{OWN}.b64"])
def _track(instruction: Instruction) -> Operation:
    raises = not instruction.has("noinc")
    (address,) = instruction.operands

    def run(machine: Machine, group: Group, at: Array) -> None:
        barriers = _own(machine, at, group, instruction)
        if raises:
            engine(machine).mbarriers.more_arrivals(barriers)
        engine(machine).track(group, barriers, instruction)

    return Operation(run, inputs=((address, "b64"),))
