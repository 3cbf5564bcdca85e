"""Throws spoiled specs at the generator, thousands of them, and tells what it made of each.

    python -m tests.generator.fuzz --count 10000 --seed 0 --compile 40

A mutant is either generated, as Python that parses, or refused with errors that say where; the output folder
then stays as it was. Anything else is a fault: it is printed with its number, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import math
import re
import resource
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from generator import compiled, files
from generator.catalog import Catalog
from generator.document import MAX_BYTES
from generator.errors import Problem, SpecError
from generator.plan import Plan, load_plan
from generator.render import render
from tests.generator.mutants import mutant
from tests.modules import PINNED

MAX_SECONDS = 20.0
"""Of the processor, for one spec; a large file takes some, none takes for ever."""


class Fault(AssertionError):
    """The generator did something that it never may."""


@dataclass
class Tally:
    """What became of the mutants so far.

    renders: unlike plans to be rendered at most. plans, texts: those, and what was made of them, by what the
    plan says.
    """

    catalog: Catalog
    folder: Path
    renders: float = math.inf
    valid: int = 0
    refused: int = 0
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    slowest: tuple[float, int] = (0.0, -1)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)

    def examine(self, content: bytes, number: int = 0) -> None:
        """Run the generator over one file. Raises Fault, and whatever the generator should not raise."""
        spec, output = self.folder / "spec.yaml", self.folder / "generated"
        spec.write_bytes(content)
        before = snapshot(output)
        began = time.process_time()
        try:
            plan = load_plan(spec, self.catalog)
        except SpecError as error:
            self.refused += 1
            check_problems(error.problems, content, str(spec))
            self.kinds.update({kind_of(problem) for problem in error.problems})
            if snapshot(output) != before:
                raise Fault("a spec was refused, and the output changed") from error
        else:
            self.valid += 1
            self.write(plan, output)
        seconds = time.process_time() - began
        self.slowest = max(self.slowest, (seconds, number))
        if seconds > MAX_SECONDS:
            raise Fault(f"took {seconds:.1f} s")

    def write(self, plan: Plan, output: Path) -> None:
        """Generate the modules of a plan; one that says the same as an earlier one is not rendered again."""
        key = json.dumps([module.facts() for module in plan.modules], sort_keys=True)
        if key not in self.texts:
            if len(self.texts) >= self.renders:
                return
            self.texts[key] = render(plan)
            self.plans[key] = plan
            for name, text in self.texts[key].items():
                ast.parse(text, name)
        files.write(self.texts[key], output)


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder, each with what changes when it is written."""
    if not folder.exists():
        return {}
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}


def check_problems(problems: tuple[Problem, ...], content: bytes, file: str) -> None:
    """Each is a line that can be printed, and names a place that is in the file."""
    lines = re.split(r"\r\n|\r|\n", content[:MAX_BYTES].decode("utf-8-sig", errors="replace"))
    if not problems:
        raise Fault("refused without a reason")
    for problem in problems:
        shown = str(problem)
        shown.encode("utf-8")
        if len(shown.splitlines()) != 1 or not shown.isprintable() or len(shown) > 2000:
            raise Fault(f"not a line to print: {shown!r}")
        if not shown.startswith(f"{file}:{problem.line}:{problem.column}: "):
            raise Fault(f"says not where: {shown}")
        if not (1 <= problem.line <= len(lines) and 1 <= problem.column <= len(lines[problem.line - 1]) + 1):
            raise Fault(f"not a place of the file: {shown}")


def kind_of(problem: Problem) -> str:
    """What a problem is about, whatever its names and numbers."""
    text = re.sub(r"""(?<!\w)('[^']*'|"[^"]*")(\.\.\.)?|\d[\d,]*|[&*]\S+""", "_", problem.message)
    return " ".join(text.split()[:6])


def compile_some(tally: Tally, count: int, random: Random) -> int:
    """Compile variants of the plans that were sound, each unlike the others; returns how many."""
    variants = {}
    for key, plan in tally.plans.items():
        for module in plan.modules:
            for variant in module.variants:
                facts = {
                    **variant.summary(),
                    "name": "",
                    "kernel_fields": {**variant.kernel_fields, "name": ""},
                }
                variants[json.dumps(facts, sort_keys=True)] = key, module.name, variant
    chosen = random.sample(sorted(variants), min(count, len(variants)))
    with tempfile.TemporaryDirectory() as name:
        for number, (key, module_name, variant) in enumerate(variants[facts] for facts in chosen):
            folder = Path(name) / str(number)
            files.write(tally.texts[key], folder)
            module = compiled.load_module(folder / f"{module_name}.py")
            compiled.compile_variant(module, module_name, variant.name, variant.shared_bytes, "sm_90a")
    return len(chosen)


def main() -> int:
    """Run a campaign and print its statistics."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="mutants")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the mutants; number n depends on it and n alone"
    )
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--compile", type=int, default=0, help="unlike sound variants to compile at the end")
    given = parser.parse_args()
    text, faults = PINNED.read_text(encoding="utf-8"), 0
    with tempfile.TemporaryDirectory() as folder:
        tally = Tally(Catalog.load(), Path(folder))
        for number in range(given.first, given.first + given.count):
            content = mutant(text, Random(f"{given.seed}:{number}"))
            try:
                tally.examine(content, number)
            except Exception:
                faults += 1
                print(f"mutant {number}:\n{content[:2000]!r}\n{traceback.format_exc()[-2000:]}", flush=True)
        made = compile_some(tally, given.compile, Random(given.seed)) if given.compile else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{given.count} mutants: {tally.valid} sound, {tally.refused} refused, {faults} faults")
    print(f"{len(tally.texts)} unlike plans rendered, {made} unlike variants compiled for sm_90a")
    print(f"the slowest took {tally.slowest[0]:.2f} s (mutant {tally.slowest[1]}); {peak:.0f} MiB at most")
    for kind, times in tally.kinds.most_common():
        print(f"{times:6d}  {kind}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
