"""The report of threads that cannot go on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from emulator.arrays import Array
from emulator.machine.parking import Parking
from emulator.ptx.instruction import Instruction
from emulator.wave.geometry import Geometry

_REPORTED = 12
"""Lines of a report about one kind of thing."""


def deadlock(
    message: str,
    geometry: Geometry,
    parking: Parking,
    standing: Iterable[tuple[Instruction, Array]],
    pending: list[str],
    ended: Array,
) -> str:
    """What every thread that has not ended waits for, and what is missing.

    standing: threads that are not parked, by the instruction before which they are. pending: lines about what
    is in flight. ended: which threads have ended (bool).
    """
    lines = []
    for threads, reason, instruction in parking.waits():
        where = f" (PTX line {instruction.line}: {instruction.text})" if instruction else ""
        why = str(reason).removeprefix("waits for ")
        lines.append(f"{_names(geometry, threads)}: waiting for {why}{where}")
    for first, threads in standing:
        why = f"polling, or waiting for lanes of the warp, at PTX line {first.line}"
        lines.append(f"{_names(geometry, threads)}: {why}")
    shown = [message, *_cut(lines), *_cut(pending)]
    count = int(np.count_nonzero(ended))
    if count:
        shown.append(f"{count} of {geometry.thread_count} threads have ended")
    return "\n".join(shown)


def _names(geometry: Geometry, threads: Array) -> str:
    more = f" and {len(threads) - 1} more" if len(threads) > 1 else ""
    return f"{geometry.describe(int(threads[0]))}{more}"


def _cut(lines: list[str]) -> list[str]:
    """The first of many lines, and how many more there are."""
    more = len(lines) - _REPORTED
    return lines if more <= 0 else [*lines[:_REPORTED], f"... and {more} more of this kind"]
