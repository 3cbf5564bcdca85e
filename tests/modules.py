"""The generated modules under test: those of the checkout, and those of the specs in `tests/specs`.

A test of what the kernels compute, or of what they promise, goes over `SHIPPED`, so that a variant which is
added to `spec.yaml` is tested too. A test that pins a number, a name or a message takes a module of a spec of
the tests' own, which no edit of `spec.yaml` changes.
"""

import atexit
import functools
import importlib
import pkgutil
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import generated
from generator.catalog import Catalog
from generator.compiled import load_module
from generator.render import generate
from stages.slots import EpilogueReference

ROOT = Path(__file__).resolve().parents[1]

SPEC = ROOT / "spec.yaml"
"""What is shipped."""

PINNED = ROOT / "tests" / "specs" / "attn2.yaml"
"""One module, `attn2`, with a variant of each skeleton."""

KERNELS = ROOT / "tests" / "specs" / "kernels.yaml"
"""`attn2` with more variants, and `attention`, whose variants have the plain epilogue."""

SHIPPED = {
    module.name: importlib.import_module(f"generated.{module.name}")
    for module in pkgutil.iter_modules(generated.__path__)
}
"""The modules in `generated/`, by name."""


def variants_of(modules: Mapping[str, ModuleType]) -> dict[str, tuple[ModuleType, Any]]:
    """The variants of some modules, each with its module, by the names of both: `attn2.cluster`."""
    return {
        f"{name}.{variant.name}": (module, variant)
        for name, module in modules.items()
        for variant in module.VARIANTS
    }


VARIANTS = variants_of(SHIPPED)
"""Every shipped variant."""


@functools.cache
def folder_of(spec: Path) -> Path:
    """A folder with the spec as `spec.yaml` and its modules in `generated/`; made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="stagewright-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copy(spec, folder / "spec.yaml")
    generate(folder / "spec.yaml", folder / "generated")
    return folder


@functools.cache
def module_of(spec: Path, name: str) -> ModuleType:
    """A module of a spec; loaded once a process, so that its kernels are compiled once."""
    return load_module(folder_of(spec) / "generated" / f"{name}.py")


def kernel_named(module: ModuleType, variant: str) -> Any:
    """The kernel object of a variant."""
    return next(v.kernel for v in module.VARIANTS if v.name == variant)


@functools.cache
def _epilogues() -> dict[str, EpilogueReference]:
    stages = Catalog.load().by_slot["epilogue"].values()
    return {stage.contract.stage.__name__: stage.contract.reference for stage in stages}


def epilogue_of(kernel: Any) -> EpilogueReference:
    """The reference of a kernel's epilogue, from the contract of its stage."""
    return _epilogues()[type(kernel.epilogue).__name__]
