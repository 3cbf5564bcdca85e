"""A parsed PTX module as data: kernels, their parameters, variables, labels and instructions."""

from __future__ import annotations

from dataclasses import dataclass, field

from emulator.ptx.instruction import Instruction


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: its type without the dot, and the bytes of one that is an array of b8 (else 0)."""

    name: str
    type: str
    array_bytes: int = 0


@dataclass(frozen=True)
class Variable:
    """A variable in `.shared`, `.local`, `.global` or `.const` space. bytes: 0 for `name[]`."""

    name: str
    space: str
    align: int
    bytes: int


@dataclass
class Kernel:
    """An entry. labels: number of the instruction that each stands before (unique names)."""

    name: str
    line: int
    parameters: list[Parameter] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    required: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """`.reqntid`, `.maxntid`, `.reqnctapercluster` ... and their numbers."""


@dataclass
class Module:
    """The kernels of a PTX text by name, and the variables outside them."""

    target: str = ""
    kernels: dict[str, Kernel] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
