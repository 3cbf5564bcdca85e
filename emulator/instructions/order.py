"""Fences and programmatic dependent launch, which only order; traps and hints."""

from __future__ import annotations

from emulator.interface import EmulatorError, Group, Instruction, Operation, operation


@operation("fence", "membar", "griddepcontrol")
def order(instruction: Instruction) -> Operation:
    """Told to the observers; memory is in order here anyway."""
    if instruction.operands:
        instruction.refuse("operands")

    def run(group: Group) -> None:
        for hook in group.machine.hooks_fence:
            hook(group, instruction)

    return Operation(run=run)


@operation("nanosleep", "setmaxnreg", "pmevent")
def nothing(instruction: Instruction) -> Operation:
    """Hints: they do nothing that a kernel could see."""

    def run(group: Group) -> None:
        return None

    return Operation(run=run)


@operation("trap", "brkpt")
def trap(instruction: Instruction) -> Operation:
    """The kernel gives up."""

    def run(group: Group) -> None:
        raise EmulatorError(
            f"the kernel executed {instruction.opcode}", instruction=instruction, thread=group.describe(0)
        )

    return Operation(run=run)
