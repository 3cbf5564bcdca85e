"""Instructions and their operands, and the types that they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from emulator.errors import Unsupported

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
        return not set(parts).isdisjoint(self.parts)

    @property
    def type(self) -> str:
        """The last part: of most instructions the type."""
        return self.parts[-1]

    def refuse(self, why: str = "") -> NoReturn:
        """Raise Unsupported for this instruction."""
        said = f"{self.opcode} is not covered" + (f": {why}" if why else "")
        raise Unsupported(f"{said}: `{self.text}`", instruction=self)
