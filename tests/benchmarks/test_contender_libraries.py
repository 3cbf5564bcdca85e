"""Libraries are called as they want to be called, and what is missing is named."""

import copy
import sys
import types

import pytest
import torch

from benchmarks.contenders import base, make_contenders
from benchmarks.contenders.flash_attention3 import ENVIRONMENT_VARIABLE, FlashAttention3, Library
from benchmarks.contenders.pair import AttentionAlone
from benchmarks.problem import SCALE
from tests.benchmarks.problems import attend, problem_of


def test_flash_attention_gets_what_its_schema_says(flash_attention):
    library, seen = flash_attention
    problem = problem_of("2 2 37")
    contender = AttentionAlone(FlashAttention3(library))
    assert contender.available()
    contender.prepare(problem)
    for index in range(3):
        contender.call(index)
    assert contender.check()[1] == ""
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
    assert not FlashAttention3(Library(str(broken))).available()


def test_contenders_are_made_by_key():
    keys = ["ours", "fa3", "fi-fa2-alone", "norm-gate", "page-read", "fa3"]
    made = make_contenders(keys, variants=["batch"])
    assert [contender.key for contender in made] == [*keys[:-1], "ours:batch"]
    assert [contender.key for contender in made if contender.peer] == ["fa3"]
    with pytest.raises(ValueError, match=r"no contender 'flash'.*page-read.*fa3-alone"):
        make_contenders(["flash"])


@pytest.mark.parametrize("key", ["fa3", "fi-fa2", "fi-xqa", "fa4", "vllm", "page-read", "norm-gate"])
def test_what_is_missing_is_named(monkeypatch, key):
    """Every contender that needs a library says which; none fails when it is made without."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    for module in ("flashinfer", "flash_attn", "vllm", "triton"):
        monkeypatch.setitem(sys.modules, module, None)
    for loaded in ("benchmarks.page_read", "benchmarks.norm_gate"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    (contender,) = make_contenders([key])
    answer = contender.available()
    needed = {"fa3": "--fa3", "fi-fa2": "flashinfer", "fi-xqa": "flashinfer", "fa4": "flash_attn"}
    assert not answer
    assert needed.get(key, "vllm" if key == "vllm" else "triton") in answer.reason


def test_arguments_that_a_version_does_not_know_are_left_out():
    def function(a, b=1):
        return a + b

    assert base.accepted(function, a=1, c=2) == {"a": 1}
    assert base.accepted(lambda **more: more, a=1, c=2) == {"a": 1, "c": 2}


def test_a_library_that_returns_memory_of_its_own_is_followed():
    """FlashAttention 4 before it had an output parameter; one that has it is given the output."""
    fa4 = next(c.attention for c in make_contenders(["fa4"]))
    problem = problem_of("1 1 24 9")
    seen = {}

    def attend_elsewhere(q, k, v, *, page_table, seqused_k, window_size, causal, softmax_scale):
        seen.update(window=window_size, causal=causal, scale=softmax_scale)
        out = torch.empty(q.shape, dtype=q.dtype)
        attend(q, k, v, out, page_table, seqused_k)
        return out, None

    fa4.module = types.SimpleNamespace(flash_attn_varlen_func=attend_elsewhere, __name__="m")
    assert fa4.available()
    fa4.prepare(problem)
    out = torch.empty(8, 8, 64, dtype=torch.bfloat16)
    assert fa4.attend(0, out) is not out
    assert seen == {"window": (8, 0), "causal": True, "scale": SCALE}

    def attend_there(q, k, v, *, page_table, seqused_k, out):
        attend(q, k, v, out, page_table, seqused_k)
        return out, None

    fa4.module.flash_attn_varlen_func = attend_there
    fa4.prepare(problem)
    assert fa4.attend(0, out) is out


def test_a_library_that_fails_to_compile_is_tried_once():
    fa4 = next(c.attention for c in make_contenders(["fa4"]))

    def fail(q, k, v):
        raise RuntimeError("no such tile\nand more")

    fa4.module = types.SimpleNamespace(flash_attn_varlen_func=fail, __name__="m")
    with pytest.raises(RuntimeError):
        copy.copy(fa4).prepare(problem_of("1 1 24"))
    assert fa4.available().reason == "RuntimeError: no such tile"


def test_vllm_gets_split_k_scratch_memory():
    vllm = next(c.attention for c in make_contenders(["vllm"]))
    seen = {}

    def unified_attention(
        q, k, v, out, block_table, seqused_k, window_size, seq_threshold_3D, softmax_segm_output, q_descale
    ):
        seen.update(window=window_size, threshold=seq_threshold_3D, size=tuple(softmax_segm_output.shape))
        attend(q, k, v, out, block_table, seqused_k)

    vllm.module = types.SimpleNamespace(unified_attention=unified_attention, __name__="m")
    problem = problem_of("2 2 24")
    contender = AttentionAlone(vllm)
    contender.prepare(problem)
    for index in range(3):
        contender.call(index)
    assert contender.check()[1] == ""
    assert seen == {"window": (-1, -1), "threshold": 64, "size": (512, 16, 16, 64)}
