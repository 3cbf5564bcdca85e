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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emulator.errors import (
    BarrierFault,
    Deadlock,
    Divergence,
    EmulatorError,
    LaunchError,
    Livelock,
    MemoryFault,
    PtxError,
    Race,
    UnfinishedAsync,
    UninitialisedRead,
    Unsupported,
)
from emulator.instruction import (
    DTYPES,
    Address,
    Array,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Scalar,
    Sink,
    Special,
    Symbol,
    Vector,
)
from emulator.observing import Access, AsynchronousEngine, Memory, Observer, Report
from emulator.threads import Group

__all__ = [
    "DTYPES",
    "Access",
    "Address",
    "Array",
    "AsynchronousEngine",
    "BarrierFault",
    "Deadlock",
    "Divergence",
    "EmulatorError",
    "Factory",
    "Group",
    "Immediate",
    "Instruction",
    "LaunchError",
    "Livelock",
    "Memory",
    "MemoryFault",
    "Negated",
    "Observer",
    "Operand",
    "Operation",
    "Pair",
    "PtxError",
    "Race",
    "Register",
    "Report",
    "Scalar",
    "Sink",
    "Special",
    "Symbol",
    "UnfinishedAsync",
    "UninitialisedRead",
    "Unsupported",
    "Vector",
    "find_factory",
    "operation",
]


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
