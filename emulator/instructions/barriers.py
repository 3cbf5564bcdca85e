"""Barriers of threads: bar and barrier of a CTA, barrier.cluster, bar.warp.sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.interface import (
    Array,
    BarrierFault,
    Divergence,
    Group,
    Instruction,
    Operand,
    Operation,
    operation,
)

if TYPE_CHECKING:
    from emulator.machine import Machine

CTA_BARRIERS = 16


@dataclass
class _CtaWait:
    """Why threads wait at a CTA's barrier."""

    barriers: Barriers
    number: int
    thread: int

    def __str__(self) -> str:
        cta = int(self.barriers.machine.cta_of[self.thread])
        wanted = int(self.barriers.wanted[self.number, cta])
        arrived = int(self.barriers.arrived[self.number, cta])
        ended = self.barriers.machine.block_size - int(self.barriers.machine.cta_alive[cta])
        gone = f", {ended} have ended" if ended else ""
        return f"barrier {self.number} of their CTA: {arrived} of {wanted} threads have arrived{gone}"


@dataclass
class _ClusterWait:
    """Why threads wait at the barrier of a cluster."""

    barriers: Barriers
    thread: int

    def __str__(self) -> str:
        machine = self.barriers.machine
        cluster = int(machine.cta_of[self.thread]) // machine.cluster_size
        arrived = int(self.barriers.cluster_arrived[cluster])
        alive = int(machine.cta_alive.reshape(-1, machine.cluster_size)[cluster].sum())
        return f"the cluster barrier: {arrived} of {alive} threads have arrived"


class Barriers:
    """State of all barriers of a wave. arrived, wanted: [16, CTAs], wanted 0 while nobody has arrived."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.arrived = np.zeros((CTA_BARRIERS, machine.cta_count), np.int64)
        self.wanted = np.zeros((CTA_BARRIERS, machine.cta_count), np.int64)
        self.members: dict[int, Array] = {}
        self.waiting: dict[int, Array] = {}
        clusters = machine.cta_count // machine.cluster_size
        self.cluster_arrived = np.zeros(clusters, np.int64)
        self.cluster_phase = np.zeros(clusters, np.int64)
        # The phase that a thread has arrived in and not yet waited for, or -1.
        self.thread_phase = np.full(machine.thread_count, -1)
        self.cluster_waiting = np.zeros(machine.thread_count, bool)
        self.cluster_instruction: Instruction | None = None
        self.at_warp = np.zeros(machine.thread_count, bool)

    # -- of a CTA

    def cta(self, number: int, wanted: int, waits: bool, group: Group, instruction: Instruction) -> None:
        """Threads of a group arrive at their CTAs' barrier, and wait for it or go on."""
        machine = self.machine
        if not 0 <= number < CTA_BARRIERS:
            raise BarrierFault(f"barrier {number} of 16", instruction=instruction, thread=group.describe(0))
        if wanted % 32 and wanted != machine.block_size:
            raise BarrierFault(f"{wanted} threads are no multiple of a warp", instruction=instruction)
        cta = group.cta
        arrived, expected = self.arrived[number], self.wanted[number]
        other = (expected[cta] != 0) & (expected[cta] != wanted)
        if other.any():
            element = int(np.argmax(other))
            raise BarrierFault(
                f"barrier {number} with {wanted} threads, but others arrived for {expected[cta][element]}",
                instruction=instruction,
                thread=group.describe(element),
            )
        for hook in machine.hooks_barrier_arrive:
            hook("cta", group, instruction)
        arrived += np.bincount(cta, minlength=machine.cta_count)
        expected[cta] = wanted
        if (arrived > expected).any():
            late = int(np.flatnonzero((arrived > expected)[cta])[0])
            raise BarrierFault(
                f"{arrived[cta][late]} threads arrived at barrier {number} for {wanted}",
                instruction=instruction,
                thread=group.describe(late),
            )
        complete = (arrived == expected) & (expected > 0)
        if complete[cta].all() and number not in self.members and (arrived[cta] == wanted).all():
            # All threads of these CTAs come at once: nobody has to be remembered.
            self._told(
                "cta",
                group.threads,
                group.threads if waits else group.threads[:0],
                machine.cta_of,
                instruction,
            )
            arrived[complete] = 0
            expected[complete] = 0
            return
        members = self.members.setdefault(number, np.zeros(machine.thread_count, bool))
        waiting = self.waiting.setdefault(number, np.zeros(machine.thread_count, bool))
        members[group.threads] = True
        waiting[group.threads] = waits
        if waits:
            stay = ~complete[cta]
            if stay.any():
                sub = group.take(stay)
                machine.park(sub, _CtaWait(self, number, int(sub.threads[0])))
        if complete.any():
            here = complete[machine.cta_of]
            came, go = np.flatnonzero(members & here), np.flatnonzero(waiting & here)
            self._told("cta", came, go, machine.cta_of, instruction)
            members[here] = False
            waiting[here] = False
            arrived[complete] = 0
            expected[complete] = 0
            machine.wake(go)
            if not members.any():
                del self.members[number], self.waiting[number]

    def _told(self, kind: str, came: Array, go: Array, unit: Array, instruction: Instruction) -> None:
        """Tell the observers of each barrier that is complete."""
        hooks = self.machine.hooks_barrier_complete
        if not hooks:
            return
        came_units, go_units = unit[came], unit[go]
        for one in np.unique(came_units).tolist():
            # Threads are in order, and so are their units.
            (a, b), (c, d) = (np.searchsorted(units, (one, one + 1)) for units in (came_units, go_units))
            for hook in hooks:
                hook(kind, came[a:b], go[c:d], instruction)

    # -- of a cluster

    def cluster_arrive(self, group: Group, instruction: Instruction) -> None:
        """Threads arrive at the barrier of their cluster."""
        machine = self.machine
        again = self.thread_phase[group.threads] >= 0
        if again.any():
            raise BarrierFault(
                "a second arrival at the cluster barrier with no wait in between",
                instruction=instruction,
                thread=group.describe(int(np.argmax(again))),
            )
        for hook in machine.hooks_barrier_arrive:
            hook("cluster", group, instruction)
        cluster = group.cluster
        self.thread_phase[group.threads] = self.cluster_phase[cluster]
        self.cluster_arrived += np.bincount(cluster, minlength=len(self.cluster_arrived))
        self._complete_clusters()

    def _complete_clusters(self) -> None:
        machine = self.machine
        alive = machine.cta_alive.reshape(-1, machine.cluster_size).sum(1)
        complete = (self.cluster_arrived >= alive) & (alive > 0)
        if not complete.any():
            return
        self.cluster_phase[complete] += 1
        self.cluster_arrived[complete] = 0
        if self.cluster_waiting.any():
            done = complete[machine.cta_of // machine.cluster_size]
            go = np.flatnonzero(self.cluster_waiting & done)
            self.cluster_waiting[go] = False
            self._pass_cluster(go, self.cluster_instruction)
            machine.wake(go)

    def _pass_cluster(self, go: Array, instruction: Instruction | None) -> None:
        self.thread_phase[go] = -1
        machine = self.machine
        if not machine.hooks_barrier_complete or instruction is None:
            return
        threads = machine.cluster_size * machine.block_size
        for one in np.unique(go // threads).tolist():
            first, last = np.searchsorted(go, (one * threads, (one + 1) * threads))
            for hook in machine.hooks_barrier_complete:
                hook("cluster", np.arange(one * threads, (one + 1) * threads), go[first:last], instruction)

    def cluster_wait(self, group: Group, instruction: Instruction) -> None:
        """Threads wait for the phase that they have arrived in."""
        phase = self.thread_phase[group.threads]
        if (phase < 0).any():
            raise BarrierFault(
                "a wait at the cluster barrier with no arrival before",
                instruction=instruction,
                thread=group.describe(int(np.argmax(phase < 0))),
            )
        passed = self.cluster_phase[group.cluster] > phase
        self._pass_cluster(group.threads[passed], instruction)
        if not passed.all():
            sub = group.take(~passed)
            self.cluster_waiting[sub.threads] = True
            self.cluster_instruction = instruction
            self.machine.park(sub, _ClusterWait(self, int(sub.threads[0])))

    def exit(self, group: Group) -> None:
        """Threads that have ended are no longer waited for at the cluster barrier."""
        if self.cluster_arrived.any():
            arrived = self.thread_phase[group.threads] == self.cluster_phase[group.cluster]
            self.cluster_arrived -= np.bincount(group.cluster[arrived], minlength=len(self.cluster_arrived))
            self._complete_clusters()

    # -- of a warp

    def warp(self, group: Group, mask: Array, instruction: Instruction) -> None:
        """Lanes wait for the lanes of their member mask that have not ended."""
        machine = self.machine
        if group.full_warps and (mask == 0xFFFFFFFF).all():
            for hook in machine.hooks_warp_sync:
                hook(group, instruction)
            return
        self.at_warp[group.threads] = True
        starts = np.flatnonzero(np.r_[True, np.diff(group.warp) != 0]).tolist()
        for start, stop in zip(starts, [*starts[1:], group.size], strict=True):
            here = group.take(np.arange(start, stop))
            first, members = int(here.threads[0] - here.lane[0]), int(mask[start])
            lanes = np.arange(first, first + int(machine.geometry.warp_lanes[here.warp[0]]))
            lanes = lanes[~machine.ended[lanes]]
            wanted = lanes[(members >> machine.lane_of[lanes]) & 1 == 1]
            if not self.at_warp[wanted].all():
                machine.park(here, f"bar.warp.sync with lanes {members:#x}")
                continue
            self.at_warp[wanted] = False
            for hook in machine.hooks_warp_sync:
                hook(Group(machine, wanted), instruction)
            machine.wake(wanted)


def require_warps(group: Group, instruction: Instruction) -> None:
    """Raise Divergence unless all threads of each warp that have not ended execute an aligned instruction."""
    if group.full_warps:
        return
    machine = group.machine
    present = np.bincount(group.warp, minlength=machine.warp_count)
    part = (present != machine.warp_alive)[group.warp]
    if part.any():
        element = int(np.argmax(part))
        warp = int(group.warp[element])
        raise Divergence(
            f"{present[warp]} of the {machine.warp_alive[warp]} threads of a warp are at "
            f"{instruction.opcode}, which all of them have to execute together",
            instruction=instruction,
            thread=group.describe(element),
        )


@operation("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", "bar.arrive", "bar.cta.arrive")
@operation("barrier.arrive", "barrier.cta.arrive")
def cta_barrier(instruction: Instruction) -> Operation:
    """bar.sync a{, b} waits for b threads (all of the CTA); bar.arrive a, b only arrives."""
    waits = instruction.has("sync")
    aligned = instruction.parts[0] == "bar" or instruction.has("aligned")
    if not 1 + (not waits) <= len(instruction.operands) <= 2:
        raise ValueError("operands")

    def run(group: Group, numbers: Array, *counts: Array) -> None:
        if aligned:
            require_warps(group, instruction)
        barriers = group.machine.barriers
        wanted = counts[0] if counts else np.full(group.size, group.machine.block_size)
        keys = numbers.astype(np.int64) << 32 | wanted.astype(np.int64)
        if (keys == keys[0]).all():
            barriers.cta(int(numbers[0]), int(wanted[0]), waits, group, instruction)
            return
        for key in np.unique(keys).tolist():
            sub = group.take(keys == key)
            barriers.cta(key >> 32, key & 0xFFFFFFFF, waits, sub, instruction)

    inputs: tuple[tuple[Operand, str], ...] = tuple((operand, "u32") for operand in instruction.operands)
    return Operation(run=run, inputs=inputs, blocking=waits, converged=aligned)


@operation("barrier.cluster.arrive", "barrier.cluster.wait")
def cluster_barrier(instruction: Instruction) -> Operation:
    """The two halves of the cluster's barrier."""
    waits, aligned = instruction.has("wait"), instruction.has("aligned")

    def run(group: Group) -> Any:
        if aligned:
            require_warps(group, instruction)
        barriers = group.machine.barriers
        return (barriers.cluster_wait if waits else barriers.cluster_arrive)(group, instruction)

    return Operation(run=run, blocking=waits, converged=aligned)


@operation("bar.warp.sync")
def warp_barrier(instruction: Instruction) -> Operation:
    """Lanes of a warp meet."""
    (mask,) = instruction.operands

    def run(group: Group, members: Array) -> None:
        group.machine.barriers.warp(group, members, instruction)

    return Operation(run=run, inputs=((mask, "u32"),), blocking=True)
