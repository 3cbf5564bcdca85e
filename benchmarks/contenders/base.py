"""What a contender is, and helpers of all of them.

Contract
    A contender has a `key` (for programs) and a `name` (for people). `available` says whether it can run on
    this machine, `serves` whether it can run this problem; either with the reason if not. `prepare` does
    everything that an engine does outside the captured step; after it, `call(i)` enqueues call i on the
    current stream and writes `outputs[i]`. `spoil` overwrites all outputs, `check` then says how far they
    are from what they must be. `details` is what a reader of the result should know about how it ran.

    Contenders stay unprepared: what is prepared for a problem is a `fresh` one, and goes with it.

    An `Attention` is attention alone, as a library offers it; a contender is made of it by
    `benchmarks.contenders.pair`.
"""

import copy
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.problem import Problem, worst_row_error
from benchmarks.timing import L2Flush, capture, interleaved

#: The largest error that a row of a head may have, relative to that row: BF16 weights, output and
#: normalised output are each off by up to 2^-9; leaving out one of 4,096 equally weighted keys shows 1.5e-2.
ERROR_LIMIT = 1e-2


@dataclass(frozen=True)
class Availability:
    """Whether a contender can run here; true or false itself, with the reason if it cannot."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Availability(True)


def no(reason: str) -> Availability:
    """Return that it cannot run, and why."""
    return Availability(False, reason)


class Contender:
    """Base of all contenders; see the module's docstring."""

    key: str
    name: str
    #: Whether it is what one would run instead of ours, all of it.
    peer = False
    problem: Problem
    outputs: torch.Tensor
    details: dict[str, Any]

    def fresh(self) -> "Contender":
        """Return one that holds no problem's tensors; what was picked, built or loaded is shared."""
        return copy.copy(self)

    def available(self) -> Availability:
        """Whether it can run on this machine at all."""
        return YES

    def serves(self, problem: Problem) -> Availability:
        """Whether it can run this load in this deployment."""
        return YES

    def prepare(self, problem: Problem) -> None:
        """Everything that is done before a step is captured."""
        raise NotImplementedError

    def call(self, index: int) -> None:
        """Enqueue call `index`."""
        raise NotImplementedError

    def reference(self, index: int) -> torch.Tensor:
        """Return what call `index` must write, in float64: by default the whole, attention, norm and gate."""
        return self.problem.norm_gate_reference(self.problem.attention_reference(index))

    def start(self, problem: Problem) -> None:
        """Do what every `prepare` begins with."""
        self.problem, self.outputs, self.details = problem, problem.outputs(), {}

    def spoil(self) -> None:
        """Fill all outputs with what `check` does not accept."""
        self.outputs.fill_(float("nan"))

    def check(self) -> tuple[float | None, str]:
        """Return the worst error of the outputs, and what is wrong with them, or "".

        The first and the last call are compared with the reference; all others must be finite.
        """
        calls = {0, self.problem.calls - 1}
        errors = [worst_row_error(self.outputs[call], self.reference(call)) for call in calls]
        # Not max(): it may pass over a NaN.
        worst = next((error for error in errors if not error <= ERROR_LIMIT), max(errors))
        if not worst <= ERROR_LIMIT:
            return worst, f"worst row error {worst:.2e}, allowed {ERROR_LIMIT:.0e}"
        if not torch.isfinite(self.outputs).all():
            return worst, "a call left elements unwritten or not finite"
        return worst, ""


class Attention:
    """Base of attention alone, as a library offers it."""

    key: str
    name: str
    details: dict[str, Any]

    def available(self) -> Availability:
        """Whether it can run on this machine at all."""
        raise NotImplementedError

    def serves(self, problem: Problem) -> Availability:
        """Whether it can run this load in this deployment."""
        return YES

    def prepare(self, problem: Problem) -> None:
        """Everything that an engine does once a step, for all layers, or once for all steps."""
        raise NotImplementedError

    def attend(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Enqueue attention of call `index`; return where it is.

        out: [8 R, 8 H, 64], contiguous. It is returned, unless the library writes only to memory of its own.
        """
        raise NotImplementedError


def fastest(
    configs: tuple[Any, ...],
    calls_of: Callable[[Any], list[Callable[[], object]]],
    device: torch.device,
    rounds: int = 20,
) -> Any:
    """Return the configuration whose graph of calls has the smallest median time."""
    graphs, count = [], 0
    for config in configs:
        calls = calls_of(config)
        count = len(calls)
        graphs.append(capture(calls))
    samples = interleaved(graphs, calls=count, rounds=rounds, budget_seconds=1.0, flush=L2Flush(device))
    medians = [sorted(of_one)[len(of_one) // 2] for of_one in samples]
    return configs[medians.index(min(medians))]


def import_first(names: tuple[str, ...]) -> tuple[Any, str]:
    """Return the first module that can be imported, or None and why each cannot."""
    reasons = []
    for name in names:
        try:
            return importlib.import_module(name), ""
        except Exception as error:  # libraries fail in many ways on machines that they are not made for
            reasons.append(f"{name}: {first_line(error)}")
    return None, "; ".join(reasons)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def accepted(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return those of the arguments that a function has parameters for: versions of libraries differ."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}
