"""The arguments of a launch: values of the kernel's parameters, and the memory that becomes buffers.

Contract
    Arguments are checked against the kernel's parameters; what does not fit raises LaunchError. Buffers keep
    their alignment, lie far from each other and far above 2^32, and straddle a multiple of 2^32, so that an
    address cut to 32 bits or a carry that is lost misses all of them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.arrays import Array
from emulator.errors import LaunchError, Place
from emulator.ptx.kernel import Parameter
from emulator.ptx.program import Program
from emulator.ptx.types import SIZES
from emulator.wave.regions import Region
from emulator.wave.tensor_maps import TensorMap, TensorMapRegion

GUARD_SHIFT = 44
"""Buffers are a multiple of 2^44 bytes apart."""


def bind(program: Program, arguments: Sequence[Any]) -> tuple[dict[str, Any], list[Region]]:
    """Values of the parameters, as unsigned NumPy scalars by name, and the buffers. Raises LaunchError."""
    parameters = program.kernel.parameters
    if len(arguments) != len(parameters):
        wanted = ", ".join(f".{parameter.type}" for parameter in parameters)
        raise LaunchError(
            f"{len(arguments)} arguments for {len(parameters)} parameters ({wanted})",
            place=Place(kernel=program.name),
        )
    values: dict[str, Any] = {}
    buffers: list[Region] = []
    same: dict[tuple[int, int], Region] = {}
    given = list(enumerate(zip(arguments, parameters, strict=True)))
    # Arrays of tensor maps come last: those that are arguments too are known by then.
    for number, (argument, parameter) in sorted(given, key=lambda each: isinstance(each[1][0], TensorMap)):
        name = f"argument {number}"
        try:
            if isinstance(argument, TensorMap):
                value = _tensor_map(argument, parameter, name, buffers, same)
            elif is_array(argument):
                value = _pointer(argument, parameter, name, buffers, same)
            else:
                value = _scalar(argument, parameter, name)
        except LaunchError as error:
            raise LaunchError(error.message, place=Place(kernel=program.name)) from None
        values[parameter.name] = value
    return values, buffers


def _pointer(
    argument: Any, parameter: Parameter, name: str, buffers: list[Region], same: dict[tuple[int, int], Region]
) -> Any:
    _check_address(parameter, name, "an array")
    region, first = _region(argument, name, buffers, same)
    return np.uint64(region.base + first)


def _tensor_map(
    argument: TensorMap,
    parameter: Parameter,
    name: str,
    buffers: list[Region],
    same: dict[tuple[int, int], Region],
) -> Any:
    _check_address(parameter, name, "a tensor map")
    argument.check(name)
    tensor, first = _region(argument.array, f"the tensor of {name}", buffers, same)
    if (tensor.base + first) % 16:
        raise LaunchError(f"{name}: the tensor of a tensor map has to be aligned to 16 bytes")
    if first + argument.reach() > tensor.nbytes:
        raise LaunchError(f"{name}: a tensor of {argument.reach()} bytes, in {tensor.nbytes - first} bytes")
    base = buffer_region(len(buffers), name, np.zeros(0, np.uint8), False).base
    buffers.append(TensorMapRegion(name, base, argument, tensor, first))
    return np.uint64(base)


def _check_address(parameter: Parameter, name: str, what: str) -> None:
    if SIZES[parameter.type] != 8 or parameter.type == "f64":
        raise LaunchError(f"{name} is {what}, and the parameter .{parameter.type}")


def _region(
    argument: Any, name: str, buffers: list[Region], same: dict[tuple[int, int], Region]
) -> tuple[Region, int]:
    """The buffer of an array, and the byte of its first element there."""
    data, first, writable, misaligned = extent(argument, name)
    key = (data.ctypes.data, len(data))
    region = same.get(key)
    if region is None:
        region = same[key] = buffer_region(len(buffers), name, data, writable, misaligned)
        buffers.append(region)
    return region, first


def _scalar(argument: Any, parameter: Parameter, name: str) -> Any:
    kind, size = parameter.type, SIZES[parameter.type]
    if parameter.array_bytes:
        raise LaunchError(f"{name}: parameters that are structures are not covered")
    if kind in ("f32", "f64"):
        if isinstance(argument, bool) or not isinstance(argument, int | float | np.integer | np.floating):
            raise LaunchError(f"{name} is {argument!r}, and the parameter .{kind}: a float is expected")
        return np.dtype(f"f{size}").type(argument).view(f"u{size}")
    if isinstance(argument, bool) or not isinstance(argument, int | np.integer):
        raise LaunchError(f"{name} is {argument!r}, and the parameter .{kind}: a whole number is expected")
    bits = 8 * size
    if not -(1 << bits - 1) <= int(argument) < 1 << bits:
        raise LaunchError(f"{name} is {argument}, which {bits} bits cannot hold")
    return np.dtype(f"u{size}").type(int(argument) & (1 << bits) - 1)


def buffer_region(number: int, name: str, data: Array, writable: bool, misaligned: int = 0) -> Region:
    """The region of the launch's buffer `number` (0, 1, ...); `misaligned`: its address modulo 256."""
    half = min(len(data) // 2, 1 << 31) & ~255
    base = ((number + 1) << GUARD_SHIFT) + (1 << 32) - half + misaligned
    return Region(name, "global", base, data, writable)


def is_array(argument: Any) -> bool:
    """Whether an argument is memory: a NumPy array or a torch tensor."""
    return isinstance(argument, np.ndarray) or hasattr(argument, "untyped_storage")


def extent(argument: Any, name: str) -> tuple[Array, int, bool, int]:
    """The memory of an array, strided or not, from its first to its last byte.

    Returns (uint8 [bytes], byte of the first element in it, writable, address modulo 256). Raises
    LaunchError for what is not in the CPU's memory.
    """
    if isinstance(argument, np.ndarray):
        return _numpy_extent(argument)
    if argument.device.type != "cpu":
        raise LaunchError(f"{name} is on {argument.device}; the emulator takes tensors on the CPU")
    torch = sys.modules["torch"]
    storage = torch.empty(0, dtype=torch.uint8).set_(argument.untyped_storage()).numpy()
    size = argument.element_size()
    first = argument.storage_offset() * size
    last = first
    if argument.numel():
        steps = zip(argument.shape, argument.stride(), strict=True)
        last += size * (1 + sum((n - 1) * stride for n, stride in steps))
    return storage[first:last], 0, True, first & 255


def _numpy_extent(array: Array) -> tuple[Array, int, bool, int]:
    writable = bool(array.flags.writeable)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if array.flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        return data, 0, writable, (array.ctypes.data - owner.ctypes.data) & 255
    low, high = np.lib.array_utils.byte_bounds(array)
    data = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
    return data, array.ctypes.data - low, writable, (low - owner.ctypes.data) & 255
