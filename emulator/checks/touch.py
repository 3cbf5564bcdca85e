"""One access as the checker sees it: the granules of a region that threads of one instruction touch."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.arrays import Array
from emulator.checks.shadow import Rows, Shadow
from emulator.ptx.instruction import Instruction
from emulator.ptx.types import SIZES
from emulator.wave.threads import Group


@dataclass
class Touch:
    """One access. wide: its scope if it is strong, else 0. away: which elements touch a peer's memory."""

    shadow: Shadow
    rows: Rows
    group: Group
    instruction: Instruction
    wide: int = 0
    away: Array | None = None

    @property
    def word(self) -> int:
        """Bytes of each word: the memory model takes a vector for its elements."""
        return SIZES[self.instruction.type]

    @property
    def threads(self) -> Array:
        """The thread of each row."""
        return self.rows.of_elements(self.group.threads)
