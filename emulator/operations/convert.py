"""cvt: between integers here, with a float on either side by `numerics`."""

from __future__ import annotations

from emulator.operations import floats
from emulator.ptx.instruction import Instruction
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import DTYPES, SIZES

_INTEGERS = frozenset(f"{sign}{bits}" for sign in "su" for bits in (8, 16, 32, 64))


@operation("cvt")
def cvt(instruction: Instruction) -> Operation:
    """Integers are extended with the source's sign or cut; `.sat` clamps."""
    *modifiers, to, source = instruction.parts[1:]
    if to not in _INTEGERS or source not in _INTEGERS:
        return floats.arithmetic(instruction)
    if modifiers not in ([], ["sat"]):
        instruction.refuse(f"modifier .{modifiers[0]}")
    target, value = instruction.operands
    short = f"{to[0].replace('s', 'i')}{SIZES[to]}"
    if modifiers:
        text = f"H.clamp_to({{0}}, {short!r}, {to[0] == 's'}, {SIZES[to]})"
    elif DTYPES[to] is DTYPES[source]:
        text = "{0}"
    else:
        text = f"{{0}}.astype({short})"
    return Operation(text=text, inputs=((value, source),), outputs=((target, to),))
