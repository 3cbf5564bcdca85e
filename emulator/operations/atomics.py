"""atom and red: read-modify-write, one thread after the other where several meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.numerics import arithmetic
from emulator.operations.loads import check_modifiers, space_of
from emulator.ptx.forms import SCOPE
from emulator.ptx.instruction import Instruction
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import SIZES
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

Update = Callable[[Array, Array, Array], Array]

_UPDATES: dict[str, Update] = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: np.minimum(old, b),
    "max": lambda old, b, c: np.maximum(old, b),
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b, c: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b, c: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}
_TYPES = {
    **dict.fromkeys(("add",), ("u32", "s32", "u64", "s64", "f32")),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    **dict.fromkeys(("exch", "cas"), ("b16", "b32", "b64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
}


def _forms() -> list[str]:
    """By operation: its types. red takes no .acquire, and only the operations that need no result."""
    space = "{.global|shared|shared::cta|shared::cluster}"
    forms = [
        f"atom{{.relaxed|acquire|release|acq_rel}}{{{SCOPE}}}{space}.{name}.{'|'.join(kinds)}"
        for name, kinds in _TYPES.items()
    ]
    return forms + [
        f"red{{.relaxed|release}}{{{SCOPE}}}{space}.{name}.{'|'.join(kinds)}"
        for name, kinds in _TYPES.items()
        if name not in ("exch", "cas")
    ]


@operation("atom", "red", any_order=True, forms=_forms())
def atomic(instruction: Instruction) -> Operation:
    """Read-modify-write; atom returns what was there before."""
    kind = instruction.type
    name = next((part for part in instruction.parts if part in _UPDATES), "")
    if kind not in _TYPES.get(name, ()):
        instruction.refuse("operation or type")
    check_modifiers(instruction, name, "acq_rel")
    space = space_of(instruction)
    returns = instruction.parts[0] == "atom"
    operands = list(instruction.operands)
    target = operands.pop(0) if returns else None
    address, *sources = operands
    if len(sources) != (2 if name == "cas" else 1):
        instruction.refuse("operands")
    update = _UPDATES[name]
    if kind == "f32":
        update = _add_f32(ftz=space == "global")
    size = SIZES[kind]

    def run(machine: Machine, group: Group, at: Array, *values: Array) -> Any:
        b, c = values[0], values[-1]
        before = np.empty(group.size, b.dtype)
        for region, offsets, elements in machine.memory.access("atomic", space, at, size, group, instruction):
            chosen = np.arange(group.size) if elements is None else elements
            cells = region.words(size).view(b.dtype)
            index = offsets >> (size.bit_length() - 1)
            if machine.random is not None:
                order = machine.random.permutation(len(chosen))
                chosen, index = chosen[order], index[order]
            for turn in turns(index):
                at_once, who = index[turn], chosen[turn]
                old = cells[at_once]
                before[who] = old
                cells[at_once] = update(old, b[who], c[who])
        return before if returns else None

    inputs = ((address, "b64"), *((source, kind) for source in sources))
    outputs = () if target is None else ((target, kind),)
    return Operation(run=run, inputs=inputs, outputs=outputs, polls=returns)


def turns(index: Array) -> list[Array]:
    """Positions that can be handled at once: the first of each index, then the second of each, and so on."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    if len(starts) == len(index):
        return [np.arange(len(index))]
    turn = np.arange(len(index)) - np.repeat(starts, np.diff(np.r_[starts, len(index)]))
    return [order[turn == n] for n in range(int(turn.max()) + 1)]


def _add_f32(ftz: bool) -> Update:
    def update(old: Array, b: Array, c: Array) -> Array:
        return arithmetic.add(old, b, ftz=ftz)

    return update
