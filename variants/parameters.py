"""The parameters of a kernel: names, order and types, as the signature of its device function gives them.

Contract
    Skeletons keep one order: addresses, then integers (strides, columns, window), then FP32 numbers. What
    packs a call for the driver, what gives it to the emulator and what compiles it all take it from here.
"""

import functools
import inspect
from typing import Any

from cutlass import Float32, Int32, Int64

ADDRESSES = ("q", "gate", "cache", "table", "lengths", "out", "workspace", "counters")
"""Parameters that are addresses of a call's tensors; a kernel that does not split ends with `out`."""

NUMBERS = ("scale_log2", "eps")
"""Parameters that are numbers."""

STRUCT_CODES = {Int64: "q", Int32: "i", Float32: "f"}
"""How Python's struct calls the types of parameters, in the machine's own size, order and alignment."""


@functools.cache
def parameters(kernel_class: type[Any]) -> dict[str, str]:
    """The struct code of each parameter of a kernel, by its name, in order."""
    signature = inspect.signature(inspect.unwrap(kernel_class.kernel))
    found = {p.name: STRUCT_CODES[p.annotation] for p in signature.parameters.values() if p.name != "self"}
    kinds = "".join("a" if n in ADDRESSES else "n" if n in NUMBERS else "i" for n in found)
    addresses = tuple(name for name in found if name in ADDRESSES)
    if kinds != "".join(sorted(kinds, key="ain".index)) or addresses != ADDRESSES[: len(addresses)]:
        raise TypeError(f"{kernel_class.__name__} takes {', '.join(found)}: addresses, integers, numbers")
    return found
