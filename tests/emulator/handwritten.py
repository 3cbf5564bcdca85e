"""PTX by hand: a kernel from the lines that matter, and its launch."""

import re

import numpy as np

import emulator

TYPES = {"p": "pred", "h": "b16", "r": "b32", "d": "b64"}
"""Register types by the letter that a register's name begins with."""


def kernel(body: str, parameters: int = 1, shared: int = 1024, threads: int | None = None) -> str:
    """A kernel whose first parameters are in %d0, %d1 ... and whose shared memory begins at `memory`.

    Registers are declared by their names: %p predicates, %h, %r and %d of 16, 32 and 64 bits. %tid is
    the thread's index (32 bits).
    """
    names = sorted(set(re.findall(r"%([phrd]\d+)\b", body)) - {f"d{i}" for i in range(parameters)})
    lines = [
        ".version 8.8",
        ".target sm_90a",
        ".address_size 64",
        f".visible .entry by_hand({', '.join(f'.param .u64 by_hand_param_{i}' for i in range(parameters))})",
    ]
    if threads is not None:
        lines.append(f".reqntid {threads}, 1, 1")
    lines += ["{", f".shared .align 128 .b8 memory[{shared}];", ".reg .b32 %tid;"]
    lines += [f".reg .{TYPES[name[0]]} %{name};" for name in names]
    for i in range(parameters):
        lines += [f".reg .b64 %d{i};", f"ld.param.b64 %d{i}, [by_hand_param_{i}];"]
    lines += ["mov.u32 %tid, %tid.x;", *(line.strip() for line in body.strip().splitlines()), "ret;", "}"]
    return "\n".join(lines) + "\n"


def line_of(ptx: str, text: str, number: int = 0) -> int:
    """The line, from 1, of the `number`-th occurrence of a text."""
    lines = [i for i, line in enumerate(ptx.splitlines(), 1) if text in line]
    return lines[number]


def run(body: str, *arrays: np.ndarray, block: int = 32, grid: int = 1, cluster: int = 1, **more) -> str:
    """Launch a kernel by hand on some arrays and return its text."""
    ptx = kernel(body, len(arrays), more.pop("shared", 1024))
    emulator.launch(ptx, grid=grid, cluster=cluster, block=block, arguments=list(arrays), **more)
    return ptx
