"""The contenders call what they compare as it wants to be called, and a wrong one is never timed."""

import os
import types

import pytest
import torch

from benchmarks import compare as comparing
from benchmarks import contenders
from benchmarks.flash_attention import ENVIRONMENT_VARIABLE, Library
from benchmarks.problem import EPS, SCALE, Problem, Shape

CPU = torch.device("cpu")

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


def problem_of(text: str) -> Problem:
    """Return a small problem on the CPU, deployed for longer contexts than its own."""
    shape = Shape.parse(text)
    return Problem(shape, calls=3, copies=3, max_seq_len=shape.length + 40, device=CPU)


def attend(q, k, v, out, table, lengths):
    """Compute attention over a paged cache, in float64, K and V apart as FlashAttention takes them."""
    heads = k.shape[2]
    for request, length in enumerate(lengths.tolist()):
        pages = table[request, : -(-length // 16)].long()
        keys, values = (x[pages].flatten(0, 1)[:length].double() for x in (k, v))
        for token in range(8):
            row = request * 8 + token
            seen = length - 8 + token + 1
            for head in range(q.shape[1]):
                kv_head = head // (q.shape[1] // heads)
                weights = torch.softmax(keys[:seen, kv_head] @ q[row, head].double() * SCALE, dim=0)
                out[row, head] = weights @ values[:seen, kv_head]


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

    for module in (comparing, contenders):
        monkeypatch.setattr(module, "capture", Graph)
        monkeypatch.setattr(module, "interleaved", interleaved)
        monkeypatch.setattr(module, "L2Flush", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


class Exact(contenders.Contender):
    """Writes the reference, apart from what a test spoils."""

    key, name = "ours", "exact"

    def __init__(self, spoil=lambda index, out: None):
        self.spoil = spoil

    def prepare(self, problem):
        self.start(problem)

    def call(self, index):
        out = self.outputs[index]
        out.copy_(self.reference(index).reshape(out.shape))
        self.spoil(index, out)


def compare(*some):
    return comparing.compare(Shape(1, 1, 24), some, device=CPU, rounds=5, budget_seconds=1)


def test_flash_attention_gets_what_its_schema_says(flash_attention):
    library, seen = flash_attention
    problem = problem_of("2 2 37")
    contender = contenders.AttentionAlone(library)
    assert contender.available()
    contender.prepare(problem)
    for index in range(3):
        contender.call(index)
    assert comparing.check(contender, 3)[1] == ""
    fwd, metadata = seen["fwd"], seen["metadata"]
    assert fwd["scheduler_metadata"].tolist() == [7] * 4
    shared = (
        "max_seqlen_q",
        "max_seqlen_k",
        "is_causal",
        "window_size_left",
        "window_size_right",
        "pack_gqa",
    )
    assert all(fwd[name] == metadata[name] for name in (*shared, "num_splits", "sm_margin"))
    assert (metadata["batch_size"], metadata["num_heads"], metadata["num_heads_k"]) == (2, 16, 2)
    assert (metadata["headdim"], metadata["headdim_v"], metadata["page_size"]) == (64, 64, 16)
    assert fwd["cu_seqlens_q"].tolist() == [0, 8, 16]
    assert (fwd["softmax_scale"], fwd["cp_world_size"], fwd["cp_rank"]) == (SCALE, 1, 0)


def test_missing_library_is_a_reason_not_an_error(monkeypatch, tmp_path):
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert "--fa3" in Library().load()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "nothing.so"))
    assert "nothing.so" in Library().load()
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    assert "does not load" in Library(str(broken)).load()
    assert not contenders.AttentionAlone(Library(str(broken))).available()


@pytest.mark.parametrize("named", [None, "cluster"])
def test_ours_is_called_through_its_public_interface(monkeypatch, named):
    """By the variant that is named, or else by the one that suits so many requests."""
    calls = []

    def prepare(*, kv_heads, max_seq_len, window, pdl, variant):
        calls.append((kv_heads, max_seq_len, window, pdl, variant))

    def allocate_scratch(requests, *, kv_heads, max_seq_len, window, num_splits, device, variant):
        assert (requests, kv_heads, num_splits, device, variant) == (1, 1, 3, CPU, "cluster")
        return "workspace", "counters"

    def attn2(q, gate, cache, table, lengths, *, max_seq_len, window, scale, eps, out, pdl, variant, **more):
        assert (max_seq_len, window, scale, eps, pdl, variant) == (60, None, SCALE, EPS, True, "cluster")
        assert more == {"workspace": "workspace", "counters": "counters", "num_splits": 3}
        attention = torch.empty(8, 8, 64, dtype=torch.float64)
        k, v = cache.transpose(1, 2).split(64, dim=-1)
        attend(q.view(8, 8, 64), k, v, attention, table, lengths)
        out.copy_(problem.norm_gate_reference(attention).view(out.shape))

    def default_splits(kv_heads, max_seq_len, window, variant, multiprocessors, requests):
        assert (kv_heads, max_seq_len, window, variant, requests) == (1, 60, None, "cluster", 1)
        assert multiprocessors == 7
        return 3

    def default_variant(kv_heads, max_seq_len, window, multiprocessors, requests):
        assert named is None
        assert (kv_heads, max_seq_len, window, multiprocessors, requests) == (1, 60, None, 7, 1)
        return "cluster"

    device = types.SimpleNamespace(multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)

    functions = {"prepare": prepare, "attn2": attn2, "allocate_scratch": allocate_scratch}
    functions |= {"default_splits": default_splits, "default_variant": default_variant}
    ours = contenders.Ours(variant=named, pdl=True)
    ours.module = types.SimpleNamespace(**functions, __name__="module")
    problem = problem_of("1 1 20")
    ours.prepare(problem)
    for index in range(3):
        ours.call(index)
    assert calls == [(1, 60, None, True, "cluster")]
    assert comparing.check(ours, 3)[1] == ""


def test_right_contender_is_timed(on_cpu):
    row = compare(Exact())
    entry = row.entries[0]
    assert (entry.status, entry.microseconds.median, row.rounds) == (comparing.TIMED, 2.0, 5)
    assert entry.worst_error < 5e-3
    assert row.noise_microseconds == 0


@pytest.mark.parametrize("index", [0, 1, comparing.CALLS - 1])
def test_contender_that_leaves_an_element_is_not_timed(on_cpu, index):
    row = compare(Exact(lambda i, out: out[7, 511:].fill_(float("nan")) if i == index else None), Exact())
    assert [entry.status for entry in row.entries] == [comparing.WRONG, comparing.TIMED]
    assert row.entries[0].microseconds is None


def test_contender_with_one_wrong_row_is_not_timed(on_cpu):
    row = compare(Exact(lambda i, out: out[3, 64:128].mul_(1.02)))
    assert row.entries[0].status == comparing.WRONG
    assert "1e-02" in row.entries[0].reason


def test_contender_that_raises_does_not_stop_the_others(on_cpu):
    def refuse(index, out):
        raise ValueError("not for this shape")

    row = compare(Exact(refuse), Exact())
    assert [entry.status for entry in row.entries] == [comparing.FAILED, comparing.TIMED]
    assert "not for this shape" in row.entries[0].reason


@pytest.fixture
def triton_interpreter(monkeypatch):
    """Let Triton's kernels run on the CPU where TRITON_INTERPRET was set before the first import."""
    pytest.importorskip("triton", reason="needs Triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs TRITON_INTERPRET=1")


@pytest.mark.usefixtures("triton_interpreter", "on_cpu")
def test_norm_gate_and_pair_are_right(flash_attention):
    library, _ = flash_attention
    everyone = contenders.all_contenders(library)
    problem = problem_of("2 1 24")
    for contender in everyone[1:]:
        assert contender.available(), contender.available().reason
        contender.prepare(problem)
        for index in range(3):
            contender.call(index)
        assert comparing.check(contender, 3)[1] == ""
    assert everyone[1].details["rows_per_block"] == everyone[3].details["rows_per_block"]
