"""State of the barriers of threads: of a CTA, of a cluster, of the lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Array
from emulator.errors import BarrierFault, Divergence
from emulator.ptx.instruction import Instruction
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group

CTA_BARRIERS = 16


@dataclass
class _CtaWait:
    """Why threads wait at a CTA's barrier."""

    barriers: WaveBarriers
    number: int
    thread: int

    def __str__(self) -> str:
        cta = int(self.barriers.machine.geometry.cta_of[self.thread])
        wanted = int(self.barriers.wanted[self.number, cta])
        arrived = int(self.barriers.arrived[self.number, cta])
        ended = self.barriers.machine.geometry.block_size - int(self.barriers.machine.cta_alive[cta])
        gone = f", {ended} have ended" if ended else ""
        return f"barrier {self.number} of their CTA: {arrived} of {wanted} threads have arrived{gone}"


@dataclass
class _ClusterWait:
    """Why threads wait at the barrier of a cluster."""

    barriers: WaveBarriers
    thread: int

    def __str__(self) -> str:
        machine = self.barriers.machine
        cluster = int(machine.geometry.cta_of[self.thread]) // machine.geometry.cluster_size
        arrived = int(self.barriers.cluster_arrived[cluster])
        alive = int(machine.cta_alive.reshape(-1, machine.geometry.cluster_size)[cluster].sum())
        return f"the cluster barrier: {arrived} of {alive} threads have arrived"


class WaveBarriers:
    """State of all barriers of a wave.

    arrived, wanted: [16, CTAs], wanted 0 while nobody has arrived. of_all: [16, CTAs], whether it is a
    barrier of all threads of the CTA, for which threads that have ended count as arrived.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.arrived = np.zeros((CTA_BARRIERS, machine.geometry.cta_count), np.int64)
        self.wanted = np.zeros((CTA_BARRIERS, machine.geometry.cta_count), np.int64)
        self.of_all = np.zeros((CTA_BARRIERS, machine.geometry.cta_count), bool)
        self.members: dict[int, Array] = {}
        self.waiting: dict[int, Array] = {}
        self.instruction: dict[int, Instruction] = {}
        clusters = machine.geometry.cta_count // machine.geometry.cluster_size
        self.cluster_arrived = np.zeros(clusters, np.int64)
        self.cluster_phase = np.zeros(clusters, np.int64)
        # The phase that a thread has arrived in and not yet waited for, or -1.
        self.thread_phase = np.full(machine.geometry.thread_count, -1)
        self.cluster_waiting = np.zeros(machine.geometry.thread_count, bool)
        self.cluster_instruction: Instruction | None = None
        # The member mask of each thread that is at a bar.warp.sync, or 0; by warp and mask, the instruction.
        self.at_warp = np.zeros(machine.geometry.thread_count, np.int64)
        self.warp_waiting: dict[int, Instruction] = {}

    # -- of a CTA

    def cta(self, number: int, wanted: int, waits: bool, group: Group, instruction: Instruction) -> None:
        """Threads of a group arrive at their CTAs' barrier, and wait for it or go on."""
        machine = self.machine
        of_all, wanted = wanted == 0, wanted or machine.geometry.block_size
        if not 0 <= number < CTA_BARRIERS:
            raise BarrierFault(f"barrier {number} of 16", place=instruction.place, thread=group.describe(0))
        if wanted % 32 and wanted != machine.geometry.block_size:
            raise BarrierFault(f"{wanted} threads are no multiple of a warp", place=instruction.place)
        cta = group.cta
        arrived, expected = self.arrived[number], self.wanted[number]
        other = (expected[cta] != 0) & (expected[cta] != wanted)
        if other.any():
            element = int(np.argmax(other))
            raise BarrierFault(
                f"barrier {number} with {wanted} threads, but others arrived for {expected[cta][element]}",
                place=instruction.place,
                thread=group.describe(element),
            )
        machine.hooks.barrier_arrive("cta", group, instruction)
        arrived += np.bincount(cta, minlength=machine.geometry.cta_count)
        expected[cta] = wanted
        self.of_all[number, cta] |= of_all
        if (arrived > expected).any():
            late = int(np.flatnonzero((arrived > expected)[cta])[0])
            raise BarrierFault(
                f"{arrived[cta][late]} threads arrived at barrier {number} for {wanted}",
                place=instruction.place,
                thread=group.describe(late),
            )
        complete = self._complete(number)
        if number not in self.members and complete[cta].all():
            # All threads of these CTAs come at once: nobody has to be remembered.
            self._complete_ctas(group.threads, group.threads if waits else group.threads[:0], instruction)
            self._reset(number, complete)
            return
        members = self.members.setdefault(number, np.zeros(machine.geometry.thread_count, bool))
        waiting = self.waiting.setdefault(number, np.zeros(machine.geometry.thread_count, bool))
        members[group.threads] = True
        waiting[group.threads] = waits
        self.instruction[number] = instruction
        if waits:
            stay = ~complete[cta]
            if stay.any():
                sub = group.take(stay)
                machine.park(sub, _CtaWait(self, number, int(sub.threads[0])))
        if complete.any():
            self._release(number, complete)

    def _complete(self, number: int) -> Array:
        """Of which CTAs a barrier is complete: all that it waits for have arrived (bool [CTAs])."""
        machine = self.machine
        arrived, expected, of_all = self.arrived[number], self.wanted[number], self.of_all[number]
        size = machine.geometry.block_size
        if (machine.cta_alive[of_all] == size).all():
            whole: Array = (arrived == expected) & (expected > 0)
            return whole
        # Threads that have ended count as arrived, once: some may have arrived before.
        ended = machine.ended
        if number in self.members:
            ended = ended & ~self.members[number]
        gone = np.bincount(machine.geometry.cta_of[ended], minlength=machine.geometry.cta_count)
        complete: Array = (arrived + np.where(of_all, gone, 0) == expected) & (expected > 0)
        return complete

    def _release(self, number: int, complete: Array) -> None:
        """Let the threads go on that wait at the complete barriers of these CTAs."""
        members, waiting = self.members[number], self.waiting[number]
        here = complete[self.machine.geometry.cta_of]
        came, go = np.flatnonzero(members & here), np.flatnonzero(waiting & here)
        self._complete_ctas(came, go, self.instruction[number])
        members[here] = False
        waiting[here] = False
        self._reset(number, complete)
        self.machine.wake(go)
        if not members.any():
            del self.members[number], self.waiting[number]

    def _reset(self, number: int, complete: Array) -> None:
        """Begin another phase of a barrier."""
        self.arrived[number][complete] = 0
        self.wanted[number][complete] = 0
        self.of_all[number][complete] = False

    def _complete_ctas(self, came: Array, go: Array, instruction: Instruction) -> None:
        """Tell the observers of each CTA's complete barrier which threads came and which go on."""
        complete = self.machine.hooks.barrier_complete
        if not complete:
            return
        cta_of = self.machine.geometry.cta_of
        came_ctas, go_ctas = cta_of[came], cta_of[go]
        for cta in np.unique(came_ctas).tolist():
            # Threads are in order, and so are their CTAs.
            (a, b), (c, d) = (np.searchsorted(ctas, (cta, cta + 1)) for ctas in (came_ctas, go_ctas))
            complete("cta", came[a:b], go[c:d], instruction)

    # -- of a cluster

    def cluster_arrive(self, group: Group, instruction: Instruction) -> None:
        """Threads arrive at the barrier of their cluster."""
        machine = self.machine
        again = self.thread_phase[group.threads] >= 0
        if again.any():
            raise BarrierFault(
                "a second arrival at the cluster barrier with no wait in between",
                place=instruction.place,
                thread=group.describe(int(np.argmax(again))),
            )
        machine.hooks.barrier_arrive("cluster", group, instruction)
        cluster = group.cluster
        self.thread_phase[group.threads] = self.cluster_phase[cluster]
        self.cluster_arrived += np.bincount(cluster, minlength=len(self.cluster_arrived))
        self._complete_clusters()

    def _complete_clusters(self) -> None:
        machine = self.machine
        alive = machine.cta_alive.reshape(-1, machine.geometry.cluster_size).sum(1)
        complete = (self.cluster_arrived >= alive) & (alive > 0)
        if not complete.any():
            return
        self.cluster_phase[complete] += 1
        self.cluster_arrived[complete] = 0
        if self.cluster_waiting.any():
            done = complete[machine.geometry.cta_of // machine.geometry.cluster_size]
            go = np.flatnonzero(self.cluster_waiting & done)
            self.cluster_waiting[go] = False
            self._pass_cluster(go, self.cluster_instruction)
            machine.wake(go)

    def _pass_cluster(self, go: Array, instruction: Instruction | None) -> None:
        self.thread_phase[go] = -1
        machine = self.machine
        if not machine.hooks.barrier_complete or instruction is None:
            return
        threads = machine.geometry.cluster_size * machine.geometry.block_size
        for one in np.unique(go // threads).tolist():
            first, last = np.searchsorted(go, (one * threads, (one + 1) * threads))
            came = np.arange(one * threads, (one + 1) * threads)
            machine.hooks.barrier_complete("cluster", came, go[first:last], instruction)

    def cluster_wait(self, group: Group, instruction: Instruction) -> None:
        """Threads wait for the phase that they have arrived in."""
        phase = self.thread_phase[group.threads]
        if (phase < 0).any():
            raise BarrierFault(
                "a wait at the cluster barrier with no arrival before",
                place=instruction.place,
                thread=group.describe(int(np.argmax(phase < 0))),
            )
        passed = self.cluster_phase[group.cluster] > phase
        self._pass_cluster(group.threads[passed], instruction)
        if not passed.all():
            sub = group.take(~passed)
            self.cluster_waiting[sub.threads] = True
            self.cluster_instruction = instruction
            self.machine.park(sub, _ClusterWait(self, int(sub.threads[0])))

    # -- of a warp

    def warp(self, group: Group, mask: Array, instruction: Instruction) -> None:
        """Lanes wait for the lanes of their member mask that have not ended."""
        machine = self.machine
        if group.full_warps and (mask == 0xFFFFFFFF).all():
            machine.hooks.warp_sync(group, instruction)
            return
        members = mask.astype(np.int64)
        outside = (members >> group.lane) & 1 == 0
        if outside.any():
            element = int(np.argmax(outside))
            raise Divergence(
                f"bar.warp.sync with member mask {int(members[element]):#x}: the thread is not in it",
                place=instruction.place,
                thread=group.describe(element),
            )
        self.at_warp[group.threads] = members
        keys = group.warp << 32 | members
        for key in np.unique(keys).tolist():
            self.warp_waiting[key] = instruction
            if not self._complete_warp(key):
                machine.park(group.take(keys == key), f"bar.warp.sync with lanes {key & 0xFFFFFFFF:#x}")

    def _complete_warp(self, key: int) -> bool:
        """Let the lanes of a member mask go on if all of them that have not ended are there with this mask.

        key: the warp, and in the lower 32 bits the mask.
        """
        machine = self.machine
        warp, members = key >> 32, key & 0xFFFFFFFF
        geometry = machine.geometry
        per_cta = geometry.warp_count // geometry.cta_count
        first = warp // per_cta * geometry.block_size + warp % per_cta * 32
        lanes = np.arange(first, first + int(geometry.warp_lanes[warp]))
        wanted = lanes[~machine.ended[lanes] & ((members >> geometry.lane_of[lanes]) & 1 == 1)]
        if not (self.at_warp[wanted] == members).all():
            return False
        instruction = self.warp_waiting.pop(key)
        self.at_warp[wanted] = 0
        machine.hooks.warp_sync(Group(geometry, wanted), instruction)
        machine.wake(wanted)
        return True

    # -- ends of threads

    def exit(self, group: Group) -> None:
        """Threads that have ended are no longer waited for, but for barriers of a given number of threads."""
        if self.cluster_arrived.any():
            arrived = self.thread_phase[group.threads] == self.cluster_phase[group.cluster]
            self.cluster_arrived -= np.bincount(group.cluster[arrived], minlength=len(self.cluster_arrived))
            self._complete_clusters()
        for number in list(self.members):
            complete = self._complete(number)
            if complete.any():
                self._release(number, complete)
        if self.warp_waiting:
            ending = set(group.warp.tolist())
            for key in [key for key in self.warp_waiting if key >> 32 in ending]:
                self._complete_warp(key)
