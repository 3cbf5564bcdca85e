"""Fences and programmatic dependent launch, which only order; traps and hints."""

from __future__ import annotations

from emulator.errors import EmulatorError
from emulator.ptx.forms import SCOPE
from emulator.ptx.instruction import Instruction
from emulator.ptx.operation import Operation, operation
from emulator.wave.protocols import Machine
from emulator.wave.threads import Group


@operation(
    *("fence", "membar", "griddepcontrol"),
    forms=[
        f"fence{{.sc|acq_rel|acquire|release}}{SCOPE}",
        "fence.mbarrier_init.release.cluster",
        "fence|membar.proxy.alias",
        "fence|membar.proxy.async{.global|shared::cta|shared::cluster}",
        "membar.cta|gl|sys",
        "griddepcontrol.launch_dependents|wait",
    ],
)
def order(instruction: Instruction) -> Operation:
    """Told to the observers; memory is in order here anyway."""
    if instruction.operands:
        instruction.refuse("operands")

    def run(machine: Machine, group: Group) -> None:
        machine.hooks.fence(group, instruction)

    return Operation(run=run)


@operation(
    *("nanosleep", "setmaxnreg", "pmevent"),
    forms=["nanosleep.u32", "setmaxnreg.inc|dec.sync.aligned.u32", "pmevent{.mask}"],
)
def nothing(instruction: Instruction) -> Operation:
    """Hints: they do nothing that a kernel could see."""
    (_,) = instruction.operands

    def run(machine: Machine, group: Group) -> None:
        return None

    return Operation(run=run)


@operation("trap", "brkpt", forms=["trap", "brkpt"])
def trap(instruction: Instruction) -> Operation:
    """The kernel gives up."""
    () = instruction.operands

    def run(machine: Machine, group: Group) -> None:
        raise EmulatorError(
            f"the kernel executed {instruction.opcode}", place=instruction.place, thread=group.describe(0)
        )

    return Operation(run=run)
