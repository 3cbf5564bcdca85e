"""Finished stages, and where their regions lie in a CTA's shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generator.discovery import StageEntry
from generator.errors import CatalogError
from stages.contract import MAX_SHARED_BYTES, Barrier, Region
from variants.kernels.base import SHARED_ALIGN

MAX_TRANSACTION_BYTES = (1 << 20) - 1
"""Bytes that one phase of an mbarrier can count (PTX ISA, mbarrier: range of the tx-count)."""

_MBARRIER_BYTES = 8

Overlays = Sequence[tuple[str, ...]]
"""Groups of regions, by name."""


@dataclass(frozen=True)
class StagePlan:
    """A stage that fills a slot of a variant.

    module, class_name: where its class is. facts: the class's fields. parameters: those that the spec may
    set, defaults included. stage: the finished stage. regions, barriers: what it owns. reference: of its
    contract.
    """

    slot: str
    name: str
    module: str
    class_name: str
    facts: Mapping[str, Any]
    parameters: Mapping[str, int]
    stage: Any
    regions: tuple[Region, ...]
    barriers: tuple[Barrier, ...]
    min_arch: int
    reference: Callable[..., Any] | str | None


@dataclass(frozen=True)
class RegionPlan:
    """A region of shared memory. offset: in bytes from the start of the CTA's."""

    name: str
    slot: str
    offset: int
    bytes: int
    align: int


def build_stage(entry: StageEntry, facts: Mapping[str, Any], parameters: Mapping[str, int]) -> StagePlan:
    """The stage for these facts, of which the class's fields must be among. Raises CatalogError."""
    contract = entry.contract
    known = {**facts, **parameters}
    try:
        stage = contract.build(known)
        regions, barriers = tuple(contract.shared(stage)), tuple(contract.barriers(stage))
    except Exception as error:
        raise CatalogError(
            f"{entry.path}: stage {entry.label} cannot be built for {known}: {error!r}"
        ) from error
    for region in regions:
        if region.bytes <= 0 or region.align <= 0 or SHARED_ALIGN % region.align:
            raise CatalogError(
                f"{entry.path}: region {region.name} of {region.bytes} bytes aligned to {region.align}: a "
                f"region is not empty, and its alignment is a power of two, at most {SHARED_ALIGN}"
            )
    for barrier in barriers:
        if (barrier.name, _MBARRIER_BYTES, _MBARRIER_BYTES) not in (
            (r.name, r.bytes, r.align) for r in regions
        ):
            raise CatalogError(
                f"{entry.path}: the barrier {barrier.name} has no region of {_MBARRIER_BYTES} aligned bytes"
            )
    return StagePlan(
        slot=entry.slot,
        name=entry.name,
        module=entry.module,
        class_name=contract.stage.__name__,
        facts={name: known[name] for name in contract.facts()},
        parameters=dict(parameters),
        stage=stage,
        regions=regions,
        barriers=barriers,
        min_arch=contract.min_arch,
        reference=contract.reference,
    )


def lay_out(stages: Iterable[StagePlan], overlays: Overlays = ()) -> tuple[RegionPlan, ...]:
    """The stages' regions one after the other, each at the first offset that its alignment allows.

    overlays: groups of regions of which a CTA uses one at most; those of a group begin at the same offset.
    """
    owned = [(stage.slot, region) for stage in stages for region in stage.regions]
    groups = {name: group for group in overlays for name in group}
    regions: list[RegionPlan] = []
    offsets: dict[tuple[str, ...], int] = {}
    end = 0
    for slot, region in owned:
        group = groups.get(region.name, (region.name,))
        if group not in offsets:
            together = [other for _, other in owned if other.name in group]
            align = max(other.align for other in together)
            offsets[group] = -(-end // align) * align
            end = offsets[group] + max(other.bytes for other in together)
        regions.append(RegionPlan(region.name, slot, offsets[group], region.bytes, region.align))
    return tuple(regions)


def shared_bytes(regions: Sequence[RegionPlan]) -> int:
    """Bytes of shared memory that hold these regions."""
    return max((region.offset + region.bytes for region in regions), default=0)


def shared_sum(regions: Sequence[RegionPlan]) -> str:
    """How `shared_bytes` comes about, for people."""
    total = shared_bytes(regions)
    places: dict[int, list[RegionPlan]] = {}
    for region in regions:
        places.setdefault(region.offset, []).append(region)
    parts = [" or ".join(f"{region.name} {region.bytes} B" for region in place) for place in places.values()]
    padding = total - sum(max(region.bytes for region in place) for place in places.values())
    if padding:
        parts.append(f"padding {padding} B")
    return f"{' + '.join(parts)} = {total} B"


def settings_that_fit(
    entry: StageEntry,
    plan: StagePlan,
    stages: Sequence[StagePlan],
    facts: Mapping[str, Any],
    overlays: Overlays = (),
) -> tuple[tuple[str, int], ...]:
    """Parameters of `plan`, one of the `stages`, and values for them with which shared memory suffices."""
    fitting = []
    for parameter in entry.contract.parameters:
        for value in parameter.allowed:
            other = build_stage(entry, facts, {**plan.parameters, parameter.name: value})
            regions = lay_out((other if stage is plan else stage for stage in stages), overlays)
            if shared_bytes(regions) <= MAX_SHARED_BYTES and not entry.contract.unfit(other.stage):
                fitting.append((parameter.name, value))
    return tuple(fitting)
