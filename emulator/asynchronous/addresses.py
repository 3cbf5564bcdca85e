"""Addresses in the asynchronous instructions: destinations and mbarriers in shared memory, sources of copies.

Contract
    Each function finds where the addresses of a group point, and raises MemoryFault or BarrierFault for those
    that the instruction does not allow.
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.asynchronous.engine import engine
from emulator.errors import BarrierFault, MemoryFault
from emulator.ptx.instruction import Instruction
from emulator.wave.observing import Access
from emulator.wave.protocols import Machine
from emulator.wave.regions import Region
from emulator.wave.threads import Group

Source = tuple[Region | None, Array, Array]
"""Sources of a copy in one region: the region, the elements of the group that read there, and their offsets.
The region is None for elements that read nothing."""


def space_of(instruction: Instruction) -> str:
    """The state space of an mbarrier operand."""
    if instruction.has("shared::cluster"):
        return "shared::cluster"
    return "shared::cta" if instruction.has("shared", "shared::cta") else "generic"


def shared_offsets(
    machine: Machine, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
) -> Array:
    """Offsets in the region of all shared memory. Raises MemoryFault, BarrierFault for other memory."""
    offsets = np.zeros(group.size, np.int64)
    for region, at, elements in machine.memory.resolve(space, addresses, size, group, instruction):
        if region.name != "shared":
            raise BarrierFault(
                f"{instruction.parts[0]} outside shared memory, in {region.name}",
                place=instruction.place,
                thread=group.describe(0 if elements is None else int(elements[0])),
            )
        offsets[slice(None) if elements is None else elements] = at
    return offsets


def find(machine: Machine, addresses: Array, group: Group, instruction: Instruction) -> Array:
    """The numbers of the mbarriers at these addresses."""
    offsets = shared_offsets(machine, space_of(instruction), addresses, 8, group, instruction)
    return engine(machine).mbarriers.find(offsets, group, instruction)


def check_same_cta(
    machine: Machine, offsets: Array, barriers: Array, group: Group, instruction: Instruction
) -> None:
    """Raise BarrierFault unless data and the mbarrier that counts its bytes are in one CTA."""
    window = machine.shared_window
    other = engine(machine).mbarriers.offset[barriers] // window != offsets // window
    if other.any():
        raise BarrierFault(
            "the data and its mbarrier are in different CTAs",
            place=instruction.place,
            thread=group.describe(int(np.flatnonzero(other)[0])),
        )


def read_sources(
    machine: Machine,
    space: str,
    addresses: Array,
    align: int,
    valid: Array,
    group: Group,
    instruction: Instruction,
) -> list[Source]:
    """Check the addresses of sources and tell the observers that they are read.

    valid: bytes that each element reads. Where that is 0 the address may be any.
    """
    found: list[Source] = []
    unread = np.flatnonzero(valid == 0)
    if len(unread):
        found.append((None, unread, np.zeros(len(unread), np.int64)))
    bad = (addresses % align != 0) & (valid > 0)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise MemoryFault(
            f"the source is not aligned to {align} bytes",
            place=instruction.place,
            thread=group.describe(at),
            address=f"{space} {int(addresses[at]):#x}",
        )
    for size in sorted(set(valid.tolist()) - {0}):
        sub = np.flatnonzero(valid == size)
        part = group.take(sub)
        for region, offsets, elements in machine.memory.resolve(
            space, addresses[sub], size, part, instruction
        ):
            group_of = part if elements is None else part.take(elements)
            access = Access("async read", region.space, region, offsets, size, group_of, instruction)
            machine.hooks.access(access)
            found.append((region, sub if elements is None else sub[elements], offsets))
    return found
