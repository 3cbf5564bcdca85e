"""What there is to build from: the skeletons, and the stages of each slot.

Each stage that was found (`generator.discovery`) is held to its own declarations as it is loaded, so that one
which cannot work is refused with its file's name before any spec is looked at.
"""

from __future__ import annotations

import dataclasses
import inspect
import symtable
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from generator.discovery import (
    ROOT,
    StageEntry,
    refuse_strays,
    seen_from_root,
    source_path,
    stages_of,
    text_of,
)
from generator.errors import CatalogError
from generator.spec import ProblemSpec
from stages.contract import SLOT_REFERENCE
from stages.slots import SLOTS, Slot
from variants.skeletons import SKELETONS, Skeleton

PROBLEM_FACTS = tuple(ProblemSpec.model_fields)
"""The names of the facts that a module's `problem` gives."""

HOST_FUNCTION = "attn2"
"""The function of `variants.host.api` that takes a generated module's name."""

_SOURCES = ("stages", "variants")


class Catalog:
    """Skeletons, slots and stages. Raises CatalogError where one contradicts its declarations."""

    def __init__(
        self,
        stages: Iterable[StageEntry],
        skeletons: Mapping[str, Skeleton] = SKELETONS,
        slots: Mapping[str, Slot] = SLOTS,
    ) -> None:
        self.skeletons = dict(skeletons)
        self.slots = dict(slots)
        self.by_slot: dict[str, dict[str, StageEntry]] = {slot: {} for slot in slots}
        for skeleton in self.skeletons.values():
            self._check_skeleton(skeleton)
        for entry in sorted(stages, key=lambda entry: entry.name):
            self._check_stage(entry)
            self.by_slot[entry.slot][entry.name] = entry

    @classmethod
    def load(cls) -> Catalog:
        """The project's own."""
        catalog = cls(entry for slot in SLOTS.values() for entry in stages_of(slot))
        refuse_strays()
        return catalog

    def stages(self) -> tuple[StageEntry, ...]:
        """All stages, slot by slot, each slot's by name."""
        return tuple(entry for by_name in self.by_slot.values() for entry in by_name.values())

    def launch_names(self, skeleton: str) -> tuple[str, ...]:
        """The fields of a skeleton's launch."""
        return tuple(field.name for field in self.skeletons[skeleton].launch)

    def slots_of(self, stage: str) -> tuple[str, ...]:
        """The slots that have a stage of this name."""
        return tuple(slot for slot, by_name in self.by_slot.items() if stage in by_name)

    @cached_property
    def taken_names(self) -> frozenset[str]:
        """Names at the top of the modules that generated code is made of."""
        names: set[str] = set()
        for package in _SOURCES:
            for file in sorted((ROOT / package).rglob("*.py")):
                try:
                    table = symtable.symtable(text_of(file), str(file), "exec")
                except (SyntaxError, ValueError) as error:
                    line = getattr(error, "lineno", None) or 1
                    raise CatalogError(f"{seen_from_root(str(file))}:{line}: not valid Python") from error
                names.update(table.get_identifiers())
        return frozenset(names - {HOST_FUNCTION})

    @cached_property
    def _given_facts(self) -> frozenset[str]:
        launch = (field.name for skeleton in self.skeletons.values() for field in skeleton.launch)
        decided = (name for skeleton in self.skeletons.values() for name in skeleton.facts)
        return frozenset((*PROBLEM_FACTS, *launch, *decided))

    def _check_skeleton(self, skeleton: Skeleton) -> None:
        file = source_path(skeleton.kernel.__module__)
        fields = {f.name for f in dataclasses.fields(skeleton.kernel)}
        for slot in skeleton.slots:
            if slot not in self.slots:
                raise CatalogError(
                    f"{file}: skeleton {skeleton.name} has a slot {slot} that no protocol describes"
                )
            if slot not in fields:
                raise CatalogError(f"{file}: {skeleton.kernel.__name__} has no field for the slot {slot}")
        launch = {field.name for field in skeleton.launch}
        for name in ("cluster", "warps"):
            if name not in launch:
                raise CatalogError(f"{file}: the launch of skeleton {skeleton.name} has no field {name}")
        known = launch | {*PROBLEM_FACTS, "max_seq_len"}
        for rule in skeleton.rules:
            for name in rule.facts:
                if name not in known:
                    raise CatalogError(
                        f"{file}: a rule of skeleton {skeleton.name} reads an unknown fact {name}"
                    )

    def _check_stage(self, entry: StageEntry) -> None:
        contract, stage = entry.contract, entry.contract.stage
        where, of = f"{entry.path}: stage {entry.label}", stage.__name__
        if contract.slot != entry.slot:
            raise CatalogError(f"{where}: its contract says slot {contract.slot}")
        if entry.slot not in self.slots:
            raise CatalogError(f"{where}: there is no such slot; there are {', '.join(self.slots)}")
        if entry.name in self.by_slot[entry.slot]:
            raise CatalogError(f"{where}: there are two of that name")
        if not dataclasses.is_dataclass(stage):
            raise CatalogError(f"{where}: {of} is not a dataclass")
        for name, wanted in _methods(self.slots[entry.slot].protocol).items():
            method = getattr(stage, name, None)
            if not callable(method):
                raise CatalogError(f"{where}: {of} has no method {name}{_shown(wanted)}")
            if _shape(method) != wanted:
                raise CatalogError(
                    f"{where}: {of}.{name}{_shown(_shape(method))} should be {name}{_shown(wanted)}"
                )
        for name in _properties(self.slots[entry.slot].protocol):
            if not isinstance(getattr(stage, name, None), property):
                raise CatalogError(f"{where}: {of} has no property {name}")
        parameters = {p.name for p in contract.parameters}
        for parameter in contract.parameters:
            if not parameter.allowed or list(parameter.allowed) != sorted(set(parameter.allowed)):
                raise CatalogError(f"{where}: the values of parameter {parameter.name} do not ascend")
            if parameter.default not in parameter.allowed:
                raise CatalogError(f"{where}: the default of parameter {parameter.name} is not allowed")
            if parameter.name in self._given_facts | {"stage"}:
                raise CatalogError(f"{where}: the name of parameter {parameter.name} is taken")
            if parameter.name not in contract.facts():
                raise CatalogError(f"{where}: {of} has no field for the parameter {parameter.name}")
        for name in contract.facts():
            if name not in self._given_facts | parameters:
                raise CatalogError(f"{where}: the field {name} of {of} is no known fact")
        for name in contract.requires:
            if name not in self._given_facts:
                raise CatalogError(f"{where}: it requires something of {name}, which is no known fact")
        self._check_reference(where, self.slots[entry.slot], contract.reference)

    def _check_reference(self, where: str, slot: Slot, reference: Any) -> None:
        """None passes: such a stage can be generated, and `verify` says that it has no reference."""
        if reference is None:
            return
        if not slot.decides_result:
            raise CatalogError(f"{where}: it has a reference, but stages of {slot.name} decide no result")
        if slot.reference is None:
            if reference != SLOT_REFERENCE:
                raise CatalogError(f"{where}: its reference is neither SLOT_REFERENCE nor None")
            return
        wanted = reference_signature(slot)
        if not callable(reference):
            raise CatalogError(f"{where}: its reference is not a function {wanted}")
        if f"reference{_shown(_shape(reference))}" != wanted:
            raise CatalogError(f"{where}: reference{_shown(_shape(reference))} should be {wanted}")


def reference_signature(slot: Slot) -> str:
    """How messages write the function that a stage of the slot declares as its reference."""
    assert slot.reference is not None
    return f"reference{_shown(_shape(slot.reference.__call__)[1:])}"


_Shape = tuple[tuple[str, inspect._ParameterKind], ...]


def _methods(protocol: type[Any]) -> dict[str, _Shape]:
    return {
        name: _shape(member)
        for name, member in vars(protocol).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def _properties(protocol: type[Any]) -> list[str]:
    return [name for name, member in vars(protocol).items() if isinstance(member, property)]


def _shape(method: Any) -> _Shape:
    # cute.jit wraps; what it wraps has the parameters.
    parameters = inspect.signature(inspect.unwrap(method)).parameters.values()
    return tuple((p.name, p.kind) for p in parameters)


def _shown(shape: _Shape) -> str:
    bare = [inspect.Parameter(name, kind) for name, kind in shape]
    return str(inspect.Signature(bare))
