"""Errors of launches and kernels, with the place, thread and address of the fault."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A place in a PTX text, as far as it is known.

    kernel: the entry's name. line: 1-based line in the PTX text. source: "file:line" in the source that was
    compiled to the PTX. text: the instruction.
    """

    kernel: str = ""
    line: int | None = None
    source: str = ""
    text: str = ""


class EmulatorError(Exception):
    """A launch that cannot be run, or a fault in the kernel.

    message: what is wrong. place: where in the PTX text. thread: which one, in words (`Geometry.describe`).
    address: of memory, in words. All but the message may be missing. str() holds them all.
    """

    def __init__(self, message: str, *, place: Place | None = None, thread: str = "", address: str = ""):
        self.message = message
        self.place = place or Place()
        self.thread = thread
        self.address = address
        super().__init__(message)

    @property
    def kernel(self) -> str:
        """The entry's name, or ""."""
        return self.place.kernel

    @property
    def line(self) -> int | None:
        """The line in the PTX text, if it is known."""
        return self.place.line

    @property
    def source(self) -> str:
        """The file and line of the source that was compiled to the PTX, or ""."""
        return self.place.source

    def __str__(self) -> str:
        """The message, then one line for each thing that is known."""
        facts = [
            ("address", self.address),
            ("thread", self.thread),
            ("instruction", self.place.text),
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
