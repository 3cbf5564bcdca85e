"""Registers of wgmma, an observer: fences before, and hands off until the wait.

Contract
    Raises before the block that has the fault runs:
    - `Race`: an mma_async without any wgmma.fence before it in its warp, or with a register, accumulator or
      A, that something else than an mma_async has read or written since the last one.
    - `UnfinishedAsync`: a register read or written by something else while an mma_async that uses it is in
      flight; by an mma_async of another shape, or as A while it is an accumulator, too. And a warp that ends
      with an mma_async in flight.
    - `Divergence`, at the end: warps of a warpgroup that did not execute the same wgmma instructions.

    A `mov` from register to register is a new name, as compilers leave them, and passes on what is known of
    the old one. A predicated instruction counts as executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from emulator.errors import Divergence, EmulatorError, Place, Race, UnfinishedAsync
from emulator.ptx.instruction import Immediate, Instruction, Operand, Register, Vector
from emulator.ptx.liveness import operand_registers
from emulator.ptx.program import Block, Program, Step
from emulator.wave.observing import Observer, Wave
from emulator.wave.threads import Group

_MOST_STATES = 4096
"""Transitions that are remembered."""


@dataclass(frozen=True)
class _Use:
    """A register in flight. shape: of the accumulators, "" for A."""

    register: str
    shape: str
    line: int


@dataclass(frozen=True)
class _State:
    """What a warp has in flight: the open group and the committed ones, the oldest first.

    dirty: registers that something else has accessed since the last fence.
    """

    fenced: bool = False
    open: frozenset[_Use] = frozenset()
    groups: tuple[frozenset[_Use], ...] = ()
    dirty: frozenset[str] = frozenset()

    def uses(self) -> Iterator[_Use]:
        """All that is in flight."""
        yield from self.open
        for group in self.groups:
            yield from group


class WgmmaRegisters(Observer):
    """Watches one launch of a program."""

    def __init__(self, program: Program):
        self._kernel = program.name
        self._tracked = _tracked(program)
        self._with_wgmma = {
            block.index
            for block in program.blocks
            if any(step.instruction.parts[0] == "wgmma" for step in block.steps)
        }
        self._touched = {block.index: self._touches(block) for block in program.blocks}
        self._states: list[_State] = []
        self._numbers: dict[_State, int] = {}
        self._next: dict[tuple[int, int], int] = {}

    def _touches(self, block: Block) -> bool:
        names = {name for step in block.steps for name in (*_reads(step), *_writes(step))}
        return block.index in self._with_wgmma or not names.isdisjoint(self._tracked)

    def begin(self, machine: Wave) -> None:
        """Another wave."""
        self._geometry = machine.geometry
        self._of_warp = np.full(machine.geometry.warp_count, self._number(_State()))
        self._trail = np.zeros(machine.geometry.warp_count, np.uint64)

    def _number(self, state: _State) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
        return number

    # ---- running -----------------------------------------------------------------------------------

    def block(self, block: Block, group: Group) -> None:
        """A block is about to run: go through it, once for each state that warps are in."""
        if not self._touched[block.index]:
            return
        warps = group.warp[::32] if group.full_warps else np.unique(group.warp)
        if block.index in self._with_wgmma:
            self._trail[warps] = self._trail[warps] * np.uint64(1_000_003) + np.uint64(block.index + 1)
        before = self._of_warp[warps]
        for number in np.unique(before).tolist():
            key = (number, block.index)
            after = self._next.get(key)
            if after is None:
                thread = int(group.threads[np.argmax(group.warp == warps[np.argmax(before == number)])])
                after = self._number(self._walk(block, self._states[number], thread))
                if len(self._next) < _MOST_STATES:
                    self._next[key] = after
            self._of_warp[warps[before == number]] = after

    def _walk(self, block: Block, state: _State, thread: int) -> _State:
        for step in block.steps:
            name = step.instruction.parts
            if name[0] != "wgmma":
                state = self._other(step, state, thread)
            elif name[1] == "fence":
                state = replace(state, fenced=True, dirty=frozenset())
            elif name[1] == "commit_group":
                state = replace(state, open=frozenset(), groups=(*state.groups, state.open))
            elif name[1] == "wait_group":
                (pending,) = step.instruction.operands
                assert isinstance(pending, Immediate)
                state = replace(state, groups=state.groups[-pending.bits :] if pending.bits else ())
            else:
                state = self._multiply(step.instruction, state, thread)
        return state

    def _other(self, step: Step, state: _State, thread: int) -> _State:
        """Any instruction that is not wgmma's."""
        reads, writes = set(_reads(step)), set(_writes(step))
        moved = _moved(step)
        if moved is not None:
            target, source = moved
            reads = set()
            if target == source:
                return state
        touched = (reads | writes) & self._tracked
        if not touched and moved is None:
            return state
        for use in state.uses():
            if use.register in touched:
                self._raise_touched(step.instruction, use, thread)
        if moved is None:
            return replace(state, dirty=state.dirty | touched)
        if target not in self._tracked:
            return state
        if source not in self._tracked or source in state.dirty:
            return replace(state, dirty=state.dirty | {target})

        def renamed(uses: frozenset[_Use]) -> frozenset[_Use]:
            return uses | {replace(use, register=target) for use in uses if use.register == source}

        groups = tuple(renamed(group) for group in state.groups)
        return replace(state, open=renamed(state.open), groups=groups, dirty=state.dirty - {target})

    def _multiply(self, instruction: Instruction, state: _State, thread: int) -> _State:
        shape = ".".join(instruction.parts[4:])
        sums, left = (_names(operand) for operand in instruction.operands[:2])
        if not isinstance(instruction.operands[1], Vector):
            left = set()
        if not state.fenced:
            self._raise(Race, "no wgmma.fence is before this warp's first mma_async", instruction, thread)
        unfenced = sorted((sums | left) & state.dirty)
        if unfenced:
            why = (
                f"the register {unfenced[0]} has been read or written since the last wgmma.fence; there has "
                "to be one in between"
            )
            self._raise(Race, why, instruction, thread)
        for use in state.uses():
            if use.register in left and use.shape:
                self._raise_touched(instruction, use, thread)
            if use.register in sums and use.shape != shape:
                self._raise_touched(instruction, use, thread)
        new = {_Use(name, shape, instruction.line) for name in sums}
        new |= {_Use(name, "", instruction.line) for name in left}
        return replace(state, open=state.open | new)

    # ---- the end -----------------------------------------------------------------------------------

    def exit(self, group: Group) -> None:
        """Threads end: not with something in flight."""
        for number in np.unique(self._of_warp[group.warp]).tolist():
            for use in self._states[number].uses():
                element = int(np.argmax(self._of_warp[group.warp] == number))
                raise UnfinishedAsync(
                    f"the warp ends and nobody has waited for the mma_async at PTX line {use.line}",
                    place=Place(kernel=self._kernel),
                    thread=group.describe(element),
                )

    def end(self) -> None:
        """The wave is over: the warps of a warpgroup have done the same."""
        per_cta = self._geometry.warp_count // self._geometry.cta_count
        for first in range(0, per_cta - 3, 4):
            trails = self._trail.reshape(-1, per_cta)[:, first : first + 4]
            other = trails != trails[:, :1]
            if other.any():
                cta, warp = (int(each[0]) for each in np.nonzero(other))
                thread = cta * self._geometry.block_size + 32 * (first + warp)
                raise Divergence(
                    "the four warps of this warpgroup did not execute the same wgmma instructions",
                    place=Place(kernel=self._kernel),
                    thread=self._geometry.describe(thread),
                )

    # ---- errors ------------------------------------------------------------------------------------

    def _raise_touched(self, instruction: Instruction, use: _Use, thread: int) -> NoReturn:
        role = "an accumulator" if use.shape else "A"
        why = (
            f"the register {use.register} is used while it is {role} of the mma_async at PTX line "
            f"{use.line}, which is in flight; no wgmma.wait_group has waited for its group"
        )
        self._raise(UnfinishedAsync, why, instruction, thread)

    def _raise(self, kind: type[EmulatorError], why: str, instruction: Instruction, thread: int) -> NoReturn:
        raise kind(why, place=instruction.place, thread=self._geometry.describe(thread))


def _reads(step: Step) -> Iterator[str]:
    for operand, _ in step.operation.inputs:
        yield from (register.name for register in operand_registers(operand))
    if step.instruction.predicate is not None:
        yield step.instruction.predicate.name


def _writes(step: Step) -> Iterator[str]:
    for operand, _ in step.operation.outputs:
        yield from (register.name for register in operand_registers(operand))


def _names(operand: Operand) -> set[str]:
    return {register.name for register in operand_registers(operand)}


def _moved(step: Step) -> tuple[str, str] | None:
    """(target, source) of a move from register to register."""
    operation = step.operation
    if operation.text != "{0}" or step.instruction.predicate is not None:
        return None
    (source, _), (target, _) = operation.inputs[0], operation.outputs[0]
    if isinstance(source, Register) and isinstance(target, Register) and source.kind == target.kind:
        return target.name, source.name
    return None


def _tracked(program: Program) -> frozenset[str]:
    """Registers of mma_async, and those that moves connect with them."""
    found: set[str] = set()
    moves = []
    for block in program.blocks:
        for step in block.steps:
            if step.instruction.parts[:2] == ("wgmma", "mma_async"):
                found |= _names(step.instruction.operands[0])
                if isinstance(step.instruction.operands[1], Vector):
                    found |= _names(step.instruction.operands[1])
            moved = _moved(step)
            if moved is not None:
                moves.append(set(moved))
    while any(len(pair & found) == 1 for pair in moves):
        found |= {name for pair in moves if pair & found for name in pair}
    return frozenset(found)


def watch(program: Program) -> list[Observer]:
    """The observers that a program needs for this: none if it has no wgmma."""
    some = any(instruction.parts[0] == "wgmma" for instruction in program.kernel.instructions)
    return [WgmmaRegisters(program)] if some else []
