"""What there is to build from: the skeletons, and the stages of each slot.

Stages are found, not registered: a module of the package `stages.<slot>` is a stage of that slot, by the
module's name, and has a `CONTRACT`; what the stages of a slot share lies beside them in modules that the
package's `__init__` names in `HELPERS`. Anything else in a slot's folder is refused. Each stage is held to
its own declarations as it is loaded, so that one which cannot work is refused with its file's name before
any spec is looked at.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import symtable
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
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
_HAS_CONTRACT = re.compile(r"^CONTRACT\s*[:=]", re.MULTILINE)


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
        catalog = cls(entry for slot in SLOTS.values() for entry in _stages_of(slot))
        _refuse_strays()
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
            for file in sorted((_ROOT / package).rglob("*.py")):
                try:
                    table = symtable.symtable(_text_of(file), str(file), "exec")
                except (SyntaxError, ValueError) as error:
                    line = getattr(error, "lineno", None) or 1
                    raise CatalogError(f"{_seen_from_root(str(file))}:{line}: not valid Python") from error
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
    """The stages in a slot's folder, where nothing else may lie but helpers that the folder names."""
    package = _imported(slot.package, is_package=True)
    folder = slot.package.replace(".", "/")
    helpers = tuple(getattr(package, "HELPERS", ()))
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    for name in helpers:
        if name not in names:
            raise CatalogError(
                f"{folder}/__init__.py: HELPERS names {name}, and there is no {folder}/{name}.py"
            )
    for name in names:
        path = f"{slot.package}.{name}"
        file = source_path(path)
        if not name.isidentifier():
            raise CatalogError(f"{file}: a stage has the name of its file, and {name!r} cannot be imported")
        module = _imported(path)
        contract = getattr(module, "CONTRACT", None)
        if name in helpers:
            if contract is not None:
                raise CatalogError(f"{file}: it has a CONTRACT, and {folder}/__init__.py names it in HELPERS")
        elif contract is None:
            raise CatalogError(
                f"{file}: it has no CONTRACT, so it is no stage: give it one, or name {name!r} in HELPERS of "
                f"{folder}/__init__.py"
            )
        elif not isinstance(contract, Contract):
            raise CatalogError(f"{file}: CONTRACT is no Contract")
        elif contract.stage.__module__ != path:
            raise CatalogError(f"{file}: {contract.stage.__name__} is defined in another module")
        if not (module.__doc__ or "").strip():
            raise CatalogError(
                f"{file}: it has no docstring, which states what the module promises and needs"
            )
        if contract is not None:
            yield StageEntry(slot.name, name, path, contract)


def _imported(name: str, *, is_package: bool = False) -> ModuleType:
    """A module of the workshop. Raises CatalogError with the file, and the line if there is one."""
    file = source_path(f"{name}.__init__" if is_package else name)
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        own = error.filename is None or error.filename.endswith(f"/{file}")
        where = file if own else _seen_from_root(str(error.filename))
        raise CatalogError(f"{where}:{error.lineno or 1}: not valid Python") from error
    except ModuleNotFoundError as error:
        raise CatalogError(f"{file}: cannot be imported: there is no module {error.name}") from error
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(f"/{file}")]
        line = f":{frames[-1].lineno}" if frames else ""
        raise CatalogError(f"{file}{line}: cannot be imported: {type(error).__name__}: {error}") from error


def _seen_from_root(file: str) -> str:
    path = Path(file)
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else file


def _refuse_strays() -> None:
    """A file with a CONTRACT outside the slots' folders would silently be no stage."""
    folders = {slot.package.replace(".", "/") for slot in SLOTS.values()}
    for file in sorted((_ROOT / "stages").rglob("*.py")):
        path = file.relative_to(_ROOT)
        if path.parent.as_posix() not in folders and _HAS_CONTRACT.search(_text_of(file)):
            raise CatalogError(
                f"{path.as_posix()}: it has a CONTRACT, and lies in no slot's folder; the slots are "
                f"{', '.join(SLOTS)}"
            )


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise CatalogError(f"{_seen_from_root(str(file))}: it is not UTF-8") from error


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
