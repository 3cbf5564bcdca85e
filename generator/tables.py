"""Tables of the command line: what was compiled, and what was verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from generator.compiled import COUNTED, Report


def compiled(reports: Sequence[Report]) -> Iterator[Table]:
    """Resources of each kernel, then its instructions."""
    table = Table("kernel", "arch", "registers", "spill B", "stack B", "shared B", "s")
    for r in reports:
        numbers = (r.registers, r.spill_bytes, r.stack_bytes, r.shared_bytes)
        table.add_row(f"{r.module}.{r.variant}", r.arch, *(f"{n:,}" for n in numbers), f"{r.seconds:.1f}")
    yield table
    table = Table("PTX instructions", *(f"{r.module}.{r.variant}\n{r.arch}" for r in reports))
    for name in ("all", *COUNTED):
        table.add_row(name, *(f"{r.instructions[name]:,}" for r in reports))
    yield table


def verified(outcomes: Sequence[Any]) -> Iterator[Table]:
    """The verdict on each problem, then what the emulator counted if it was asked."""
    table = Table("kernel", "problem", "worst error, ulps", "s", "verdict")
    for o in outcomes:
        error = "-" if o.ulps is None else f"{o.ulps:.2f}"
        style = "green" if o.verdict == "ok" else "bold red"
        table.add_row(
            f"{o.module}.{o.variant}", o.problem, error, f"{o.seconds:.2g}", f"[{style}]{o.verdict}[/]"
        )
    yield table
    counted = [o for o in outcomes if o.counts]
    if counted:
        table = Table("the launch's", *(f"{o.module}.{o.variant}\n{o.problem}" for o in counted))
        for name in counted[0].counts:
            table.add_row(name, *(f"{o.counts[name]:,}" for o in counted))
        yield table
