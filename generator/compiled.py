"""Compiles generated modules with no GPU, and reads what the compiler says about each kernel.

Contract
    Works on the text that the generator renders, in a folder of its own, so that what is measured is what
    the spec says and not what happens to lie in the output folder. Numbers come from ptxas (registers,
    spills, stack), from the PTX (instructions) and from `generator.occupancy` (resident CTAs).

    A kernel that does not compile is a CompileError that names the stage's line; what the system refuses, a
    full disk for one, stays an OSError.
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
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from generator import places
from generator.occupancy import residency
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
    """One form of a kernel, compiled.

    form: as in the names of exported files. registers: a thread's. spill_bytes: stores and loads together.
    stack_bytes: a thread's local memory. shared_bytes: a CTA's dynamic shared memory. resident_ctas: that fit
    on a multiprocessor; resident_limit: the resource that allows no more; both None for an architecture whose
    limits are not known. wanted_ctas: what the launch asks for, if it does. instructions: static PTX
    instructions, by name, all of them under "all". seconds: of compilation. digest: of the module.
    """

    module: str
    variant: str
    form: str
    arch: str
    threads: int
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    resident_ctas: int | None
    resident_limit: str | None
    wanted_ctas: int | None
    instructions: dict[str, int]
    seconds: float
    digest: str
    cute_dsl: str
    black: str
    ptx: str

    @property
    def name(self) -> str:
        """Module and form."""
        return f"{self.module}.{self.form}"

    @property
    def crowded(self) -> bool:
        """Whether fewer CTAs fit on a multiprocessor than the launch asks for."""
        asked = self.wanted_ctas is not None and self.resident_ctas is not None
        return asked and (self.resident_ctas or 0) < (self.wanted_ctas or 0)

    @property
    def faults(self) -> list[str]:
        """What costs the kernel speed although it is right: a line each."""
        found = []
        if self.spill_bytes:
            found.append(f"{self.name} for {self.arch} spills {self.spill_bytes:,} B of registers")
        if self.crowded:
            found.append(
                f"{self.name} for {self.arch} asks for {self.wanted_ctas} resident CTAs, and "
                f"{self.resident_ctas} fit, limited by {self.resident_limit} ({self.registers} registers a "
                f"thread, {self.threads} threads and {self.shared_bytes:,} B of shared memory a CTA)"
            )
        return found


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


def compile_forms(plan: Plan, folder: Path, archs: tuple[str, ...]) -> Iterator[Report]:
    """Compile each form of each variant of the modules in `folder` for each architecture."""
    for module_plan in plan.modules:
        module = load_module(folder / f"{module_plan.name}.py")
        for variant in module.VARIANTS:
            for form in variant.forms:
                for arch in archs:
                    yield compile_variant(
                        module,
                        module_plan.name,
                        variant.name,
                        variant.kernel.shared_bytes,
                        arch,
                        pdl=form.pdl,
                        windowed=form.windowed,
                    )


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
            except Exception as error:
                _raise(f"{module_plan.name} does not compile for {arch}", error, module)


def _raise(what: str, error: Exception, module: ModuleType, details: str = "") -> NoReturn:
    """Raise a CompileError with the place in the stages; or the OSError, if that is what it was."""
    system = places.system_error(error)
    if system is not None:
        raise system
    raise CompileError(f"{what}: {details or places.explained(error, _file(module))}") from error


def _file(module: ModuleType) -> Path:
    return Path(str(module.__file__))


def compile_variant(
    module: ModuleType, name: str, variant: str, shared_bytes: int, arch: str, **options: Any
) -> Report:
    """Compile one form of a variant of a generated module. Raises CompileError, and OSError.

    options: `pdl` and `windowed`, which make the form.
    """
    form = module.Form(variant, options.get("pdl", False), options.get("windowed", False))
    what = f"{name}.{form} does not compile for {arch}"
    heard = io.StringIO()
    began = time.perf_counter()
    try:
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
            ptx = _compiled_ptx(module, name, variant, arch, "remarks{ptx}", options)
    except Exception as error:
        details = _ptxas_details(module, name, variant, arch, options) if places.ptx_errors(error) else ""
        _raise(what, error, module, details)
    seconds = time.perf_counter() - began
    used, stack = _USED.search(heard.getvalue()), _STACK.search(heard.getvalue())
    if used is None or stack is None:
        raise CompileError(f"{name}.{form}, {arch}: no ptxas report in\n{heard.getvalue()}")
    frame, stores, loads = (int(group) for group in stack.groups())
    kernel = module.variant_named(variant).kernel
    registers, threads = int(used.group(1)), 32 * kernel.warps
    fits = residency(arch, registers=registers, shared_bytes=shared_bytes, threads=threads)
    return Report(
        module=name,
        variant=variant,
        form=str(form),
        arch=arch,
        threads=threads,
        registers=registers,
        spill_bytes=stores + loads,
        stack_bytes=frame,
        shared_bytes=shared_bytes,
        resident_ctas=None if fits is None else fits.ctas,
        resident_limit=None if fits is None else fits.limit,
        wanted_ctas=getattr(kernel, "resident_ctas", None),
        instructions=count_instructions(ptx),
        seconds=seconds,
        digest=module.DIGEST,
        cute_dsl=module.cutlass.__version__,
        black=version("black"),
        ptx=ptx,
    )


def _compiled_ptx(
    module: ModuleType, name: str, variant: str, arch: str, more: str, options: dict[str, Any]
) -> str:
    # What is kept is also written to a folder, by default the current one.
    with dump_folder() as dump:
        kept = f"--keep-ptx --dump-dir {dump} {more}"
        compiled = getattr(module, f"compile_{name}")(variant, arch=arch, options=kept, **options)
        return str(compiled.artifacts.PTX)


def _ptxas_details(module: ModuleType, name: str, variant: str, arch: str, options: dict[str, Any]) -> str:
    """Which lines of the stages ptxas refuses: of the PTX once more, with line information."""
    with dump_folder() as dump, contextlib.redirect_stdout(io.StringIO()):
        kept = f"--keep-ptx --generate-line-info --dump-dir {dump}"
        try:
            getattr(module, f"compile_{name}")(variant, arch=arch, options=kept, **options)
        except Exception as error:
            found = places.ptx_errors(error)
            texts = [path.read_text(encoding="utf-8") for path in sorted(Path(dump).rglob("*.ptx"))]
            return "\n".join(line for text in texts for line in places.ptx_places(text, found, _file(module)))
    return ""


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
