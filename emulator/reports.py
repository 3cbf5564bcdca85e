"""What a machine says when it cannot go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.interface import Array

if TYPE_CHECKING:
    from emulator.machine import Machine

_REPORTED = 12
"""Lines of a report about one kind of thing."""


def deadlock(machine: Machine, message: str) -> str:
    """What every thread that has not ended waits for, and what is missing."""
    lines = []
    for reason in np.unique(machine.reason_of[machine.parked]).tolist():
        threads = np.flatnonzero(machine.parked & (machine.reason_of == reason))
        instruction = machine.parked_at[reason]
        where = f" (PTX line {instruction.line}: {instruction.text})" if instruction else ""
        why = str(machine.reasons[reason]).removeprefix("waits for ")
        lines.append(f"{_names(machine, threads)}: waiting for {why}{where}")
    for ready in machine.schedule.ready:
        for number, groups in ready.items():
            threads = np.concatenate([group.threads for group in groups])
            first = machine.program.blocks[number].instructions[0]
            lines.append(
                f"{_names(machine, threads)}: polling, or waiting for lanes of the warp, "
                f"at PTX line {first.line}"
            )
    shown = [message, *_cut(lines), *_cut(machine.asynchronous.pending())]
    ended = int(machine.ended.sum())
    if ended:
        shown.append(f"{ended} of {machine.thread_count} threads have ended")
    return "\n".join(shown)


def _names(machine: Machine, threads: Array) -> str:
    more = f" and {len(threads) - 1} more" if len(threads) > 1 else ""
    return f"{machine.describe(int(threads[0]))}{more}"


def _cut(lines: list[str]) -> list[str]:
    """The first of many lines, and how many more there are."""
    more = len(lines) - _REPORTED
    return lines if more <= 0 else [*lines[:_REPORTED], f"... and {more} more of this kind"]
