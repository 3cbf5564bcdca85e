"""Shared memory that a wgmma reads: from its issue until its warp has waited for its group.

Contract
    While a wgmma may still read, any write to its operands is a fault, whoever writes and whatever orders it.
    With `wgmma.wait_group` the read has happened, as one by the threads of the warp at that moment, and what
    is written later has to be ordered behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Array
from emulator.checks.faults import Faults
from emulator.checks.shadow import Rows
from emulator.checks.touch import Touch
from emulator.ptx.instruction import Immediate, Instruction
from emulator.wave.geometry import Geometry
from emulator.wave.threads import Group

_PIECE = 16
"""Bytes of the pieces in which operands are read."""


@dataclass
class _Reading:
    """One instruction's reads. turns: of each piece, the number of its warp's group; left: to be done."""

    touch: Touch
    turns: Array
    left: Array


class MatrixReads:
    """The reads of a wave that nobody has waited for."""

    def __init__(self, geometry: Geometry, faults: Faults):
        self._faults = faults
        self._geometry = geometry
        self._committed = np.zeros(geometry.warp_count, np.int64)
        self._open: list[_Reading] = []

    def begin(self, touch: Touch) -> None:
        """A wgmma has been issued, and reads these pieces."""
        turns = self._committed[touch.group.warp]
        self._open.append(_Reading(touch, turns, np.ones(len(turns), bool)))

    def step(self, group: Group, instruction: Instruction) -> Iterator[Touch]:
        """Groups are closed or waited for: gives the reads that are done by that."""
        warps = np.unique(group.warp)
        if instruction.parts[1] == "commit_group":
            self._committed[warps] += 1
        if instruction.parts[1] != "wait_group":
            return
        (pending,) = instruction.operands
        assert isinstance(pending, Immediate)
        limit = np.full(self._geometry.warp_count, -1)
        limit[warps] = self._committed[warps] - pending.bits
        for reading in self._open:
            touch = reading.touch
            done = reading.left & (reading.turns < limit[touch.group.warp])
            if done.any():
                reading.left &= ~done
                rows = Rows(touch.rows.index[done], touch.rows.width, None)
                yield Touch(touch.shadow, rows, touch.group.take(done), touch.instruction)
        self._open = [reading for reading in self._open if reading.left.any()]

    def check_write(self, touch: Touch) -> None:
        """Raise if this overwrites what a wgmma may still read."""
        if not self._open:
            return
        pieces = touch.rows.index * touch.rows.width * 2 // _PIECE
        for reading in self._open:
            read = reading.touch
            hit = np.isin(pieces, read.rows.index[reading.left])
            if hit.any():
                at = int(np.flatnonzero(hit)[0])
                same = np.flatnonzero(reading.left & (read.rows.index == pieces[at]))
                self._faults.still_read(touch, at, read, int(same[0]))
