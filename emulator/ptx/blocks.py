"""A basic block as a Python function over whole arrays.

Contract
    `compile_block(program, block, everyone)` returns f(machine, group, registers, threads): it gathers the
    registers that the block reads, runs every instruction on local arrays of `group.size` elements, scatters
    what later blocks read, and returns the condition of the branch at its end (bool [size]; None if there is
    none). The machine and the group are handed to the operations; of the machine the block itself uses
    `special` alone.
    With `everyone` the group has to be the whole wave: gathering and scattering are then plain assignments.

    Local arrays are never written to, so a move is free, two registers may share one and a typed view is
    made once. What goes to the register file is copied where it is shared, because a later scatter writes
    there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from emulator.arrays import Array
from emulator.errors import PtxError
from emulator.ptx.build import build
from emulator.ptx.instruction import Immediate, Instruction, Operand, Register, Sink, Special, Symbol
from emulator.ptx.locals import SHORT, Locals, Value
from emulator.ptx.program import Block, Program, Step
from emulator.ptx.storage import STORAGE, constant, width
from emulator.ptx.types import DTYPES

Function = Callable[[Any, Any, list[Array], Array], Any]
"""What a block is compiled to: f(machine, group, registers, threads)."""


class _Writer(Locals):
    # -- writing

    def write(self, operand: Operand, kind: str, name: str, instruction: Instruction, shared: bool) -> None:
        """Let a register hold an array of a PTX type."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise PtxError("a destination has to be a register", place=instruction.place)
        held = operand.kind
        if (held == "pred") != (kind == "pred") or width(held) < width(kind):
            raise PtxError(f"a result of type {kind} in a register of {held}", place=instruction.place)
        if width(held) > width(kind):
            wide = f"i{width(held)}" if kind[0] == "s" else f"u{width(held)}"
            view = f".view(u{width(held)})" if kind[0] == "s" else ""
            name, shared = self.let(f"{name}.astype({wide}){view}"), False
        elif DTYPES[kind] is not STORAGE[held]:
            typed = name
            name = self.let(f"{name}.view({SHORT[STORAGE[held]]})")
            self.views[(name, kind)] = typed
        self.values[operand.name] = Value(name, shared=shared)

    # -- the parts of a block

    def gather(self) -> None:
        for number in self.block.gathers:
            name = self.let(f"R[{number}]" if self.everyone else f"R[{number}][t]")
            self.values[self.program.names[number]] = Value(name, shared=self.everyone)

    def step(self, step: Step) -> None:
        instruction, operation = step.instruction, step.operation
        if instruction.predicate is None and self.moved(step):
            return
        chosen = None
        if instruction.predicate is not None:
            chosen = self.predicate(instruction.predicate, instruction.negated, instruction)
        if operation.text:
            self.expression(step, chosen)
        else:
            self.call(step, chosen)

    def moved(self, step: Step) -> bool:
        """A move costs nothing: the register holds what the other holds."""
        operation = step.operation
        if operation.text != "{0}":
            return False
        (source, read), (target, written) = operation.inputs[0], operation.outputs[0]
        if not isinstance(target, Register) or width(read) != width(written):
            return False
        if width(target.kind) != width(written) or (read == "pred") != (written == "pred"):
            return False
        value = None
        if isinstance(source, Immediate) and (source.float_bits or 0) != 64:
            value = Value(constant=source)
        elif isinstance(source, Symbol):
            at = self.program.layout.address(source.name, step.instruction)
            value = Value(constant=Immediate(at))
        elif isinstance(source, Register) and source.kind == target.kind:
            held = self.values[source.name]
            value = Value(held.name, held.constant, shared=True)
            held.shared = True
        if value is None:
            return False
        self.values[target.name] = value
        return True

    def expression(self, step: Step, chosen: str | None) -> None:
        instruction, operation = step.instruction, step.operation
        ((target, kind),) = operation.outputs
        read = [self.read(operand, typ, instruction) for operand, typ in operation.inputs]
        names = [name or self.bind("k", scalar) for name, scalar in read]
        if not any(name for name, _ in read):
            names[0] = self.let(f"np.full(n, {names[0]})")
        name = self.let(operation.text.format(*names))
        special = any(isinstance(operand, Special) for operand, _ in operation.inputs)
        shared = operation.text == "{0}" or special
        if chosen is not None:
            name, shared = (
                self.let(f"np.where({chosen}, {name}, {self.old(target, kind, instruction)})"),
                False,
            )
        self.write(target, kind, name, instruction, shared)

    def old(self, target: Operand, kind: str, instruction: Instruction) -> str:
        if isinstance(target, Sink):
            return self.bind("k", DTYPES[kind](0))
        return self.array(target, kind, instruction)

    def call(self, step: Step, chosen: str | None) -> None:
        instruction, operation = step.instruction, step.operation
        run = self.bind("f", operation.run)
        names = [self.array(operand, kind, instruction) for operand, kind in operation.inputs]
        outputs = operation.outputs
        results = [self.fresh() for _ in outputs]
        if chosen is None:
            to = f"{', '.join(results)} = " if results else ""
            self.line(f"{to}{run}({', '.join(['m', 'g', *names])})")
        else:
            for result, (target, kind) in zip(results, outputs, strict=True):
                self.line(f"{result} = {self.old(target, kind, instruction)}.copy()")
            sub = ", ".join(["m", "g.take(w)", *(f"{name}[w]" for name in names)])
            to = ", ".join(f"{result}[w]" for result in results)
            self.line(f"w = {chosen}.nonzero()[0]")
            self.line(f"if w.size: {to + ' = ' if to else ''}{run}({sub})")
        for result, (target, kind) in zip(results, outputs, strict=True):
            self.write(target, kind, result, instruction, shared=False)

    def scatter(self) -> None:
        stored: set[str] = set()
        for number in self.block.scatters:
            kind = self.program.kinds[number]
            value = self.values[self.program.names[number]]
            instruction = self.block.instructions[0]
            if value.constant is not None:
                scalar = self.bind("k", constant(value.constant, kind, instruction, held=True))
                self.line(
                    f"R[{number}] = np.full(n, {scalar})" if self.everyone else f"R[{number}][t] = {scalar}"
                )
            elif not self.everyone:
                self.line(f"R[{number}][t] = {value.name}")
            else:
                copy = ".copy()" if value.shared or value.name in stored else ""
                stored.add(value.name)
                self.line(f"R[{number}] = {value.name}{copy}")

    def source(self) -> str:
        self.gather()
        for step in self.block.steps:
            self.step(step)
        condition = None
        if self.block.condition is not None:
            condition = self.predicate(*self.block.condition, self.block.instructions[-1])
        self.scatter()
        self.line(f"return {condition}")
        body = "\n    ".join(["n = g.size", *self.lines])
        return f"def block_{self.block.index}(m, g, R, t):\n    {body}\n"


def compile_block(program: Program, block: Block, everyone: bool) -> Function:
    """The function of a block: its `full` or its `part`. Raises PtxError for operands that do not fit.

    Its text is written now, and compiled when it runs first: most blocks run for whole waves or for parts of
    them, but not for both.
    """
    writer = _Writer(program, block, everyone)
    text = writer.source()

    def run_first(machine: Any, group: Any, registers: list[Array], threads: Array) -> Any:
        code = compile(text, f"<{re.sub(r'_+', '_', program.name)} block {block.index}>", "exec")
        exec(code, writer.names)
        function: Function = writer.names[f"block_{block.index}"]
        if everyone:
            block.full = function
        else:
            block.part = function
        return function(machine, group, registers, threads)

    return run_first


@functools.lru_cache(maxsize=256)
def compiled(ptx: str, entry: str | None = None) -> Program:
    """`program.build`, and every block's function for whole waves, so that faults of the text come first."""
    program = build(ptx, entry)
    for block in program.blocks:
        block.full = compile_block(program, block, True)
    return program
