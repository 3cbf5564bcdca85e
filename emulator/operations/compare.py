"""Comparison and selection: setp, selp, slct."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.numerics import environment
from emulator.operations.arithmetic import expect
from emulator.ptx.forms import INTEGER, REGISTER, B, U
from emulator.ptx.instruction import Instruction, Operand, Pair, Sink
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import SIZES
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

_INTEGER = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_FLOAT = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_JOIN = {"and": "&", "or": "|", "xor": "^"}
_FLOATS = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
_JOINS = "{.and|or|xor}"


def comparison(instruction: Instruction, how: str, kind: str) -> str:
    """The text of a comparison of {0} and {1}."""
    if kind not in ("f32", "f64"):
        return f"({{0}} {_INTEGER[how]} {{1}})"
    if how == "num":
        return "(({0} == {0}) & ({1} == {1}))"
    if how == "nan":
        return "(({0} != {0}) | ({1} != {1}))"
    if how == "ne":
        # Ordered: false where one is NaN; NumPy's != is not.
        return "(({0} < {1}) | ({0} > {1}))"
    if how in _FLOAT:
        return f"({{0}} {_FLOAT[how]} {{1}})"
    if how == "equ":
        return "~(({0} < {1}) | ({0} > {1}))"
    opposite = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
    if how not in opposite:
        instruction.refuse(f"comparison .{how}")
    return f"~({{0}} {opposite[how]} {{1}})"


@operation(
    "setp",
    forms=[
        f"setp.eq|ne{_JOINS}.{B}",
        f"setp.eq|ne|lt|le|gt|ge{_JOINS}.{INTEGER}",
        f"setp.lo|ls|hi|hs{_JOINS}.{U}",
        f"setp.{_FLOATS}{_JOINS}{{.ftz}}.f32",
        f"setp.{_FLOATS}{_JOINS}.f64",
    ],
)
def setp(instruction: Instruction) -> Operation:
    """Compare, and join with a predicate; `p|q` gets the negated comparison in q."""
    parts = [part for part in instruction.parts[1:-1] if part != "ftz"]
    kind, flush = instruction.type, instruction.has("ftz")
    target, a, b, *rest = instruction.operands
    join = parts[1] if len(parts) == 2 else ""
    if len(parts) > 2 or len(rest) != bool(join):
        raise ValueError("modifiers and operands do not fit")
    inputs: list[tuple[Operand, str]] = [(a, kind), (b, kind)] + [(c, "pred") for c in rest]
    text = comparison(instruction, parts[0], kind)
    if not isinstance(target, Pair) and not flush:
        text = f"{text} {_JOIN[join]} {{2}}" if join else text
        return Operation(text=text, inputs=tuple(inputs), outputs=((target, "pred"),))

    compare = eval(f"lambda a, b: {text.format('a', 'b')}")

    def run(machine: Machine, group: Group, a: Array, b: Array, *c: Array) -> Any:
        if flush:
            a, b = environment.flushed(a), environment.flushed(b)
        first = compare(a, b)
        second = ~first
        if c:
            ufunc = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[join]
            first, second = ufunc(first, c[0]), ufunc(second, c[0])
        return (first, second) if isinstance(target, Pair) else first

    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    return Operation(run=run, inputs=tuple(inputs), outputs=tuple((t, "pred") for t in targets))


@operation("selp", forms=[f"selp.{REGISTER}"])
def selp(instruction: Instruction) -> Operation:
    """a where the predicate holds, else b."""
    expect(instruction, 4)
    target, a, b, predicate = instruction.operands
    kind = f"b{8 * SIZES[instruction.type]}"
    text = "np.where({2}, {0}, {1})"
    inputs = ((a, kind), (b, kind), (predicate, "pred"))
    return Operation(text=text, inputs=inputs, outputs=((target, kind),))


@operation("slct", forms=[f"slct.{REGISTER}.s32"])
def slct(instruction: Instruction) -> Operation:
    """a where c >= 0, else b."""
    *modifiers, kind, by = instruction.parts[1:]
    if modifiers or by != "s32" or isinstance(instruction.operands[0], Sink):
        instruction.refuse()
    target, a, b, c = instruction.operands
    kind = f"b{8 * SIZES[kind]}"
    inputs = ((a, kind), (b, kind), (c, "s32"))
    return Operation(text="np.where({2} >= 0, {0}, {1})", inputs=inputs, outputs=((target, kind),))
