"""Fixtures of the benchmarks' tests: libraries and graphs that run on the CPU."""

import pytest
import torch

from benchmarks import compare as comparing
from benchmarks.contenders import base
from benchmarks.contenders.flash_attention3 import Library
from tests.benchmarks.problems import attend

# As the library registers them.
FWD = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor(a!)? out, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, "
    "Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, "
    "Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, "
    "Tensor? k_descale, Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left, "
    "int window_size_right, float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, "
    "int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, "
    "Tensor? cp_tot_seqused_k) -> Tensor[]"
)
METADATA = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, "
    "int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, "
    "Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, bool is_causal, int window_size_left, "
    "int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, int sm_margin) -> Tensor"
)


@pytest.fixture
def flash_attention():
    """Return a library that is loaded, with operators of the same schemas that run on the CPU."""
    seen = {}

    def fwd(q, k, v, *rest):
        names = [part.split()[-1] for part in FWD.split("(", 1)[1].rsplit(")", 1)[0].split(", ")]
        seen["fwd"] = arguments = dict(zip(names, (q, k, v, *rest), strict=True))
        attend(q, k, v, arguments["out"], arguments["page_table"], arguments["seqused_k"])
        return [arguments["out"].clone()]

    def metadata(*values):
        names = [part.split()[-1] for part in METADATA.split("(", 1)[1].rsplit(")", 1)[0].split(", ")]
        seen["metadata"] = dict(zip(names, values, strict=True))
        return torch.full((4,), 7, dtype=torch.int32)

    with torch.library._scoped_library("_vllm_fa3_C", "FRAGMENT") as operators:
        operators.define(FWD)
        operators.define(METADATA)
        operators.impl("fwd", fwd, "CPU")
        operators.impl("get_scheduler_metadata", metadata, "CPU")
        library = Library(__file__)
        library._reason = ""
        yield library, seen


@pytest.fixture
def on_cpu(monkeypatch):
    """Make graphs that replay by calling, beside a stopwatch that always shows 2 us."""

    class Graph:
        def __init__(self, calls):
            self.calls = calls

        def replay(self):
            for call in self.calls:
                call()

    def interleaved(graphs, *, calls, rounds, budget_seconds, flush):
        return [[2.0] * rounds for _ in graphs]

    for module in (comparing, base):
        monkeypatch.setattr(module, "capture", Graph)
        monkeypatch.setattr(module, "interleaved", interleaved)
        monkeypatch.setattr(module, "L2Flush", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
