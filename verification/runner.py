"""Runs a variant of a generated module on the CPU: the same checks, the same launch, on the emulator.

Contract
    `run_emulated` takes the arguments of the module's entry point, on CPU tensors. They go through the
    module's own checks and are bound as for a GPU; the kernel is compiled for an architecture and its PTX run
    on the emulator with all of its checks on, unless asked otherwise. PTX is compiled once a kernel.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

import emulator

ARCH = "sm_90a"
"""What the emulated kernels are compiled for."""


def entry_name(module: ModuleType) -> str:
    """The name of a generated module's entry point."""
    (name,) = (name for name in module.__all__ if f"compile_{name}" in module.__all__)
    return str(name)


@functools.cache
def kernel_ptx(module: ModuleType, variant: str, pdl: bool = False, windowed: bool = False) -> str:
    """The PTX of a variant, with line information, so that a fault names the stage."""
    compile_variant = getattr(module, f"compile_{entry_name(module)}")
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-ptx --generate-line-info --dump-dir {folder}"
        compiled = compile_variant(variant, pdl=pdl, windowed=windowed, arch=ARCH, options=options)
        return str(compiled.artifacts.PTX)


def run_emulated(
    module: ModuleType,
    variant: str,
    arguments: dict[str, Any],
    *,
    out: torch.Tensor | None = None,
    pdl: bool = False,
    seed: int | None = None,
    checks: bool = True,
    observers: Sequence[emulator.Observer] = (),
) -> tuple[torch.Tensor, emulator.Report | None]:
    """Call a variant as the module's entry point would; returns its output and what the launch did.

    arguments: of the entry point, CPU tensors, without out and variant. out: allocated if not given; it and
    the workspace count as memory that nobody has written. The report is None where there is nothing to
    launch. seed, checks, observers: see `emulator.launch`. Raises what the module and the emulator raise.
    """
    (chosen,) = (v for v in module.VARIANTS if v.name == variant)
    if not chosen.serves(arguments["max_seq_len"], arguments.get("window")):
        raise ValueError(f"variant {variant!r} does not serve this deployment")
    names = ("q", "gate", "kv_cache", "block_table", "seq_lens")
    never = chosen.never_splits(arguments["max_seq_len"], arguments.get("window"))
    call = module.bind(
        chosen.kernel,
        *(arguments[name] for name in names),
        out,
        max_seq_len=arguments["max_seq_len"],
        scale=arguments["scale"],
        eps=arguments.get("eps", 1e-5),
        window=arguments.get("window"),
        splits=None if never else lambda kv_heads: arguments["num_splits"],
        scratch=(arguments.get("workspace"), arguments.get("counters")),
    )
    if call.requests == 0:
        return call.out, None
    kernel = chosen.kernel
    report = emulator.launch(
        kernel_ptx(module, variant, pdl, arguments.get("window") is not None),
        grid=kernel.grid(*call.extent),
        cluster=(kernel.cluster, 1, 1),
        block=(32 * kernel.warps, 1, 1),
        shared_bytes=kernel.shared_bytes,
        arguments=[*call.tensors, *call.strides, *call.integers, *call.numbers, *call.extent[2:]],
        unwritten=[5] if never or not kernel.splits else [5, 6],
        seed=seed,
        checks=checks,
        observers=observers,
    )
    return call.out, report
