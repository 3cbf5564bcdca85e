"""FlashAttention 3 as vLLM ships it: its library, and a call of its operators as vLLM makes it.

The operators' arguments are positional; their names are beside them, from the schema that the library
registers.
"""

import functools
import hashlib
import importlib.util
import os
from pathlib import Path

import torch

from benchmarks.contenders.base import Attention, Availability
from benchmarks.loads import HEAD_DIM, PAGE_SIZE, TOKENS
from benchmarks.problem import SCALE, Problem

ENVIRONMENT_VARIABLE = "STAGEWRIGHT_FA3_LIBRARY"
LIBRARY_IN_VLLM = Path("vllm_flash_attn", "_vllm_fa3_C.abi3.so")
NO_WINDOW = -1


class Library:
    """The shared library with the operators: found, loaded at most once, described."""

    def __init__(self, path: str | None = None):
        self.path = Path(path) if path else _find()
        self._reason: str | None = None

    def load(self) -> str:
        """Load it unless that was tried before; the reason why it cannot be used, or ""."""
        if self._reason is None:
            self._reason = self._load()
        return self._reason

    def _load(self) -> str:
        if self.path is None:
            return f"no library: give --fa3 PATH, set {ENVIRONMENT_VARIABLE}, or install vLLM"
        if not self.path.is_file():
            return f"no such file: {self.path}"
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9:
            return "it needs a GPU of compute capability 9.x"
        try:
            # PyTorch leaves it untyped.
            torch.ops.load_library(str(self.path))  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            return f"{self.path} does not load: {error}"
        if not hasattr(torch.ops._vllm_fa3_C, "fwd"):
            return f"{self.path} has no operator _vllm_fa3_C.fwd"
        return ""

    @functools.cached_property
    def description(self) -> str:
        """File name and the start of its SHA-256, since the library does not tell its version."""
        if self.path is None:
            return ""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        return f"{self.path.name} sha256:{digest[:16]}"


class FlashAttention3(Attention):
    """As vLLM calls it: causal, paged, variable-length queries, its own heuristics."""

    key, name = "fa3", "FlashAttention 3"

    def __init__(self, library: Library):
        self.library = library

    def available(self) -> Availability:
        """Whether its library is there, loads, and is for this GPU."""
        reason = self.library.load()
        return Availability(not reason, reason)

    def prepare(self, problem: Problem) -> None:
        """Compute the scheduler metadata, which vLLM does once a step for all layers."""
        self.problem = problem
        self.details = {"library": self.library.description}
        load = problem.load
        self.q = problem.q.view(load.tokens, load.query_heads, HEAD_DIM)
        # Its window counts the keys to the left of a token's own.
        self.window_left = NO_WINDOW if load.window is None else load.window - 1
        self.window_right = NO_WINDOW if load.window is None else 0
        self.scheduler_metadata = torch.ops._vllm_fa3_C.get_scheduler_metadata(
            load.requests,  # batch_size
            TOKENS,  # max_seqlen_q
            problem.max_seq_len,  # max_seqlen_k
            load.query_heads,  # num_heads
            load.kv_heads,  # num_heads_k
            HEAD_DIM,  # headdim
            HEAD_DIM,  # headdim_v
            torch.bfloat16,  # qkv_dtype
            problem.seq_lens,  # seqused_k
            problem.cu_seqlens_q,
            None,  # cu_seqlens_k
            None,  # cu_seqlens_k_new
            None,  # seqused_q
            None,  # leftpad_k
            PAGE_SIZE,  # page_size
            0,  # max_seqlen_k_new
            True,  # is_causal
            self.window_left,
            self.window_right,
            False,  # has_softcap
            0,  # num_splits: its heuristic
            None,  # pack_gqa: its heuristic
            0,  # sm_margin
        )

    def attend(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Call its operator."""
        problem = self.problem
        k, v = problem.keys_values(index)
        torch.ops._vllm_fa3_C.fwd(
            self.q,
            k,
            v,
            None,  # k_new
            None,  # v_new
            None,  # q_v
            out,
            problem.cu_seqlens_q,
            None,  # cu_seqlens_k
            None,  # cu_seqlens_k_new
            None,  # seqused_q
            problem.seq_lens,  # seqused_k
            TOKENS,  # max_seqlen_q
            problem.max_seq_len,  # max_seqlen_k
            problem.block_table,
            None,  # kv_batch_idx
            None,  # leftpad_k
            None,  # rotary_cos
            None,  # rotary_sin
            None,  # seqlens_rotary
            None,  # q_descale
            None,  # k_descale
            None,  # v_descale
            SCALE,  # softmax_scale
            True,  # is_causal
            self.window_left,
            self.window_right,
            0.0,  # softcap
            True,  # is_rotary_interleaved
            self.scheduler_metadata,
            0,  # num_splits: its heuristic
            None,  # pack_gqa: its heuristic
            0,  # sm_margin
            None,  # s_aux
            1,  # cp_world_size
            0,  # cp_rank
            None,  # cp_tot_seqused_k
        )
        return out


def _find() -> Path | None:
    """Return the library that the environment names, else an installed vLLM's, without importing it."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return Path(named)
    spec = importlib.util.find_spec("vllm")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (library := Path(folder) / LIBRARY_IN_VLLM).is_file():
            return library
    return None
