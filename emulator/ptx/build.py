"""Cuts a kernel into basic blocks.

Contract
    `build(text, entry)` parses, finds the `Operation` of every instruction, cuts the kernel into blocks and
    works out which registers are live between them. It is cached by the text, so the cost is paid once a
    process. An instruction whose opcode has no operation registered is Unsupported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from emulator.errors import LaunchError, PtxError, Unsupported
from emulator.ptx.forms import Forms
from emulator.ptx.instruction import SPECIALS, Instruction, Register, Special, Symbol
from emulator.ptx.kernel import Kernel, Module
from emulator.ptx.layout import Layout
from emulator.ptx.liveness import find_liveness, operand_registers
from emulator.ptx.operation import Operation, make_operation
from emulator.ptx.parse import parse
from emulator.ptx.program import Block, Program, Step

_ONLY_ORDER = frozenset({"fence", "membar", "griddepcontrol", "nanosleep"})
"""Instructions without a result that change nothing, and so may be in a loop that waits."""

_JUMPS = Forms(("bra{.uni}", "ret{.uni}", "exit"))

_SPIN_BLOCKS = 4
"""The most blocks of a loop that counts as waiting for something."""


@functools.lru_cache(maxsize=64)
def parsed(ptx: str) -> Module:
    """`parse`, cached by the text."""
    return parse(ptx)


@functools.lru_cache(maxsize=256)
def build(ptx: str, entry: str | None = None) -> Program:
    """The program of an entry (None: the only one). Raises PtxError, Unsupported and LaunchError."""
    module = parsed(ptx)
    names = ", ".join(module.kernels)
    if entry is None:
        if len(module.kernels) > 1:
            raise LaunchError(f"entry has to name one of the kernels: {names}")
        entry = next(iter(module.kernels))
    if entry not in module.kernels:
        raise LaunchError(f"there is no kernel {entry}; the text has: {names}")
    kernel = module.kernels[entry]
    layout = Layout.of(kernel, module)
    blocks = _cut(kernel)
    for block in blocks:
        block.converged = any(step.operation.converged for step in block.steps)
        block.polls = any(step.operation.polls for step in block.steps)
    registers: dict[str, int] = {}
    kinds: list[str] = []
    for instruction in kernel.instructions:
        for register in _registers(instruction):
            if register.name not in registers:
                registers[register.name] = len(kinds)
                kinds.append(register.kind)
    program = Program(kernel, module.target, layout, blocks, registers, kinds, [])
    find_liveness(program)
    for block in blocks:
        block.polls = block.polls and _is_spinning(program, block)
    return program


def _jump(instruction: Instruction) -> bool:
    """Whether it is a branch or the end of a thread."""
    if instruction.parts[0] not in ("bra", "ret", "exit"):
        return False
    if not _JUMPS.match(instruction.parts):
        instruction.refuse(_JUMPS.explain(instruction.parts))
    if len(instruction.operands) != (instruction.parts[0] == "bra"):
        raise PtxError(f"wrong operands for {instruction.opcode}", place=instruction.place)
    return True


def _cut(kernel: Kernel) -> list[Block]:
    code = kernel.instructions
    starts = {0, *kernel.labels.values()}
    operations: list[Operation | None] = []
    effect = False
    for number, instruction in enumerate(code):
        for operand in instruction.operands:
            if isinstance(operand, Special) and operand.name not in SPECIALS:
                said = f"the special register {operand.name} is not covered"
                raise Unsupported(said, place=instruction.place)
        operation = None if _jump(instruction) else make_operation(instruction)
        operations.append(operation)
        if operation is None or operation.blocking:
            starts.add(number + 1)
        # A block waits for the lanes of a warp when it has a warp-synchronous instruction. What others can
        # see of the instructions before must not wait with it: the missing lanes may be waiting for that.
        effect &= number not in starts
        if operation is not None and operation.converged and effect:
            starts.add(number)
            effect = False
        effect |= operation is not None and _is_effect(instruction, operation)
    order = sorted(start for start in starts if start < len(code))
    number_of = {start: index for index, start in enumerate(order)}
    end = len(order)

    blocks = []
    for index, start in enumerate(order):
        block = Block(index)
        stop = order[index + 1] if index + 1 < end else len(code)
        for number in range(start, stop):
            instruction, operation = code[number], operations[number]
            block.instructions.append(instruction)
            if operation is not None:
                block.steps.append(Step(instruction, operation))
                block.blocking |= operation.blocking
                continue
            if instruction.parts[0] == "bra":
                target = instruction.operands[0]
                assert isinstance(target, Symbol)
                block.branch = number_of.get(kernel.labels[target.name], end)
            else:
                block.branch = end
            if instruction.predicate is not None:
                block.condition = (instruction.predicate, instruction.negated)
        blocks.append(block)
    return blocks


def _is_effect(instruction: Instruction, operation: Operation) -> bool:
    """Whether other threads can see that an instruction was executed."""
    name = instruction.parts[0]
    return not operation.text and (not operation.outputs or name == "atom") and name not in _ONLY_ORDER


def _registers(instruction: Instruction) -> Iterable[Register]:
    for operand in instruction.operands:
        yield from operand_registers(operand)
    if instruction.predicate is not None:
        yield instruction.predicate


def _is_spinning(program: Program, block: Block) -> bool:
    """Whether a block is in a loop that only looks: there is a short way back without an effect."""
    if any(_is_effect(s.instruction, s.operation) and s.instruction.parts[0] != "atom" for s in block.steps):
        return False
    ways = [(following, 1) for following in block.successors()]
    while ways:
        number, length = ways.pop()
        if number == block.index:
            return True
        if number == len(program.blocks) or length == _SPIN_BLOCKS:
            continue
        through = program.blocks[number]
        if not any(_is_effect(step.instruction, step.operation) for step in through.steps):
            ways += [(following, length + 1) for following in through.successors()]
    return False
