"""One shape: prepare every contender, check it, time those that are right."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.contenders import Contender
from benchmarks.problem import Problem, Shape, plan_copies, worst_row_error
from benchmarks.timing import L2Flush, Summary, capture, interleaved, summarize

#: Calls in a graph.
CALLS = 64
#: The largest error that a row of a head may have, relative to that row: BF16 weights, output and
#: normalised output are each off by up to 2^-9; leaving out one of 4,096 equally weighted keys shows 1.5e-2.
ERROR_LIMIT = 1e-2

TIMED, UNAVAILABLE, FAILED, WRONG = "timed", "not available", "failed", "wrong"


@dataclass
class Entry:
    """What became of one contender at one shape; times only where the status is "timed"."""

    key: str
    name: str
    status: str
    reason: str = ""
    worst_error: float | None = None
    microseconds: Summary | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Comparison:
    """One row of the result."""

    shape: Shape
    max_seq_len: int
    copies: int
    rounds: int = 0
    noise_microseconds: float | None = None
    entries: list[Entry] = field(default_factory=list)

    def entry(self, key: str) -> Entry | None:
        """Return the entry of a contender."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def median(self, key: str) -> float | None:
        """Return a contender's median microseconds, where it was timed."""
        entry = self.entry(key)
        return entry.microseconds.median if entry and entry.microseconds else None

    def ratio(self) -> float | None:
        """How many times as long as ours the pair takes."""
        ours, pair = self.median("ours"), self.median("pair")
        return pair / ours if ours and pair else None

    def gigabytes_per_second(self, key: str) -> float | None:
        """Keys and values over a contender's time."""
        median = self.median(key)
        return self.shape.read_bytes / median * 1e-3 if median else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        entries = []
        for entry in self.entries:
            item = asdict(entry)
            item["gigabytes_per_second"] = self.gigabytes_per_second(entry.key)
            entries.append(item)
        return asdict(self.shape) | {
            "max_seq_len": self.max_seq_len,
            "copies": self.copies,
            "rounds": self.rounds,
            "cache_bytes_read": self.shape.read_bytes,
            "noise_microseconds": self.noise_microseconds,
            "pair_over_ours": self.ratio(),
            "contenders": entries,
        }


def compare(
    shape: Shape,
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    rounds: int,
    budget_seconds: float,
    max_seq_len: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Measure one shape; `say` gets a word on what is being done."""
    max_seq_len = max(shape.length, max_seq_len or 0)
    copies = plan_copies(shape, CALLS)
    result = Comparison(shape, max_seq_len, copies)
    say(f"{copies} caches of {shape.cache_bytes / 1e6:.1f} MB")
    problem = Problem(shape, calls=CALLS, copies=copies, max_seq_len=max_seq_len, device=device)

    graphs = []
    timed = []
    for contender in contenders:
        say(f"checking {contender.name}")
        entry, graph = _ready(contender, problem)
        result.entries.append(entry)
        if graph is not None:
            graphs.append(graph)
            timed.append(entry)
    if not graphs:
        return result

    say("timing")
    # The first once more, last: what differs between the two is noise.
    samples = interleaved(
        graphs + graphs[:1],
        calls=CALLS,
        rounds=rounds,
        budget_seconds=budget_seconds,
        flush=L2Flush(device),
    )
    summaries = [summarize(of_one) for of_one in samples]
    result.rounds = len(samples[0])
    result.noise_microseconds = abs(summaries[0].median - summaries[-1].median)
    for entry, summary in zip(timed, summaries[:-1], strict=True):
        entry.status, entry.microseconds = TIMED, summary
    return result


def _ready(contender: Contender, problem: Problem) -> tuple[Entry, torch.cuda.CUDAGraph | None]:
    """Return a contender's entry, and its graph if its results are right."""
    entry = Entry(contender.key, contender.name, FAILED)
    if not (availability := contender.available()):
        entry.status, entry.reason = UNAVAILABLE, availability.reason
        return entry, None
    try:
        contender.prepare(problem)
        graph = capture([partial(contender.call, index) for index in range(problem.calls)])
        contender.outputs.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
    except Exception as error:  # a contender that refuses a shape must not end the run for the others
        entry.reason = f"{type(error).__name__}: {error}"
        return entry, None
    entry.details = contender.details
    entry.worst_error, entry.reason = check(contender, problem.calls)
    if entry.reason:
        entry.status = WRONG
        return entry, None
    return entry, graph


def check(contender: Contender, calls: int) -> tuple[float, str]:
    """Return the worst error of a contender's outputs, and what is wrong with them, or ""."""
    errors = [worst_row_error(contender.outputs[call], contender.reference(call)) for call in {0, calls - 1}]
    # Not max(): it may pass over a NaN.
    worst = next((error for error in errors if not error <= ERROR_LIMIT), max(errors))
    if not worst <= ERROR_LIMIT:
        return worst, f"worst row error {worst:.2e}, allowed {ERROR_LIMIT:.0e}"
    if not torch.isfinite(contender.outputs).all():
        return worst, "a call left elements unwritten or not finite"
    return worst, ""
