"""cvt: between integers here, with a float on either side by `numerics`."""

from __future__ import annotations

from emulator.operations import floats
from emulator.ptx.forms import INTEGER
from emulator.ptx.instruction import Instruction
from emulator.ptx.operation import Operation, operation
from emulator.ptx.types import DTYPES, SIZES

_ANY = f"u8|s8|{INTEGER}"
_INTEGERS = frozenset(_ANY.split("|"))


@operation(
    "cvt",
    forms=[
        f"cvt{{.sat}}.{_ANY}.{_ANY}",
        "cvt.rn|rz{.relu}.bf16|f16|bf16x2|f16x2.f32",
        "cvt.f32.bf16|f16",
        "cvt.rna.tf32.f32",
        "cvt{.rni|rzi|rmi|rpi}{.ftz}{.sat}.f32.f32",
        f"cvt.rni|rzi|rmi|rpi{{.ftz}}{{.sat}}.{_ANY}.f32",
        f"cvt.rn|rz|rm|rp.f32.{_ANY}",
    ],
)
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
