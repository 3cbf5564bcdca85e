"""FlashInfer: its fa2 paged prefill, and XQA in speculative mode.

Its kernels are modules that are compiled with nvcc for each combination of types and options. Those that are
there are used: prebuilt in the package's `data/aot`, or compiled by an earlier run. Others take minutes to
compile, so that is only done where it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.contenders.base import YES, Attention, Availability, accepted, first_line, import_first, no
from benchmarks.loads import HEAD_DIM, HEADS_PER_KV, PAGE_SIZE, TOKENS, pages_of
from benchmarks.problem import SCALE, Problem

WORKSPACE_BYTES = 256 << 20
#: The first bytes of XQA's workspace are its semaphores, as in FlashInfer's own entry point.
SEMAPHORE_BYTES = 8 << 20

BF16, I32 = torch.bfloat16, torch.int32


@dataclass(frozen=True)
class PagedArguments:
    """A batch as FlashInfer's `plan` takes it, int32.

    Offsets of each request's tokens and of its pages, the pages of all requests one after the other, how many
    entries of each last page are used, and keys to the left of a token's own that it sees, -1 for all.
    """

    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_len: torch.Tensor
    window_left: int


def paged_arguments(problem: Problem) -> PagedArguments:
    """Return the arguments of a problem; offsets and lengths on the host, where `plan` wants them.

    All pages of a request are handed over, those before a window too: the kernel skips them.
    """
    lengths, window = problem.load.lengths, problem.load.window
    counts = torch.tensor([0, *map(pages_of, lengths)], dtype=I32)
    return PagedArguments(
        qo_indptr=torch.arange(len(lengths) + 1, dtype=I32) * TOKENS,
        kv_indptr=counts.cumsum(0).to(I32),
        kv_indices=torch.cat(list(problem.pages)),
        last_page_len=torch.tensor([(length - 1) % PAGE_SIZE + 1 for length in lengths], dtype=I32),
        window_left=-1 if window is None else window - 1,
    )


def causal_mask(requests: int) -> torch.Tensor:
    """Return which verified tokens each one sees, [R, 8, 2] uint16: bit i of 32 is token i of the request."""
    words = [(2 << token) - 1 for token in range(TOKENS)]
    return torch.tensor(words, dtype=I32).view(TOKENS, 1).repeat(requests, 1, 1).view(torch.uint16)


class _FlashInfer(Attention):
    """What both have in common."""

    def __init__(self, build: bool = False):
        self.build = build
        self.module, self.reason = import_first(("flashinfer",))
        #: Why a module cannot be used, by whether it has a window; "" if it can.
        self.checked: dict[bool, str] = {}

    def available(self) -> Availability:
        """Whether the package can be imported."""
        return Availability(self.module is not None, self.reason)

    def spec(self, windowed: bool) -> Any:
        """Return FlashInfer's description of the compiled module."""
        raise NotImplementedError

    def serves(self, problem: Problem) -> Availability:
        """Whether the compiled module is there, or may be compiled and can be."""
        windowed = problem.load.window is not None
        if windowed not in self.checked:
            self.checked[windowed] = self._check(windowed)
        reason = self.checked[windowed]
        return no(reason) if reason else YES

    def _check(self, windowed: bool) -> str:
        try:
            spec = self.spec(windowed)
            if spec.is_compiled:
                return ""
            if not self.build:
                return f"module {spec.name} is not built; --build lets FlashInfer compile it"
            spec.build_and_load()
        except Exception as error:
            return f"{type(error).__name__}: {first_line(error)}"
        return ""

    def _described(self, **more: Any) -> dict[str, Any]:
        return {"version": getattr(self.module, "__version__", None)} | more


class FlashInferFa2(_FlashInfer):
    """Its paged prefill with the fa2 backend, planned for exactly this batch, outside of the graph."""

    key, name = "fi-fa2", "FlashInfer fa2"

    def spec(self, windowed: bool) -> Any:
        """Return the description of its module; the function's name differs between versions."""
        modules, reason = import_first(("flashinfer.jit.attention.modules", "flashinfer.jit.attention"))
        if modules is None:
            raise RuntimeError(reason)
        names = ("_gen_batch_prefill_primary_module", "gen_batch_prefill_module")
        generate = next(getattr(modules, name) for name in names if hasattr(modules, name))
        return generate("fa2", BF16, BF16, BF16, I32, HEAD_DIM, HEAD_DIM, 0, windowed, False, False)

    def prepare(self, problem: Problem) -> None:
        """Plan, as an engine does once a step for all layers."""
        load, batch = problem.load, paged_arguments(problem)
        self.problem = problem
        self.q = problem.q.view(load.tokens, load.query_heads, HEAD_DIM)
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        self.wrapper = self.module.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend="fa2")
        self.wrapper.plan(
            batch.qo_indptr,
            batch.kv_indptr,
            batch.kv_indices,
            batch.last_page_len,
            load.query_heads,
            load.kv_heads,
            HEAD_DIM,
            PAGE_SIZE,
            causal=True,
            sm_scale=SCALE,
            window_left=batch.window_left,
            q_data_type=BF16,
            kv_data_type=BF16,
            **accepted(self.wrapper.plan, o_data_type=BF16),
        )
        self.details = self._described(backend="fa2", kv_layout="HND", workspace_bytes=WORKSPACE_BYTES)

    def attend(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Run what was planned, on K and V as views of the packed cache."""
        self.wrapper.run(self.q, self.problem.head_major(index), out=out)
        return out


class FlashInferXqa(_FlashInfer):
    """XQA in speculative mode. It reads q as a contiguous tensor: the copy is made outside of the graph."""

    key, name = "fi-xqa", "FlashInfer XQA"

    def spec(self, windowed: bool) -> Any:
        """Return the description of its module."""
        modules, reason = import_first(("flashinfer.jit.xqa",))
        if modules is None:
            raise RuntimeError(reason)
        return modules.gen_xqa_module(BF16, BF16, PAGE_SIZE, HEAD_DIM, HEADS_PER_KV, windowed, BF16, TOKENS)

    def prepare(self, problem: Problem) -> None:
        """Allocate workspace and semaphores, copy q."""
        load = problem.load
        self.problem = problem
        self.size = (load.requests, 1, TOKENS, load.query_heads, HEAD_DIM)
        self.q = problem.q.reshape(self.size).contiguous()
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        function: Callable[..., None] = self.module.xqa
        self.function = function
        self.arguments = {
            "page_table": problem.block_table,
            "seq_lens": problem.seq_lens.view(torch.uint32).view(load.requests, 1),
            "workspace_buffer": workspace[SEMAPHORE_BYTES:],
            "semaphores": workspace[:SEMAPHORE_BYTES].view(torch.uint32),
            "num_kv_heads": load.kv_heads,
            "page_size": PAGE_SIZE,
            # It scales logits by HEAD_DIM^-0.5 itself.
            "q_scale": SCALE * HEAD_DIM**0.5,
            "sliding_win_size": load.window or 0,
            "kv_layout": "HND",
            "q_seq_len": TOKENS,
            "mask": causal_mask(load.requests).to(problem.device),
        }
        self.details = self._described(kv_layout="HND", q="contiguous copy", workspace_bytes=WORKSPACE_BYTES)

    def attend(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Call it."""
        k, v = self.problem.head_major(index)
        self.function(q=self.q, k_cache=k, v_cache=v, output=out.view(self.size), **self.arguments)
        return out
