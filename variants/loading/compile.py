"""Compiles kernels: from a form of a variant to machine code, with no GPU.

Contract
    What comes out depends on the module, the form, the architecture and the version of CuTe DSL alone; the
    same input gives the same bytes. CuTe DSL reads the kernels' source when it compiles them, not when they
    are imported: what has been replaced in the meantime is refused.
"""

import contextlib
import dataclasses
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_fake_stream

from variants.identity import DIGEST, variant_named
from variants.kernels.arguments import groups
from variants.loading.environment import check_code_is_made
from variants.refusal import require
from variants.variant import Form

# One at a time: CuTe DSL keeps what it is tracing in one place for all threads. All generated modules of a
# process share the lock, so it lies with the package that needs it.
COMPILING = vars(cutlass).setdefault("_stagewright_compiling", threading.Lock())


@dataclass(frozen=True)
class Image:
    """A compiled kernel: a cubin for one architecture, and the name of the kernel in it."""

    cubin: bytes
    entry: str


def compile_form(form: Form, arch: str, options: str = "") -> Any:
    """What `cute.compile` returns for a form, whatever the machine. options: more of its options."""
    variant = variant_named(form.variant)
    require(variant.windows or not form.windowed, f"variant {variant.name!r} serves no window")
    kernel = variant.kernel.form(pdl=form.pdl, windowed=form.windowed)
    # Compilation reads the types of the arguments, not their values.
    values = {Int64: Int64(16), Int32: Int32(1), Float32: Float32(1.0)}
    arguments = [
        group(*(values[field.type] for field in dataclasses.fields(group))) for group in groups(type(kernel))
    ]
    grid = (Int32(1), Int32(1), Int32(1))
    check_code_is_made()
    with COMPILING:
        check_source()
        return cute.compile(
            kernel, *arguments, *grid, make_fake_stream(), options=f"--gpu-arch {arch} {options}".strip()
        )


def check_source() -> None:
    """The file of this module is still the one that was imported. Raises RuntimeError."""
    try:
        text = Path(__file__).read_bytes()
    except OSError as error:
        raise RuntimeError(
            f"{__file__} cannot be read ({error.strerror}), and CuTe DSL compiles kernels from their source: "
            "install the package as files, not as an archive, and leave them in place"
        ) from error
    if DIGEST.encode() not in text:
        raise RuntimeError(
            f"{__file__} was replaced after it was imported, and CuTe DSL would compile what lies there now: "
            "start the process again"
        )


@contextlib.contextmanager
def dump_folder() -> Iterator[str]:
    """A temporary folder for what CuTe DSL keeps, removed in the end, by a path that its options can hold.

    The options are one string that is split twice, and a temporary folder may be called anything.
    """
    with tempfile.TemporaryDirectory() as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)


def compile_image(form: Form, arch: str) -> Image:
    """The machine code of a form."""
    with dump_folder() as folder:
        compiled = compile_form(form, arch, f"--keep-cubin --dump-dir {folder}")
        (entry,) = compiled.kernel_info
        return Image(compiled.artifacts.CUBIN, entry)
