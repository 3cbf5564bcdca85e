"""Instructions and their operands, as the PTX text has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from emulator.errors import Place, Unsupported

_OF_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_PLAIN = (
    *("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid"),
    *("cluster_ctarank", "cluster_nctarank", "is_explicit_cluster"),
    *("lanemask_lt", "lanemask_le", "lanemask_eq", "lanemask_ge", "lanemask_gt"),
    *("dynamic_smem_size", "total_smem_size"),
)
SPECIALS = frozenset(
    {f"%{name}.{axis}" for name in _OF_AXES for axis in "xyz"} | {f"%{name}" for name in _PLAIN}
)
"""The special registers that are covered, all of 32 bits."""


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


@dataclass(frozen=True)
class TensorAddress:
    """[base + offset, {x, y, z}]: a tensor map's address, and coordinates in the tensor."""

    base: Address
    coordinates: tuple[Scalar, ...]


Operand = Scalar | Vector | Pair | TensorAddress


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

    @property
    def place(self) -> Place:
        """Where it is, for errors and reports."""
        return Place(self.kernel, self.line, self.source, self.text)

    def refuse(self, why: str = "") -> NoReturn:
        """Raise Unsupported for this instruction."""
        said = f"{self.opcode} is not covered" + (f": {why}" if why else "")
        raise Unsupported(f"{said}: `{self.text}`", place=self.place)
