"""Proxy fences: what the generic proxy wrote, and the async proxy may read.

Contract
    A write through the generic proxy (st, cp.async, st.async) is there for a wgmma if a `fence.proxy.async`
    of some thread lies between the two: the write ordered before the fence, the fence before the wgmma, by
    the rules of `ordering`. Bulk and tensor copies write through the async proxy and need none.

    The last 64 fences of each warp are kept; an older one does not count.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Array
from emulator.checks.clock_row import EARLIER_WAVE, Row
from emulator.checks.clocks import Clocks
from emulator.checks.faults import Faults
from emulator.checks.shadow import SERIAL, collapse
from emulator.checks.touch import Touch
from emulator.ptx.instruction import Instruction
from emulator.wave.threads import Group

_KEPT = 64


@dataclass
class _Fence:
    """One warp's fence. thread: the first; lanes: a mask; row: what they knew and had done."""

    serial: int
    thread: int
    lanes: int
    row: Row


class Proxies:
    """The proxy fences of a wave. events: the instruction of each serial number."""

    def __init__(self, clocks: Clocks, faults: Faults, events: Sequence[Instruction | None]):
        self._clocks, self._faults, self._events = clocks, faults, events
        self._geometry = clocks.geometry
        # By cluster, then by warp, the latest first.
        self._fences: dict[int, dict[int, collections.deque[_Fence]]] = {}
        # By warp: the serial up to which its own CTA's accesses were ordered before its own last fence.
        self._horizon = np.zeros(clocks.warps, np.int64)

    def fence(self, group: Group, instruction: Instruction, now: int) -> None:
        """A fence; only those of the async proxy that are for shared memory count."""
        if not instruction.has("proxy") or not instruction.has("async") or instruction.has("global"):
            return
        clocks = self._clocks
        for part in clocks.by_warp(group.threads):
            warp = int(self._geometry.warp_of[part[0]])
            lanes = int(clocks.masks(part)[1][0])
            if lanes & int(clocks.live[warp]) == int(clocks.live[warp]):
                self._horizon[warp] = clocks.horizon[warp]
            fences = self._fences.setdefault(int(clocks.cluster_of[warp]), {})
            kept = fences.setdefault(warp, collections.deque(maxlen=_KEPT))
            kept.appendleft(_Fence(now, int(part[0]), lanes, clocks.export(part, now)))

    def check_read(self, touch: Touch) -> None:
        """Raise if the async proxy reads what the generic proxy wrote, and no fence lies between."""
        shadow = touch.shadow
        stamps = shadow.take(shadow.stamps, touch.rows)
        hit = stamps > self._horizon[touch.group.warp].astype(np.uint32)[:, None]
        if not hit.any():
            return
        owners = shadow.take(shadow.owners, touch.rows)
        row, column = collapse(hit, stamps, owners)
        serials = (stamps[row, column] & SERIAL).astype(np.int64)
        writers = owners[row, column].astype(np.int64)
        # Few instructions have written all of it.
        different = np.unique(serials)
        asynchronous = np.array([self._is_asynchronous(int(serial)) for serial in different])
        wanted = ~asynchronous[np.searchsorted(different, serials)]
        readers = touch.threads[row]
        warps = self._geometry.warp_of[readers]
        for warp in np.unique(warps[wanted]).tolist():
            some = np.flatnonzero(wanted & (warps == warp))
            lanes = self._geometry.lane_of[readers[some]]
            fine = self._fenced(warp, lanes, writers[some], serials[some])
            if not fine.all():
                at = int(some[np.argmin(fine)])
                where = int(row[at]), int(column[at])
                self._faults.unfenced(touch, *where, int(writers[at]), int(serials[at]))

    def _is_asynchronous(self, serial: int) -> bool:
        event = self._events[serial]
        return event is not None and event.has("bulk")

    def _fenced(self, warp: int, lanes: Array, writers: Array, serials: Array) -> Array:
        """Whether a fence lies between what the writers did at these serials and these lanes of a warp."""
        clocks = self._clocks
        fences = self._fences.get(int(clocks.cluster_of[warp]), {})
        threads = self._first(warp) + lanes
        fine = np.zeros(len(lanes), bool)
        for other in sorted(fences, key=lambda other: other != warp):
            for fence in fences[other]:
                count = len(threads)
                known = clocks.ordered(threads, np.full(count, fence.thread), np.full(count, fence.serial))
                if other == warp:
                    known |= fence.lanes >> lanes & 1 == 1
                fine |= known & self._covers(fence.row, writers, serials)
                if fine.all():
                    return fine
                if known.all():
                    break  # older ones of this warp say nothing more
        return fine

    def _first(self, warp: int) -> int:
        """The first thread of a warp."""
        per_cta = self._clocks.per_cta
        return warp // per_cta * self._geometry.block_size + warp % per_cta * 32

    def _covers(self, row: Row, writers: Array, serials: Array) -> Array:
        """`Row.orders`, of many."""
        plain = writers >= 0
        who = np.where(plain, writers, 0)
        first = 0 if row.wide else row.cluster * row.per_cluster
        column = self._geometry.warp_of[who] - first
        inside = plain & (column >= 0) & (column < len(row.every))
        column = np.where(inside, column, 0)
        mine = row.lanes[column] >> self._geometry.lane_of[who].astype(np.uint32) & 1 == 1
        found = inside & ((row.every[column] >= serials) | (mine & (row.some[column] >= serials)))
        bars = np.where(writers < EARLIER_WAVE, -2 - writers, len(row.bars))
        held = np.append(row.bars, np.iinfo(np.int32).min)[np.minimum(bars, len(row.bars))]
        result: Array = found | (held >= serials)
        return result
