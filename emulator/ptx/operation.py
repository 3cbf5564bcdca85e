"""What instructions do: the record of one, and the table that finds it by the opcode.

Types of arrays
    A register is an array of the unsigned type of its width (`.pred`: bool), whatever it means. An operation
    says with a PTX type name how it wants an input ("s32", "f32", "b16", "pred": see `types.DTYPES`) and gets
    an array of exactly that NumPy type, of `group.size` elements, which it must neither write to nor keep
    (registers change: what outlives the call is copied). It returns new arrays of any NumPy type of the width
    of the output. Packed types (bf16x2) travel as "b32".

How an instruction gets its operation
    `@operation("mbarrier.try_wait")` registers a factory under the beginning of an opcode, whole dotted
    parts; the longest registered beginning wins. `forms` lists the opcodes that it covers, modifier by
    modifier; any other is refused by name. `emulator.instruction_set` imports the modules that register
    theirs. While a block is compiled the factory is called once with the `Instruction` and returns an
    `Operation`: which operands it reads and writes, with types, and a function `run(machine, group, *inputs)`
    that the block calls each time a group of threads executes the instruction. It returns None (no output),
    one array (one output) or a tuple of arrays. Whatever depends on the text alone (modifiers, immediates) is
    decided in the factory, which calls `instruction.refuse(why)` for what it does not cover.

    A predicate `@p` on the instruction needs no care: `run` gets the group of those threads that are to
    execute it. An input operand that is an `Address` arrives as an int64 array of base + offset; a `Vector`
    is not an input, its elements are.

Blocking
    An operation with `blocking=True` ends its basic block. Its `run` may call `machine.park(group, reason)`
    for those threads that cannot go on; outputs are written for all threads before they park (an
    `mbarrier.try_wait` returns True for all: a thread that is woken has seen the phase). Parked threads do
    not run until `machine.wake(threads)` is called, and go on behind the instruction. `reason` is an object
    whose `str()`, taken only when a deadlock is reported, says what is waited for and what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emulator.errors import PtxError
from emulator.ptx.forms import Forms
from emulator.ptx.instruction import Instruction, Operand


@dataclass(frozen=True)
class Operation:
    """What one instruction does. See the module's docstring.

    run: called as run(machine, group, *inputs); what it returns must be new arrays, never its inputs. inputs,
    outputs: (operand, PTX type name). A `Sink` as output is dropped. blocking: may park threads; ends its
    block. converged: all lanes of a warp that can still come are waited for before the block runs. polls: the
    block runs only when no other block can (spin loops). text: instead of `run`, a Python expression of one
    output that is put into the block's source; {0}, {1} ... stand for the inputs (constants as NumPy
    scalars), `np` for NumPy and `H` for `numerics.integers`.
    """

    run: Callable[..., Any] | None = None
    inputs: tuple[tuple[Operand, str], ...] = ()
    outputs: tuple[tuple[Operand, str], ...] = ()
    blocking: bool = False
    converged: bool = False
    polls: bool = False
    text: str = ""


Factory = Callable[[Instruction], Operation]
_FACTORIES: dict[str, tuple[Factory, Forms]] = {}


def operation(
    *beginnings: str, forms: Sequence[str], any_order: bool = False
) -> Callable[[Factory], Factory]:
    """Register a factory for the opcodes that begin with one of these (whole dotted parts).

    forms, any_order: the opcodes that it covers, as `forms.Forms` takes them.
    """
    covered = Forms(forms, any_order)

    def register(factory: Factory) -> Factory:
        for beginning in beginnings:
            if beginning in _FACTORIES:
                raise ValueError(f"{beginning} is registered twice")
            _FACTORIES[beginning] = factory, covered
        return factory

    return register


def registered() -> list[str]:
    """The beginnings of all opcodes that have a factory."""
    return list(_FACTORIES)


def make_operation(instruction: Instruction) -> Operation:
    """The operation of an instruction, from the factory registered under the longest beginning of its opcode.

    Raises Unsupported for an opcode that is not covered as a whole, PtxError for operands that do not fit.
    """
    for length in range(len(instruction.parts), 0, -1):
        found = _FACTORIES.get(".".join(instruction.parts[:length]))
        if found is not None:
            break
    else:
        instruction.refuse()
    factory, forms = found
    covered = forms.match(instruction.parts)
    try:
        operation = factory(instruction)
    except (ValueError, IndexError, AttributeError, KeyError, TypeError) as error:
        # Factories take the operands that the instruction has to have; the others are the text's fault.
        if covered:
            raise PtxError(f"wrong operands for {instruction.opcode}", place=instruction.place) from error
    if not covered:
        # A factory may have refused it before, and said why.
        instruction.refuse(forms.explain(instruction.parts))
    return operation
