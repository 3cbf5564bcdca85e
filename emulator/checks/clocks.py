"""Vector clocks: what each warp knows to have happened before.

Contract
    Time is one serial number for all events of a wave. Row r, column w of `every` is the last serial up to
    which everything that all lanes of warp w did happened before what warp r does now. `some` is the same
    for the lanes in the bit mask `lanes` alone: what one thread releases covers its own accesses since its
    warp last met, and not those of the other lanes. The column of a row's own warp is the last time that its
    lanes met (bar.warp.sync or a barrier of the CTA or cluster).

    What only some lanes of a warp acquire is kept apart (`held`) until all lanes have acquired it or they
    meet.

    Columns are the warps of the row's cluster, until something at gpu scope is released: then they are all
    warps. Each mbarrier has two more columns in `bars` (what completed on it, sent from its own CTA, and by
    other CTAs) and one in `inits`: whether its initialisation is known.
"""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.checks.clock_row import EARLIER_WAVE, Row
from emulator.wave.geometry import Geometry


class Clocks:
    """The clocks of all warps of a wave."""

    def __init__(self, geometry: Geometry):
        self.geometry = geometry
        self.warps = geometry.warp_count
        self.per_cta = self.warps // geometry.cta_count
        self.per_cluster = self.per_cta * geometry.cluster_size
        self.wide = self.warps == self.per_cluster
        shape = (self.warps, self.per_cluster)
        self.every = np.zeros(shape, np.int32)
        self.some = np.zeros(shape, np.int32)
        self.lanes = np.zeros(shape, np.uint32)
        self.bars = np.zeros((self.warps, 8), np.int32)
        self.inits = np.zeros((self.warps, 4), bool)
        self.earlier = np.zeros(self.warps, np.int32)
        self.held: dict[int, list[tuple[int, Row]]] = {}
        self.cluster_of = np.arange(self.warps) // self.per_cluster
        self.base = self.cluster_of * self.per_cluster
        self.live = ((1 << geometry.warp_lanes) - 1).astype(np.uint32)
        self.horizon = np.zeros(self.warps, np.int32)
        """Up to when everything that the warp's own CTA did is ordered before it."""

    # ---- columns -----------------------------------------------------------------------------------

    def widen(self) -> None:
        """Give every warp a column in every row."""
        if self.wide:
            return
        self.wide = True
        columns = self.base[:, None] + np.arange(self.per_cluster)
        for name in ("every", "some", "lanes"):
            old = getattr(self, name)
            new = np.zeros((self.warps, self.warps), old.dtype)
            np.put_along_axis(new, columns, old, 1)
            setattr(self, name, new)

    def grow(self, mbarriers: int) -> None:
        """Make room for so many mbarriers a cluster."""
        have = self.inits.shape[1]
        if mbarriers > have:
            more = max(mbarriers, 2 * have) - have
            self.inits = np.pad(self.inits, ((0, 0), (0, more)))
            self.bars = np.pad(self.bars, ((0, 0), (0, 2 * more)))

    def _column(self, rows: Array, warps: Array) -> Array:
        """Columns of warps in rows; out of range for another cluster's."""
        return warps if self.wide else warps - self.base[rows]

    def empty(self, cluster: int) -> Row:
        """A row that knows nothing."""
        return Row.empty(cluster, self.wide, self.per_cluster, self.every.shape[1], self.inits.shape[1])

    def masks(self, threads: Array) -> tuple[Array, Array]:
        """(warps, lane masks) of ascending threads."""
        warp = self.geometry.warp_of[threads]
        starts = np.flatnonzero(np.concatenate(([True], warp[1:] != warp[:-1])))
        bits = np.uint32(1) << self.geometry.lane_of[threads].astype(np.uint32)
        return warp[starts], np.bitwise_or.reduceat(bits, starts)

    def by_warp(self, threads: Array) -> list[Array]:
        """Ascending threads, warp by warp."""
        if not len(threads):
            return []
        warp = self.geometry.warp_of[threads]
        return np.split(threads, np.flatnonzero(warp[1:] != warp[:-1]) + 1)

    # ---- releasing ---------------------------------------------------------------------------------

    def export(self, threads: Array, now: int | None = None) -> Row:
        """What these threads of one cluster know, together, and did until now (None: nothing)."""
        warps, masks = self.masks(threads)
        row = self.empty(int(self.cluster_of[warps[0]]))
        row.every[:] = self.every[warps].max(axis=0)
        row.some[:] = self.some[warps].max(axis=0)
        row.lanes[:] = np.bitwise_or.reduce(self.lanes[warps], axis=0)
        row.bars[:] = self.bars[warps].max(axis=0)
        row.inits[:] = self.inits[warps].any(axis=0)
        row.earlier = int(self.earlier[warps].max())
        for warp, mask in zip(warps.tolist(), masks.tolist(), strict=True):
            for lanes, known in self.held.get(warp, ()):
                if lanes & mask:
                    row.merge(known)
            if now is None:
                continue
            column = row.column(warp)
            if mask & int(self.live[warp]) == int(self.live[warp]):
                row.every[column] = now
            else:
                row.some[column] = now
                row.lanes[column] |= np.uint32(mask)
        row.lanes[row.some <= row.every] = 0
        return row

    def absorb(self, row: Row, other: Row) -> None:
        """`merge`, after making the row as large as rows are by now."""
        if row.wide != self.wide or len(row.inits) < self.inits.shape[1]:
            fresh = self.empty(row.cluster)
            fresh.merge(row)
            for name in ("wide", "every", "some", "lanes", "bars", "inits"):
                setattr(row, name, getattr(fresh, name))
        row.merge(other)

    # ---- acquiring ---------------------------------------------------------------------------------

    def acquire(self, threads: Array, row: Row) -> None:
        """These threads come after what the row says."""
        warps, masks = self.masks(threads)
        whole = masks & self.live[warps] == self.live[warps]
        for warp, mask in zip(warps[~whole].tolist(), masks[~whole].tolist(), strict=True):
            self._hold(warp, mask, row)
        if whole.any():
            self.join(warps[whole], row)

    def _hold(self, warp: int, mask: int, row: Row) -> None:
        held = self.held.setdefault(warp, [])
        for number, (lanes, known) in enumerate(held):
            if known is row:
                mask |= lanes
                del held[number]
                break
        live = int(self.live[warp])
        if mask & live == live:
            self.join(np.array([warp]), row)
        else:
            held.append((mask, row))

    def join(self, warps: Array, row: Row) -> None:
        """All lanes of these warps come after what the row says."""
        at = row.columns(self.wide)
        every = np.maximum(self.every[warps, at], row.every)
        some = np.maximum(self.some[warps, at], row.some)
        self.every[warps, at], self.some[warps, at] = every, some
        self.lanes[warps, at] = np.where(some > every, self.lanes[warps, at] | row.lanes, 0)
        self.earlier[warps] = np.maximum(self.earlier[warps], row.earlier)
        if row.cluster == self.cluster_of[warps[0]]:
            count = len(row.inits)
            self.inits[warps, :count] |= row.inits
            self.bars[warps, : 2 * count] = np.maximum(self.bars[warps, : 2 * count], row.bars)
        self._horizon(warps)

    def _horizon(self, warps: Array) -> None:
        cta = warps // self.per_cta * self.per_cta
        columns = self._column(warps, cta)[:, None] + np.arange(self.per_cta)
        self.horizon[warps] = np.take_along_axis(self.every[warps], columns, 1).min(axis=1)

    def meet(self, threads: Array, now: int) -> None:
        """Lanes have met (bar.warp.sync): each of these threads comes after what those of its warp did."""
        warps, masks = self.masks(threads)
        whole = masks & self.live[warps] == self.live[warps]
        for warp, mask in zip(warps[~whole].tolist(), masks[~whole].tolist(), strict=True):
            self._meet_lanes(warp, mask, now)
        if whole.any():
            self._meet(warps[whole], now)

    def _meet_lanes(self, warp: int, mask: int, now: int) -> None:
        """Some lanes of a warp have met."""
        met = self.empty(int(self.cluster_of[warp]))
        held, apart = self.held.pop(warp, []), []
        for lanes, row in held:
            # A row has one time for all its lanes: merged are only rows that concern no other lanes.
            if lanes & mask and not row.lanes_of(warp) & ~mask:
                self.absorb(met, row)
                lanes &= ~mask
            elif lanes & mask:
                apart.append(row)
            if lanes:
                self.held.setdefault(warp, []).append((lanes, row))
        column = met.column(warp)
        met.some[column], met.lanes[column] = now, mask
        for row in (met, *apart):
            self._hold(warp, mask, row)

    def _meet(self, warps: Array, now: int) -> None:
        self.every[warps, self._column(warps, warps)] = now
        for warp in warps.tolist() if self.held else ():
            for _, row in self.held.pop(warp, ()):
                self.join(np.array([warp]), row)
        self._horizon(warps)

    def meet_ctas(self, ctas: Array, now: int) -> None:
        """All threads of these CTAs have met at a barrier."""
        warps = ctas[:, None] * self.per_cta + np.arange(self.per_cta)
        self._meet(warps.ravel(), now)
        if self.per_cta == 1:
            return
        every: Array = self.every[warps].max(axis=1)
        some: Array = self.some[warps].max(axis=1)
        lanes: Array = np.where(some <= every, 0, np.bitwise_or.reduce(self.lanes[warps], axis=1))
        for table, row in ((self.every, every), (self.some, some), (self.lanes, lanes)):
            table[warps] = row[:, None]
        self.bars[warps] = self.bars[warps].max(axis=1)[:, None]
        self.inits[warps] = self.inits[warps].max(axis=1)[:, None]
        self.earlier[warps] = self.earlier[warps].max(axis=1)[:, None]
        self.horizon[warps] = now

    # ---- asking ------------------------------------------------------------------------------------

    def ordered(self, threads: Array, writers: Array, serials: Array) -> Array:
        """Whether what the writers did at these serials happened before what the threads do now.

        writers: threads, EARLIER_WAVE or -2 - column of `bars`.
        """
        ok: Array = writers == threads
        rows = self.geometry.warp_of[threads]
        plain = writers >= 0
        warp = self.geometry.warp_of[np.where(plain, writers, 0)]
        column = self._column(rows, warp)
        inside = plain & (column >= 0) & (column < self.every.shape[1])
        column = np.where(inside, column, 0)
        ok |= inside & (self.every[rows, column] >= serials)
        if not ok.all():
            lane = self.geometry.lane_of[np.where(plain, writers, 0)].astype(np.uint32)
            mine = (self.lanes[rows, column] >> lane) & 1 == 1
            ok |= inside & mine & (self.some[rows, column] >= serials)
            ok |= (writers == EARLIER_WAVE) & (self.earlier[rows] >= serials)
            bar = np.where(writers < EARLIER_WAVE, -2 - writers, 0)
            ok |= (writers < EARLIER_WAVE) & (self.bars[rows, bar] >= serials)
        if self.held and not ok.all():
            for at in np.flatnonzero(~ok).tolist():
                if self.held.get(int(rows[at])):
                    ok[at] = self._held_orders(int(threads[at]), int(writers[at]), int(serials[at]))
        return ok

    def _held_orders(self, thread: int, writer: int, serial: int) -> bool:
        geometry = self.geometry
        lane = int(geometry.lane_of[thread])
        who = (int(geometry.warp_of[writer]), int(geometry.lane_of[writer])) if writer >= 0 else (0, 0)
        held = self.held[int(geometry.warp_of[thread])]
        return any(mask >> lane & 1 and row.orders(writer, *who, serial) for mask, row in held)

    def knows_init(self, threads: Array, numbers: Array) -> Array:
        """Whether threads know that mbarriers, by their numbers in the cluster, are initialised."""
        known: Array = self.inits[self.geometry.warp_of[threads], numbers]
        for at in np.flatnonzero(~known).tolist() if self.held else ():
            thread, number = int(threads[at]), int(numbers[at])
            lane = int(self.geometry.lane_of[thread])
            for mask, row in self.held.get(int(self.geometry.warp_of[thread]), ()):
                known[at] |= bool(mask >> lane & 1) and number < len(row.inits) and bool(row.inits[number])
        return known

    def end(self, threads: Array) -> None:
        """Threads end: nobody waits for them to acquire anything."""
        warps, masks = self.masks(threads)
        self.live[warps] &= ~masks
        # What has ended holds back nobody's fast comparison.
        self.horizon[warps[self.live[warps] == 0]] = np.iinfo(np.int32).max
