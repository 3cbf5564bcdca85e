"""Operands of instructions, and the names that they use: registers and labels of nested braces."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import numpy as np

from emulator.errors import PtxError, Unsupported
from emulator.ptx.instruction import (
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Scalar,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)
from emulator.ptx.lexer import Cursor, Token
from emulator.ptx.types import SIZES

_RANGE_LIMIT = 1 << 20


@dataclass
class Scope:
    """What one pair of braces declares. number: 0 for the kernel's own."""

    number: int
    registers: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)

    def unique(self, name: str) -> str:
        """The name as it is known outside the braces."""
        return f"{name}@{self.number}" if self.number else name


class Operands:
    """Reads operands at a cursor. scopes: the braces that it stands in, the innermost last."""

    def __init__(self, cursor: Cursor):
        self.cursor = cursor
        self.scopes = [Scope(0)]

    def registers(self) -> None:
        """The rest of a `.reg` directive."""
        token = self.cursor.next()
        kind = token.text[1:]
        if kind != "pred":
            if kind not in SIZES and kind != "b128":
                raise PtxError(f"{token.text!r} is not a type of registers", place=token.place)
            if SIZES.get(kind, 0) < 2:
                raise Unsupported(f"registers of type {token.text} are not covered", place=token.place)
            kind = f"b{8 * SIZES[kind]}"
        scope = self.scopes[-1]
        while True:
            name = self.cursor.next().text
            if self.cursor.accept("<"):
                limit = self.cursor.integer()
                self.cursor.expect(">")
                if limit > _RANGE_LIMIT:
                    raise PtxError(f"{limit} registers {name} are too many", place=token.place)
                scope.ranges[name] = (limit, kind)
            else:
                scope.registers[name] = Register(scope.unique(name), kind)
            if not self.cursor.accept(","):
                break
        self.cursor.expect(";")

    def find_register(self, name: str) -> Register | None:
        """The register of this name that is visible here."""
        for scope in reversed(self.scopes):
            found = scope.registers.get(name)
            if found is not None:
                return found
            stem = name.rstrip("0123456789")
            if stem in scope.ranges and stem != name and int(name[len(stem) :]) < scope.ranges[stem][0]:
                found = scope.registers[name] = Register(scope.unique(name), scope.ranges[stem][1])
                return found
        return None

    def operand(self) -> Operand:
        """One operand."""
        token = self.cursor.peek()
        if token.text == "{":
            return self._vector()
        if token.text == "(":
            raise Unsupported(f"calls are not covered: {token.text!r}", place=token.place)
        if token.text == "[":
            self.cursor.expect("[")
            return self._address(tensors=True)
        first = self._scalar()
        if self.cursor.accept("|"):
            return Pair(first, self._scalar())
        return first

    def _vector(self) -> Vector:
        self.cursor.expect("{")
        elements = []
        while True:
            elements.append(self._scalar())
            if not self.cursor.accept(","):
                break
        self.cursor.expect("}")
        return Vector(tuple(elements))

    def _scalar(self) -> Scalar:
        if self.cursor.accept("["):
            return self._plain_address()
        if self.cursor.accept("!"):
            token = self.cursor.peek()
            found = self._scalar()
            if not isinstance(found, Register):
                raise PtxError(f"a predicate expected, not {token.text!r}", place=token.place)
            return Negated(found)
        negative = self.cursor.accept("-")
        token = self.cursor.next()
        if token.kind == "number":
            return _number(token, negative)
        if negative or token.kind != "word":
            raise PtxError(f"an operand expected, not {token.text!r}", place=token.place)
        return self._name(token)

    def _name(self, token: Token) -> Scalar:
        text = token.text
        if text == "_":
            return Sink()
        found = self.find_register(text)
        if found is not None:
            return found
        if text.startswith("%"):
            if re.fullmatch(r"%[a-zA-Z]+\d+", text) and not text.startswith(("%clock", "%envreg", "%pm")):
                raise PtxError(f"the register {text} is not declared", place=token.place)
            return Special(text)
        return Symbol(text)

    def _plain_address(self) -> Scalar:
        found = self._address(tensors=False)
        assert isinstance(found, Address)
        return found

    def _address(self, tensors: bool) -> Address | TensorAddress:
        token = self.cursor.peek()
        base = self._scalar()
        if isinstance(base, Address | Sink | Negated):
            raise PtxError(f"an address expected, not {token.text!r}", place=token.place)
        offset = 0
        if self.cursor.peek().text in ("+", "-"):
            sign = -1 if self.cursor.next().text == "-" else 1
            offset = sign * self.cursor.integer()
        token = self.cursor.next()
        if token.text == "," and tensors and self.cursor.peek().text == "{":
            coordinates = self._vector().elements
            self.cursor.expect("]")
            return TensorAddress(Address(base, offset), coordinates)
        if token.text != "]":
            raise PtxError(f"']' expected, not {token.text!r}", place=token.place)
        return Address(base, offset)


def as_f32(operand: Operand) -> Operand:
    """An operand of an instruction on FP32 numbers, where constants written as FP64 ones are rounded."""
    if isinstance(operand, Vector):
        return Vector(tuple(_rounded(element) for element in operand.elements))
    return operand if isinstance(operand, Pair | TensorAddress) else _rounded(operand)


def _rounded(operand: Scalar) -> Scalar:
    if not isinstance(operand, Immediate) or operand.float_bits != 64:
        return operand
    (value,) = struct.unpack("<d", struct.pack("<Q", operand.bits))
    return Immediate(int(np.float32(value).view(np.uint32)), 32)


def _number(token: Token, negative: bool) -> Immediate:
    text = token.text.rstrip("U")
    if text[:2] in ("0f", "0F"):
        return Immediate(int(text[2:], 16) ^ (negative << 31), 32)
    if text[:2] in ("0d", "0D"):
        return Immediate(int(text[2:], 16) ^ (negative << 63), 64)
    if not text.startswith(("0x", "0X")) and re.search(r"[.eE]", text):
        value = -float(text) if negative else float(text)
        return Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], 64)
    try:
        number = int(text, 8 if text.isdigit() and text.startswith("0") else 0)
    except ValueError:
        raise PtxError(f"{token.text} is not a number", place=token.place) from None
    return Immediate(-number if negative else number)
