"""The fundamental types of PTX: their sizes, and the NumPy types that hold their values."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZES = {
    **{t: 1 for t in ("b8", "u8", "s8")},
    **{t: 2 for t in ("b16", "u16", "s16", "f16", "bf16")},
    **{t: 4 for t in ("b32", "u32", "s32", "f32", "f16x2", "bf16x2")},
    **{t: 8 for t in ("b64", "u64", "s64", "f64")},
}
"""Bytes of a PTX type."""

DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{name: np.uint8 for name in ("b8", "u8")},
    **{name: np.uint16 for name in ("b16", "u16", "f16", "bf16")},
    **{name: np.uint32 for name in ("b32", "u32", "f16x2", "bf16x2")},
    **{name: np.uint64 for name in ("b64", "u64")},
    "s8": np.int8,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "f32": np.float32,
    "f64": np.float64,
}
"""The NumPy type of each PTX type. Half-precision types are their bits."""
