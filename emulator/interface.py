"""What the parts of the emulator agree on: instructions, groups of threads, operations, errors, hooks.

How a launch runs
    `program` turns PTX text into basic blocks and each block into one Python function, compiled once. A
    `Machine` runs a wave of clusters. It takes the lowest basic block at which threads stand, calls the
    block's function with the `Group` of all those threads, and sends them on to the blocks that follow.
    Registers exist for all threads of the wave; inside a block they are local NumPy arrays of `group.size`
    elements, element i belonging to `group.threads[i]`.

Types of arrays
    A register is an array of the unsigned type of its width (`.pred`: bool), whatever it means. An operation
    says with a PTX type name how it wants an input ("s32", "f32", "b16", "pred": see `DTYPES`) and gets an
    array of exactly that NumPy type, of `group.size` elements, which it must not write to; it returns arrays
    of any NumPy type of the width of the output. Packed types (bf16x2) travel as "b32".

How an instruction gets its meaning
    `@operation("mbarrier.try_wait")` registers a factory under the beginning of an opcode, whole dotted
    parts; the longest registered beginning wins. While a block is compiled the factory is called once with
    the `Instruction` and returns an `Operation`: which operands it reads and writes, with types, and a
    function `run(group, *inputs)` that the block calls each time a group executes the instruction. It returns
    None (no output), one array (one output) or a tuple of arrays. Whatever depends on the text alone
    (modifiers, immediates) is decided in the factory, which calls `instruction.refuse(why)` for what it does
    not cover. A predicate `@p` on the instruction needs no care: `run` gets the group of those threads that
    are to execute it. An input operand that is an `Address` arrives as an int64 array of base + offset; a
    `Vector` is not an input, its elements are.

Blocking
    An operation with `blocking=True` ends its basic block. Its `run` may call `machine.park(sub, reason)` for
    those threads that cannot go on; outputs are written for all threads before they park (an
    `mbarrier.try_wait` returns True for all: who is woken has seen the phase). Parked threads stand still
    until someone calls `machine.wake(threads)`, and go on behind the instruction. `reason` is an
    object whose `str()`, taken only when a deadlock is reported, says what is waited for and what is missing.

Who calls what, when
    machine, start of a wave     `Asynchronous(machine)`; `observer.begin(machine)` for every observer
    machine, before a block      `observer.block(block, group)`; only with a seed: `asynchronous.step()`
    machine, nothing can run     `asynchronous.deliver()`: lands at least one pending write or completion,
    which
                                 wakes whoever waits for it; returns False if nothing is pending, and then
                                 the machine raises `Deadlock` with every reason
    memory, ld/st/atom/red       `observer.access(access)`, before data moves, once for each region touched
    asynchronous                 `observer.access` with kind "async read"/"async write" when the bytes move,
    and
                                 the hooks async_* and mbarrier_*
    barriers                     `barrier_arrive` when threads arrive, then `barrier_complete` when all have
    warp-synchronous operations  `observer.warp_sync(group, instruction)`
    fences                       `observer.fence(group, instruction)`
    machine, ret and exit        `asynchronous.exit(group)`, then `observer.exit(group)`
    machine, end of a wave       `asynchronous.finish()`, then `observer.end()`; both may raise
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from emulator.machine import Machine
    from emulator.regions import Region

Array = NDArray[Any]

DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{name: np.uint8 for name in ("b8", "u8")},
    **{name: np.uint16 for name in ("b16", "u16", "f16", "bf16")},
    **{name: np.uint32 for name in ("b32", "u32", "f16x2", "bf16x2")},
    **{name: np.uint64 for name in ("b64", "u64")},
    "s8": np.int8,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "f32": np.float32,
    "f64": np.float64,
}
"""The NumPy type of each PTX type. Half-precision types are their bits."""


# ---- operands and instructions -----------------------------------------------------------------------


@dataclass(frozen=True)
class Register:
    """A register of the kernel, its name made unique where a block in braces declares it again."""

    name: str
    kind: str
    """b16, b32, b64 or pred: floats and integers share a width's registers."""


@dataclass(frozen=True)
class Special:
    """A special register, by name: `%tid.x`."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant. bits: an integer as written, possibly negative, or the bits of a float."""

    bits: int
    float_bits: int | None = None
    """32 or 64 for constants written as 0f... and 0d..., which are bits of a float."""


@dataclass(frozen=True)
class Symbol:
    """A name that is not a register: a shared or global variable, a kernel parameter, a label."""

    name: str


@dataclass(frozen=True)
class Address:
    """[base + offset], the offset in bytes."""

    base: Register | Immediate | Symbol | Special
    offset: int = 0


@dataclass(frozen=True)
class Sink:
    """The destination `_`."""


@dataclass(frozen=True)
class Negated:
    """`!p` where an operand is expected."""

    register: Register


Scalar = Register | Special | Immediate | Symbol | Address | Sink | Negated


@dataclass(frozen=True)
class Vector:
    """{a, b, c, d}."""

    elements: tuple[Scalar, ...]


@dataclass(frozen=True)
class Pair:
    """`a|b`: two destinations."""

    first: Scalar
    second: Scalar


Operand = Scalar | Vector | Pair


@dataclass(frozen=True)
class Instruction:
    """One instruction of the PTX text.

    opcode: as written, without predicate. parts: its dotted parts; `shared::cta` and `L1::no_allocate` are
    one part each. predicate: register of `@p`, negated: whether it is `@!p`. line: 1-based line in the PTX
    text. source: "file:line" of the `.loc` in force, or "" where the PTX has no line information.
    """

    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    predicate: Register | None
    negated: bool
    line: int
    source: str
    text: str
    kernel: str

    def has(self, *parts: str) -> bool:
        """Whether any of these is a part of the opcode."""
        return any(part in self.parts for part in parts)

    @property
    def type(self) -> str:
        """The last part: of most instructions the type."""
        return self.parts[-1]

    def refuse(self, why: str = "") -> NoReturn:
        """Raise Unsupported for this instruction."""
        said = f"{self.opcode} is not covered" + (f": {why}" if why else "")
        raise Unsupported(f"{said}: `{self.text}`", instruction=self)


# ---- errors ------------------------------------------------------------------------------------------


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


# ---- threads -----------------------------------------------------------------------------------------


class Group:
    """Threads that execute together.

    threads: their numbers in the wave, ascending (int64 [size]); thread = cta * block size + linear thread
    index. The other arrays are [size] too, and must not be written to.
    """

    __slots__ = ("_cta", "_full", "_lane", "_warp", "machine", "size", "threads")

    def __init__(self, machine: Machine, threads: Array):
        self.machine = machine
        self.threads = threads
        self.size = len(threads)
        self._cta: Array | None = None
        self._lane: Array | None = None
        self._warp: Array | None = None
        self._full: bool | None = None

    @property
    def everyone(self) -> bool:
        """Whether these are all threads of the wave."""
        return self.size == self.machine.thread_count

    @property
    def cta(self) -> Array:
        """Each thread's CTA in the wave (int64)."""
        if self._cta is None:
            self._cta = self.machine.cta_of[self.threads]
        return self._cta

    @property
    def lane(self) -> Array:
        """Each thread's lane (int64)."""
        if self._lane is None:
            self._lane = self.machine.lane_of[self.threads]
        return self._lane

    @property
    def warp(self) -> Array:
        """Each thread's warp in the wave (int64): cta * warps per CTA + warp in the CTA."""
        if self._warp is None:
            self._warp = self.machine.warp_of[self.threads]
        return self._warp

    @property
    def cluster(self) -> Array:
        """Each thread's cluster in the wave (int64)."""
        return self.cta // self.machine.cluster_size

    @property
    def rank(self) -> Array:
        """Each thread's CTA rank in its cluster (int64)."""
        return self.cta % self.machine.cluster_size

    @property
    def full_warps(self) -> bool:
        """Whether each warp of the group is here with 32 lanes: arrays may then be reshaped to [-1, 32]."""
        if self._full is None:
            lanes = self.lane
            self._full = self.size % 32 == 0 and bool(
                (lanes.reshape(-1, 32) == np.arange(32)).all() and (np.diff(self.warp[::32]) > 0).all()
            )
        return self._full

    def require_full_warps(self, instruction: Instruction) -> None:
        """Raise Divergence unless `full_warps`."""
        if self.full_warps:
            return
        present = np.bincount(self.warp)
        first = int(np.flatnonzero((present != 32) & (present != 0))[0])
        at = int(np.flatnonzero(self.warp == first)[0])
        raise Divergence(
            f"{present[first]} of 32 lanes of the warp are here; {instruction.parts[0]} needs them all",
            instruction=instruction,
            thread=self.describe(at),
        )

    def take(self, which: Array) -> Group:
        """The group of those elements: a bool mask [size], or ascending indices."""
        return Group(self.machine, self.threads[which])

    def describe(self, element: int) -> str:
        """Element `element`'s thread in words: its index, warp, lane, CTA, rank and cluster."""
        return self.machine.describe(int(self.threads[element]))


# ---- operations --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """What one instruction does. See the module's docstring.

    run: called as run(group, *inputs); what it returns must be new arrays, never its inputs. inputs, outputs:
    (operand, PTX type name). A `Sink` as output is dropped. blocking: may park threads; ends its block.
    converged: all lanes of a warp that can still come are waited for before the block runs. polls: the block
    runs only when no other block can (spin loops). text: instead of `run`, a Python expression of one output
    that is put into the block's source; {0}, {1} ... stand for the inputs (constants as NumPy scalars), `np`
    for NumPy and `H` for module `helpers`.
    """

    run: Callable[..., Any] | None = None
    inputs: tuple[tuple[Operand, str], ...] = ()
    outputs: tuple[tuple[Operand, str], ...] = ()
    blocking: bool = False
    converged: bool = False
    polls: bool = False
    text: str = ""


Factory = Callable[[Instruction], Operation]
_FACTORIES: dict[str, Factory] = {}


def operation(*beginnings: str) -> Callable[[Factory], Factory]:
    """Register a factory for the opcodes that begin with one of these (whole dotted parts)."""

    def register(factory: Factory) -> Factory:
        for beginning in beginnings:
            if beginning in _FACTORIES:
                raise ValueError(f"{beginning} is registered twice")
            _FACTORIES[beginning] = factory
        return factory

    return register


def find_factory(instruction: Instruction) -> Factory | None:
    """The factory registered under the longest beginning of this opcode."""
    for length in range(len(instruction.parts), 0, -1):
        found = _FACTORIES.get(".".join(instruction.parts[:length]))
        if found is not None:
            return found
    return None


# ---- memory ------------------------------------------------------------------------------------------


@dataclass
class Access:
    """Bytes of one region that threads of one instruction touch.

    kind: "load", "store", "atomic", "async read" or "async write". space: "global", "shared" or "local".
    region: whose bytes (`region.data`: uint8 [bytes]; `region.name`). All CTAs of a wave share one region
    "shared": CTA c owns bytes [c * machine.shared_window, (c + 1) * machine.shared_window). offsets: int64
    [group.size], where in the region; size: bytes a thread. group: the threads, of asynchronous writes those
    that issued them.
    """

    kind: str
    space: str
    region: Region
    offsets: Array
    size: int
    group: Group
    instruction: Instruction


class Memory(Protocol):
    """What operations may do with memory: `machine.memory` (module `memory`).

    Spaces are "global", "shared::cta", "shared::cluster", "local" and "generic". Both raise MemoryFault, with
    thread and address, for what is out of bounds or misaligned (`size` is the alignment too).
    """

    def resolve(
        self, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[tuple[Region, Array, Array | None]]:
        """Where addresses (integers [group.size]) point: (region, offsets int64, elements).

        elements: the indices of the group that the entry is for, None for all. With `shared::cta` and
        `shared::cluster` the region is the one of all CTAs and the offset already holds the owner's window:
        owner = offset // machine.shared_window.
        """

    def access(
        self, kind: str, space: str, addresses: Array, size: int, group: Group, instruction: Instruction
    ) -> Sequence[tuple[Region, Array, Array | None]]:
        """`resolve`, and tell the observers."""

    def load(self, space: str, addresses: Array, size: int, group: Group, instruction: Instruction) -> Array:
        """Read uint8 [group.size, size]; tells the observers."""

    def store(
        self, space: str, addresses: Array, values: Array, group: Group, instruction: Instruction
    ) -> None:
        """Write uint8 [group.size, size]; tells the observers. Of several threads the last one wins."""


# ---- asynchronous engine and observers ---------------------------------------------------------------


class AsynchronousEngine(Protocol):
    """`machine.asynchronous`: what is in flight (module `asynchronous`, class Asynchronous(machine)).

    Randomness comes from `machine.random` (numpy Generator), which is None without a seed: then everything
    lands at the latest allowed moment, in order of issue.
    """

    def deliver(self) -> bool:
        """Land at least one thing, because nothing can run; False if nothing is in flight."""

    def step(self) -> None:
        """Maybe land something, between two blocks; only called with a seed."""

    def exit(self, group: Group) -> None:
        """These threads have ended."""

    def finish(self) -> None:
        """All threads have ended. Raises UnfinishedAsync for what nobody waited for."""

    def pending(self) -> list[str]:
        """For a deadlock report: a line for each mbarrier that threads wait for or bytes are missing at."""


class Observer:
    """Sees what happens; does nothing by default. The checker and the counters derive from it.

    Hooks may raise EmulatorError. Only overridden hooks cost time. `begin` is called for each wave.
    """

    def begin(self, machine: Machine) -> None:
        """A wave of clusters is about to run on this machine; keep it."""

    def block(self, block: Any, group: Group) -> None:
        """A block is about to run. block.instructions: list of Instruction; block.index."""

    def access(self, access: Access) -> None:
        """Memory is about to be read or written."""

    def barrier_arrive(self, kind: str, group: Group, instruction: Instruction) -> None:
        """Threads arrive at a barrier. kind: "cta", "cluster" or "warp"."""

    def barrier_complete(self, kind: str, arrived: Array, waiting: Array, instruction: Instruction) -> None:
        """All have arrived: thread numbers that arrived, and that go on ordered behind all of those.

        A thread that only arrives (bar.arrive) is in `arrived` alone. For "cluster" it is called when
        waiting threads go on, possibly several times a phase; `instruction` is the waiting one.
        """

    def warp_sync(self, group: Group, instruction: Instruction) -> None:
        """Lanes meet in a warp-synchronous instruction (shfl, vote, mma, bar.warp.sync ...)."""

    def fence(self, group: Group, instruction: Instruction) -> None:
        """A fence or griddepcontrol; look at instruction.parts."""

    def mbarrier_arrive(self, group: Group, barriers: Array, instruction: Instruction) -> None:
        """Threads arrive at mbarriers: offset of each in the region "shared"."""

    def mbarrier_complete(self, barrier: int, phase: int) -> None:
        """A phase (0, 1, 2, ...) of the mbarrier at this offset is complete."""

    def mbarrier_wait(self, group: Group, barriers: Array, phases: Array, instruction: Instruction) -> None:
        """Threads have seen a phase of an mbarrier complete (called when they go on)."""

    def async_issued(self, write: Any) -> None:
        """An asynchronous copy or store has been issued; the object is the asynchronous module's own."""

    def async_landed(self, write: Any) -> None:
        """Its bytes have landed."""

    def async_waited(self, group: Group, writes: Sequence[Any], instruction: Instruction) -> None:
        """These threads have waited for these writes of their own (cp.async groups)."""

    def exit(self, group: Group) -> None:
        """Threads have ended."""

    def end(self) -> None:
        """The wave is over."""


@dataclass
class Report:
    """What a launch did.

    kernel: entry name. threads, waves: how many. blocks: basic blocks run (each by a group of threads).
    instructions: executed, summed over threads, all kinds together. seconds: without compiling. observers:
    those that watched, with what they found (`counts` and `checker`).
    """

    kernel: str
    threads: int
    waves: int
    blocks: int = 0
    instructions: int = 0
    seconds: float = 0.0
    observers: list[Observer] = field(default_factory=list)
