"""What can be wrong with a launch or a kernel. Every error says where."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulator.instruction import Instruction


class EmulatorError(Exception):
    """A launch that cannot be run, or a fault in the kernel.

    message: what is wrong. instruction: where. thread: who, in words (`Machine.describe`). address: of
    memory, as a word. All but the message may be missing. str() holds them all, the PTX line and the stage
    source.
    """

    def __init__(
        self,
        message: str,
        *,
        instruction: Instruction | None = None,
        kernel: str = "",
        line: int | None = None,
        thread: str = "",
        address: str = "",
    ):
        self.message = message
        self.instruction = instruction
        self.kernel = instruction.kernel if instruction else kernel
        self.line = instruction.line if instruction else line
        self.source = instruction.source if instruction else ""
        self.thread = thread
        self.address = address
        super().__init__(message)

    def __str__(self) -> str:
        """The message, then one line for each thing that is known."""
        facts = [
            ("address", self.address),
            ("thread", self.thread),
            ("instruction", self.instruction.text if self.instruction else ""),
            ("PTX line", self.line),
            ("source", self.source),
            ("kernel", self.kernel),
        ]
        return "\n".join([self.message, *(f"  {name}: {value}" for name, value in facts if value)])


class PtxError(EmulatorError):
    """PTX text that cannot be parsed."""


class Unsupported(EmulatorError):
    """An instruction or directive that is outside the coverage."""


class LaunchError(EmulatorError):
    """A launch that does not fit the kernel: arguments, grid, cluster, shared memory."""


class MemoryFault(EmulatorError):
    """An access outside every buffer, or misaligned."""


class Divergence(EmulatorError):
    """A warp-synchronous or aligned instruction that not all the lanes it names execute together."""


class BarrierFault(EmulatorError):
    """A barrier or mbarrier used against its rules."""


class Deadlock(EmulatorError):
    """No thread can go on."""


class Livelock(EmulatorError):
    """Threads only poll, and nothing changes any more."""


class UninitialisedRead(EmulatorError):
    """A read of memory that nothing has written."""


class Race(EmulatorError):
    """Two accesses to the same bytes, one of them a write, that nothing orders."""


class UnfinishedAsync(EmulatorError):
    """Asynchronous writes that nobody has waited for, read or overwritten in flight or left at the exit."""
