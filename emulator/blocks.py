"""A basic block as a Python function over whole arrays.

Contract
    `compile_block(program, block, everyone)` returns f(group, registers, threads): it gathers the registers
    that the block reads, runs every instruction on local arrays of `group.size` elements, scatters what later
    blocks read, and returns the condition of the branch at its end (bool [size]; None if there is none).
    With `everyone` the group has to be the whole wave: gathering and scattering are then plain assignments.

    Local arrays are never written to, so a move is free, two registers may share one and a typed view is
    made once. What goes to the register file is copied where it is shared, because a later scatter writes
    there.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.instructions import helpers
from emulator.interface import (
    DTYPES,
    Address,
    Array,
    Immediate,
    Instruction,
    Negated,
    Operand,
    PtxError,
    Register,
    Sink,
    Special,
    Symbol,
)
from emulator.kernel import SIZES
from emulator.program import Block, Program, Step, build

STORAGE: dict[str, Any] = {"pred": np.bool_, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}
"""The NumPy type of a register file's rows, by kind."""

_SHORT = {
    np.bool_: "bool_",
    np.uint8: "u1",
    np.uint16: "u2",
    np.uint32: "u4",
    np.uint64: "u8",
    np.int8: "i1",
    np.int16: "i2",
    np.int32: "i4",
    np.int64: "i8",
    np.float32: "f4",
    np.float64: "f8",
}
_NAMESPACE: dict[str, Any] = {short: np.dtype(kind) for kind, short in _SHORT.items()}
_NAMESPACE |= {"np": np, "H": helpers}


def width(kind: str) -> int:
    """Bytes of a type or kind of register; 0 for predicates."""
    return 0 if kind == "pred" else SIZES[kind]


def constant(value: Immediate, kind: str, instruction: Instruction, held: bool = False) -> Any:
    """An immediate as a NumPy scalar of a PTX type. held: it comes from a register, so it is just bits."""
    dtype = DTYPES[kind]
    if dtype is np.bool_:
        return np.bool_(value.bits != 0)
    bits = value.bits
    if kind == "f64" and value.float_bits == 32 and not held:
        return np.float64(struct.unpack("<f", struct.pack("<I", bits))[0])
    if kind in ("f32", "f64") and value.float_bits is None and not held:
        raise PtxError("an integer where a floating-point constant is expected", instruction=instruction)
    size = np.dtype(dtype).itemsize
    return np.frombuffer((bits & ((1 << 8 * size) - 1)).to_bytes(size, "little"), dtype)[0]


@dataclass
class _Value:
    """What a register holds: a local name, or a constant. shared: the array has another owner."""

    name: str = ""
    constant: Immediate | None = None
    shared: bool = False


class _Writer:
    def __init__(self, program: Program, block: Block, everyone: bool):
        self.program = program
        self.block = block
        self.everyone = everyone
        self.lines: list[str] = []
        self.names: dict[str, Any] = dict(_NAMESPACE)
        self.values: dict[str, _Value] = {}
        self.views: dict[tuple[str, str], str] = {}
        self.count = 0

    def fresh(self, stem: str = "x") -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def bind(self, stem: str, thing: Any) -> str:
        name = self.fresh(stem)
        self.names[name] = thing
        return name

    def line(self, text: str) -> None:
        self.lines.append(text)

    def let(self, text: str) -> str:
        name = self.fresh()
        self.line(f"{name} = {text}")
        return name

    # -- reading

    def read(self, operand: Operand, kind: str, instruction: Instruction) -> tuple[str, Any]:
        """An operand as (name of a local array, None) or, for constants, ("", NumPy scalar)."""
        if isinstance(operand, Register):
            value = self.values[operand.name]
            if value.constant is not None:
                return "", constant(value.constant, kind, instruction, held=True)
            return self.typed(value.name, operand.kind, kind, instruction), None
        if isinstance(operand, Immediate):
            return "", constant(operand, kind, instruction)
        if isinstance(operand, Negated):
            name, scalar = self.read(operand.register, "pred", instruction)
            return (f"(~{name})", None) if name else ("", ~scalar)
        if isinstance(operand, Special):
            special = self.bind("s", operand.name)
            name = self.let(f"g.machine.special({special}, g)")
            return self.typed(name, "b32", kind, instruction), None
        if isinstance(operand, Symbol):
            return "", DTYPES[kind](self.program.layout.address(operand.name, instruction))
        if isinstance(operand, Address):
            return self.address(operand, instruction)
        raise PtxError("an operand of another form is expected", instruction=instruction)

    def typed(self, name: str, held: str, kind: str, instruction: Instruction) -> str:
        """A local array of storage kind `held`, seen as a PTX type."""
        storage, wanted = STORAGE[held], DTYPES[kind]
        if storage is wanted:
            return name
        if (held == "pred") != (kind == "pred") or width(held) < width(kind):
            raise PtxError(f"an operand of type {kind} in a register of {held}", instruction=instruction)
        key = (name, kind)
        if key not in self.views:
            if width(held) == width(kind):
                self.views[key] = self.let(f"{name}.view({_SHORT[wanted]})")
            else:
                unsigned = f"u{width(kind)}"
                view = "" if _SHORT[wanted] == unsigned else f".view({_SHORT[wanted]})"
                self.views[key] = self.let(f"{name}.astype({unsigned}){view}")
        return self.views[key]

    def address(self, operand: Address, instruction: Instruction) -> tuple[str, Any]:
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            value = self.values[base.name]
            if value.constant is None:
                if base.kind not in ("b32", "b64"):
                    raise PtxError(f"an address in a register of {base.kind}", instruction=instruction)
                key = (value.name, "address")
                if key not in self.views:
                    way = "view" if base.kind == "b64" else "astype"
                    self.views[key] = self.let(f"{value.name}.{way}(i8)")
                name = self.views[key]
                return (self.let(f"{name} + {offset}") if offset else name), None
            base = value.constant
        if isinstance(base, Symbol):
            return "", np.int64(self.program.layout.address(base.name, instruction) + offset)
        if isinstance(base, Immediate):
            return "", np.int64((base.bits + offset) & ((1 << 63) - 1))
        name, _ = self.read(base, "b32", instruction)
        return self.let(f"{name}.astype(i8) + {offset}"), None

    def array(self, operand: Operand, kind: str, instruction: Instruction) -> str:
        """An operand as the name of a local array."""
        name, scalar = self.read(operand, kind, instruction)
        if not name:
            name = self.let(f"np.full(n, {self.bind('k', scalar)})")
        return name

    def predicate(self, register: Register, negated: bool, instruction: Instruction) -> str:
        name = self.array(register, "pred", instruction)
        return self.let(f"~{name}") if negated else name

    # -- writing

    def write(self, operand: Operand, kind: str, name: str, instruction: Instruction, shared: bool) -> None:
        """Let a register hold an array of a PTX type."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise PtxError("a destination has to be a register", instruction=instruction)
        held = operand.kind
        if (held == "pred") != (kind == "pred") or width(held) < width(kind):
            raise PtxError(f"a result of type {kind} in a register of {held}", instruction=instruction)
        if width(held) > width(kind):
            wide = f"i{width(held)}" if kind[0] == "s" else f"u{width(held)}"
            view = f".view(u{width(held)})" if kind[0] == "s" else ""
            name, shared = self.let(f"{name}.astype({wide}){view}"), False
        elif DTYPES[kind] is not STORAGE[held]:
            typed = name
            name = self.let(f"{name}.view({_SHORT[STORAGE[held]]})")
            self.views[(name, kind)] = typed
        self.values[operand.name] = _Value(name, shared=shared)

    # -- the parts of a block

    def gather(self) -> None:
        by_number = {number: name for name, number in self.program.registers.items()}
        for number in self.block.gathers:
            name = self.let(f"R[{number}]" if self.everyone else f"R[{number}][t]")
            self.values[by_number[number]] = _Value(name, shared=self.everyone)

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
            value = _Value(constant=source)
        elif isinstance(source, Symbol):
            at = self.program.layout.address(source.name, step.instruction)
            value = _Value(constant=Immediate(at))
        elif isinstance(source, Register) and source.kind == target.kind:
            held = self.values[source.name]
            value = _Value(held.name, held.constant, shared=True)
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
            self.line(f"{to}{run}({', '.join(['g', *names])})")
        else:
            for result, (target, kind) in zip(results, outputs, strict=True):
                self.line(f"{result} = {self.old(target, kind, instruction)}.copy()")
            sub = ", ".join(["g.take(w)", *(f"{name}[w]" for name in names)])
            to = ", ".join(f"{result}[w]" for result in results)
            self.line(f"w = {chosen}.nonzero()[0]")
            self.line(f"if w.size: {to + ' = ' if to else ''}{run}({sub})")
        for result, (target, kind) in zip(results, outputs, strict=True):
            self.write(target, kind, result, instruction, shared=False)

    def scatter(self) -> None:
        by_number = {number: name for name, number in self.program.registers.items()}
        stored: set[str] = set()
        for number in self.block.scatters:
            kind = self.program.kinds[number]
            value = self.values[by_number[number]]
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
        return f"def block_{self.block.index}(g, R, t):\n    {body}\n"


def compile_block(program: Program, block: Block, everyone: bool) -> Callable[[Any, list[Array], Array], Any]:
    """The function of a block. Raises PtxError for operands that do not fit."""
    writer = _Writer(program, block, everyone)
    text = writer.source()
    code = compile(text, f"<{re.sub(r'_+', '_', program.name)} block {block.index}>", "exec")
    exec(code, writer.names)
    function: Callable[[Any, list[Array], Array], Any] = writer.names[f"block_{block.index}"]
    return function


@functools.lru_cache(maxsize=256)
def compiled(ptx: str, entry: str | None = None) -> Program:
    """`program.build`, and every block's function for whole waves, so that faults of the text come first."""
    program = build(ptx, entry)
    for block in program.blocks:
        block.full = compile_block(program, block, True)
    return program
