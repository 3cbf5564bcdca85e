"""Parked threads: which threads wait, for what reason, and at which block each resumes."""

from __future__ import annotations

import numpy as np

from emulator.arrays import Array
from emulator.ptx.instruction import Instruction


class Parking:
    """The parked threads of a wave.

    parked: bool [threads]. some: whether threads have been parked since the machine last looked.
    """

    def __init__(self, threads: int):
        self.parked = np.zeros(threads, bool)
        self.some = False
        self._resume = np.full(threads, -1)
        self._reason_of = np.full(threads, -1)
        self._reasons: list[object] = []
        self._parked_at: list[Instruction | None] = []

    def park(self, threads: Array, reason: object, instruction: Instruction | None) -> None:
        """These threads wait at an instruction. str(reason): for what, taken only for a report."""
        self.parked[threads] = True
        self._reason_of[threads] = len(self._reasons)
        self._reasons.append(reason)
        self._parked_at.append(instruction)
        self.some = True

    def resume_at(self, threads: Array, block: int) -> None:
        """Set the block at which these parked threads resume, once the block that parked them has ended."""
        self._resume[threads] = block

    def wake(self, threads: Array) -> list[tuple[int, Array]]:
        """Unpark those of these threads that are parked: (block, threads that resume there).

        Threads that the block running now has parked are not among them; they go on with that block.
        """
        threads = threads[self.parked[threads]]
        self.parked[threads] = False
        blocks = self._resume[threads]
        self._resume[threads] = -1
        return [
            (block, np.sort(threads[blocks == block])) for block in np.unique(blocks).tolist() if block >= 0
        ]

    def waits(self) -> list[tuple[Array, object, Instruction | None]]:
        """The parked threads by the reason why, with the instruction that they wait at."""
        found = []
        for reason in np.unique(self._reason_of[self.parked]).tolist():
            threads = np.flatnonzero(self.parked & (self._reason_of == reason))
            found.append((threads, self._reasons[reason], self._parked_at[reason]))
        return found
