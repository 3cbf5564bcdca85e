"""A kernel as basic blocks: where they begin and end, and what each needs and leaves in registers.

Contract
    These are records; `build` makes them and `blocks` compiles them. Blocks are numbered in the order of the
    text; number `len(blocks)` stands for the end of the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emulator.ptx.instruction import Instruction, Register
from emulator.ptx.kernel import Kernel
from emulator.ptx.layout import Layout
from emulator.ptx.operation import Operation


@dataclass
class Step:
    """An instruction and what it does."""

    instruction: Instruction
    operation: Operation


@dataclass
class Block:
    """Instructions that run from the first to the last. All registers are by their number in the program.

    branch: None, or the target of the jump at the end; condition: its predicate and whether it is negated,
    None for a jump that is always taken. gathers: registers read before they are written here. scatters:
    registers written here that later blocks read. full, part: the compiled function for all threads of a
    wave, and for some of them, once it has run.
    """

    index: int
    steps: list[Step] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    branch: int | None = None
    condition: tuple[Register, bool] | None = None
    gathers: list[int] = field(default_factory=list)
    scatters: list[int] = field(default_factory=list)
    converged: bool = False
    polls: bool = False
    blocking: bool = False
    full: Callable[..., Any] | None = None
    part: Callable[..., Any] | None = None

    def successors(self) -> list[int]:
        """The blocks that may follow."""
        found = [] if self.branch is None else [self.branch]
        if self.branch is None or self.condition is not None:
            found.append(self.index + 1)
        return found


@dataclass
class Program:
    """A kernel, ready to run. registers: name to number; kinds: kind of each number."""

    kernel: Kernel
    target: str
    layout: Layout
    blocks: list[Block]
    registers: dict[str, int]
    kinds: list[str]
    across: list[int]
    """Registers that live from one block to another."""

    @functools.cached_property
    def names(self) -> list[str]:
        """The register of each number."""
        return list(self.registers)

    @property
    def name(self) -> str:
        """The entry's name."""
        return self.kernel.name
