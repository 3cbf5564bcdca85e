"""PTX by hand: a kernel from the lines that matter, its launch, and pieces that several tests share."""

import re

import numpy as np
import pytest

import emulator
from emulator.errors import EmulatorError, UninitialisedRead

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


def fails(kind: type[EmulatorError], match: str, body: str, *arrays, at: str, number: int = 0, **more):
    """Assert that a kernel is found to be wrong, and return the error.

    Without a seed it is found at the `number`-th instruction with this text. With one the two accesses may
    come the other way round.
    """
    for seed in (0, 1, 2):
        with pytest.raises((kind, UninitialisedRead)):
            run(body, *(array.copy() for array in arrays), seed=seed, **more)
    with pytest.raises(kind, match=match) as caught:
        run(body, *arrays, **more)
    error = caught.value
    assert error.line == line_of(kernel(body, len(arrays)), at, number), str(error)
    assert error.kernel == "by_hand" and error.thread
    return error


INIT = """
    mov.u32 %r0, memory;
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r0], {arrivals};
    fence.mbarrier_init.release.cluster;
    READY:
    bar.sync 0;
"""
"""An mbarrier at the beginning of shared memory."""

WAIT = """
    {{ .reg .pred done; WAIT_{n}: mbarrier.try_wait.parity.shared::cta.b64 done, [%r0], {parity};
    @!done bra WAIT_{n}; }}
"""


def wait(parity: int, n: int = 0) -> str:
    """A loop that waits for the phase of this parity."""
    return WAIT.format(parity=parity, n=n).replace("{{", "{").replace("}}", "}")


STORE = """
    shl.b32 %r8, %tid, 2;
    cvt.u64.u32 %d8, %r8;
    add.u64 %d9, %d{array}, %d8;
    st.global.b32 [%d9], {value};
"""
"""Store a register to a thread's word of an array."""


def store(value: str, array: int = 0) -> str:
    """Store a register to the thread's word of a parameter's array."""
    return STORE.replace("{value}", value).replace("{array}", str(array))


RING = INIT.format(arrivals=1) + """
    @%p0 bra ANNOUNCED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], {bytes};
    ANNOUNCED:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mov.u32 %r1, %cluster_ctarank;
    add.u32 %r2, %r1, 1;
    mov.u32 %r3, %cluster_nctarank;
    rem.u32 %r2, %r2, %r3;
    shl.b32 %r4, %tid, 3;
    add.u32 %r4, %r4, %r0;
    add.u32 %r4, %r4, 128;
    mapa.shared::cluster.u32 %r5, %r4, %r2;
    mapa.shared::cluster.u32 %r6, %r0, %r2;
    mad.lo.u32 %r7, %r1, 100, %tid;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5], {{%r7, %r1}}, [%r6];
    {{ .reg .pred done; WAIT_0:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%r0], 0;
    @!done bra WAIT_0; }}
    ld.shared.v2.b32 {{%r9, %r10}}, [%r4];
    mad.lo.u32 %r11, %r1, 32, %tid;
    shl.b32 %r11, %r11, 2;
    cvt.u64.u32 %d8, %r11;
    add.u64 %d9, %d0, %d8;
    st.global.b32 [%d9], %r9;
    """
"""Each CTA of a cluster sends 8 bytes a thread to the next one."""
