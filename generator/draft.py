"""What is known of a spec's modules while they are being checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from generator.discovery import StageEntry
from generator.errors import UNTESTED, KeyPath, Problem, listed
from generator.layout import RegionPlan, StagePlan
from generator.spec import SpecDocument
from variants.skeletons import LaunchField, Skeleton


@dataclass
class Demands:
    """What a fact's value has to be: one of those that its launch field and everybody else allow.

    stages: the allowed values of each stage, and of the skeleton, by what messages call it.
    """

    path: KeyPath
    value: int | str
    launch: LaunchField | None = None
    stages: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def objectors(self) -> list[str]:
        """The stages, and the skeleton, that do not support the value."""
        return [label for label, allowed in self.stages.items() if self.value not in allowed]

    @property
    def met(self) -> bool:
        """Whether the value will do."""
        return not self.objectors and (self.launch is None or self.value in self.launch.allowed)

    def problem(self, spec: SpecDocument) -> Problem:
        """What is wrong with the value."""
        name = self.path[-1]
        sets = [*self.stages.values(), *([self.launch.allowed] if self.launch else [])]
        common = tuple(v for v in sets[0] if all(v in other for other in sets))
        if self.launch and self.value not in self.launch.allowed:
            message = f"{name} {self.value} is not allowed"
            if self.launch.limit and isinstance(self.value, int) and self.value > self.launch.allowed[-1]:
                message += f": {self.launch.limit}"
            else:
                message += f" ({UNTESTED})"
        else:
            message = f"{name} {self.value} is not supported by {', '.join(self.objectors)} ({UNTESTED})"
        if not common:
            each = (f"{label}: {', '.join(map(str, allowed))}" for label, allowed in self.stages.items())
            message += f"; no value suits all stages ({'; '.join(each)})"
        return spec.document.problem(self.path, message, allowed=listed(common))


@dataclass
class VariantDraft:
    """What is known of a variant so far; complete once no problem was found."""

    name: str
    path: KeyPath
    data: Mapping[str, Any]
    skeleton: Skeleton | None = None
    windows: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, tuple[StageEntry, dict[str, int]]] = field(default_factory=dict)
    stages: dict[str, StagePlan] = field(default_factory=dict)
    regions: tuple[RegionPlan, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return int(32 * self.facts["warps"])

    def computes(self, slot: str) -> object:
        """What the stage of a slot computes: its `Contract.reference`.

        Of a stage that declares none nothing is known, so it is like itself with the same parameters alone.
        """
        entry, parameters = self.entries[slot]
        if entry.contract.reference is None:
            return entry.name, parameters
        return entry.contract.reference


@dataclass
class ModuleDraft:
    """What is known of a module so far."""

    name: str
    problem: dict[str, Any]
    variants: list[VariantDraft]
