"""The arguments of the kernels: their names, types and order, for every launch.

Contract
    A kernel takes three groups: addresses, integers, FP32 numbers. The fields of the groups, in order, are
    the parameters of the compiled kernel. What compiles a kernel, packs a call for the driver or launches on
    the emulator takes the order and the types from `parameters`.
"""

import dataclasses
import functools
import inspect
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, Int64


@dataclass(frozen=True)
class Addresses:
    """Global addresses of a call's tensors: 16-byte aligned, those of table and lengths 4-byte aligned."""

    q: Int64
    gate: Int64
    cache: Int64
    table: Int64
    lengths: Int64
    out: Int64

    def __str__(self) -> str:
        """Part of the kernel's entry name, which CuTe DSL makes of all arguments."""
        return "addresses"


@dataclass(frozen=True)
class ScratchAddresses(Addresses):
    """Also those of the memory where the clusters that share a request meet; 16-byte aligned."""

    workspace: Int64
    counters: Int64

    __str__ = Addresses.__str__


@dataclass(frozen=True)
class Integers:
    """Strides in bytes, and the extent of the block table.

    q_stride, gate_stride, out_stride: of a token. page_stride, head_stride: of a page and a KV head in the
    cache. table_stride: of a request in the block table, of which `columns` entries a request may be read.
    """

    q_stride: Int64
    gate_stride: Int64
    out_stride: Int64
    page_stride: Int64
    head_stride: Int64
    table_stride: Int64
    columns: Int32

    def __str__(self) -> str:
        """Part of the kernel's entry name."""
        return "integers"


@dataclass(frozen=True)
class SplitIntegers(Integers):
    """Also how requests are split.

    window: in keys, at most 2**30; ignored by forms without a window. num_splits: clusters that share a
    request.
    """

    window: Int32
    num_splits: Int32

    __str__ = Integers.__str__


@dataclass(frozen=True)
class Floats:
    """FP32 numbers. scale_log2: softmax scale times log2(e). eps: of the norm."""

    scale_log2: Float32
    eps: Float32

    def __str__(self) -> str:
        """Part of the kernel's entry name."""
        return "floats"


STRUCT_CODES = {Int64: "q", Int32: "i", Float32: "f"}
"""How Python's struct calls the types of parameters, in the machine's own size, order and alignment."""


def groups(kernel_class: type[Any]) -> tuple[type[Any], ...]:
    """The argument groups of a kernel, as the signature of its device function names them."""
    signature = inspect.signature(inspect.unwrap(kernel_class.kernel))
    found = tuple(p.annotation for p in signature.parameters.values() if p.name != "self")
    expected = (Addresses, Integers, Floats)
    if len(found) != len(expected) or not all(map(issubclass, found, expected)):
        names = ", ".join(group.__name__ for group in found)
        raise TypeError(f"{kernel_class.__name__} takes {names}: needed are addresses, integers, floats")
    return found


@functools.cache
def parameters(kernel_class: type[Any]) -> dict[str, str]:
    """The struct code of each parameter of a kernel, by its name, in order."""
    return {
        field.name: STRUCT_CODES[field.type]
        for group in groups(kernel_class)
        for field in dataclasses.fields(group)
    }
