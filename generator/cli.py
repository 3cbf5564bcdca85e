"""The command line: `python -m generator generate | list | compile | export | verify | schema | docs`.

Exit status: 0 where all is well, 1 where something is stale, does not compile, computes something else, has
no reference to compare with or contradicts its contract, 2 for a wrong call or spec.
Tables go to standard output, progress and errors to standard error; `--json` gives tables to a program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.tree import Tree

from generator import compiled, files, reference, schema, tables
from generator.catalog import Catalog
from generator.errors import CatalogError, SpecError
from generator.link import LinkError
from generator.plan import Plan, load_plan
from generator.render import render

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
out = Console()
err = Console(stderr=True)

SpecOption = Annotated[Path, typer.Option("--spec", help="The spec to read.")]
OutOption = Annotated[Path, typer.Option("--out", help="The folder of generated modules.")]
ArchOption = Annotated[str, typer.Option("--arch", help="Architectures, separated by commas.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

SPEC = Path("spec.yaml")
GENERATED = Path("generated")


@app.command()
def generate(
    spec: SpecOption = SPEC,
    folder: OutOption = GENERATED,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if anything is stale.")] = False,
) -> None:
    """Regenerate the kernel modules of a spec."""
    texts = _texts(_plan(spec), spec)
    if check:
        with _refusing_what_the_system_refuses(folder):
            differences = files.compare(texts, folder)
        for difference in differences:
            _say(f"{difference.path} is {_STATE[difference.kind]}")
            if difference.diff:
                out.print(Syntax(difference.diff, "diff", background_color="default"))
        if differences:
            err.print("run `python -m generator generate`, and remove orphans")
            raise typer.Exit(1)
        _say(f"{len(texts)} files in {folder} are as {spec} makes them")
        return
    with _refusing_what_the_system_refuses(folder):
        changed = files.write(texts, folder)
    for path in changed:
        _say(f"wrote {path}")
    if not changed:
        _say(f"nothing to do: {len(texts)} files in {folder} are as {spec} makes them")


_STATE = {
    "missing": "missing",
    "stale": "not as the spec makes it",
    "orphan": "an orphan: no spec accounts for it",
}


@app.command("list")
def list_(spec: SpecOption = SPEC, as_json: JsonOption = False) -> None:
    """Show modules, variants and stages: what each resolves to, and which stage fits which slot."""
    plan, catalog = _plan(spec), Catalog.load()
    variants: list[dict[str, Any]] = [
        {
            "module": module.name,
            "variant": variant.name,
            "skeleton": variant.skeleton,
            "serves": _serves(variant),
            "launch": dict(variant.launch),
            "threads": variant.threads,
            "shared_bytes": variant.shared_bytes,
            "stages": {
                slot: {"stage": stage.name, **stage.parameters} for slot, stage in variant.stages.items()
            },
        }
        for module in plan.modules
        for variant in module.variants
    ]
    stages: list[dict[str, Any]] = [
        {
            "slot": entry.slot,
            "stage": entry.name,
            "summary": entry.contract.summary,
            "parameters": {
                p.name: {"allowed": list(p.allowed), "default": p.default, "help": p.help}
                for p in entry.contract.parameters
            },
            "file": entry.path,
        }
        for entry in catalog.stages()
    ]
    if as_json:
        print(json.dumps({"variants": variants, "stages": stages}, indent=2))
        return
    for row in variants:
        tree = Tree(f"[bold]{row['module']}.{row['variant']}[/] ({row['skeleton']} skeleton)")
        tree.add(f"serves {row['serves']}")
        tree.add(f"launch {_pairs(row['launch'])}")
        tree.add(f"{row['threads']} threads and {row['shared_bytes']:,} B of shared memory a CTA")
        for slot, choice in row["stages"].items():
            tree.add(f"{slot}: {_stage(choice)}")
        out.print(tree, highlight=False)
    table = Table("slot", "stage", "what it does")
    for row in stages:
        parameters = [
            f"{name}: {p['help']}; {_range(p['allowed'])}, default {p['default']}"
            for name, p in row["parameters"].items()
        ]
        table.add_row(row["slot"], row["stage"], "\n".join([row["summary"], *parameters]))
    out.print(table)


@app.command("compile")
def compile_(
    spec: SpecOption = SPEC,
    arch: ArchOption = "sm_90a",
    ptx: Annotated[Path | None, typer.Option("--ptx", help="Also write each kernel's PTX here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile every variant with no GPU; show registers, spills, shared memory and instruction counts."""
    plan = _plan(spec)
    archs = _archs(arch, plan)
    reports: list[compiled.Report] = []
    with tempfile.TemporaryDirectory() as folder:
        files.write(_texts(plan, spec), Path(folder))
        try:
            with err.status("compiling") as status:
                for report in compiled.compile_variants(plan, Path(folder), archs):
                    reports.append(report)
                    status.update(f"compiled {report.module}.{report.variant} for {report.arch}")
        except compiled.CompileError as error:
            _say(str(error), style="red")
            raise typer.Exit(1) from error
    if ptx is not None:
        files.write({f"{r.module}_{r.variant}.{r.arch}.ptx": r.ptx for r in reports}, ptx)
    if as_json:
        rows = [dataclasses.asdict(report) for report in reports]
        print(json.dumps([{k: v for k, v in row.items() if k != "ptx"} for row in rows], indent=2))
        return
    for table in tables.compiled(reports):
        out.print(table)


@app.command("export")
def export_(
    folder: Annotated[Path, typer.Option("--out", help="The folder of compiled kernels.")],
    spec: SpecOption = SPEC,
    arch: ArchOption = "sm_90a",
) -> None:
    """Compile every form of every variant ahead of time, with no GPU, for `prepare(from_dir=...)`."""
    plan = _plan(spec)
    archs = _archs(arch, plan)

    def progress(path: Path) -> None:
        status.update(f"compiled {path.name}")
        if path.suffix == ".json":
            err.print(f"wrote {path} and the kernels that it lists", highlight=False)

    with tempfile.TemporaryDirectory() as name, err.status("compiling") as status:
        files.write(_texts(plan, spec), Path(name))
        try:
            compiled.export_kernels(plan, Path(name), archs, folder, progress)
        except compiled.CompileError as error:
            err.print(str(error), style="red", highlight=False, markup=False)
            raise typer.Exit(1) from error
        except OSError as error:
            _refuse(f"{error.filename or folder}: {error.strerror}")


@app.command("verify")
def verify_(
    spec: SpecOption = SPEC,
    device: Annotated[str, typer.Option("--device", help="emulator or cuda.")] = "emulator",
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Other contents, and another order of execution.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Also count what the emulator runs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run every variant, on the CPU's emulator or on a GPU, against float64 attention."""
    # These bring in PyTorch and the emulator, for which the other commands have no use.
    from generator import verify

    if device not in verify.DEVICES:
        _refuse(f"--device: {device!r} is no device; allowed: {', '.join(verify.DEVICES)}")
    if device == "cuda" and stats:
        _refuse("--stats: only --device emulator counts what it runs")
    if not verify.available(device):
        _refuse("--device: cuda needs a CUDA device, and this machine has none; --device emulator does not")
    plan = _plan(spec)
    outcomes: list[verify.Outcome] = []

    def progress(next_run: str) -> None:
        status.update(f"verifying {next_run}")

    with tempfile.TemporaryDirectory() as name, err.status("verifying") as status:
        files.write(_texts(plan, spec), Path(name))
        for outcome in verify.verify(plan, Path(name), device, seed=seed, count=stats, progress=progress):
            outcomes.append(outcome)
            if outcome.message:
                where = f"{outcome.module}.{outcome.variant}, {outcome.problem}: {outcome.verdict}"
                _say(f"{where}\n{outcome.message}")
    if as_json:
        print(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2))
    else:
        for table in tables.verified(outcomes):
            out.print(table)
    if any(outcome.verdict != verify.OK for outcome in outcomes):
        raise typer.Exit(1)


@app.command("schema")
def schema_(
    path: Annotated[Path, typer.Option("--out", help="The file to write.")] = schema.PATH,
) -> None:
    """Write the JSON Schema of specs, for editors."""
    changed = files.write({path.name: schema.text()}, path.parent)
    _say(f"wrote {path}" if changed else f"nothing to do: {path} is as the model makes it")


@app.command("docs")
def docs_(
    path: Annotated[Path, typer.Option("--out", help="The file to write.")] = reference.PATH,
) -> None:
    """Write the reference page of specs: skeletons, slots, stages and their parameters."""
    changed = files.write({path.name: reference.text()}, path.parent)
    _say(f"wrote {path}" if changed else f"nothing to do: {path} is as the catalog makes it")


def main() -> None:
    """Run the command line."""
    app()


def _plan(spec: Path) -> Plan:
    with _blaming_the_sources():
        try:
            return load_plan(spec)
        except SpecError as error:
            _refuse(str(error))


def _texts(plan: Plan, spec: Path) -> dict[str, str]:
    with _blaming_the_sources():
        return render(plan, spec.name)


@contextlib.contextmanager
def _blaming_the_sources() -> Iterator[None]:
    """What is wrong with a stage or a skeleton is said in a line, as what is wrong with a spec is."""
    try:
        yield
    except (CatalogError, LinkError) as error:
        _say(str(error), style="red")
        raise typer.Exit(1) from error


def _archs(words: str, plan: Plan) -> tuple[str, ...]:
    """The architectures that an option names, if all variants can be compiled for them."""
    archs = tuple(words.split(","))
    for name in archs:
        if not re.fullmatch(r"sm_\d+[af]?", name):
            _refuse(f"--arch: {name!r} is no architecture; allowed is a list such as sm_90a,sm_100a")
    for variant in (variant for module in plan.modules for variant in module.variants):
        for name in archs:
            if int(re.sub(r"\D", "", name)) < variant.min_arch:
                _refuse(
                    f"--arch: variant {variant.name!r} needs sm_{variant.min_arch} or later, got {name!r}"
                )
    return archs


def _say(message: str, style: str | None = None) -> None:
    """A line on standard error as it is: a file's name may look like markup."""
    err.print(message, style=style, highlight=False, markup=False, soft_wrap=True)


def _refuse(message: str) -> NoReturn:
    _say(message, style="red")
    raise typer.Exit(2)


@contextlib.contextmanager
def _refusing_what_the_system_refuses(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _refuse(f"{error.filename or folder}: {error.strerror}")


def _serves(variant: Any) -> str:
    window = "any window" if variant.windows else "no window"
    return f"max_seq_len <= {variant.max_seq_len}, {window}"


def _stage(choice: dict[str, Any]) -> str:
    parameters = _pairs({name: value for name, value in choice.items() if name != "stage"})
    return f"{choice['stage']} ({parameters})" if parameters else str(choice["stage"])


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _range(allowed: Iterable[int]) -> str:
    return " | ".join(str(value) for value in allowed)
