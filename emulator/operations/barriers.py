"""Barriers of threads: bar and barrier of a CTA, barrier.cluster, bar.warp.sync."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.errors import BarrierFault, Divergence
from emulator.ptx.instruction import Instruction, Operand
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group


def require_warps(machine: Machine, group: Group, instruction: Instruction) -> None:
    """Raise Divergence unless all threads of each warp that have not ended execute an aligned instruction."""
    if group.full_warps:
        return
    present = np.bincount(group.warp, minlength=group.geometry.warp_count)
    part = (present != machine.warp_alive)[group.warp]
    if part.any():
        element = int(np.argmax(part))
        warp = int(group.warp[element])
        raise Divergence(
            f"{present[warp]} of the {machine.warp_alive[warp]} threads of a warp are at "
            f"{instruction.opcode}, which all of them have to execute together",
            place=instruction.place,
            thread=group.describe(element),
        )


@operation(
    *("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync"),
    *("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive"),
    forms=["bar{.cta}.sync|arrive", "barrier{.cta}.sync|arrive{.aligned}"],
)
def cta_barrier(instruction: Instruction) -> Operation:
    """bar.sync a{, b} waits for b threads, or all of the CTA that have not ended; bar.arrive only arrives."""
    waits = instruction.has("sync")
    aligned = instruction.parts[0] == "bar" or instruction.has("aligned")
    if not 1 + (not waits) <= len(instruction.operands) <= 2:
        raise ValueError("operands")

    def run(machine: Machine, group: Group, numbers: Array, *counts: Array) -> None:
        if aligned:
            require_warps(machine, group, instruction)
        barriers = machine.barriers
        wanted = counts[0] if counts else np.zeros(group.size, np.uint32)
        if counts and (wanted == 0).any():
            raise BarrierFault(
                "a barrier for 0 threads",
                place=instruction.place,
                thread=group.describe(int(np.argmax(wanted == 0))),
            )
        keys = numbers.astype(np.int64) << 32 | wanted.astype(np.int64)
        if (keys == keys[0]).all():
            barriers.cta(int(numbers[0]), int(wanted[0]), waits, group, instruction)
            return
        for key in np.unique(keys).tolist():
            sub = group.take(keys == key)
            barriers.cta(key >> 32, key & 0xFFFFFFFF, waits, sub, instruction)

    inputs: tuple[tuple[Operand, str], ...] = tuple((operand, "u32") for operand in instruction.operands)
    return Operation(run=run, inputs=inputs, blocking=waits, converged=aligned)


@operation(
    *("barrier.cluster.arrive", "barrier.cluster.wait"),
    forms=["barrier.cluster.arrive{.release|relaxed}{.aligned}", "barrier.cluster.wait{.acquire}{.aligned}"],
)
def cluster_barrier(instruction: Instruction) -> Operation:
    """The two halves of the cluster's barrier."""
    waits, aligned = instruction.has("wait"), instruction.has("aligned")
    () = instruction.operands

    def run(machine: Machine, group: Group) -> Any:
        if aligned:
            require_warps(machine, group, instruction)
        barriers = machine.barriers
        return (barriers.cluster_wait if waits else barriers.cluster_arrive)(group, instruction)

    return Operation(run=run, blocking=waits, converged=aligned)


@operation("bar.warp.sync", forms=["bar.warp.sync"])
def warp_barrier(instruction: Instruction) -> Operation:
    """Lanes of a warp meet."""
    (mask,) = instruction.operands

    def run(machine: Machine, group: Group, members: Array) -> None:
        machine.barriers.warp(group, members, instruction)

    return Operation(run=run, inputs=((mask, "u32"),), blocking=True)
