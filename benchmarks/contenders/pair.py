"""Attention of a library followed by the norm-gate kernel, in one graph; and each of the two alone."""

import copy
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.contenders.base import Attention, Availability, Contender, fastest, import_first
from benchmarks.loads import HEAD_DIM
from benchmarks.problem import EPS, Problem

#: Block sizes of the norm-gate kernel that were picked, by its tokens and heads.
Picked = dict[tuple[int, int], tuple[int, int]]


class NormGateAlone(Contender):
    """The norm-gate kernel alone, on an attention output that is already there."""

    key, name = "norm-gate", "norm-gate kernel alone"

    def __init__(self, pdl: bool = False, picked: Picked | None = None):
        self.pdl, self.picked = pdl, {} if picked is None else picked
        self.kernels, self.reason = import_first(("benchmarks.norm_gate",))

    def available(self) -> Availability:
        """Whether Triton is there."""
        return Availability(self.kernels is not None, f"Triton is needed: {self.reason}")

    def prepare(self, problem: Problem) -> None:
        """Pick the block size, by measurement, once for all with the same tokens and heads."""
        self.start(problem)
        self.input = problem.attention_reference(0).to(torch.bfloat16)
        size = (problem.load.tokens, problem.load.query_heads)
        if size not in self.picked:
            self.picked[size] = fastest(self.kernels.CONFIGS, self._calls, problem.device)
        self.config = self.picked[size]
        rows, warps = self.config
        self.details = {"rows_per_block": rows, "warps": warps, "pdl": self.pdl}

    def _calls(self, config: tuple[int, int]) -> list[Callable[[], object]]:
        """Return all calls with a block size that is being tried."""
        return [partial(self.run, self.input, out, config) for out in self.outputs]

    def run(self, x: torch.Tensor, out: torch.Tensor, config: tuple[int, int] | None = None) -> None:
        """Run the kernel on any attention output of this size."""
        config = config or self.config
        self.kernels.norm_gate(x, self.problem.gate, out, eps=EPS, config=config, pdl=self.pdl)

    def call(self, index: int) -> None:
        """Launch it."""
        self.run(self.input, self.outputs[index])

    def reference(self, index: int) -> torch.Tensor:
        """Return norm and gate of the input."""
        return self.problem.norm_gate_reference(self.input)


class AttentionAlone(Contender):
    """Attention without what follows it."""

    def __init__(self, attention: Attention):
        self.attention = attention
        self.key, self.name = f"{attention.key}-alone", f"{attention.name} alone"

    def fresh(self) -> "AttentionAlone":
        """Return one with its own attention."""
        return AttentionAlone(copy.copy(self.attention))

    def available(self) -> Availability:
        """Whether the library is."""
        return self.attention.available()

    def serves(self, problem: Problem) -> Availability:
        """Whether the library does."""
        return self.attention.serves(problem)

    def prepare(self, problem: Problem) -> None:
        """Prepare the library."""
        self.start(problem)
        self.attention.prepare(problem)
        self.details = self.attention.details

    def call(self, index: int) -> None:
        """Attend, into the output where the library can."""
        out = self.outputs[index].view(self.problem.load.tokens, self.problem.load.query_heads, HEAD_DIM)
        found = self.attention.attend(index, out)
        if found is not out:
            out.copy_(found)

    def reference(self, index: int) -> torch.Tensor:
        """Return attention only."""
        return self.problem.attention_reference(index)


class Pair(Contender):
    """Attention with the norm-gate kernel behind it: the same function as ours."""

    peer = True

    def __init__(self, attention: Attention, norm_gate: NormGateAlone):
        self.attention, self.norm_gate = attention, norm_gate
        self.key, self.name = attention.key, f"{attention.name} + norm-gate"

    def fresh(self) -> "Pair":
        """Return one with its own halves."""
        return Pair(copy.copy(self.attention), copy.copy(self.norm_gate))

    def available(self) -> Availability:
        """Whether both halves are."""
        return self.attention.available() and self.norm_gate.available()

    def serves(self, problem: Problem) -> Availability:
        """Whether the library does."""
        return self.attention.serves(problem)

    def prepare(self, problem: Problem) -> None:
        """Prepare both halves; the attention output between them is one buffer, as in an engine."""
        self.start(problem)
        self.attention.prepare(problem)
        self.norm_gate.prepare(problem)
        self.between = torch.empty_like(self.norm_gate.input)
        self.details = self.attention.details | self.norm_gate.details

    def call(self, index: int) -> None:
        """Call both, one after the other."""
        self.norm_gate.run(self.attention.attend(index, self.between), self.outputs[index])
