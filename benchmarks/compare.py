"""One load: prepare every contender in every deployment, check it, time those that are right."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from benchmarks.contenders import Contender, first_line
from benchmarks.loads import Load
from benchmarks.problem import Problem, plan_copies
from benchmarks.results import FAILED, TIMED, UNAVAILABLE, WRONG, Entry, Row
from benchmarks.timing import L2Flush, capture, interleaved, summarize

#: Calls in a graph.
CALLS = 64


class Budget:
    """Seconds of a whole run, shared evenly by the rows that are still to come."""

    def __init__(self, seconds: float, rows: int):
        self.started = time.perf_counter()
        self.seconds, self.rows = seconds, rows

    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return time.perf_counter() - self.started

    def start_row(self) -> None:
        """Give the next row its share."""
        share = (self.seconds - self.elapsed()) / max(1, self.rows)
        self.row_ends = self.elapsed() + share
        self.rows -= 1

    def left(self) -> float:
        """Return the seconds that the row has left, 0 where it has used more than its share."""
        return max(0.0, self.row_ends - self.elapsed())


class DeviceFault(RuntimeError):
    """A contender left the device in a state in which nothing after it can be measured."""


def compare(
    load: Load,
    deployments: Sequence[int],
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    rounds: int,
    budget: Budget,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """Measure one load in each deployment; `say` gets a word on what is being done. Raises DeviceFault."""
    copies = plan_copies(load, CALLS)
    say(f"{copies} caches of {load.cache_bytes / 1e6:.1f} MB")
    problem = None
    for max_seq_len in deployments:
        budget.start_row()
        if problem is None:
            problem = Problem(load, calls=CALLS, copies=copies, device=device)
        row = Row(load, max_seq_len, copies)
        _measure(row, problem.deployed(max_seq_len), contenders, rounds, budget, say)
        yield row


def _measure(
    row: Row,
    problem: Problem,
    contenders: Sequence[Contender],
    rounds: int,
    budget: Budget,
    say: Callable[[str], None],
) -> None:
    """Fill a row."""
    graphs, timed = [], []
    # A graph does not own what it reads and writes: the contenders live until their graphs have been timed.
    ready = [contender.fresh() for contender in contenders]
    for contender in ready:
        say(f"max_seq_len {row.max_seq_len}: checking {contender.name}")
        entry, graph = _ready(contender, problem)
        row.entries.append(entry)
        if graph is not None:
            graphs.append(graph)
            timed.append(entry)
        elif entry.reason:
            say(f"max_seq_len {row.max_seq_len}: {contender.name} {entry.status}: {entry.reason}")
    if graphs:
        say(f"max_seq_len {row.max_seq_len}: timing {len(graphs)} contenders, {budget.left():.1f} s")
        # The first once more, last: what differs between the two is noise.
        samples = interleaved(
            graphs + graphs[:1],
            calls=problem.calls,
            rounds=rounds,
            budget_seconds=budget.left(),
            flush=L2Flush(problem.device),
        )
        summaries = [summarize(of_one) for of_one in samples]
        row.rounds = len(samples[0])
        row.noise_microseconds = abs(summaries[0].median - summaries[-1].median)
        for entry, summary in zip(timed, summaries[:-1], strict=True):
            entry.status, entry.microseconds = TIMED, summary


def _ready(contender: Contender, problem: Problem) -> tuple[Entry, torch.cuda.CUDAGraph | None]:
    """Return a contender's entry, and its graph if its results are right."""
    entry = Entry(contender.key, contender.name, FAILED, peer=contender.peer)
    for availability in (contender.available, partial(contender.serves, problem)):
        if not (answer := availability()):
            entry.status, entry.reason = UNAVAILABLE, answer.reason
            return entry, None
    try:
        contender.prepare(problem)
        graph = capture([partial(contender.call, index) for index in range(problem.calls)])
        contender.spoil()
        graph.replay()
        torch.cuda.synchronize()
        entry.details = contender.details
        entry.worst_error, entry.reason = contender.check()
    except Exception as error:  # a contender that refuses a load must not end the run for the others
        entry.reason = f"{type(error).__name__}: {first_line(error)}"
        _check_device(entry)
        return entry, None
    if entry.reason:
        entry.status = WRONG
        return entry, None
    return entry, graph


def _check_device(entry: Entry) -> None:
    """Raise DeviceFault where the device answers no more after a contender failed."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise DeviceFault(f"{entry.name}: {entry.reason}") from error


def clean_up() -> None:
    """Give memory back between loads."""
    gc.collect()
    torch.cuda.empty_cache()
