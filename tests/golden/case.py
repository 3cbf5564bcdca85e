"""A golden case: a kernel with its launch, one set of inputs, and digests of what it was recorded from."""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.device import MicroKernel, Out


@dataclass(frozen=True)
class Case:
    """One kernel on one set of inputs.

    arguments: those of the kernel, as `tests.device.run` takes them. stages: the modules under test, such as
    "stages.ptx.matrix". baseline: the output's bits from the input arrays, which the recording is stored
    relative to; without one it is stored as it is.
    """

    name: str
    kernel: MicroKernel
    arguments: list[Any]
    stages: tuple[str, ...]
    baseline: Callable[..., np.ndarray] | None = None

    @property
    def inputs(self) -> list[np.ndarray]:
        """The arrays among the arguments."""
        return [a for a in self.arguments if isinstance(a, np.ndarray)]

    def inputs_digest(self) -> str:
        """sha256 of all arguments: shapes, types and bytes."""
        digest = hashlib.sha256()
        for a in self.arguments:
            described = (a.dtype.str, a.shape) if isinstance(a, np.ndarray) else a
            digest.update(repr(described).encode())
            digest.update(a.tobytes() if isinstance(a, np.ndarray) else b"")
        return digest.hexdigest()

    def source_digest(self) -> str:
        """sha256 of the source of the stages under test, so that a later change of them shows."""
        paths = [Path(sys.modules[module].__file__) for module in self.stages]
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()

    @property
    def outputs(self) -> list[Out]:
        """The outputs among the arguments."""
        return [a for a in self.arguments if isinstance(a, Out)]
