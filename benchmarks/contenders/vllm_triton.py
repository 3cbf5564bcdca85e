"""vLLM's Triton unified attention, with the split-K scratch memory that its backend gives it."""

import torch

from benchmarks.contenders.base import Attention, Availability, accepted, import_first
from benchmarks.loads import HEAD_DIM, TOKENS
from benchmarks.problem import SCALE, Problem

#: Where it is in vLLM 0.33, and where it was in versions before.
MODULES = ("vllm.v1.attention.ops.triton_unified_attention", "vllm.attention.ops.triton_unified_attention")

#: The backend's own: segments of a request in its split-K kernel, and the grid from which that is not used.
SEGMENTS = 16
LEAST_GRID_2D = 128


class VllmTriton(Attention):
    """As vLLM's Triton backend calls it."""

    key, name = "vllm", "vLLM Triton"

    def __init__(self) -> None:
        self.module, self.reason = import_first(MODULES)

    def available(self) -> Availability:
        """Whether vLLM's module can be imported."""
        return Availability(self.module is not None, self.reason)

    def prepare(self, problem: Problem) -> None:
        """Allocate the scratch memory, gather the arguments."""
        load, window = problem.load, problem.load.window
        self.problem = problem
        self.q = problem.q.view(load.tokens, load.query_heads, HEAD_DIM)
        threshold = LEAST_GRID_2D // load.kv_heads
        size = (TOKENS * max(threshold, 1), load.query_heads, SEGMENTS)

        def scratch(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.float32, device=problem.device)

        self.arguments = accepted(
            self.module.unified_attention,
            cu_seqlens_q=problem.cu_seqlens_q,
            max_seqlen_q=TOKENS,
            seqused_k=problem.seq_lens,
            max_seqlen_k=problem.max_seq_len,
            softmax_scale=SCALE,
            causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            block_table=problem.block_table,
            softcap=0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            seq_threshold_3D=threshold,
            num_par_softmax_segments=SEGMENTS,
            softmax_segm_output=scratch(*size, HEAD_DIM),
            softmax_segm_max=scratch(*size),
            softmax_segm_expsum=scratch(*size),
        )
        self.details = {"module": self.module.__name__, "segments": SEGMENTS, "seq_threshold_3D": threshold}

    def attend(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Call it."""
        k, v = self.problem.keys_values(index)
        self.module.unified_attention(q=self.q, k=k, v=v, out=out, **self.arguments)
        return out
