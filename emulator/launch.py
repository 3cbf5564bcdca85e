"""`launch`: a kernel from its PTX text, on arrays of the CPU.

Contract
    Arguments are checked against the kernel's parameters, and grid, cluster and block against each other and
    against what the kernel requires, before anything runs. Clusters run in waves, a wave at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.blocks import compiled
from emulator.checker import Checker
from emulator.geometry import Dim, geometry
from emulator.interface import LaunchError, Observer, Report
from emulator.kernel import SIZES, Parameter
from emulator.layout import SHARED_LIMIT
from emulator.machine import Machine
from emulator.program import Program
from emulator.regions import Region, extent, is_array, place

WAVE_THREADS = 1 << 15
"""About as many threads run at once, unless the launch says how many clusters do."""


def launch(
    ptx: str,
    entry: str | None = None,
    *,
    grid: int | Sequence[int],
    cluster: int | Sequence[int] = (1, 1, 1),
    block: int | Sequence[int],
    shared_bytes: int = 0,
    arguments: Sequence[Any],
    seed: int | None = None,
    checks: bool = True,
    unwritten: Sequence[int] = (),
    observers: Sequence[Observer] = (),
    resident: int | None = None,
) -> Report:
    """Run a kernel and return what it did; arrays among the arguments are written in place.

    ptx: the text; entry: the kernel's name, which may be left out if there is one. grid, cluster, block:
    CTAs, CTAs, threads, one to three numbers. shared_bytes: dynamic shared memory a CTA. arguments: one a
    parameter: NumPy arrays or CPU tensors (strided too: the kernel gets the address of the first element, and
    may touch what lies between the first and the last byte), whole numbers and floats.

    seed: None runs all threads in step and lets asynchronous writes land as late as they may; a number
    permutes the order of warps, CTAs and clusters, and when writes land. checks: look for races, reads of
    what nobody has written, and unfinished asynchronous writes. unwritten: numbers of the arguments whose
    bytes count as written by nobody, such as outputs and workspaces. observers: more objects that watch.
    resident: how many clusters run at the same time; all of a grid that meets in global memory have to.

    Raises EmulatorError: PtxError, Unsupported and LaunchError before anything runs, the others with the
    kernel, PTX line, source line, thread and address of the fault.
    """
    program = compiled(ptx, entry)
    shape = _dimensions(grid, "grid"), _dimensions(cluster, "cluster"), _dimensions(block, "block")
    _check_shape(program, *shape)
    total = program.layout.dynamic + shared_bytes
    if shared_bytes < 0 or total > SHARED_LIMIT:
        raise LaunchError(
            f"{total} bytes of shared memory a CTA; there are {SHARED_LIMIT}", kernel=program.name
        )
    parameters, buffers = bind(program, arguments)
    checker = [Checker(f"argument {number}" for number in unwritten)] if checks else []
    watching: list[Observer] = [*checker, *observers]
    random = None if seed is None else np.random.default_rng(seed)

    grid_, cluster_, block_ = shape
    clusters = int(np.prod(grid_)) // int(np.prod(cluster_))
    threads = int(np.prod(cluster_)) * int(np.prod(block_))
    size = resident or max(1, WAVE_THREADS // threads)
    order = np.arange(clusters) if random is None else random.permutation(clusters)
    waves = [tuple(order[first : first + size].tolist()) for first in range(0, clusters, size)]
    report = Report(program.name, clusters * threads, len(waves), observers=watching)
    began = time.perf_counter()
    with np.errstate(all="ignore"):
        for wave in waves:
            where = geometry(grid_, cluster_, block_, wave)
            machine = Machine(program, where, buffers, parameters, total, random, watching)
            machine.run()
            report.blocks += machine.blocks_run
            report.instructions += machine.instructions_run
    report.seconds = time.perf_counter() - began
    return report


def _dimensions(given: int | Sequence[int], name: str) -> Dim:
    numbers = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if not 1 <= len(numbers) <= 3 or not all(isinstance(n, int | np.integer) and n > 0 for n in numbers):
        raise LaunchError(f"{name} has to be one to three positive numbers, not {given!r}")
    x, y, z = (*(int(n) for n in numbers), 1, 1)[:3]
    return x, y, z


def _check_shape(program: Program, grid: Dim, cluster: Dim, block: Dim) -> None:
    def refuse(message: str) -> None:
        raise LaunchError(message, kernel=program.name)

    for axis, (n, c) in enumerate(zip(grid, cluster, strict=True)):
        if n % c:
            refuse(f"grid {grid} does not divide by cluster {cluster} in {'xyz'[axis]}")
    if np.prod(cluster) > 16:
        refuse(f"cluster {cluster} has more than 16 CTAs")
    if np.prod(block) > 1024:
        refuse(f"block {block} has more than 1024 threads")
    required = program.kernel.required
    for name, given in (("reqntid", block), ("reqnctapercluster", cluster)):
        if name in required:
            wanted = (*required[name], 1, 1)[:3]
            if wanted != given:
                refuse(f"the kernel requires .{name} {wanted}, not {given}")
    if "maxntid" in required and np.prod(block) > np.prod(required["maxntid"]):
        refuse(f"block {block} has more threads than .maxntid {required['maxntid']}")


def bind(program: Program, arguments: Sequence[Any]) -> tuple[dict[str, Any], list[Region]]:
    """Values of the parameters, as unsigned NumPy scalars by name, and the buffers. Raises LaunchError."""
    parameters = program.kernel.parameters
    if len(arguments) != len(parameters):
        wanted = ", ".join(f".{parameter.type}" for parameter in parameters)
        raise LaunchError(
            f"{len(arguments)} arguments for {len(parameters)} parameters ({wanted})", kernel=program.name
        )
    values: dict[str, Any] = {}
    buffers: list[Region] = []
    same: dict[tuple[int, int], Region] = {}
    for number, (argument, parameter) in enumerate(zip(arguments, parameters, strict=True)):
        name = f"argument {number}"
        try:
            if is_array(argument):
                value = _pointer(argument, parameter, name, buffers, same)
            else:
                value = _scalar(argument, parameter, name)
        except LaunchError as error:
            raise LaunchError(error.message, kernel=program.name) from None
        values[parameter.name] = value
    return values, buffers


def _pointer(
    argument: Any, parameter: Parameter, name: str, buffers: list[Region], same: dict[tuple[int, int], Region]
) -> Any:
    if SIZES[parameter.type] != 8 or parameter.type == "f64":
        raise LaunchError(f"{name} is an array, and the parameter .{parameter.type}")
    data, first, writable, misaligned = extent(argument, name)
    key = (data.ctypes.data, len(data))
    region = same.get(key)
    if region is None:
        region = same[key] = place(len(buffers), name, data, writable, misaligned)
        buffers.append(region)
    return np.uint64(region.base + first)


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
