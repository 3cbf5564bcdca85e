"""Which registers are live from one basic block to the next."""

from __future__ import annotations

from collections.abc import Iterable

from emulator.ptx.instruction import Address, Negated, Operand, Pair, Register, TensorAddress, Vector
from emulator.ptx.program import Block, Program


def operand_registers(operand: Operand) -> Iterable[Register]:
    """The registers that an operand names."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Address):
        yield from operand_registers(operand.base)
    elif isinstance(operand, Vector):
        for element in operand.elements:
            yield from operand_registers(element)
    elif isinstance(operand, TensorAddress):
        yield from operand_registers(operand.base)
        for element in operand.coordinates:
            yield from operand_registers(element)
    elif isinstance(operand, Pair):
        yield from operand_registers(operand.first)
        yield from operand_registers(operand.second)


def find_liveness(program: Program) -> None:
    """Fill in gathers and scatters, by the usual backward iteration over bit sets."""
    number = program.registers
    end = len(program.blocks)
    exposed, written = [], []
    for block in program.blocks:
        up = down = 0
        for step in block.steps:
            reads = [r for operand, _ in step.operation.inputs for r in operand_registers(operand)]
            writes = [r for operand, _ in step.operation.outputs for r in operand_registers(operand)]
            if step.instruction.predicate is not None:
                # What a predicated instruction does not write keeps its old value.
                reads += [step.instruction.predicate, *writes]
            for register in reads:
                up |= (1 << number[register.name]) & ~down
            for register in writes:
                down |= 1 << number[register.name]
        if block.condition is not None:
            up |= (1 << number[block.condition[0].name]) & ~down
        exposed.append(up)
        written.append(down)

    live = [0] * (end + 1)
    changed = True
    while changed:
        changed = False
        for block in reversed(program.blocks):
            after = _after(block, live)
            before = exposed[block.index] | (after & ~written[block.index])
            if before != live[block.index]:
                live[block.index] = before
                changed = True
    across = 0
    for block in program.blocks:
        scattered = written[block.index] & _after(block, live)
        block.gathers = _bits(exposed[block.index])
        block.scatters = _bits(scattered)
        across |= scattered | exposed[block.index]
    program.across = _bits(across)


def _after(block: Block, live: list[int]) -> int:
    after = 0
    for following in block.successors():
        after |= live[following]
    return after


def _bits(bits: int) -> list[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
