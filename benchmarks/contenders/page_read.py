"""The page-read limit as a contender: it reads the live pages of the load, and does nothing else."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.contenders.base import Availability, Contender, fastest, import_first
from benchmarks.problem import Problem

#: Calls of a graph with which configurations are compared.
TRIAL_CALLS = 16


class PageRead(Contender):
    """Reads each live page once; the fastest of several configurations, picked once a load."""

    key, name = "page-read", "page-read limit"

    def __init__(self) -> None:
        self.kernels, self.reason = import_first(("benchmarks.page_read",))
        self.picked: dict[str, tuple[int, int, int]] = {}

    def available(self) -> Availability:
        """Whether Triton is there."""
        return Availability(self.kernels is not None, f"Triton is needed: {self.reason}")

    def prepare(self, problem: Problem) -> None:
        """Gather the live entries of the block table, pick the configuration by measurement."""
        self.problem, self.table = problem, problem.live_table()
        properties = torch.cuda.get_device_properties(problem.device)
        self.multiprocessors = properties.multi_processor_count
        size = (problem.calls, self.kernels.MOST_CTAS * self.multiprocessors)
        self.outputs = torch.zeros(size, dtype=torch.int32, device=problem.device)
        if problem.load.name not in self.picked:
            self.picked[problem.load.name] = fastest(self.kernels.CONFIGS, self._calls, problem.device)
        self.config = self.picked[problem.load.name]
        self.details = dict(zip(("head_pages", "ctas_per_multiprocessor", "warps"), self.config, strict=True))

    def _calls(self, config: tuple[int, int, int]) -> list[Callable[[], object]]:
        calls = range(min(TRIAL_CALLS, self.problem.calls))
        return [partial(self.run, index, config) for index in calls]

    def run(self, index: int, config: tuple[int, int, int]) -> None:
        """Launch call `index` in a configuration."""
        self.kernels.page_read(
            self.problem.cache(index),
            self.table,
            self.outputs[index],
            multiprocessors=self.multiprocessors,
            config=config,
        )

    def call(self, index: int) -> None:
        """Launch it."""
        self.run(index, self.config)

    def spoil(self) -> None:
        """Clear all checksums."""
        self.outputs.zero_()

    def check(self) -> tuple[float | None, str]:
        """Compare the checksums of the first and the last call: they tell a page left out or read twice."""
        for index in sorted({0, self.problem.calls - 1}):
            found = int(self.outputs[index].sum(dtype=torch.int64)) % (1 << 32)
            wanted = self.kernels.checksum(self.problem.cache(index), self.table)
            if found != wanted:
                return None, f"checksum of call {index} is {found:#x}, that of its live pages {wanted:#x}"
        return None, ""
