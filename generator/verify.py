"""Runs every variant of a spec on a few problems and compares it with float64 attention.

Contract
    Works on the text that the generator renders, in a folder that the caller keeps in place. A variant passes
    a problem if every element is within `LIMIT` ulps of the reference, as `verification.comparison` measures
    them. The reference is composed from the contracts of the variant's stages; a variant with a stage that
    ought to declare a reference and does not is not run. Whatever a kernel does wrong, and whatever the
    emulator finds in it, becomes an outcome; nothing is raised for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from emulator import EmulatorError
from emulator.counts import Counts
from generator.catalog import reference_signature
from generator.compiled import load_module
from generator.discovery import source_path
from generator.places import at_home, explained
from generator.plan import Plan, VariantPlan
from stages.slots import SLOTS
from verification.comparison import LIMIT, assert_close, worst_ulps
from verification.partition import partition_of
from verification.problems import FLAT_SCALE, MODEL_SCALE, Problem, make_problem
from verification.runner import entry_name, run_emulated

DEVICES = ("emulator", "cuda")

OK, WRONG, FAILED, NO_REFERENCE = "ok", "WRONG", "FAILED", "no reference"
"""Verdicts: within the limit; outside; no result, because of an error; nothing to compare with."""

DEFAULT_LONGEST = 2048
"""The longest length that a variant without a bound is tried on."""

NUM_SPLITS = 2
"""Clusters that share a long request, of variants that split a request."""

STEPS = 2
"""Steps that each of a request's CTAs has at least, of the longest problem of such a variant."""


@dataclass(frozen=True)
class Case:
    """A problem to try: lengths of its requests, its KV heads, the softmax scale, and the deployment."""

    lengths: tuple[int, ...]
    kv_heads: int
    max_seq_len: int
    scale: float = MODEL_SCALE
    window: int | None = None

    def __str__(self) -> str:
        """In words."""
        window = f"; W {self.window}" if self.window else ""
        return f"L {', '.join(map(str, self.lengths))}; H {self.kv_heads}{window}"


@dataclass(frozen=True)
class Outcome:
    """One variant on one problem.

    problem: in words. verdict: one of the above. ulps: the largest error, None where there is no finite one.
    seconds: of the run, without compiling. message: what is wrong, in full; "" if nothing is. counts: what
    the emulator counted, if asked.
    """

    module: str
    variant: str
    problem: str
    verdict: str
    ulps: float | None = None
    seconds: float = 0.0
    message: str = ""
    counts: dict[str, int] | None = None


def available(device: str) -> bool:
    """Whether this machine has the device."""
    return device == "emulator" or torch.cuda.is_available()


def cases(variant: VariantPlan) -> list[Case]:
    """A batch of unlike short requests with padding, a request around the middle, and one of the longest.

    The last has a flat softmax, so that each of its keys counts. Of a variant that splits requests the
    longest tried is just long enough for that, and for some steps of each CTA; the one around the middle has
    a window if any is served.
    """
    bound = longest = variant.max_seq_len or DEFAULT_LONGEST
    if "ring_pages_per_step" in variant.facts:
        facts = {"short_rounds": 0} | dict(variant.facts)
        pages = max(
            facts["short_rounds"] * facts["cluster"] * facts["warps"],
            STEPS * facts["ring_pages_per_step"] * facts["cluster"] * NUM_SPLITS,
        )
        longest = min(bound, pages * facts["page_size"] + 137)
        bound = min(bound, 2 * longest)
    short = tuple(min(length, longest) for length in (40, 0, 8, 129, 5))
    window = 100 if variant.windows else None
    return [
        Case(short, 2, bound),
        Case((min(longest, longest // 2 + 9),), 2, bound, window=window),
        Case((longest,), 1, bound, FLAT_SCALE),
    ]


def verify(
    plan: Plan,
    folder: Path,
    device: str,
    *,
    seed: int | None = None,
    count: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Outcome]:
    """Run the variants of the modules in `folder`, an outcome a variant and problem.

    device: of DEVICES. seed: of the problems' contents, and of the order in which the emulator runs things;
    without one all threads run in step. count: count what the emulator does. progress: hears what comes next.
    """
    for module_plan in plan.modules:
        path = folder / f"{module_plan.name}.py"
        module = load_module(path)
        for variant in module_plan.variants:
            for case in cases(variant):
                progress(f"{module_plan.name}.{variant.name}, {case}")
                found = _run(module, variant, case, device, seed, Counts() if count else None)
                if "message" in found:
                    found["message"] = at_home(found["message"], path)
                yield Outcome(module_plan.name, variant.name, str(case), **found)


def missing_references(variant: VariantPlan) -> str:
    """Why a variant cannot be compared with anything, a line for each stage; "" if it can."""
    lines = []
    for slot in SLOTS.values():
        stage = variant.stages.get(slot.name)
        if not slot.decides_result or (stage is not None and stage.reference is not None):
            continue
        if stage is None:
            lines.append(f"skeleton {variant.skeleton!r} has no slot {slot.name!r}, which decides the result")
            continue
        remedy = (
            f"SLOT_REFERENCE if the stage computes what {slot.protocol.__name__} in stages/slots.py defines; "
            "anything else cannot be verified"
            if slot.reference is None
            else f"a function {reference_signature(slot)}, see {slot.reference.__name__} in stages/slots.py"
        )
        lines.append(
            f"stage {stage.name!r} of the slot {slot.name!r} declares no reference; "
            f"in {source_path(stage.module)}, set Contract.reference to {remedy}"
        )
    return "\n".join(lines)


def _run(
    module: ModuleType, variant: VariantPlan, case: Case, device: str, seed: int | None, counts: Counts | None
) -> dict[str, Any]:
    """What `Outcome` says of a run, in its words."""
    missing = missing_references(variant)
    if missing:
        return {"verdict": NO_REFERENCE, "message": missing}
    epilogue = variant.stages["epilogue"].reference
    (kernel,) = (v.kernel for v in module.VARIANTS if v.name == variant.name)
    try:
        problem = make_problem(
            case.lengths,
            kv_heads=case.kv_heads,
            max_seq_len=case.max_seq_len,
            window=case.window,
            scale=case.scale,
            device="cuda" if device == "cuda" else "cpu",
            seed=seed or 0,
        )
        if device == "cuda":
            out, seconds = _on_gpu(
                module, variant.name, problem, _scratch(module, kernel, variant.name, problem)
            )
        else:
            out, report = run_emulated(
                module,
                variant.name,
                problem.arguments() | _scratch(module, kernel, variant.name, problem),
                out=problem.poisoned_out(),
                seed=seed,
                observers=[] if counts is None else [counts],
            )
            seconds = 0.0 if report is None else report.seconds
        partition = partition_of(kernel, NUM_SPLITS)
        expected = problem.expected(partition, epilogue)
    except EmulatorError as error:
        return {"verdict": FAILED, "message": str(error)}
    except Exception as error:
        # A kernel that does not compile, a call that is refused, a launch that fails on the GPU.
        return {"verdict": FAILED, "message": explained(error, Path(str(module.__file__)))}
    ulps = worst_ulps(out, expected)
    found: dict[str, Any] = {"verdict": OK, "seconds": seconds, "ulps": ulps if math.isfinite(ulps) else None}
    try:
        # Computed only where an element is off: rounding a weight near a tie the other way is right too.
        assert_close(out, expected, LIMIT, lambda: problem.expected(partition, epilogue, other_way=True))
    except AssertionError as error:
        found |= {"verdict": WRONG, "message": str(error)}
    return found if counts is None else found | {"counts": _summary(counts)}


def _scratch(module: ModuleType, kernel: Any, variant: str, problem: Problem) -> dict[str, Any]:
    """What a call needs besides, if the kernel splits requests."""
    if not kernel.splits:
        return {}
    workspace, counters = module.allocate_scratch(
        len(problem.seq_lens),
        kv_heads=problem.kv_cache.shape[1],
        max_seq_len=problem.max_seq_len,
        window=problem.window,
        num_splits=NUM_SPLITS,
        device=problem.q.device,
        variant=variant,
    )
    return {"workspace": workspace, "counters": counters, "num_splits": NUM_SPLITS}


def _on_gpu(
    module: ModuleType, variant: str, problem: Problem, scratch: dict[str, Any]
) -> tuple[torch.Tensor, float]:
    """The output, and the seconds from the call to its end."""
    deployment = {"kv_heads": problem.kv_cache.shape[1], "max_seq_len": problem.max_seq_len}
    module.prepare(**deployment, window=problem.window, variant=variant)
    out = problem.poisoned_out()
    torch.cuda.synchronize()
    began = time.perf_counter()
    getattr(module, entry_name(module))(**problem.arguments(), **scratch, out=out, variant=variant)
    torch.cuda.synchronize()
    return out, time.perf_counter() - began


def _summary(counts: Counts) -> dict[str, int]:
    """What decides a kernel's speed, by a heading."""
    buffers = counts.buffers.values()
    return {
        "instructions": counts.warps(),
        "mma": counts.mma,
        "bytes loaded": sum(buffer.loaded for buffer in buffers),
        "bytes stored": sum(buffer.stored for buffer in buffers),
        "sectors": sum(buffer.load_sectors + buffer.store_sectors for buffer in buffers),
        "bank conflicts": counts.shared.extra,
    }
