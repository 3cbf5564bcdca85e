"""How registers and constants are held as NumPy arrays and scalars."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from emulator.errors import PtxError
from emulator.ptx.instruction import Immediate, Instruction
from emulator.ptx.types import DTYPES, SIZES

STORAGE: dict[str, Any] = {"pred": np.bool_, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}
"""The NumPy type of a register file's rows, by kind."""


def width(kind: str) -> int:
    """Bytes of a type or kind of register; 0 for predicates."""
    return 0 if kind == "pred" else SIZES[kind]


def constant(value: Immediate, kind: str, instruction: Instruction, held: bool = False) -> Any:
    """An immediate as a NumPy scalar of a PTX type. held: it comes from a register, so it is just bits."""
    dtype = DTYPES[kind]
    if dtype is np.bool_:
        return np.bool_(value.bits != 0)
    bits = value.bits
    if kind == "f64" and value.float_bits == 32 and not held:
        return np.float64(struct.unpack("<f", struct.pack("<I", bits))[0])
    if kind in ("f32", "f64") and value.float_bits is None and not held:
        raise PtxError("an integer where a floating-point constant is expected", place=instruction.place)
    size = np.dtype(dtype).itemsize
    return np.frombuffer((bits & ((1 << 8 * size) - 1)).to_bytes(size, "little"), dtype)[0]
