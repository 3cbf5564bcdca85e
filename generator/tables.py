"""Tables of the command line: what there is, what was compiled, and what was verified.

Contract
    A kernel, or a problem of one, is a row, so that a table stays within 80 columns however many kernels
    there are; the one table with a column a variant is cut into pieces that fit. Cells are text as it stands:
    no markup is taken from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from generator.compiled import COUNTED, Report

GAP = 2
"""Columns between two cells, of which the box has one."""


def _table(*names: str, numbers: int = 0, gap: int = GAP, title: str | None = None) -> Table:
    """An empty table whose last `numbers` columns are numbers, which are never broken."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, gap - 1, 0, 0),
        title=title and Text(title),
    )
    table.title_justify, table.title_style = "left", "bold"
    for i, name in enumerate(names):
        number = i >= len(names) - numbers
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


# ---- compile -------------------------------------------------------------------------------------------


def compiled(reports: Sequence[Report]) -> Iterator[Table]:
    """For each module and architecture the resources of each kernel, then its instructions."""
    for module, arch in dict.fromkeys((report.module, report.arch) for report in reports):
        rows = [report for report in reports if (report.module, report.arch) == (module, arch)]
        headings = ("registers", "spill\nB", "shared\nB", "threads", "CTAs\nan SM", "s")
        table = _table("kernel", "limited by", *headings, numbers=6, title=f"{module} for {arch}")
        for r in rows:
            spill = Text(f"{r.spill_bytes:,} SPILLS", "bold red") if r.spill_bytes else Text("0")
            numbers = spill, f"{r.shared_bytes:,}", f"{r.threads:,}", _resident(r), f"{r.seconds:.1f}"
            table.add_row(r.form, r.resident_limit or "?", f"{r.registers}", *numbers)
        yield table
        title = f"{module} for {arch}: PTX instructions"
        opcodes = tuple(_HEADINGS.get(name, name).replace(".", "\n", 1) for name in COUNTED)
        table = _table("kernel", "all", *opcodes, numbers=1 + len(COUNTED), gap=1, title=title)
        for r in rows:
            table.add_row(r.form, *(f"{r.instructions[name]:,}" for name in ("all", *COUNTED)))
        yield table


_HEADINGS = {"movmatrix": "mov.matrix"}
"""Names of instructions that are too wide for a column."""


def _resident(report: Report) -> Text:
    if report.resident_ctas is None:
        return Text("?")
    if report.crowded:
        return Text(f"{report.resident_ctas} NOT {report.wanted_ctas}", "bold red")
    return Text(str(report.resident_ctas))


# ---- verify --------------------------------------------------------------------------------------------


def verified(outcomes: Sequence[Any]) -> Iterator[Table]:
    """The verdict on each problem, then what the emulator counted if it was asked."""
    table = _table("kernel", "problem", "verdict", "worst error, ulps", "s", numbers=2)
    for o in outcomes:
        error = "-" if o.ulps is None else f"{o.ulps:.2f}"
        verdict = Text(o.verdict, "green" if o.verdict == "ok" else "bold red")
        table.add_row(f"{o.module}.{o.variant}", o.problem, verdict, error, f"{o.seconds:.2g}")
    yield table
    counted = [o for o in outcomes if o.counts]
    if counted:
        names = list(counted[0].counts)
        headings = [name.replace(" ", "\n") for name in names]
        table = _table("kernel", "problem", *headings, numbers=len(names), gap=1)
        for o in counted:
            table.add_row(f"{o.module}.{o.variant}", o.problem, *(f"{o.counts[name]:,}" for name in names))
        yield table


# ---- list ----------------------------------------------------------------------------------------------

Rows = Mapping[str, str]
"""Cells of the matrix by the names of their rows."""


def listed(found: Mapping[str, Sequence[Mapping[str, Any]]], width: int) -> Iterator[Table | Text]:
    """The matrix of variants and slots, the skeletons with their launch fields, and the stages.

    found: what `generator.listing` gives. width: of the output; the matrix is cut into pieces that fit.
    """
    slots = list(dict.fromkeys(stage["slot"] for stage in found["stages"]))
    yield from _matrix(found["variants"], slots, width)
    for s in found["skeletons"]:
        yield Text(f"skeleton {s['skeleton']}: {s['summary']}", "bold")
        table = _table("launch field", "allowed", "default", "what it is")
        for name, field in s["launch"].items():
            default = "" if field["default"] is None else str(field["default"])
            table.add_row(name, _values(field["allowed"]), default, field["help"])
        if s["requires"]:
            table.caption, table.caption_justify = Text(_tested(s["requires"])), "left"
        yield table
    table = _table("slot", "stage", "what it does and which parameters it has")
    for s in found["stages"]:
        lines = [s["summary"]]
        for name, p in s["parameters"].items():
            lines.append(f"{name}: {p['help']}; {_values(p['allowed'])}; default {p['default']}")
        lines += [_tested(s["requires"])] if s["requires"] else []
        table.add_row(s["slot"], s["stage"], "\n".join(lines))
    yield table


def _matrix(variants: Sequence[Mapping[str, Any]], slots: Sequence[str], width: int) -> Iterator[Table]:
    """What each variant is made of, a column a variant; as many side by side as fit."""
    columns = [(f"{v['module']}.\n{v['variant']}", _facts(v), _stages(v)) for v in variants]
    names = [*dict.fromkeys(name for _, facts, _ in columns for name in facts), *slots]
    left = max(map(len, names)) + GAP
    pieces: list[list[tuple[str, Rows]]] = []
    room = 0
    for heading, facts, stages in columns:
        cells = {**facts, **stages}
        lines = (line for text in (heading, *cells.values()) for line in text.split("\n"))
        needed = max(map(len, lines)) + GAP
        if not pieces or needed > room:
            pieces.append([])
            room = width - left
        pieces[-1].append((heading, cells))
        room -= needed
    for piece in pieces:
        table = _table("", *(heading for heading, _ in piece))
        for name in names:
            if any(name in cells for _, cells in piece):
                table.add_row(Text(name, "bold"), *(cells.get(name, "-") for _, cells in piece))
        yield table


def _facts(variant: Mapping[str, Any]) -> Rows:
    """What the spec and the plan say of a variant besides its stages; launch fields last."""
    bound = variant["serves"]["max_seq_len"]
    return {
        "skeleton": variant["skeleton"],
        "max_seq_len": "any" if bound is None else f"{bound:,}",
        "window": "yes" if variant["serves"]["window"] else "no",
        "threads a CTA": f"{variant['threads']:,}",
        "shared B a CTA": f"{variant['shared_bytes']:,}",
        **{name: str(value) for name, value in variant["launch"].items()},
    }


def _stages(variant: Mapping[str, Any]) -> Rows:
    """The stage of each slot, with its parameters below it."""
    return {
        slot: "\n".join(f"{name} {value}" if name != "stage" else value for name, value in choice.items())
        for slot, choice in variant["stages"].items()
    }


def _tested(requires: Mapping[str, Sequence[Any]]) -> str:
    values = (f"{name} {_values(allowed)}" for name, allowed in requires.items())
    return f"built and tested for {'; '.join(values)}"


def _values(allowed: Sequence[Any]) -> str:
    """Values one by one, or the ends of a run of whole numbers."""
    if len(allowed) > 4 and list(allowed) == list(range(allowed[0], allowed[0] + len(allowed))):
        return f"{allowed[0]} to {allowed[-1]}"
    return ", ".join(map(str, allowed))
