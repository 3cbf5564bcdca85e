"""mov with pack and unpack, cvta, isspacep, mapa, getctarank."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.errors import MemoryFault
from emulator.numerics import integers
from emulator.operations.arithmetic import expect
from emulator.ptx.forms import REGISTER
from emulator.ptx.instruction import Address, Instruction, Sink, Vector
from emulator.ptx.layout import LOCAL_WINDOW, RANK_SHIFT, SHARED_WINDOW
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import SIZES
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

WINDOWS = {"global": 0, "const": 0, "param": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


@operation("mov", forms=[f"mov.pred|{REGISTER}"])
def mov(instruction: Instruction) -> Operation:
    """A move; with a vector on one side, its parts packed or unpacked."""
    expect(instruction, 2)
    target, source = instruction.operands
    if instruction.type == "pred":
        return Operation(text="{0}", inputs=((source, "pred"),), outputs=((target, "pred"),))
    size = SIZES[instruction.type]
    kind = f"b{8 * size}"
    if isinstance(source, Vector):
        part = f"b{8 * size // len(source.elements)}"

        def pack(machine: Machine, group: Group, *parts: Array) -> Array:
            return integers.join(*parts)

        inputs = tuple((element, part) for element in source.elements)
        return Operation(run=pack, inputs=inputs, outputs=((target, kind),))
    if isinstance(target, Vector):
        count = len(target.elements)
        part = f"b{8 * size // count}"

        def unpack(machine: Machine, group: Group, word: Array) -> Any:
            return tuple(integers.parts_of(word, count))

        outputs = tuple((element, part) for element in target.elements)
        return Operation(run=unpack, inputs=((source, kind),), outputs=outputs)
    if isinstance(source, Address | Sink):
        raise ValueError("an address is no source")
    return Operation(text="{0}", inputs=((source, kind),), outputs=((target, kind),))


@operation("cvta", forms=["cvta{.to}.const|global|local|param|shared|shared::cta|shared::cluster.u64"])
def cvta(instruction: Instruction) -> Operation:
    """Addresses of a space to generic ones and back."""
    to = instruction.parts[1] == "to"
    space = instruction.parts[2 if to else 1].split("::")[0]
    if space not in WINDOWS or instruction.type != "u64":
        instruction.refuse()
    target, source = instruction.operands
    window = WINDOWS[space]
    text = f"{{0}} {'-' if to else '+'} np.uint64({window})" if window else "{0}"
    return Operation(text=text, inputs=((source, "u64"),), outputs=((target, "u64"),))


@operation("isspacep", forms=["isspacep.global|local|shared|shared::cluster"])
def isspacep(instruction: Instruction) -> Operation:
    """Whether a generic address lies in a space."""
    space = instruction.type.split("::")[0]
    if space not in ("global", "shared", "local") or instruction.type == "shared::cta":
        instruction.refuse()
    target, source = instruction.operands
    shared, local = (
        f"(({{0}} >> np.uint64(40)) == np.uint64({w >> 40}))" for w in (SHARED_WINDOW, LOCAL_WINDOW)
    )
    text = {"shared": shared, "local": local, "global": f"~({shared} | {local})"}[space]
    return Operation(text=text, inputs=((source, "u64"),), outputs=((target, "pred"),))


@operation("mapa", forms=["mapa{.shared::cluster}.u32|u64"])
def mapa(instruction: Instruction) -> Operation:
    """The address of a CTA's own shared memory, in another CTA of the cluster."""
    generic, kind = not instruction.has("shared::cluster"), instruction.type
    target, source, rank = instruction.operands

    def run(machine: Machine, group: Group, address: Array, to: Array) -> Array:
        at = address.astype(np.int64) - (SHARED_WINDOW if generic else 0)
        named = at >> RANK_SHIFT
        wrong = (to >= group.geometry.cluster_size) | ((named != 0) & (named != group.rank + 1))
        if wrong.any():
            element = int(np.argmax(wrong))
            why = (
                f"rank {int(to[element])} of a cluster of {group.geometry.cluster_size}"
                if to[element] >= group.geometry.cluster_size
                else "mapa of an address that is not in the CTA's own shared memory"
            )
            raise MemoryFault(
                why,
                place=instruction.place,
                thread=group.describe(element),
                address=f"{int(address[element]):#x}",
            )
        mapped = (at & ((1 << RANK_SHIFT) - 1)) | ((to.astype(np.int64) + 1) << RANK_SHIFT)
        return (mapped + (SHARED_WINDOW if generic else 0)).astype(np.dtype(f"u{SIZES[kind]}"))

    return Operation(run=run, inputs=((source, kind), (rank, "u32")), outputs=((target, kind),))


@operation("getctarank", forms=["getctarank{.shared::cluster}.u32|u64"])
def getctarank(instruction: Instruction) -> Operation:
    """The rank of the CTA whose shared memory an address lies in."""
    generic, kind = not instruction.has("shared::cluster"), instruction.type
    target, source = instruction.operands

    def run(machine: Machine, group: Group, address: Array) -> Array:
        at = address.astype(np.int64) - (SHARED_WINDOW if generic else 0)
        named = at >> RANK_SHIFT
        return np.where(named > 0, named - 1, group.rank).astype(np.uint32)

    return Operation(run=run, inputs=((source, kind),), outputs=((target, "u32"),))
