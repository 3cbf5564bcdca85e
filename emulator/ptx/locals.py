"""Names of a block's local arrays: what each register holds, and its views as other types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.errors import PtxError
from emulator.numerics import integers
from emulator.ptx.instruction import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Special,
    Symbol,
)
from emulator.ptx.program import Block, Program
from emulator.ptx.storage import STORAGE, constant, width
from emulator.ptx.types import DTYPES

SHORT = {
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
_NAMESPACE: dict[str, Any] = {short: np.dtype(kind) for kind, short in SHORT.items()}
_NAMESPACE |= {"np": np, "H": integers}


@dataclass
class Value:
    """What a register holds: a local name, or a constant. shared: the array has another owner."""

    name: str = ""
    constant: Immediate | None = None
    shared: bool = False


class Locals:
    """The source of a block as it grows: its lines, the things that they name, and what registers hold."""

    def __init__(self, program: Program, block: Block, everyone: bool):
        self.program = program
        self.block = block
        self.everyone = everyone
        self.lines: list[str] = []
        self.names: dict[str, Any] = dict(_NAMESPACE)
        self.values: dict[str, Value] = {}
        self.views: dict[tuple[str, str], str] = {}
        self.count = 0

    def fresh(self, stem: str = "x") -> str:
        """A name that nothing has yet."""
        self.count += 1
        return f"{stem}_{self.count}"

    def bind(self, stem: str, thing: Any) -> str:
        """A name for a constant or a function."""
        name = self.fresh(stem)
        self.names[name] = thing
        return name

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append(text)

    def let(self, text: str) -> str:
        """Add a line that names the value of an expression."""
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
            name = self.let(f"m.special({special}, g)")
            return self.typed(name, "b32", kind, instruction), None
        if isinstance(operand, Symbol):
            return "", DTYPES[kind](self.program.layout.address(operand.name, instruction))
        if isinstance(operand, Address):
            return self.address(operand, instruction)
        raise PtxError("an operand of another form is expected", place=instruction.place)

    def typed(self, name: str, held: str, kind: str, instruction: Instruction) -> str:
        """A local array of storage kind `held`, seen as a PTX type."""
        storage, wanted = STORAGE[held], DTYPES[kind]
        if storage is wanted:
            return name
        if (held == "pred") != (kind == "pred") or width(held) < width(kind):
            raise PtxError(f"an operand of type {kind} in a register of {held}", place=instruction.place)
        key = (name, kind)
        if key not in self.views:
            if width(held) == width(kind):
                self.views[key] = self.let(f"{name}.view({SHORT[wanted]})")
            else:
                unsigned = f"u{width(kind)}"
                view = "" if SHORT[wanted] == unsigned else f".view({SHORT[wanted]})"
                self.views[key] = self.let(f"{name}.astype({unsigned}){view}")
        return self.views[key]

    def address(self, operand: Address, instruction: Instruction) -> tuple[str, Any]:
        """An address, as `read` gives operands: int64."""
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            value = self.values[base.name]
            if value.constant is None:
                if base.kind not in ("b32", "b64"):
                    raise PtxError(f"an address in a register of {base.kind}", place=instruction.place)
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
        """The name of an array of bool: where a predicate holds, or does not."""
        name = self.array(register, "pred", instruction)
        return self.let(f"~{name}") if negated else name
