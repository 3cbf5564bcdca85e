"""PTX text to data: `parse(text)` gives a `Module`.

Contract
    Names that a block in braces declares (registers, labels) are made unique, so an inline-asm block that is
    expanded many times does not meet itself. Nothing here knows what an instruction means. Whatever is not
    PTX raises PtxError with its line.
"""

from __future__ import annotations

import re

from emulator.errors import Place, PtxError, Unsupported
from emulator.ptx.instruction import Instruction, Symbol
from emulator.ptx.kernel import Kernel, Module, Parameter, Variable
from emulator.ptx.lexer import Cursor
from emulator.ptx.operands import Operands, Scope, as_f32
from emulator.ptx.types import SIZES

_OPCODE = re.compile(r"[a-z]\w*(\.\w+(::\w+)*)*")


def parse(ptx: str) -> Module:
    """Parse PTX text. Raises PtxError; functions are skipped, and their calls are Unsupported."""
    return _Parser(ptx).module()


class _Parser(Cursor):
    def __init__(self, ptx: str):
        super().__init__(ptx)
        self.files = self._files()
        self.source = ""

    def _files(self) -> dict[str, str]:
        files = {}
        for token in self.tokens:
            if token.kind == "line" and token.text.startswith(".file"):
                number, _, name = token.text[5:].strip().partition(" ")
                files[number] = name.strip().split('"')[1] if '"' in name else name
        return files

    def module(self) -> Module:
        module = Module()
        while self.at < len(self.tokens):
            token = self.next()
            word = token.text
            if token.kind == "line":
                continue
            if word == ".version":
                self.next()
            elif word == ".address_size":
                if self.integer() != 64:
                    raise Unsupported("only 64-bit addresses are covered", place=token.place)
            elif word == ".target":
                module.target = self.next().text
                while self.accept(","):
                    self.next()
            elif word in (".visible", ".weak", ".extern", ".common"):
                continue
            elif word == ".entry":
                kernel = self.kernel(token.line)
                module.kernels[kernel.name] = kernel
            elif word in (".shared", ".global", ".const"):
                module.variables.append(self.variable(word[1:]))
            elif word == ".func":
                self.skip_function()
            elif word == ".section":
                self.next()
                self.skip_braces()
            elif word.startswith(".pragma"):
                self.skip_to(";")
            else:
                raise PtxError(f"{word!r} is not expected outside a kernel", place=token.place)
        if not module.kernels:
            raise PtxError("there is no .entry in the text", place=Place(line=self.last_line()))
        return module

    def skip_function(self) -> None:
        while self.peek().text not in (";", "{"):
            self.next()
        if not self.accept(";"):
            self.skip_braces()

    def variable(self, space: str) -> Variable:
        align, count = 1, 1
        while self.accept(".align"):
            align = self.integer()
        token = self.next()
        if token.text[1:] not in SIZES:
            raise PtxError(f"{token.text!r} is not a type of variables", place=token.place)
        size = SIZES[token.text[1:]]
        name = self.next().text
        while self.accept("["):
            count *= 0 if self.peek().text == "]" else self.integer()
            self.expect("]")
        if self.accept("="):
            if self.peek().text == "{":
                self.skip_braces()
            else:
                self.next()
        self.expect(";")
        return Variable(name, space, max(align, size), size * count)

    def kernel(self, line: int) -> Kernel:
        kernel = Kernel(self.next().text, line)
        if self.accept("("):
            while not self.accept(")"):
                kernel.parameters.append(self.parameter())
                self.accept(",")
        while self.peek().text != "{":
            token = self.next()
            if not token.text.startswith("."):
                raise PtxError(f"a directive expected, not {token.text!r}", place=token.place)
            numbers = []
            while self.peek().kind == "number":
                numbers.append(self.integer())
                self.accept(",")
            kernel.required[token.text[1:]] = tuple(numbers)
        self.body(kernel)
        return kernel

    def parameter(self) -> Parameter:
        self.expect(".param")
        while self.accept(".align"):
            self.integer()
        token = self.next()
        kind = token.text[1:]
        if kind not in SIZES:
            raise PtxError(f"{token.text!r} is not a type of parameters", place=token.place)
        while self.peek().text in (".ptr", ".global", ".shared", ".const", ".local", ".align"):
            if self.next().text == ".align":
                self.integer()
        name, size = self.next().text, 0
        if self.accept("["):
            size = SIZES[kind] * self.integer()
            self.expect("]")
        return Parameter(name, kind, size)

    def body(self, kernel: Kernel) -> None:
        self.expect("{")
        self.operands = Operands(self)
        scopes = self.operands.scopes
        self.source = ""
        count = 0
        branches: list[tuple[int, tuple[Scope, ...]]] = []
        while scopes:
            token = self.next()
            text = token.text
            if text == "{":
                count += 1
                scopes.append(Scope(count))
            elif text == "}":
                scopes.pop()
            elif token.kind == "line":
                self.locate(text)
            elif text == ".reg":
                self.operands.registers()
            elif text in (".shared", ".local"):
                kernel.variables.append(self.variable(text[1:]))
            elif text == ".pragma":
                self.skip_to(";")
            elif text == ";":
                continue
            elif text == "@" or token.kind == "word":
                if text != "@" and self.accept(":"):
                    self.label(kernel, text, token.line)
                else:
                    self.at -= 1
                    if self.instruction(kernel):
                        branches.append((len(kernel.instructions) - 1, tuple(scopes)))
            else:
                raise PtxError(f"an instruction expected, not {text!r}", place=token.place)
        for number, visible in branches:
            self.resolve(kernel, number, visible)

    def label(self, kernel: Kernel, name: str, line: int) -> None:
        scope = self.operands.scopes[-1]
        if name in scope.labels:
            raise PtxError(f"the label {name} is there twice", place=Place(line=line))
        scope.labels.add(name)
        kernel.labels[scope.unique(name)] = len(kernel.instructions)

    def resolve(self, kernel: Kernel, number: int, scopes: tuple[Scope, ...]) -> None:
        old = kernel.instructions[number]
        target = old.operands[0] if old.operands else None
        name = target.name if isinstance(target, Symbol) else ""
        for scope in reversed(scopes):
            if name in scope.labels:
                break
        else:
            raise PtxError(f"there is no label {name}", place=old.place)
        operands = (Symbol(scope.unique(name)), *old.operands[1:])
        kernel.instructions[number] = Instruction(**{**vars(old), "operands": operands})

    def locate(self, text: str) -> None:
        parts = text.split()
        if parts[0] == ".loc" and len(parts) >= 3:
            self.source = f"{self.files.get(parts[1], parts[1])}:{parts[2].rstrip(',')}"

    def instruction(self, kernel: Kernel) -> bool:
        """Parse one; True for a branch, whose label is still to be found."""
        predicate, negated = None, False
        first = self.peek()
        start, line = first.end - len(first.text), first.line
        if self.accept("@"):
            negated = self.accept("!")
            token = self.next()
            predicate = self.operands.find_register(token.text)
            if predicate is None or predicate.kind != "pred":
                raise PtxError(f"{token.text} is not a declared predicate", place=token.place)
        token = self.next()
        opcode = token.text
        if token.kind != "word" or not _OPCODE.fullmatch(opcode):
            raise PtxError(f"{opcode!r} is not an opcode", place=token.place)
        operands = []
        if not self.accept(";"):
            operands.append(self.operands.operand())
            while not self.accept(";"):
                token = self.peek()
                if not self.accept(","):
                    raise PtxError(f"',' or ';' expected, not {token.text!r}", place=token.place)
                operands.append(self.operands.operand())
        if opcode.endswith(".f32"):
            operands = [as_f32(operand) for operand in operands]
        said = " ".join(self.ptx[start : self.tokens[self.at - 1].end].split())
        kernel.instructions.append(
            Instruction(
                opcode=opcode,
                parts=tuple(re.split(r"\.", opcode)),
                operands=tuple(operands),
                predicate=predicate,
                negated=negated,
                line=line,
                source=self.source,
                text=said.removesuffix(";").rstrip(),
                kernel=kernel.name,
            )
        )
        return opcode == "bra" or opcode.startswith("bra.")
