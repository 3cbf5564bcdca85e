"""The reference of a generated variant's epilogue, from the contract of its stage."""

import functools
from pathlib import Path
from types import ModuleType

from generator.plan import load_plan
from stages.slots import EpilogueReference


@functools.cache
def epilogues(spec: Path) -> dict[str, EpilogueReference]:
    """The references of a spec with one module, by the variants' names."""
    (module,) = load_plan(spec).modules
    return {variant.name: variant.stages["epilogue"].reference for variant in module.variants}


def epilogue_of(module: ModuleType, variant: str) -> EpilogueReference:
    """The reference of a variant of a module whose spec lies beside the folder of generated modules."""
    return epilogues(Path(module.__file__).parents[1] / "spec.yaml")[variant]
