"""The command line: `python -m generator generate | list | compile | export | verify | schema | docs`.

Exit status: 0 where all is well, 1 where something is stale, does not compile, computes something else, has
no reference to compare with or contradicts its contract, 2 for a wrong call or spec, and for what the system
refuses.
Tables go to standard output, progress and errors to standard error; `--json` gives tables to a program.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from cutlass.base_dsl.enums import Arch
from rich.syntax import Syntax

from generator import compiled, console, files, listing, reference, schema, tables
from generator.catalog import Catalog
from generator.console import named, refuse, say
from generator.occupancy import capability
from generator.plan import Plan, load_plan
from generator.render import render

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=console.Commands,
    help=__doc__,
)

SpecOption = Annotated[Path, typer.Option("--spec", help="The spec to read.")]
OutOption = Annotated[Path, typer.Option("--out", help="The folder of generated modules.")]
ArchOption = Annotated[str, typer.Option("--arch", help="Architectures, separated by commas.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

SPEC = Path("spec.yaml")
GENERATED = Path("generated")

MAX_SEED = (1 << 63) - 1
"""The largest seed that every generator of random numbers takes."""


@app.command()
def generate(
    spec: SpecOption = SPEC,
    folder: OutOption = GENERATED,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if anything is stale.")] = False,
) -> None:
    """Regenerate the kernel modules of a spec."""
    texts = render(load_plan(spec), spec.name)
    if check:
        differences = files.compare(texts, folder)
        for difference in differences:
            say(f"{named(difference.path)} is {_STATE[difference.kind]}")
            if difference.diff:
                # Highlighted text, not the `Syntax` itself, which would cut lines at the terminal's width.
                diff = Syntax("", "diff", background_color="default").highlight(difference.diff)
                console.out.print(diff, soft_wrap=True)
        if differences:
            say("run `python -m generator generate`, and remove orphans")
            raise typer.Exit(1)
        say(f"{len(texts)} files in {named(folder)} are as {named(spec)} makes them")
        return
    changed = files.write(texts, folder)
    for path in changed:
        say(f"wrote {named(path)}")
    if not changed:
        say(f"nothing to do: {len(texts)} files in {named(folder)} are as {named(spec)} makes them")


_STATE = {
    "missing": "missing",
    "stale": "not as the spec makes it",
    "orphan": "an orphan: no spec accounts for it",
}


@app.command("list")
def list_(spec: SpecOption = SPEC, as_json: JsonOption = False) -> None:
    """Show what each variant resolves to, and the skeletons and stages that there are."""
    found = listing.listing(load_plan(spec), Catalog.load())
    if as_json:
        print(json.dumps(found, indent=2))
        return
    _print(tables.listed(found, console.out.width))


@app.command("compile")
def compile_(
    spec: SpecOption = SPEC,
    arch: ArchOption = "sm_90a",
    ptx: Annotated[
        Path | None, typer.Option("--ptx", help="Also write each form's PTX into this folder.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if a kernel spills, or fewer CTAs fit than it asks for.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile every form of every variant with no GPU; show registers, spills, residency and instructions."""
    plan = load_plan(spec)
    archs = _archs(arch, plan)
    if ptx is not None:
        files.make_folder(ptx)
    reports: list[compiled.Report] = []
    with console.temporary_folder() as folder, console.progress("compiling") as status:
        files.write(render(plan, spec.name), folder)
        for report in compiled.compile_forms(plan, folder, archs):
            reports.append(report)
            status(f"compiled {report.name} for {report.arch}")
    if ptx is not None:
        files.write({f"{r.module}_{r.form}.{r.arch}.ptx": r.ptx for r in reports}, ptx)
    if as_json:
        rows = [dataclasses.asdict(report) for report in reports]
        print(json.dumps([{k: v for k, v in row.items() if k != "ptx"} for row in rows], indent=2))
    else:
        _print(tables.compiled(reports))
    faults = [fault for report in reports for fault in report.faults]
    for fault in faults:
        say(fault, style="red" if strict else "yellow")
    if strict and faults:
        raise typer.Exit(1)


@app.command("export")
def export_(
    folder: Annotated[Path, typer.Option("--out", help="The folder of compiled kernels.")],
    spec: SpecOption = SPEC,
    arch: ArchOption = "sm_90a",
) -> None:
    """Compile every form of every variant ahead of time, with no GPU, for `prepare(from_dir=...)`."""
    plan = load_plan(spec)
    archs = _archs(arch, plan)
    files.make_folder(folder)

    def written(path: Path) -> None:
        status(f"compiled {path.name}")
        if path.suffix == ".json":
            say(f"wrote {named(path)} and the kernels that it lists")

    with console.temporary_folder() as sources, console.progress("compiling") as status:
        files.write(render(plan, spec.name), sources)
        compiled.export_kernels(plan, sources, archs, folder, written)


@app.command("verify")
def verify_(
    spec: SpecOption = SPEC,
    device: Annotated[str, typer.Option("--device", help="emulator or cuda.")] = "emulator",
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, max=MAX_SEED, help="Other contents, and another order of execution."),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Also count what the emulator runs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run every variant, on the CPU's emulator or on a GPU, against float64 attention."""
    # These bring in PyTorch and the emulator, for which the other commands have no use.
    from generator import verify

    if device not in verify.DEVICES:
        refuse(f"--device: {device!r} is no device; allowed: {', '.join(verify.DEVICES)}")
    if device == "cuda" and stats:
        refuse("--stats: only --device emulator counts what it runs")
    if not verify.available(device):
        refuse("--device: cuda needs a CUDA device, and this machine has none; --device emulator does not")
    plan = load_plan(spec)
    outcomes: list[verify.Outcome] = []
    with console.temporary_folder() as folder, console.progress("verifying") as status:
        files.write(render(plan, spec.name), folder)
        found = verify.verify(
            plan, folder, device, seed=seed, count=stats, progress=lambda run: status(f"verifying {run}")
        )
        for outcome in found:
            outcomes.append(outcome)
            if outcome.message:
                where = f"{outcome.module}.{outcome.variant}, {outcome.problem}: {outcome.verdict}"
                say(f"{where}\n{outcome.message}")
    if as_json:
        print(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2))
    else:
        _print(tables.verified(outcomes))
    if any(outcome.verdict != verify.OK for outcome in outcomes):
        raise typer.Exit(1)


@app.command("schema")
def schema_(
    path: Annotated[Path, typer.Option("--out", help="The file to write.")] = schema.PATH,
) -> None:
    """Write the JSON Schema of specs, for editors."""
    changed = files.write({path.name: schema.text()}, path.parent)
    say(f"wrote {named(path)}" if changed else f"nothing to do: {named(path)} is as the model makes it")


@app.command("docs")
def docs_(
    path: Annotated[Path, typer.Option("--out", help="The file to write.")] = reference.PATH,
) -> None:
    """Write the reference page of specs: skeletons, slots, stages and their parameters."""
    changed = files.write({path.name: reference.text()}, path.parent)
    say(f"wrote {named(path)}" if changed else f"nothing to do: {named(path)} is as the catalog makes it")


def main() -> None:
    """Run the command line."""
    app()


def _print(found: Iterable[Any]) -> None:
    """Print tables on standard output."""
    for table in found:
        console.out.print(table, "")


def _archs(words: str, plan: Plan) -> tuple[str, ...]:
    """The architectures that an option names, if all variants can be compiled for them."""
    archs = tuple(dict.fromkeys(words.split(",")))
    least = max((v.min_arch for module in plan.modules for v in module.variants), default=0)
    allowed = ", ".join(known.name for known in Arch if capability(known.name) >= least)
    for name in archs:
        if not re.fullmatch(r"sm_\d+[af]?", name):
            refuse(f"--arch: {name!r} is no architecture; allowed is a list such as sm_90a,sm_100a")
        if name not in Arch.__members__:
            refuse(f"--arch: the compiler does not know {name!r}; allowed: {allowed}")
    for variant in (variant for module in plan.modules for variant in module.variants):
        for name in archs:
            if capability(name) < variant.min_arch:
                refuse(f"--arch: variant {variant.name!r} needs sm_{variant.min_arch} or later, got {name!r}")
    return archs
