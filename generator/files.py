"""Puts rendered modules on disk, whole or not at all, and tells what is stale.

Contract
    A file is written beside its place and moved there in one step, so that nobody ever reads a part of it,
    and only if its content changes, so that nothing downstream rebuilds for nothing. Of a symbolic link the
    target is written, and a file keeps its mode.

    In the folder of generated modules, the Python files belong to the generator: whatever is directly in it,
    is no folder, and has a name that ends in `.py`, in small or capital letters; hidden files and broken
    links are among them. One that no spec accounts for is an orphan. Everything else is left alone: files
    without that suffix, and folders with all that they hold, into which nothing is ever generated.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from variants.loading.atomic import write_whole


@dataclass(frozen=True)
class Difference:
    """One file that is not as the spec makes it. kind: "missing", "stale" or "orphan"."""

    path: Path
    kind: str
    diff: str


def write(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the files whose content changes; returns their paths. Raises OSError."""
    make_folder(folder)
    changed = [folder / name for name, text in sorted(files.items()) if _read(folder / name) != text]
    for path in changed:
        write_whole(path, files[path.name].encode("utf-8"))
    return changed


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where it does not exist. Raises OSError with its name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error


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
    return found + [
        Difference(path, "orphan", "") for path in _python_files(folder) if path.name not in files
    ]


def _python_files(folder: Path) -> list[Path]:
    """The files of a folder that are the generator's, by name; none if there is no folder."""
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if path.name.lower().endswith(".py") and not path.is_dir()
    )


def _read(path: Path) -> str | None:
    """What a file holds; None if there is none. Raises OSError; opening a pipe or a device could wait."""
    try:
        if not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
