"""Every mantissa of the tabulated functions: digests to compare with, and the tables, to fit a model to.

A range of arguments is all FP32 numbers from one on, in ascending order of bits.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests import device
from tests.device import out
from tests.golden import baselines
from tests.stages.ptx.test_arithmetic import Elementwise

CHUNK = 1 << 20
"""Arguments of one launch."""

RANGES = {
    # (function, name): (first bits, how many)
    ("exp2", "half"): (0x3F000000, 1 << 23),
    ("exp2", "one"): (0x3F800000, 1 << 23),
    ("exp2", "minus_half"): (0xBF000000, 1 << 23),
    ("exp2", "small"): (0x3B000000, 1 << 23),
    ("reciprocal", "one"): (0x3F800000, 1 << 23),
    ("rsqrt", "one"): (0x3F800000, 1 << 24),
}


def chunks(first: int, count: int) -> Iterator[np.ndarray]:
    """The arguments of a range, FP32, a chunk at a time."""
    for start in range(first, first + count, CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)


def digests(evaluate: Callable[[str, np.ndarray], np.ndarray]) -> dict[str, str]:
    """sha256 of each range's results. evaluate(function, arguments) gives their bits (uint32)."""
    found = {}
    for (op, name), place in RANGES.items():
        digest = hashlib.sha256()
        for x in chunks(*place):
            digest.update(np.ascontiguousarray(evaluate(op, x), "<u4").tobytes())
        found[f"{op}_{name}"] = digest.hexdigest()
    return found


def on_device(op: str, x: np.ndarray) -> np.ndarray:
    """The bits that the GPU gives for a chunk of arguments."""
    (got,) = device.run(Elementwise(op, 1, CHUNK), [x[None], out(np.uint32, CHUNK)])
    return got


def save_tables(folder: Path) -> None:
    """Write `<function>_<range>.npz`: results less the correctly rounded ones (`baselines`), as int8."""
    folder.mkdir(parents=True, exist_ok=True)
    for (op, name), place in RANGES.items():
        parts = [(on_device(op, x) - getattr(baselines, op)(x)).view(np.int32) for x in chunks(*place)]
        difference = np.concatenate(parts)
        assert np.abs(difference).max() < 128, f"{op}_{name} is further off than any model will explain"
        np.savez_compressed(folder / f"{op}_{name}.npz", difference=difference.astype(np.int8))
