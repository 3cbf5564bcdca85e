"""FlashAttention 4 (`flash_attn.cute`), in CuTe DSL; compiled when it is first called."""

import torch

from benchmarks.contenders.base import Attention, Availability, accepted, first_line, import_first, no
from benchmarks.loads import HEAD_DIM, TOKENS
from benchmarks.problem import SCALE, Problem

#: Its own package, and the copy that a vLLM wheel brings.
MODULES = ("flash_attn.cute.interface", "vllm.vllm_flash_attn.cute.interface")


class FlashAttention4(Attention):
    """Causal, paged, variable-length queries, one split, the library's default."""

    key, name = "fa4", "FlashAttention 4"

    def __init__(self) -> None:
        self.module, self.reason = import_first(MODULES)
        #: Why the first problem could not be run, if so: since it compiles, no other is tried then.
        self.failed: list[str] = []

    def available(self) -> Availability:
        """Whether a module with its entry point can be imported."""
        if self.module is None:
            return no(self.reason)
        if not hasattr(self.module, "flash_attn_varlen_func"):
            return no(f"{self.module.__name__} has no flash_attn_varlen_func")
        return Availability(not self.failed, "".join(self.failed))

    def prepare(self, problem: Problem) -> None:
        """Compile it, by a call."""
        self.problem = problem
        self.q = problem.q.view(problem.load.tokens, problem.load.query_heads, HEAD_DIM)
        window = problem.load.window
        self.function = self.module.flash_attn_varlen_func
        self.arguments = accepted(
            self.function,
            cu_seqlens_q=problem.cu_seqlens_q,
            seqused_k=problem.seq_lens,
            max_seqlen_q=TOKENS,
            max_seqlen_k=problem.max_seq_len,
            page_table=problem.block_table,
            softmax_scale=SCALE,
            causal=True,
            window_size=(None, None) if window is None else (window - 1, 0),
        )
        self.details = {"module": self.module.__name__}
        try:
            self.attend(0, torch.empty_like(self.q, memory_format=torch.contiguous_format))
        except Exception as error:
            self.failed.append(f"{type(error).__name__}: {first_line(error)}")
            raise

    def attend(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Call it; versions without a parameter for the output return one of their own."""
        k, v = self.problem.keys_values(index)
        result = self.function(self.q, k, v, **self.arguments, **accepted(self.function, out=out))
        found = result[0] if isinstance(result, (tuple, list)) else result
        return out if found.data_ptr() == out.data_ptr() else found
