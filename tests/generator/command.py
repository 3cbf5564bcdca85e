"""Copies of the checkout, and the command line run in them as a user runs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def copy_checkout(folder: Path, *more: str) -> Path:
    """A copy of what the generator reads and writes, and of `more` folders, in `folder`."""
    for name in ("stages", "variants", "generator", "generated", *more):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "spec.yaml", folder)
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `python -m generator` with these arguments did in a copy."""
    return subprocess.run(
        [sys.executable, "-m", "generator", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
