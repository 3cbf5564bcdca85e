"""Compiles generated modules with no GPU, and reads what the compiler says about each kernel.

Contract
    Works on the text that the generator renders, in a folder of its own, so that what is measured is what
    the spec says and not what happens to lie in the output folder. Numbers come from ptxas (registers,
    spills, stack) and from the PTX (instructions).
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import io
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from generator.plan import Plan
from variants.loading.compile import dump_folder

ARCHITECTURES = ("sm_90a", "sm_100a")
"""Architectures that the kernels are compiled for in tests."""

COUNTED = (
    "mma.sync",
    "movmatrix",
    "ex2",
    "ld.global",
    "st.global",
    "ld.shared",
    "st.shared",
    "st.async",
    "shfl",
)
"""Instructions worth a column: those whose number decides a kernel's speed."""

_USED = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class CompileError(Exception):
    """A kernel that does not compile, or a compiler whose report cannot be read."""


@dataclass(frozen=True)
class Report:
    """One kernel, compiled.

    registers: a thread's. spill_bytes: stores and loads together. stack_bytes: a thread's local memory.
    shared_bytes: a CTA's dynamic shared memory. instructions: static PTX instructions, by name, all of them
    under "all". seconds: of compilation.
    """

    module: str
    variant: str
    arch: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    instructions: dict[str, int]
    seconds: float
    ptx: str


def load_module(path: Path) -> ModuleType:
    """Import a generated module as its file is now; it must stay in place while the module is used.

    CuTe DSL reads a kernel's source when it is first traced, not when it is imported. Bytecode that was kept
    of the file is not used: it is known by size and second, and two modules can be alike in both.
    """
    name = f"_generated_{path.stem}_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise CompileError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    return module


def compile_variants(plan: Plan, folder: Path, archs: tuple[str, ...]) -> Iterator[Report]:
    """Compile each variant of the modules in `folder` for each architecture."""
    for module_plan in plan.modules:
        module = load_module(folder / f"{module_plan.name}.py")
        for variant in module_plan.variants:
            for arch in archs:
                yield compile_variant(module, module_plan.name, variant.name, variant.shared_bytes, arch)


def export_kernels(
    plan: Plan, folder: Path, archs: tuple[str, ...], out: Path, progress: Callable[[Path], None]
) -> None:
    """Compile all kernels of the modules in `folder` into the folder `out`.

    progress: called with each file that is written. Raises CompileError, and OSError.
    """
    for module_plan in plan.modules:
        module = load_module(folder / f"{module_plan.name}.py")
        for arch in archs:
            try:
                module.export_kernels(out, arch=arch, progress=progress)
            except OSError:
                raise
            except Exception as error:
                raise CompileError(
                    f"{module_plan.name} does not compile for {arch}: {_plain(error)}"
                ) from error


def _plain(error: Exception) -> str:
    """A message of the compiler's, without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))


def compile_variant(
    module: ModuleType, name: str, variant: str, shared_bytes: int, arch: str, **options: Any
) -> Report:
    """Compile one variant of a generated module. Raises CompileError."""
    heard = io.StringIO()
    began = time.perf_counter()
    try:
        with (
            dump_folder() as dump,
            contextlib.redirect_stdout(heard),
            contextlib.redirect_stderr(heard),
        ):
            # What is kept is also written to a folder, by default the current one.
            kept = f"--keep-ptx --dump-dir {dump} remarks{{ptx}}"
            compiled = getattr(module, f"compile_{name}")(variant, arch=arch, options=kept, **options)
            ptx = str(compiled.artifacts.PTX)
    except Exception as error:
        raise CompileError(f"{name}.{variant} does not compile for {arch}: {_plain(error)}") from error
    seconds = time.perf_counter() - began
    used, stack = _USED.search(heard.getvalue()), _STACK.search(heard.getvalue())
    if used is None or stack is None:
        raise CompileError(f"{name}.{variant}, {arch}: no ptxas report in\n{heard.getvalue()}")
    frame, stores, loads = (int(group) for group in stack.groups())
    return Report(
        module=name,
        variant=variant,
        arch=arch,
        registers=int(used.group(1)),
        spill_bytes=stores + loads,
        stack_bytes=frame,
        shared_bytes=shared_bytes,
        instructions=count_instructions(ptx),
        seconds=seconds,
        ptx=ptx,
    )


def count_instructions(ptx: str) -> dict[str, int]:
    """Static instructions of PTX text: all, and each of COUNTED by the beginning of its name."""
    counts: collections.Counter[str] = collections.Counter({name: 0 for name in ("all", *COUNTED)})
    for opcode in opcodes(ptx):
        counts["all"] += 1
        counts.update(name for name in COUNTED if re.match(rf"{re.escape(name)}(?![a-z])", opcode))
    return dict(counts)


def opcodes(ptx: str) -> Iterator[str]:
    """The opcode of each instruction in PTX text, in order."""
    text = re.sub(r"//[^\n]*", "", ptx)
    body = text[text.index("{") :] if "{" in text else ""
    for statement in re.split(r"[;{}]", body):
        words = itertools.dropwhile(lambda word: word[0] == "@" or word[-1] == ":", statement.split())
        opcode = next(words, "")
        if re.fullmatch(r"[a-z]\w*(\.[\w:]+)*", opcode):
            yield opcode
