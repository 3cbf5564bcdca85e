"""ld and st of all spaces, with vectors and memory order."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.ptx.forms import MEMORY, SCOPE
from emulator.ptx.instruction import Address, Instruction, Operand, Symbol, Vector
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import SIZES
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")
ORDERS = ("weak", "relaxed", "acquire", "release", "volatile", "mmio")
SCOPES = ("cta", "cluster", "gpu", "sys")


def space_of(instruction: Instruction) -> str:
    """The space of an access, as `Memory` names it."""
    for part in instruction.parts:
        if part in SPACES:
            return "shared::cta" if part == "shared" else part
    return "generic"


def check_modifiers(instruction: Instruction, *more: str) -> None:
    """Refuse modifiers that mean something that is not modelled; caching hints mean nothing here."""
    for part in instruction.parts[1:-1]:
        if part in SPACES or part in ORDERS or part in SCOPES or part in more:
            continue
        if not part.startswith(("L1::", "L2::")):
            instruction.refuse(f"modifier .{part}")


def vector(instruction: Instruction, operand: Operand) -> tuple[Operand, ...]:
    """The registers that are loaded or stored, as many as `.v` says."""
    count = next((int(part[1:]) for part in ("v2", "v4", "v8") if part in instruction.parts), 1)
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise ValueError("the vector's size and the number of registers differ")
    return elements


_VECTOR = "{.v2|v4|v8}"
_L1 = "{.L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate}"
_L2 = "{.L2::evict_normal|L2::evict_first|L2::evict_last}"
_FETCH = "{.L2::64B|L2::128B|L2::256B}"
_READABLE = "{.global|shared|shared::cta|shared::cluster|local|param}"
_WRITABLE = "{.global|shared|shared::cta|shared::cluster|local}"


@operation(
    "ld",
    any_order=True,
    forms=[
        f"ld{{.weak}}{_READABLE}{{.ca|cg|cs|lu|cv}}{_L1}{_L2}{_FETCH}{_VECTOR}.{MEMORY}",
        f"ld{{.weak}}.global{{.ca|cg|cs}}.nc{_L1}{_L2}{_FETCH}{_VECTOR}.{MEMORY}",
        f"ld.volatile{_READABLE}{_FETCH}{_VECTOR}.{MEMORY}",
        f"ld.relaxed|acquire{SCOPE}{_READABLE}{_L1}{_L2}{_FETCH}{_VECTOR}.{MEMORY}",
        f"ld.mmio.relaxed.sys{{.global}}.{MEMORY}",
    ],
)
def load(instruction: Instruction) -> Operation:
    """A load. One with an order, in a loop, may wait for another thread's store: it polls."""
    check_modifiers(instruction, "nc", "v2", "v4", "v8", "ca", "cg", "cs", "lu", "cv")
    target, address, *policy = instruction.operands
    if policy or not isinstance(address, Address):
        instruction.refuse("operands")
    space = space_of(instruction)
    if space == "param":
        return _parameter(instruction, target, address)
    if space == "const":
        instruction.refuse("constant memory")
    elements = vector(instruction, target)
    width, count = SIZES[instruction.type], len(elements)
    signed = instruction.type[0] == "s"

    def run(machine: Machine, group: Group, at: Array) -> Any:
        words = machine.memory.load_words(space, at, width, count, group, instruction)
        if signed:
            words = [word.view(f"i{width}") for word in words]
        return words if count > 1 else words[0]

    kind = f"{'s' if signed else 'b'}{8 * width}"
    polls = instruction.has("relaxed", "acquire", "volatile", "mmio")
    outputs = tuple((element, kind) for element in elements)
    return Operation(run=run, inputs=((address, "b64"),), outputs=outputs, polls=polls)


def _parameter(instruction: Instruction, target: Operand, address: Address) -> Operation:
    """A kernel's argument, or a part of one: compilers read only the half of a number that is used."""
    if not isinstance(address.base, Symbol):
        instruction.refuse("a parameter by address")
    name, width, offset = address.base.name, SIZES[instruction.type], address.offset

    def run(machine: Machine, group: Group) -> Any:
        value = machine.parameters[name]
        if offset % width or not 0 <= offset <= value.dtype.itemsize - width:
            instruction.refuse(f"{width} bytes at {offset} of a parameter of {value.dtype.itemsize}")
        return np.full(group.size, np.frombuffer(value.tobytes(), f"<u{width}", 1, offset))

    return Operation(run=run, outputs=((target, f"b{8 * width}"),))


@operation(
    "st",
    any_order=True,
    forms=[
        f"st{{.weak}}{_WRITABLE}{{.wb|cg|cs|wt}}{_L1}{_L2}{_VECTOR}.{MEMORY}",
        f"st.volatile{_WRITABLE}{_VECTOR}.{MEMORY}",
        f"st.relaxed|release{SCOPE}{_WRITABLE}{_L1}{_L2}{_VECTOR}.{MEMORY}",
        f"st.mmio.relaxed.sys{{.global}}.{MEMORY}",
    ],
)
def store(instruction: Instruction) -> Operation:
    """A store."""
    check_modifiers(instruction, "v2", "v4", "v8", "wb", "cg", "cs", "wt")
    address, source, *policy = instruction.operands
    if policy or not isinstance(address, Address):
        instruction.refuse("operands")
    space = space_of(instruction)
    if space in ("param", "const"):
        instruction.refuse("space")
    elements = vector(instruction, source)
    kind = f"b{8 * SIZES[instruction.type]}"

    def run(machine: Machine, group: Group, at: Array, *words: Array) -> None:
        machine.memory.store_words(space, at, words, group, instruction)

    return Operation(run=run, inputs=((address, "b64"), *((element, kind) for element in elements)))
