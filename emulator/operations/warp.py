"""Instructions in which the lanes of a warp see each other: shfl, vote, elect, redux, match, activemask."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.errors import Divergence
from emulator.ptx.instruction import Immediate, Instruction, Operand, Pair
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

ALL = 0xFFFFFFFF


class Members:
    """The threads of a group by member mask: those of one warp that name the same lanes.

    row: number of each thread's set (int64 [size]), count: how many sets there are. mask: each thread's
    member mask (int64 [size]).
    """

    def __init__(self, group: Group, mask: Array, instruction: Instruction):
        """Raises Divergence unless every thread is in its mask, and its lanes are here with the same one.

        Stricter than CUDA, which lets a mask name lanes that have ended: they may as well have passed by.
        """
        self.lane = group.lane
        self.mask = mask.astype(np.int64)
        if group.full_warps and (mask == ALL).all():
            self.row, self.count = np.arange(group.size) // 32, group.size // 32
            return
        keys, self.row = np.unique(group.warp << 32 | self.mask, return_inverse=True)
        self.count = len(keys)
        self._check(group, instruction)

    def _check(self, group: Group, instruction: Instruction) -> None:
        existing = (np.int64(1) << group.geometry.warp_lanes[group.warp]) - 1
        missing = self.mask & existing & ~self.bits(np.ones(group.size, bool))
        wrong = (missing != 0) | ((self.mask >> group.lane) & 1 == 0)
        if not wrong.any():
            return
        element = int(np.argmax(wrong))
        lanes = [lane for lane in range(32) if int(missing[element]) >> lane & 1]
        why = (
            f"lanes {lanes} of its member mask are not here with the same mask"
            if lanes
            else "the thread is not in its member mask"
        )
        raise Divergence(
            f"{instruction.parts[0]} with member mask {int(self.mask[element]):#x}: {why}",
            place=instruction.place,
            thread=group.describe(element),
        )

    def bits(self, which: Array) -> Array:
        """Of each thread, the lanes of its set where `which` (bool [size]) holds, as bits (int64 [size])."""
        found = np.zeros(self.count, np.int64)
        np.bitwise_or.at(found, self.row, which.astype(np.int64) << self.lane)
        spread: Array = found[self.row]
        return spread


def targets(operand: Operand) -> tuple[Operand, ...]:
    """`d` or `d|p`."""
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)


@operation("shfl.sync", forms=["shfl.sync.up|down|bfly|idx.b32"])
def shfl(instruction: Instruction) -> Operation:
    """A value from another lane; a lane that is not there gives nothing that may be used, here poison."""
    how = instruction.parts[2]
    target, source, b, c, mask = instruction.operands
    out = targets(target)
    plain = all(isinstance(operand, Immediate) for operand in (b, c, mask))
    fixed: tuple[Array, Array] | None = None
    if isinstance(b, Immediate) and isinstance(c, Immediate):
        fixed = source_lanes(how, np.arange(32), np.int64(b.bits & 31), np.int64(c.bits))
    everyone = plain and isinstance(mask, Immediate) and mask.bits & ALL == ALL

    def run(machine: Machine, group: Group, value: Array, by: Array, clamp: Array, members: Array) -> Any:
        machine.hooks.warp_sync(group, instruction)
        if everyone and fixed is not None and group.full_warps:
            found = value.reshape(-1, 32)[:, fixed[0]].ravel()
            if len(out) == 1:
                return found
            return found, np.tile(fixed[1], group.size // 32)
        sets = Members(group, members, instruction)
        lane, inside = source_lanes(
            how, group.lane, (by & np.uint32(31)).astype(np.int64), clamp.astype(np.int64)
        )
        table = np.full((sets.count, 32), 0xFFDEFFDE, np.uint32)
        table[sets.row, group.lane] = value
        found = table[sets.row, lane]
        return (found, inside) if len(out) == 2 else found

    inputs = ((source, "b32"), (b, "u32"), (c, "u32"), (mask, "u32"))
    outputs = ((out[0], "b32"), *((p, "pred") for p in out[1:]))
    return Operation(run=run, inputs=inputs, outputs=outputs, converged=True)


def source_lanes(how: str, lane: Array, b: Any, c: Any) -> tuple[Array, Array]:
    """The lane that each lane reads from (its own where that is out of range), and whether it is in range."""
    clamp, segment = c & 31, (c >> 8) & 31
    highest = (lane & segment) | (clamp & ~segment & 31)
    lowest = lane & segment
    if how == "up":
        wanted = lane - b
        inside = wanted >= highest
    elif how == "down":
        wanted = lane + b
        inside = wanted <= highest
    elif how == "bfly":
        wanted = lane ^ b
        inside = wanted <= highest
    else:
        wanted = lowest | (b & ~segment & 31)
        inside = wanted <= highest
    return np.where(inside, wanted, lane), np.asarray(inside)


@operation("vote.sync", forms=["vote.sync.all|any|uni.pred", "vote.sync.ballot.b32"])
def vote(instruction: Instruction) -> Operation:
    """all, any, uni: one predicate for the warp; ballot: its lanes as bits."""
    how = instruction.parts[2]
    target, source, mask = instruction.operands

    def run(machine: Machine, group: Group, value: Array, members: Array) -> Array:
        machine.hooks.warp_sync(group, instruction)
        sets = Members(group, members, instruction)
        yes = sets.bits(value)
        if how == "ballot":
            return yes.astype(np.uint32)
        every, some = sets.bits(~value) == 0, yes != 0
        found: Array = {"all": every, "any": some, "uni": every | ~some}[how]
        return found

    kind = "b32" if how == "ballot" else "pred"
    inputs = ((source, "pred"), (mask, "u32"))
    return Operation(run=run, inputs=inputs, outputs=((target, kind),), converged=True)


@operation("activemask", forms=["activemask.b32"])
def activemask(instruction: Instruction) -> Operation:
    """The lanes that execute this together."""

    def run(machine: Machine, group: Group) -> Array:
        warps, row = np.unique(group.warp, return_inverse=True)
        here = np.zeros(len(warps), np.int64)
        np.bitwise_or.at(here, row, np.int64(1) << group.lane)
        return here[row].astype(np.uint32)

    return Operation(run=run, outputs=((instruction.operands[0], "b32"),))


@operation("elect.sync", forms=["elect.sync"])
def elect(instruction: Instruction) -> Operation:
    """One lane of the member mask, the lowest."""
    target, mask = instruction.operands
    out = targets(target)

    def run(machine: Machine, group: Group, members: Array) -> Any:
        machine.hooks.warp_sync(group, instruction)
        here = Members(group, members, instruction).bits(np.ones(group.size, bool))
        lowest = np.bitwise_count(((here & -here) - 1).astype(np.uint64)).astype(np.uint32)
        chosen = group.lane == lowest
        return (lowest, chosen) if len(out) == 2 else lowest

    outputs = ((out[0], "b32"), *((p, "pred") for p in out[1:]))
    return Operation(run=run, inputs=((mask, "u32"),), outputs=outputs, converged=True)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@operation("redux.sync", forms=["redux.sync.add|min|max.u32|s32", "redux.sync.and|or|xor.b32"])
def redux(instruction: Instruction) -> Operation:
    """A reduction of 32-bit integers over the lanes of the member mask."""
    how, kind = instruction.parts[2], instruction.type
    target, source, mask = instruction.operands
    reduce = _REDUCTIONS[how]

    def run(machine: Machine, group: Group, value: Array, members: Array) -> Array:
        machine.hooks.warp_sync(group, instruction)
        sets = Members(group, members, instruction)
        order = np.argsort(sets.row, kind="stable")
        starts = np.searchsorted(sets.row[order], np.arange(sets.count))
        found: Array = reduce.reduceat(value[order], starts, dtype=value.dtype)[sets.row]
        return found

    inputs = ((source, kind), (mask, "u32"))
    return Operation(run=run, inputs=inputs, outputs=((target, kind),), converged=True)


@operation("match.any.sync", "match.all.sync", forms=["match.any|all.sync.b32|b64"])
def match(instruction: Instruction) -> Operation:
    """The lanes that hold the same value (any), or all lanes if all do."""
    every, kind = instruction.parts[1] == "all", instruction.type
    out = targets(instruction.operands[0])
    _, source, mask = instruction.operands

    def run(machine: Machine, group: Group, value: Array, members: Array) -> Any:
        machine.hooks.warp_sync(group, instruction)
        sets = Members(group, members, instruction)
        same = np.zeros(group.size, np.int64)
        for one in range(sets.count):
            here = np.flatnonzero(sets.row == one)
            equal = value[here][:, None] == value[here][None, :]
            same[here] = (equal.astype(np.int64) << group.lane[here][None, :]).sum(1)
        if not every:
            return same.astype(np.uint32)
        holds = same == sets.bits(np.ones(group.size, bool))
        found = np.where(holds, same, 0).astype(np.uint32)
        return (found, holds) if len(out) == 2 else found

    outputs = ((out[0], "b32"), *((p, "pred") for p in out[1:]))
    return Operation(run=run, inputs=((source, kind), (mask, "u32")), outputs=outputs, converged=True)
