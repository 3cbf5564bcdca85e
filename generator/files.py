"""Puts rendered modules on disk, whole or not at all, and tells what is stale.

Contract
    A file is written beside its place and moved there in one step, so that nobody ever reads a part of it,
    and only if its content changes, so that nothing downstream rebuilds for nothing. The folder of generated
    modules belongs to the generator: a Python file in it that no spec accounts for is an orphan.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Difference:
    """One file that is not as the spec makes it. kind: "missing", "stale" or "orphan"."""

    path: Path
    kind: str
    diff: str


def write(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the files whose content changes; returns their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = [folder / name for name, text in sorted(files.items()) if _read(folder / name) != text]
    for path in changed:
        _replace(path, files[path.name])
    return changed


def compare(files: Mapping[str, str], folder: Path) -> list[Difference]:
    """How the folder differs from the files that it should hold, by name."""
    found = []
    for name, text in sorted(files.items()):
        path = folder / name
        old = _read(path)
        if old != text:
            lines = (old or "").splitlines(keepends=True), text.splitlines(keepends=True)
            diff = difflib.unified_diff(*lines, f"{path} (as it is)", f"{path} (as the spec makes it)")
            found.append(Difference(path, "missing" if old is None else "stale", "".join(diff)))
    orphans = sorted(set(folder.glob("*.py")) - {folder / name for name in files})
    return found + [Difference(path, "orphan", "") for path in orphans]


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    """Write a file in one step: other processes see the old content or the new."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
        # mkstemp keeps files to their owner; a source file is everybody's to read.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
