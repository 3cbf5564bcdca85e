"""Exhaustive tables of the approximate functions, to fit a model to: not kept with the recordings.

One file a function; in it, for each range of arguments, what the device gives for every FP32 number in
ascending order of bits, less the correctly rounded bits (`tests.golden.baselines`), as int8 where it fits.
"""

from pathlib import Path

import numpy as np

from tests import device
from tests.device import out
from tests.golden import baselines
from tests.stages.test_ptx import Elementwise

CHUNK = 1 << 20
"""Arguments of one launch."""

RANGES = {
    # function: {name: (first bits, how many)}
    "exp2": {
        "half": (0x3F000000, 1 << 23),
        "one": (0x3F800000, 1 << 23),
        "minus_half": (0xBF000000, 1 << 23),
        "small": (0x3B000000, 1 << 23),
    },
    "reciprocal": {"one": (0x3F800000, 1 << 23)},
    "rsqrt": {"one": (0x3F800000, 1 << 24)},
}


def _differences(op: str, first: int, count: int) -> np.ndarray:
    parts = []
    for start in range(first, first + count, CHUNK):
        x = np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)
        (got,) = device.run(Elementwise(op, 1, CHUNK), [x[None], out(np.uint32, CHUNK)])
        parts.append((got - getattr(baselines, op)(x)).view(np.int32))
    whole = np.concatenate(parts)
    print(f"{op} from {first:#x}: {whole.min()} .. {whole.max()}", flush=True)
    return whole.astype(np.int8) if np.abs(whole).max() < 128 else whole


def survey(folder: Path) -> None:
    """Write the ranges of each function as `<function>.npz` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for op, ranges in RANGES.items():
        np.savez_compressed(
            folder / f"{op}.npz", **{name: _differences(op, *r) for name, r in ranges.items()}
        )
