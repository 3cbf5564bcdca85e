"""From a spec to a plan: every choice resolved, every fact known, nothing left to check.

A plan is what the generator renders: the classes to link, and the values of their fields. What a spec may
say is checked before, its format in `generator.spec` and the rest in `generator.compose`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from generator.catalog import Catalog
from generator.compose import compose
from generator.discovery import source_path
from generator.draft import VariantDraft
from generator.errors import CatalogError, SpecError
from generator.layout import RegionPlan, StagePlan, shared_bytes
from generator.spec import SpecDocument, read_spec
from stages.contract import Barrier


@dataclass(frozen=True)
class VariantPlan:
    """One kernel of a module.

    kernel_class, kernel_module: the skeleton's class. max_seq_len: None if the skeleton has no bound and
    the spec sets none. facts: problem, launch, max_seq_len and what the skeleton derives. stages: by slot,
    in the skeleton's order. kernel_fields: the plain values of the kernel class's fields, in their order:
    all but the stages and those with a default, with a region's name for its offset. min_arch: 90 for sm_90.
    """

    name: str
    skeleton: str
    kernel_class: str
    kernel_module: str
    max_seq_len: int | None
    windows: bool
    facts: Mapping[str, Any]
    launch: Mapping[str, int]
    stages: Mapping[str, StagePlan]
    regions: tuple[RegionPlan, ...]
    shared_bytes: int
    threads: int
    barriers: tuple[Barrier, ...]
    min_arch: int
    kernel_fields: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """What the plan says about the variant, as JSON data."""
        return {
            "name": self.name,
            "skeleton": self.skeleton,
            "kernel": f"{self.kernel_module}.{self.kernel_class}",
            "max_seq_len": self.max_seq_len,
            "windows": self.windows,
            "kernel_fields": dict(self.kernel_fields),
            "stages": {
                slot: {"class": f"{stage.module}.{stage.class_name}", "facts": dict(stage.facts)}
                for slot, stage in self.stages.items()
            },
            "min_arch": self.min_arch,
        }


@dataclass(frozen=True)
class ModulePlan:
    """One generated module: its problem's facts, and its variants in the order of the spec."""

    name: str
    problem: Mapping[str, Any]
    variants: tuple[VariantPlan, ...]

    def facts(self) -> dict[str, Any]:
        """All that the plan says about the module, as JSON data; any change of the module shows in it."""
        return {
            "name": self.name,
            "problem": dict(self.problem),
            "variants": [variant.summary() for variant in self.variants],
        }


@dataclass(frozen=True)
class Plan:
    """All modules of a spec, in its order."""

    modules: tuple[ModulePlan, ...]


def load_plan(path: str | os.PathLike[str], catalog: Catalog | None = None) -> Plan:
    """The plan for the spec in the file at `path`. Raises SpecError with all that is wrong with it.

    catalog: the project's own if not given.
    """
    return resolve(read_spec(path), catalog or Catalog.load())


def resolve(spec: SpecDocument, catalog: Catalog) -> Plan:
    """The plan for `spec`. Raises SpecError with all of its problems, those of its format included."""
    modules, problems = compose(spec, catalog)
    if problems:
        raise SpecError(problems)
    return Plan(
        tuple(
            ModulePlan(
                module.name,
                module.problem,
                tuple(_variant_plan(module.name, draft) for draft in module.variants),
            )
            for module in modules
        )
    )


def _variant_plan(module: str, draft: VariantDraft) -> VariantPlan:
    skeleton = draft.skeleton
    assert skeleton is not None  # a draft without one has a problem
    stages = [draft.stages[slot] for slot in skeleton.slots]
    facts = {**draft.facts, **skeleton.derive(draft.facts)}
    total, threads = shared_bytes(draft.regions), draft.threads
    values = {
        **facts,
        **{region.name: region.offset for region in draft.regions},
        "name": f"{module}_{draft.name}",
        "shared_bytes": total,
        "threads": threads,
    }
    return VariantPlan(
        name=draft.name,
        skeleton=skeleton.name,
        kernel_class=skeleton.kernel.__name__,
        kernel_module=skeleton.kernel.__module__,
        max_seq_len=draft.facts.get("max_seq_len"),
        windows=draft.windows,
        facts=facts,
        launch={field.name: draft.facts[field.name] for field in skeleton.launch},
        stages={stage.slot: stage for stage in stages},
        regions=draft.regions,
        shared_bytes=total,
        threads=threads,
        barriers=tuple(barrier for stage in stages for barrier in stage.barriers),
        min_arch=max(stage.min_arch for stage in stages),
        kernel_fields=_kernel_fields(draft, values),
    )


def _kernel_fields(draft: VariantDraft, values: Mapping[str, Any]) -> dict[str, Any]:
    skeleton = draft.skeleton
    assert skeleton is not None
    # Fields with a default are the host's to set: PDL, and whether there is a window.
    given = [f.name for f in dataclasses.fields(skeleton.kernel) if f.default is dataclasses.MISSING]
    names = [name for name in given if name not in skeleton.slots]
    where = f"{source_path(skeleton.kernel.__module__)}: {skeleton.kernel.__name__}"
    for name in names:
        if name not in values:
            raise CatalogError(
                f"{where} has a field {name}, which is neither a fact, nor derived, nor a region of a stage "
                f"({', '.join(stage.name for stage in draft.stages.values())})"
            )
    for region in draft.regions:
        if region.name not in names:
            raise CatalogError(
                f"{where} has no field for the shared-memory region {region.name} of stage "
                f"{draft.stages[region.slot].name} ({region.slot})"
            )
    return {name: values[name] for name in names}
