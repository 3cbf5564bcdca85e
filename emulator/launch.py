"""`launch`: a kernel from its PTX text, on arrays of the CPU.

Contract
    Arguments are checked against the kernel's parameters, and grid, cluster and block against each other and
    against what the kernel requires, before anything runs. Clusters run in waves, one wave at a time.

    The text becomes a `Program`: basic blocks, each compiled once to a Python function. A `WaveMachine` runs
    a wave of clusters. It takes the lowest basic block at which threads stand, calls the block's function
    with the `Group` of all those threads, and sends them on to the blocks that follow. Registers exist for
    all threads of the wave; inside a block they are local NumPy arrays of `group.size` elements, element i
    belonging to `group.threads[i]`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import emulator.instruction_set  # noqa: F401 - registers the operations
from emulator.arguments import bind
from emulator.asynchronous.engine import Asynchronous
from emulator.checks.checker import Checker
from emulator.checks.wgmma_registers import watch
from emulator.errors import LaunchError, Place
from emulator.machine.machine import WaveMachine
from emulator.ptx.blocks import compiled
from emulator.ptx.layout import SHARED_LIMIT
from emulator.ptx.program import Program
from emulator.wave.geometry import Dim, geometry
from emulator.wave.hooks import Hooks
from emulator.wave.observing import Observer

WAVE_THREADS = 1 << 15
"""About as many threads run at once, unless the launch says how many clusters do."""


@dataclass
class Report:
    """What a launch did.

    kernel: entry name. threads, waves: how many. blocks: basic blocks run (each by a group of threads).
    instructions: executed, summed over threads, all kinds together. seconds: without compiling. observers:
    those that watched, with what they found (`counts` and `checker`).
    """

    kernel: str
    threads: int
    waves: int
    blocks: int = 0
    instructions: int = 0
    seconds: float = 0.0
    observers: list[Observer] = field(default_factory=list)


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
    may touch what lies between the first and the last byte), tensor maps of them (`TensorMap`), whole numbers
    and floats.

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
            f"{total} bytes of shared memory a CTA; there are {SHARED_LIMIT}",
            place=Place(kernel=program.name),
        )
    parameters, buffers = bind(program, arguments)
    names = (f"argument {number}" for number in unwritten)
    checkers = [Checker(names), *watch(program)] if checks else []
    watching: list[Observer] = [*checkers, *observers]
    random = None if seed is None else np.random.default_rng(seed)

    grid_, cluster_, block_ = shape
    clusters = int(np.prod(grid_)) // int(np.prod(cluster_))
    threads = int(np.prod(cluster_)) * int(np.prod(block_))
    size = resident or max(1, WAVE_THREADS // threads)
    order = np.arange(clusters) if random is None else random.permutation(clusters)
    waves = [tuple(order[first : first + size].tolist()) for first in range(0, clusters, size)]
    report = Report(program.name, clusters * threads, len(waves), observers=watching)
    began = time.perf_counter()
    hooks = Hooks(watching)
    with np.errstate(all="ignore"):
        for wave in waves:
            where = geometry(grid_, cluster_, block_, wave)
            machine = WaveMachine(program, where, buffers, parameters, total, random, hooks, Asynchronous)
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
        raise LaunchError(message, place=Place(kernel=program.name))

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
