"""What is compared: one small class a contender.

Contract
    A contender has a `key` (for programs) and a `name` (for people). `available` says whether it can run
    here, and if not, why. `prepare` does everything that an engine does outside the captured step; after
    it, `call(i)` enqueues call i on the current stream and writes `outputs[i]`. `reference(i)` is what
    that output must be. `details` is what a reader of the result should know about how it ran.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.flash_attention import FlashAttention3, Library
from benchmarks.problem import EPS, SCALE, Problem, Shape
from benchmarks.timing import L2Flush, capture, interleaved

#: Where the generated module is: in a checkout, or installed.
OUR_MODULES = ("generated.attn2", "stagewright.attn2")


@dataclass(frozen=True)
class Availability:
    """Whether a contender can run here; true or false itself, with the reason if it cannot."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


class Contender:
    """Base of all contenders; see the module's docstring."""

    key: str
    name: str
    outputs: torch.Tensor
    details: dict[str, Any]

    def available(self) -> Availability:
        """Whether it can run on this machine at all."""
        return Availability(True)

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


class Ours(Contender):
    """The generated module's fused kernel."""

    key, name = "ours", "ours"

    def __init__(self, variant: str | None = None, pdl: bool = False, num_splits: int | None = None):
        self.variant, self.num_splits, self.pdl = variant, num_splits, pdl
        self.module, self.reason = import_first(OUR_MODULES)

    def available(self) -> Availability:
        """Whether the module could be imported."""
        return Availability(self.module is not None, self.reason)

    def prepare(self, problem: Problem) -> None:
        """Compile and load the kernel that an engine chooses which mostly serves this many requests."""
        self.start(problem)
        kv_heads = problem.shape.kv_heads
        deployment: dict[str, Any] = {"max_seq_len": problem.max_seq_len, "window": problem.shape.window}
        load = {
            "multiprocessors": torch.cuda.get_device_properties(problem.device).multi_processor_count,
            "requests": problem.shape.requests,
        }
        variant = self.variant or self.module.default_variant(kv_heads, **deployment, **load)
        deployment["variant"] = variant
        num_splits = self.num_splits or self.module.default_splits(kv_heads, **deployment, **load)
        self.module.prepare(kv_heads=kv_heads, **deployment, pdl=self.pdl)
        workspace, counters = self.module.allocate_scratch(
            problem.shape.requests,
            kv_heads=kv_heads,
            num_splits=num_splits,
            device=problem.device,
            **deployment,
        )
        scratch = {"workspace": workspace, "counters": counters, "num_splits": num_splits}
        self.launch = deployment | scratch | {"pdl": self.pdl}
        self.details = {
            "module": self.module.__name__,
            "variant": variant,
            "num_splits": num_splits,
            "pdl": self.pdl,
        }

    def call(self, index: int) -> None:
        """Launch it."""
        problem = self.problem
        self.module.attn2(
            problem.q,
            problem.gate,
            problem.cache(index),
            problem.block_table,
            problem.seq_lens,
            scale=SCALE,
            eps=EPS,
            out=self.outputs[index],
            **self.launch,
        )


class AttentionAlone(Contender):
    """FlashAttention 3 without what follows it."""

    key, name = "fa3", "FlashAttention 3"

    def __init__(self, library: Library):
        self.library = library

    def available(self) -> Availability:
        """Whether its library is there, loads, and is for this GPU."""
        reason = self.library.load()
        return Availability(not reason, reason)

    def prepare(self, problem: Problem) -> None:
        """Compute the scheduler metadata, which vLLM does once a step."""
        self.start(problem)
        self.attention = FlashAttention3(problem)
        self.details = {"library": self.library.description}

    def call(self, index: int) -> None:
        """Call its operator."""
        self.attention(index, self.outputs[index])

    def reference(self, index: int) -> torch.Tensor:
        """Return attention only."""
        return self.problem.attention_reference(index)


class NormGateAlone(Contender):
    """The norm-gate kernel on an attention output that is already there."""

    key, name = "norm_gate", "norm-gate"

    def __init__(self, pdl: bool = False, picked: dict[Shape, tuple[int, int]] | None = None):
        """Share `picked`, the block size of each shape, so that it is measured once."""
        self.pdl = pdl
        self.picked = {} if picked is None else picked
        self.kernels, self.reason = import_first(("benchmarks.norm_gate",))

    def available(self) -> Availability:
        """Whether Triton could be imported."""
        return Availability(self.kernels is not None, self.reason)

    def prepare(self, problem: Problem) -> None:
        """Make an input of the right size and pick the block size."""
        self.start(problem)
        shape = problem.shape
        generator = torch.Generator(device=problem.device).manual_seed(1)
        size = (shape.tokens, shape.query_heads, problem.q.shape[1] // shape.query_heads)
        self.input = torch.empty(size, dtype=torch.bfloat16, device=problem.device)
        self.input.normal_(generator=generator)
        if shape not in self.picked:
            self.picked[shape] = fastest(self.kernels.CONFIGS, self._calls, problem.device)
        self.config = self.picked[shape]
        rows, warps = self.config
        self.details = {"rows_per_block": rows, "warps": warps, "pdl": self.pdl}

    def _calls(self, config: tuple[int, int]) -> list[Callable[[], object]]:
        """Return all calls with a block size that is being tried."""
        return [partial(self.run, self.input, out, config) for out in self.outputs]

    def run(self, x: torch.Tensor, out: torch.Tensor, config: tuple[int, int] | None = None) -> None:
        """Run the kernel on any attention output of this shape."""
        config = config or self.config
        self.kernels.norm_gate(x, self.problem.gate, out, eps=EPS, config=config, pdl=self.pdl)

    def call(self, index: int) -> None:
        """Launch it."""
        self.run(self.input, self.outputs[index])

    def reference(self, index: int) -> torch.Tensor:
        """Return norm and gate of the input."""
        return self.problem.norm_gate_reference(self.input)


class Pair(Contender):
    """FlashAttention 3 with the norm-gate kernel behind it: the same function as ours."""

    key, name = "pair", "FlashAttention 3 + norm-gate"

    def __init__(self, attention: AttentionAlone, norm_gate: NormGateAlone):
        self.attention, self.norm_gate = attention, norm_gate

    def available(self) -> Availability:
        """Whether both halves are."""
        return self.attention.available() and self.norm_gate.available()

    def prepare(self, problem: Problem) -> None:
        """Prepare both halves; the attention output between them is one buffer, as in an engine."""
        self.start(problem)
        self.attention.prepare(problem)
        self.norm_gate.prepare(problem)
        self.between = torch.empty_like(self.norm_gate.input)
        self.details = self.attention.details | self.norm_gate.details

    def call(self, index: int) -> None:
        """Call both, one after the other."""
        self.attention.attention(index, self.between)
        self.norm_gate.run(self.between, self.outputs[index])


def all_contenders(
    library: Library, variant: str | None = None, pdl: bool = False, num_splits: int | None = None
) -> list[Contender]:
    """Ours, the pair that it replaces, and the two halves of the pair."""
    picked: dict[Shape, tuple[int, int]] = {}
    # A contender is prepared for itself, so the pair gets halves of its own.
    return [
        Ours(variant, pdl, num_splits),
        Pair(AttentionAlone(library), NormGateAlone(pdl, picked)),
        AttentionAlone(library),
        NormGateAlone(pdl, picked),
    ]


def fastest(
    configs: tuple[tuple[int, int], ...],
    calls_of: Callable[[tuple[int, int]], list[Callable[[], object]]],
    device: torch.device,
    rounds: int = 20,
) -> tuple[int, int]:
    """Return the configuration whose graph of calls has the smallest median time."""
    graphs, count = [], 0
    for config in configs:
        calls = calls_of(config)
        count = len(calls)
        graphs.append(capture(calls))
    samples = interleaved(graphs, calls=count, rounds=rounds, budget_seconds=2.0, flush=L2Flush(device))
    medians = [sorted(of_one)[len(of_one) // 2] for of_one in samples]
    return configs[medians.index(min(medians))]


def import_first(names: tuple[str, ...]) -> tuple[Any, str]:
    """Return the first module that can be imported, or None and why each cannot."""
    reasons = []
    for name in names:
        try:
            return importlib.import_module(name), ""
        except Exception as error:
            reasons.append(f"{name}: {error}")
    return None, "; ".join(reasons)
