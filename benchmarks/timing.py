"""Timing of CUDA graphs: capture, cold caches, interleaved rounds, percentiles."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

#: Replays of every graph before the first that counts, at most.
WARM_UP_ROUNDS = 10
#: Seconds that those replays may take, for graphs so long that fewer will do.
WARM_UP_SECONDS = 0.3
#: Fewer rounds than this give no percentiles worth printing.
LEAST_ROUNDS = 20


@dataclass(frozen=True)
class Summary:
    """Microseconds a call over all rounds."""

    median: float
    p10: float
    p90: float
    least: float
    most: float


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the value at `fraction` of an ascending sequence, linear between neighbours."""
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarize(samples: Sequence[float]) -> Summary:
    """Return median and spread of some samples, at least one."""
    ordered = sorted(samples)
    return Summary(
        median=quantile(ordered, 0.5),
        p10=quantile(ordered, 0.1),
        p90=quantile(ordered, 0.9),
        least=ordered[0],
        most=ordered[-1],
    )


def plan_rounds(asked: int, seconds_per_round: float, budget_seconds: float) -> int:
    """Return as many rounds as asked for, fewer where they would take longer than the budget."""
    affordable = int(budget_seconds / max(seconds_per_round, 1e-9))
    return min(asked, max(LEAST_ROUNDS, affordable))


def capture(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Return one CUDA graph of all calls in order; the first three run before it, to load what they need."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    # Also where a fault of a warm-up call shows, outside the capture.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped


class L2Flush:
    """Calling it leaves the L2 full of lines that no contender uses.

    It reads instead of writing: dirty lines would have to be written back while a contender is timed.
    """

    def __init__(self, device: torch.device):
        size = 4 * torch.cuda.get_device_properties(device).L2_cache_size
        self.buffer = torch.ones(size // 4, dtype=torch.float32, device=device)
        self.total = torch.empty((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        """Enqueue the read on the current stream."""
        torch.sum(self.buffer, dim=0, out=self.total)


def interleaved(
    graphs: Sequence[torch.cuda.CUDAGraph],
    *,
    calls: int,
    rounds: int,
    budget_seconds: float,
    flush: Callable[[], None],
) -> list[list[float]]:
    """Return microseconds a call of every graph, one sample a round, all graphs in every round.

    Rounds run forwards and backwards in turn, so no graph always follows the same other one. A graph may
    be listed twice. Everything is enqueued without a synchronisation, so the device never waits for the
    host: the flush before each replay is longer than the host needs to enqueue the next one.
    """

    def one_round(order: Sequence[int]) -> list[tuple[int, torch.cuda.Event, torch.cuda.Event]]:
        marks = []
        for index in order:
            begin, end = _event(), _event()
            flush()
            begin.record()
            graphs[index].replay()
            end.record()
            marks.append((index, begin, end))
        return marks

    def seconds(warm_up_rounds: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(warm_up_rounds):
            one_round(forwards)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    forwards = list(range(len(graphs)))
    warm_up_rounds = max(2, min(WARM_UP_ROUNDS, int(WARM_UP_SECONDS / max(seconds(1), 1e-9))))
    per_round = seconds(warm_up_rounds) / warm_up_rounds

    marks = []
    for number in range(plan_rounds(rounds, per_round, budget_seconds)):
        marks += one_round(forwards if number % 2 == 0 else forwards[::-1])
    torch.cuda.synchronize()
    samples: list[list[float]] = [[] for _ in graphs]
    for index, begin, end in marks:
        samples[index].append(begin.elapsed_time(end) * 1e3 / calls)
    return samples
