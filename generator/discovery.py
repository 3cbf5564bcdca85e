"""Finds the stages of each slot.

Stages are found, not registered: a module of the package `stages.<slot>` is a stage of that slot, by the
module's name, and has a `CONTRACT`; what the stages of a slot share lies beside them in modules that the
package's `__init__` names in `HELPERS`. Anything else in a slot's folder is refused.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from generator.errors import CatalogError
from stages.contract import Contract
from stages.slots import SLOTS, Slot

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

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


def stages_of(slot: Slot) -> Iterable[StageEntry]:
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
        where = file if own else seen_from_root(str(error.filename))
        raise CatalogError(f"{where}:{error.lineno or 1}: not valid Python") from error
    except ModuleNotFoundError as error:
        raise CatalogError(f"{file}: cannot be imported: there is no module {error.name}") from error
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(f"/{file}")]
        line = f":{frames[-1].lineno}" if frames else ""
        raise CatalogError(f"{file}{line}: cannot be imported: {type(error).__name__}: {error}") from error


def seen_from_root(file: str) -> str:
    """A file, seen from the root of the checkout if it lies there."""
    path = Path(file)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else file


def refuse_strays() -> None:
    """A file with a CONTRACT outside the slots' folders would silently be no stage."""
    folders = {slot.package.replace(".", "/") for slot in SLOTS.values()}
    for file in sorted((ROOT / "stages").rglob("*.py")):
        path = file.relative_to(ROOT)
        if path.parent.as_posix() not in folders and _HAS_CONTRACT.search(text_of(file)):
            raise CatalogError(
                f"{path.as_posix()}: it has a CONTRACT, and lies in no slot's folder; the slots are "
                f"{', '.join(SLOTS)}"
            )


def text_of(file: Path) -> str:
    """The text of a file of the workshop. Raises CatalogError."""
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise CatalogError(f"{seen_from_root(str(file))}: it is not UTF-8") from error
