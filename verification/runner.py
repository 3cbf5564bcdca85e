"""Runs a variant of a generated module on the CPU: the same checks, the same launch, on the emulator.

Contract
    `run_emulated` takes the arguments of the module's entry point, on CPU tensors. They go through the
    module's own checks and are bound as for a GPU; the kernel is compiled for an architecture and its PTX run
    on the emulator with all of its checks on, unless asked otherwise. PTX is compiled once a kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

import emulator
from variants.loading.compile import dump_folder

ARCH = "sm_90a"
"""What the emulated kernels are compiled for."""

OUT, WORKSPACE = 5, 6
"""Their places among a call's tensors."""


def entry_name(module: ModuleType) -> str:
    """The name of a generated module's entry point."""
    (name,) = (name for name in module.__all__ if f"compile_{name}" in module.__all__)
    return str(name)


@functools.cache
def kernel_ptx(module: ModuleType, variant: str, pdl: bool = False, windowed: bool = False) -> str:
    """The PTX of a variant, with line information, so that a fault names the stage."""
    compile_variant = getattr(module, f"compile_{entry_name(module)}")
    with dump_folder() as folder:
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
    window = arguments.get("window")
    names = ("q", "gate", "kv_cache", "block_table", "seq_lens")
    deployment = module.deploy(
        arguments["max_seq_len"], window, arguments.get("num_splits"), variant=variant, pdl=pdl
    )
    call = module.bind(
        deployment,
        *(arguments[name] for name in names),
        torch.empty_like(arguments["q"], memory_format=torch.contiguous_format) if out is None else out,
        arguments.get("workspace"),
        arguments.get("counters"),
        arguments["scale"],
        arguments.get("eps", 1e-5),
    )
    result = call.tensors[OUT]
    if call.layout.requests == 0:
        return result, None
    kernel = deployment.variant.kernel
    report = emulator.launch(
        kernel_ptx(module, variant, pdl, window is not None),
        grid=call.layout.grid,
        cluster=(kernel.cluster, 1, 1),
        block=(32 * kernel.warps, 1, 1),
        shared_bytes=kernel.shared_bytes,
        arguments=[*call.tensors, *call.scalars],
        unwritten=[OUT, WORKSPACE] if deployment.splits else [OUT],
        seed=seed,
        checks=checks,
        observers=observers,
    )
    return result, report
