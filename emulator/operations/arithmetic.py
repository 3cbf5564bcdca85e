"""Integer arithmetic: add, sub, mul, mad, div, rem, neg, abs, min, max, sad."""

from __future__ import annotations

from emulator.ptx.forms import INTEGER, S
from emulator.ptx.instruction import Instruction
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import SIZES

INTEGERS = tuple(INTEGER.split("|"))


def unsigned(kind: str) -> str:
    """The unsigned type of a type's width."""
    return f"u{8 * SIZES[kind]}"


def doubled(kind: str) -> str:
    """The type of twice the width."""
    return f"{kind[0]}{16 * SIZES[kind]}"


def simple(instruction: Instruction, text: str, kind: str, result: str = "") -> Operation:
    """One result of operands that all have a type."""
    target, *sources = instruction.operands
    inputs = tuple((source, kind) for source in sources)
    return Operation(text=text, inputs=inputs, outputs=((target, result or kind),))


def expect(instruction: Instruction, operands: int, *parts: str) -> None:
    """Refuse an instruction with modifiers other than these behind its first part and before its type."""
    if len(instruction.operands) != operands:
        raise ValueError(f"{operands} operands expected")
    for part in instruction.parts[1:-1]:
        if part not in parts:
            instruction.refuse(f"modifier .{part}")


@operation(*(f"{name}.{kind}" for name in ("add", "sub") for kind in INTEGERS), forms=[f"add|sub.{INTEGER}"])
def add_sub(instruction: Instruction) -> Operation:
    """add, sub: wrap around."""
    expect(instruction, 3)
    sign = "+" if instruction.parts[0] == "add" else "-"
    return simple(instruction, f"{{0}} {sign} {{1}}", unsigned(instruction.type))


@operation("add.sat.s32", "sub.sat.s32", forms=["add|sub.sat.s32"])
def add_sat(instruction: Instruction) -> Operation:
    """Clamped addition and subtraction."""
    expect(instruction, 3, "sat")
    return simple(instruction, f"H.saturated({{0}}, {{1}}, {instruction.parts[0] == 'sub'})", "s32")


@operation("mul.lo", forms=[f"mul.lo.{INTEGER}"])
def mul_lo(instruction: Instruction) -> Operation:
    """The lower half of the product."""
    expect(instruction, 3, "lo")
    return simple(instruction, "{0} * {1}", unsigned(instruction.type))


@operation("mul.hi", forms=[f"mul.hi.{INTEGER}"])
def mul_hi(instruction: Instruction) -> Operation:
    """The upper half of the product."""
    expect(instruction, 3, "hi")
    return simple(instruction, "H.mul_hi({0}, {1})", instruction.type)


@operation("mul.wide", forms=["mul.wide.u16|s16|u32|s32"])
def mul_wide(instruction: Instruction) -> Operation:
    """The whole product."""
    expect(instruction, 3, "wide")
    kind = instruction.type
    wide = f"{kind[0].replace('s', 'i')}{2 * SIZES[kind]}"
    return simple(instruction, f"{{0}}.astype({wide}) * {{1}}.astype({wide})", kind, doubled(kind))


@operation("mad.lo", "mad.hi", "mad.wide", forms=[f"mad.lo|hi.{INTEGER}", "mad.wide.u16|s16|u32|s32"])
def mad(instruction: Instruction) -> Operation:
    """A product plus a number."""
    expect(instruction, 4, "lo", "hi", "wide")
    kind, how = instruction.type, instruction.parts[1]
    target, a, b, c = instruction.operands
    if how == "lo":
        return simple(instruction, "{0} * {1} + {2}", unsigned(kind))
    if how == "hi":
        return simple(instruction, "H.mul_hi({0}, {1}) + {2}", kind)
    wide = f"{kind[0].replace('s', 'i')}{2 * SIZES[kind]}"
    return Operation(
        text=f"{{0}}.astype({wide}) * {{1}}.astype({wide}) + {{2}}",
        inputs=((a, kind), (b, kind), (c, doubled(kind))),
        outputs=((target, doubled(kind)),),
    )


@operation(*(f"{name}.{kind}" for name in ("div", "rem") for kind in INTEGERS), forms=[f"div|rem.{INTEGER}"])
def div_rem(instruction: Instruction) -> Operation:
    """Quotient and remainder, rounded toward zero."""
    expect(instruction, 3)
    return simple(instruction, f"H.{instruction.parts[0]}({{0}}, {{1}})", instruction.type)


@operation(*(f"neg.{kind}" for kind in ("s16", "s32", "s64")), forms=[f"neg.{S}"])
def neg(instruction: Instruction) -> Operation:
    """The negative, wrapping around."""
    expect(instruction, 2)
    return simple(instruction, "-{0}", instruction.type)


@operation(*(f"abs.{kind}" for kind in ("s16", "s32", "s64")), forms=[f"abs.{S}"])
def absolute(instruction: Instruction) -> Operation:
    """The absolute value; the smallest number stays itself."""
    expect(instruction, 2)
    return simple(instruction, "np.abs({0})", instruction.type)


@operation(
    *(f"{name}.{kind}" for name in ("min", "max") for kind in INTEGERS),
    *("min.relu.s32", "max.relu.s32"),
    forms=[f"min|max.{INTEGER}", "min|max.relu.s32"],
)
def min_max(instruction: Instruction) -> Operation:
    """Minimum and maximum; relu: not below zero."""
    expect(instruction, 3, "relu")
    name = "minimum" if instruction.parts[0] == "min" else "maximum"
    text = f"np.{name}({{0}}, {{1}})"
    if instruction.has("relu"):
        text = f"np.maximum({text}, np.int32(0))"
    return simple(instruction, text, instruction.type)


@operation("sad", forms=[f"sad.{INTEGER}"])
def sad(instruction: Instruction) -> Operation:
    """c + |a - b|."""
    expect(instruction, 4)
    return simple(instruction, "H.sad({0}, {1}, {2})", instruction.type)
