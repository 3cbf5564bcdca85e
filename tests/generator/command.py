"""Copies of the checkout, and the command line in them: as a user runs it, or called in this process.

A call takes none of the seconds in which Python imports PyTorch and CuTe DSL. It generates from the stages of
this checkout, not of the copy, so it is for copies whose spec and output alone may have been changed.
"""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

from generator import cli, console
from tests.modules import PINNED, ROOT, folder_of


def copy_checkout(folder: Path, *more: str, shipped: bool = False) -> Path:
    """A copy of what the generator reads and writes, and of `more` folders, in `folder`.

    shipped: with the checkout's own spec and output, not with the tests' spec and what is made from it.
    """
    made = ROOT if shipped else folder_of(PINNED)
    for source in (*(ROOT / name for name in ("stages", "variants", "generator", *more)), made / "generated"):
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    for source in (made / "spec.yaml", ROOT / "pyproject.toml"):
        shutil.copy(source, folder)
    return folder


def first_variant(spec: str) -> str:
    """The text of the tests' spec with its first variant alone."""
    return spec[: spec.index("      # Long contexts and windows")].rstrip() + "\n"


def as_attention(spec: str) -> str:
    """The module of a spec of one variant as a module `attention`, with the plain epilogue."""
    module = spec[spec.index("  attn2:\n") :]
    return module.replace("attn2", "attention").replace("epilogue: norm_gate", "epilogue: plain")


WIDTH = {"COLUMNS": "200"}
"""Of the tables: no cell is broken."""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `python -m generator` with these arguments did in a copy."""
    return subprocess.run(
        [sys.executable, "-m", "generator", *arguments],
        cwd=folder,
        env={**os.environ, **WIDTH, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command line with these arguments did in a copy, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, WIDTH),
        mock.patch.multiple(console, out=console.literal_console(), err=console.literal_console(stderr=True)),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = cli.app(arguments, standalone_mode=True) or 0
        except SystemExit as left:
            status = left.code
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())
