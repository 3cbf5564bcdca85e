"""Recordings on disk: compressed arrays in `<group>.npz`, and what made them in `record.json`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.case import Case

FOLDER = Path(__file__).resolve().parent
FACTS = "record.json"


def _planes(x: np.ndarray) -> np.ndarray:
    """[bytes of an element, elements]: high bytes of like numbers are alike, and compress together."""
    return np.ascontiguousarray(x.reshape(-1).view(np.uint8).reshape(x.size, -1).T)


def _unplaned(planes: np.ndarray, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype).reshape(shape)


def _baseline(case: Case) -> np.ndarray:
    """The bits that the case's output is stored relative to; zero where it has no baseline."""
    return np.uint32(0) if case.baseline is None else case.baseline(*case.inputs)


def pack(case: Case, outputs: list[np.ndarray]) -> dict[str, np.ndarray]:
    """What to store of a case's outputs."""
    stored = {}
    for i, output in enumerate(outputs):
        if case.baseline is not None:
            output = output - _baseline(case).reshape(output.shape)
        stored[f"{case.name}.{i}"] = _planes(output)
    return stored


def unpack(case: Case, stored: Any) -> list[np.ndarray]:
    """A case's recorded outputs, the inverse of `pack`."""
    outputs = []
    for i, description in enumerate(case.outputs):
        output = _unplaned(stored[f"{case.name}.{i}"], description.dtype, description.shape)
        if case.baseline is not None:
            output = output + _baseline(case).reshape(output.shape)
        outputs.append(output)
    return outputs


def save(folder: Path, group: str, arrays: dict[str, np.ndarray]) -> None:
    """Write `<group>.npz`."""
    np.savez_compressed(folder / f"{group}.npz", **arrays)


def load(group: str, folder: Path = FOLDER) -> Any:
    """The arrays of `<group>.npz` by name."""
    return np.load(folder / f"{group}.npz", allow_pickle=False)


def save_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write `record.json`."""
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def facts(folder: Path = FOLDER) -> dict[str, Any]:
    """What made the recordings: `machine`, and by case `sources`, `inputs` and `ptx` (sha256)."""
    return json.loads((folder / FACTS).read_text(encoding="utf-8"))
