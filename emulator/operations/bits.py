"""Logic, shifts and bit fields."""

from __future__ import annotations

from emulator.operations.arithmetic import expect, simple, unsigned
from emulator.ptx.forms import INTEGER, B
from emulator.ptx.instruction import Immediate, Instruction
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import SIZES

_LOGIC = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}"}


@operation(*_LOGIC, forms=[f"and|or|xor|not.pred|{B}"])
def logic(instruction: Instruction) -> Operation:
    """Bitwise, or of predicates."""
    name = instruction.parts[0]
    expect(instruction, 2 if name == "not" else 3)
    if instruction.type not in ("pred", "b16", "b32", "b64"):
        instruction.refuse("type")
    return simple(instruction, _LOGIC[name], instruction.type)


@operation("cnot", forms=[f"cnot.{B}"])
def cnot(instruction: Instruction) -> Operation:
    """1 where all bits are zero."""
    expect(instruction, 2)
    kind = unsigned(instruction.type)
    return simple(instruction, f"({{0}} == 0).astype(u{SIZES[kind]})", kind)


@operation("shl", "shr", forms=[f"shl.{B}", f"shr.{B}|{INTEGER}"])
def shift(instruction: Instruction) -> Operation:
    """Shifts; the amount is always 32 bits wide, and past the width it acts as the width."""
    expect(instruction, 3)
    target, a, amount = instruction.operands
    left = instruction.parts[0] == "shl"
    kind = unsigned(instruction.type) if left or instruction.type[0] == "b" else instruction.type
    if isinstance(amount, Immediate) and 0 <= amount.bits < 8 * SIZES[kind]:
        text = f"{{0}} {'<<' if left else '>>'} {{1}}"
        return Operation(text=text, inputs=((a, kind), (amount, kind)), outputs=((target, kind),))
    text = f"H.{instruction.parts[0]}({{0}}, {{1}})"
    return Operation(text=text, inputs=((a, kind), (amount, "u32")), outputs=((target, kind),))


@operation("shf.l", "shf.r", forms=["shf.l|r.wrap|clamp.b32"])
def funnel(instruction: Instruction) -> Operation:
    """Funnel shifts."""
    expect(instruction, 4, "l", "r", "wrap", "clamp")
    left, clamp = instruction.has("l"), instruction.has("clamp")
    return simple(instruction, f"H.funnel({{0}}, {{1}}, {{2}}, {left}, {clamp})", "u32")


@operation("lop3", forms=["lop3.b32"])
def lop3(instruction: Instruction) -> Operation:
    """Any bitwise function of three numbers."""
    expect(instruction, 5)
    target, a, b, c, table = instruction.operands
    if not isinstance(table, Immediate):
        raise ValueError("the table is an immediate")
    inputs = ((a, "u32"), (b, "u32"), (c, "u32"))
    text = f"H.lop3({{0}}, {{1}}, {{2}}, {table.bits & 255})"
    return Operation(text=text, inputs=inputs, outputs=((target, "u32"),))


@operation("prmt", forms=["prmt.b32"])
def prmt(instruction: Instruction) -> Operation:
    """Bytes of two words in any order."""
    expect(instruction, 4)
    return simple(instruction, "H.prmt({0}, {1}, {2})", "u32")


@operation("bfe", forms=["bfe.u32|u64|s32|s64"])
def bfe(instruction: Instruction) -> Operation:
    """A bit field, extracted."""
    expect(instruction, 4)
    target, a, position, length = instruction.operands
    kind = instruction.type
    inputs = ((a, kind), (position, "u32"), (length, "u32"))
    return Operation(text="H.bfe({0}, {1}, {2})", inputs=inputs, outputs=((target, kind),))


@operation("bfi", forms=["bfi.b32|b64"])
def bfi(instruction: Instruction) -> Operation:
    """A bit field, inserted."""
    expect(instruction, 5)
    target, a, b, position, length = instruction.operands
    kind = unsigned(instruction.type)
    inputs = ((a, kind), (b, kind), (position, "u32"), (length, "u32"))
    return Operation(text="H.bfi({0}, {1}, {2}, {3})", inputs=inputs, outputs=((target, kind),))


@operation("popc", "clz", forms=["popc|clz.b32|b64"])
def count(instruction: Instruction) -> Operation:
    """Bits that are set; zeros at the top."""
    expect(instruction, 2)
    name = "popcount" if instruction.parts[0] == "popc" else "clz"
    return simple(instruction, f"H.{name}({{0}})", unsigned(instruction.type), "u32")


@operation("bfind", forms=["bfind{.shiftamt}.u32|u64|s32|s64"])
def bfind(instruction: Instruction) -> Operation:
    """The highest bit that says something."""
    expect(instruction, 2, "shiftamt")
    return simple(instruction, f"H.bfind({{0}}, {instruction.has('shiftamt')})", instruction.type, "u32")


@operation("brev", forms=["brev.b32|b64"])
def brev(instruction: Instruction) -> Operation:
    """Bits in reverse order."""
    expect(instruction, 2)
    return simple(instruction, "H.brev({0})", unsigned(instruction.type))
