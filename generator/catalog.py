"""What there is to build from: the skeletons, and the stages of each slot.

Stages are found, not registered: a module of the package `stages.<slot>` that has a `CONTRACT` is a stage of
that slot, by the module's name. Each is held to its own declarations as it is loaded, so that a stage which
cannot work is refused with its file's name before any spec is looked at.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import symtable
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from generator.errors import CatalogError
from generator.spec import ProblemSpec
from stages.contract import SLOT_REFERENCE, Contract
from stages.slots import SLOTS, Slot
from variants.skeletons import SKELETONS, Skeleton

PROBLEM_FACTS = tuple(ProblemSpec.model_fields)
"""The names of the facts that a module's `problem` gives."""

HOST_FUNCTION = "attn2"
"""The function of `variants.host.api` that takes a generated module's name."""

_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = ("stages", "variants")


@dataclass(frozen=True)
class StageEntry:
    """A stage that can fill a slot. module: the dotted name of the module that holds its class."""

    slot: str
    name: str
    module: str
    contract: Contract

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.name} ({self.slot})"

    @property
    def path(self) -> str:
        """The file of its module, seen from the root of the checkout."""
        return source_path(self.module)


def source_path(module: str) -> str:
    """The file of a module of the checkout, seen from its root."""
    return module.replace(".", "/") + ".py"


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
        return cls(entry for slot in SLOTS.values() for entry in _stages_of(slot))

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
            for file in sorted((_ROOT / package).rglob("*.py")):
                table = symtable.symtable(file.read_text("utf-8"), str(file), "exec")
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


def _stages_of(slot: Slot) -> Iterable[StageEntry]:
    try:
        package = importlib.import_module(slot.package)
    except ImportError as error:
        raise CatalogError(f"{slot.package}: cannot be imported: {error}") from error
    for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        path = f"{slot.package}.{name}"
        try:
            contract = getattr(importlib.import_module(path), "CONTRACT", None)
        except Exception as error:
            raise CatalogError(f"{source_path(path)}: cannot be imported: {error}") from error
        if contract is None:  # what the slot's stages share
            continue
        if not isinstance(contract, Contract):
            raise CatalogError(f"{source_path(path)}: CONTRACT is no Contract")
        if contract.stage.__module__ != path:
            raise CatalogError(f"{source_path(path)}: {contract.stage.__name__} is defined in another module")
        yield StageEntry(slot.name, name, path, contract)


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
