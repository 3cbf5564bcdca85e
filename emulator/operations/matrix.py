"""Matrix instructions of whole warps: mma, movmatrix, ldmatrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.numerics import matrix
from emulator.operations.loads import space_of
from emulator.ptx.instruction import Instruction, Vector
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

_MMA = {"m16n8k16": (4, 2), "m16n8k8": (2, 1)}


@operation("mma.sync.aligned", forms=["mma.sync.aligned.m16n8k16|m16n8k8.row.col.f32.bf16.bf16.f32"])
def mma(instruction: Instruction) -> Operation:
    """BF16 products, FP32 sums."""
    registers = []
    for operand in instruction.operands:
        if not isinstance(operand, Vector):
            raise ValueError("registers in braces expected")
        registers.append(operand.elements)
    d, a, b, c = registers
    a_count, b_count = _MMA[instruction.parts[3]]
    if (len(d), len(a), len(b), len(c)) != (4, a_count, b_count, 4):
        raise ValueError("a wrong number of registers")
    end_b = a_count + b_count

    def run(machine: Machine, group: Group, *words: Array) -> Any:
        group.require_full_warps(instruction)
        machine.hooks.warp_sync(group, instruction)
        return matrix.mma(words[:a_count], words[a_count:end_b], words[end_b:])

    inputs = (*((x, "b32") for x in a), *((x, "b32") for x in b), *((x, "f32") for x in c))
    return Operation(run=run, inputs=inputs, outputs=tuple((x, "f32") for x in d), converged=True)


@operation("movmatrix.sync.aligned.m8n8.trans.b16", forms=["movmatrix.sync.aligned.m8n8.trans.b16"])
def movmatrix(instruction: Instruction) -> Operation:
    """An 8 x 8 matrix, transposed."""
    target, source = instruction.operands

    def run(machine: Machine, group: Group, words: Array) -> Array:
        group.require_full_warps(instruction)
        machine.hooks.warp_sync(group, instruction)
        return matrix.movmatrix(words)

    return Operation(run=run, inputs=((source, "b32"),), outputs=((target, "b32"),), converged=True)


@operation(
    "ldmatrix.sync.aligned.m8n8",
    forms=["ldmatrix.sync.aligned.m8n8.x1|x2|x4{.trans}{.shared|shared::cta}.b16"],
)
def ldmatrix(instruction: Instruction) -> Operation:
    """1, 2 or 4 matrices from shared memory, a row of 16 bytes from each lane's address."""
    count = next(int(part[1:]) for part in ("x1", "x2", "x4") if instruction.has(part))
    target, address = instruction.operands
    elements = target.elements if isinstance(target, Vector) else (target,)
    if len(elements) != count:
        raise ValueError("a wrong number of registers")
    transposed, space = instruction.has("trans"), space_of(instruction)

    def run(machine: Machine, group: Group, at: Array) -> Any:
        group.require_full_warps(instruction)
        machine.hooks.warp_sync(group, instruction)
        reads = np.flatnonzero(group.lane < 8 * count)
        sub = group if len(reads) == group.size else group.take(reads)
        words = machine.memory.load_words(space, at[reads], 4, 4, sub, instruction)
        rows = np.stack(words, axis=1).view(np.uint8).reshape(-1, 8 * count, 16)
        found = matrix.ldmatrix(rows, transposed=transposed)
        return found if count > 1 else found[0]

    outputs = tuple((element, "b32") for element in elements)
    return Operation(run=run, inputs=((address, "b64"),), outputs=outputs, converged=True)
