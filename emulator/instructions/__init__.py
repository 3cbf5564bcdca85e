"""The instructions: each module registers those of one family."""

import importlib

FAMILIES = (
    "arithmetic",
    "atomics",
    "barriers",
    "bits",
    "compare",
    "convert",
    "floats",
    "loads",
    "matrix",
    "moves",
    "order",
    "warp",
)
"""The modules; `emulator.asynchronous` registers its own."""


def load() -> None:
    """Import every family, which registers it."""
    for family in FAMILIES:
        importlib.import_module(f"emulator.instructions.{family}")
    importlib.import_module("emulator.asynchronous")
