"""Asynchronous stores and copies of up to 16 bytes a thread: st.async, cp.async; groups of copies.

Contract
    Operations check operands and addresses, and give the engine flights. The groups are those of cp.async and
    of cp.async.bulk.
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.addresses import check_same_cta, find, read_sources, shared_offsets
from emulator.asynchronous.engine import engine
from emulator.asynchronous.flights import Flight
from emulator.errors import MemoryFault
from emulator.ptx.instruction import Immediate, Instruction, Operand, Register, Vector
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group


@operation(
    "st.async",
    forms=[
        "st.async{.weak}{.shared::cluster}.mbarrier::complete_tx::bytes{.v2|v4}"
        ".b32|b64|u32|u64|s32|s64|f32|f64"
    ],
)
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
        check_same_cta(machine, offsets, barriers, group, instruction)
        rows = np.stack(values, axis=1).view(np.uint8)
        flight = Flight(
            "st.async",
            group,
            instruction,
            "shared",
            machine.shared,
            offsets,
            size,
            values=rows,
            barriers=barriers,
        )
        engine(machine).issue(flight)

    inputs = ((address, "b64"), (barrier, "b64"), *((element, kind) for element in elements))
    return Operation(run, inputs=inputs)


@operation(
    *("cp.async.ca", "cp.async.cg"),
    forms=["cp.async.ca|cg.shared|shared::cta.global{.L2::cache_hint}{.L2::64B|L2::128B|L2::256B}"],
)
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
        for region, elements, source_offsets in read_sources(
            machine, "global", start, size, valid, group, instruction
        ):
            flight = Flight(
                "cp.async",
                group.take(elements),
                instruction,
                "shared",
                machine.shared,
                offsets[elements],
                size,
                source=region,
                source_offsets=source_offsets,
                source_bytes=valid[elements],
                turns=turns[elements],
            )
            engine(machine).issue(flight)

    return Operation(run, inputs=((target, "b64"), (source, "b64"), (extra, "pred" if ignored else "u32")))


@operation(*("cp.async.commit_group", "cp.async.bulk.commit_group"), forms=["cp.async{.bulk}.commit_group"])
def _commit(instruction: Instruction) -> Operation:
    kind = "bulk" if instruction.has("bulk") else "cp.async"
    () = instruction.operands
    return Operation(lambda machine, group: engine(machine).commit(kind, group))


@operation(
    *("cp.async.wait_group", "cp.async.bulk.wait_group"),
    forms=["cp.async.wait_group", "cp.async.bulk.wait_group{.read}"],
)
def _wait_group(instruction: Instruction) -> Operation:
    kind = "bulk" if instruction.has("bulk") else "cp.async"
    (count,) = instruction.operands
    if not isinstance(count, Immediate):
        instruction.refuse("the number of groups has to be a constant")
    pending = count.bits
    # With .read the sources are free, the destinations not yet written; waiting for more hides no fault in a
    # kernel that only goes on to overwrite the sources.
    return Operation(lambda machine, group: engine(machine).wait(kind, group, pending, instruction))


@operation("cp.async.wait_all", forms=["cp.async.wait_all"])
def _wait_all(instruction: Instruction) -> Operation:
    () = instruction.operands

    def run(machine: Machine, group: Group) -> None:
        engine(machine).commit("cp.async", group)
        engine(machine).wait("cp.async", group, None, instruction)

    return Operation(run)
