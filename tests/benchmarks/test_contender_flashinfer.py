"""FlashInfer's arguments, against loops over single tokens, and what it says where a module is not built."""

import types

import pytest
import torch

from benchmarks.contenders import flashinfer
from benchmarks.contenders.pair import AttentionAlone
from benchmarks.loads import Load, OneLong
from benchmarks.problem import SCALE, Problem
from tests.benchmarks.problems import CPU

LOADS = [
    Load.parse("1 1 8"),
    Load.parse("2 1 16"),
    Load.parse("2 2 37 16"),
    Load("uneven", 3, 2, OneLong(65, 24)),
    Load("uneven, window", 3, 1, OneLong(65, 24), window=19),
]


def problem_of(load: Load) -> Problem:
    return Problem(load, calls=2, copies=2, device=CPU, max_seq_len=load.longest + 100)


def attend_planned(batch, q, k, v):
    """Attention by what FlashInfer's documentation says that these arguments mean; K and V are HND."""
    out = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for request in range(len(batch.last_page_len)):
        pages = batch.kv_indices[int(batch.kv_indptr[request]) : int(batch.kv_indptr[request + 1])].tolist()
        length = 16 * (len(pages) - 1) + int(batch.last_page_len[request])
        first, end = int(batch.qo_indptr[request]), int(batch.qo_indptr[request + 1])
        for row in range(first, end):
            own = length - (end - first) + row - first
            seen = [key for key in range(own + 1) if batch.window_left < 0 or key >= own - batch.window_left]
            for head in range(q.shape[1]):
                keys, values = (
                    torch.stack([x[pages[key // 16], head // group, key % 16].double() for key in seen])
                    for x in (k, v)
                )
                out[row, head] = torch.softmax(keys @ q[row, head].double() * SCALE, dim=0) @ values
    return out


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_planned_arguments_mean_the_problem(load):
    problem = problem_of(load)
    batch = flashinfer.paged_arguments(problem)
    q = problem.q.view(load.tokens, load.query_heads, 64)
    attended = attend_planned(batch, q, *problem.head_major(1))
    torch.testing.assert_close(attended, problem.attention_reference(1))


def test_planned_arguments_by_hand():
    problem = problem_of(LOADS[4])
    batch = flashinfer.paged_arguments(problem)
    assert batch.qo_indptr.tolist() == [0, 8, 16, 24]
    assert batch.kv_indptr.tolist() == [0, 5, 7, 9]
    assert batch.last_page_len.tolist() == [1, 8, 8]
    assert batch.window_left == 18
    table = problem.block_table
    assert batch.kv_indices.tolist() == [
        *table[0, :5].tolist(),
        *table[1, :2].tolist(),
        *table[2, :2].tolist(),
    ]
    assert {tensor.dtype for tensor in vars(batch).values() if torch.is_tensor(tensor)} == {torch.int32}


def test_causal_mask_has_a_bit_for_each_token_seen():
    mask = flashinfer.causal_mask(3)
    assert (mask.shape, mask.dtype) == ((3, 8, 2), torch.uint16)
    for request in mask.tolist():
        for token, (low, high) in enumerate(request):
            seen = [bool((low | high << 16) >> other & 1) for other in range(32)]
            assert seen == [other <= token for other in range(32)]


class Wrapper:
    """FlashInfer's wrapper, by the slow attention above."""

    def __init__(self, workspace, layout, backend):
        assert (workspace.dtype, layout, backend) == (torch.uint8, "HND", "fa2")

    def plan(self, qo, indptr, indices, last, query_heads, kv_heads, dim, page, **more):
        assert (query_heads, kv_heads, dim, page) == (8, 1, 64, 16)
        assert (more["causal"], more["sm_scale"]) == (True, SCALE)
        self.batch = flashinfer.PagedArguments(qo, indptr, indices, last, more["window_left"])

    def run(self, q, caches, out):
        out.copy_(attend_planned(self.batch, q, *caches))


def with_module(contender, **functions):
    contender.module = types.SimpleNamespace(__version__="0", **functions)
    return contender


def test_fa2_is_planned_once_and_run_for_each_call():
    fa2 = with_module(flashinfer.FlashInferFa2(), BatchPrefillWithPagedKVCacheWrapper=Wrapper)
    contender = AttentionAlone(fa2)
    contender.prepare(problem_of(LOADS[4]))
    for index in range(2):
        contender.call(index)
    assert contender.check()[1] == ""
    assert contender.details["kv_layout"] == "HND"


def test_xqa_gets_shapes_and_types_of_its_documentation():
    seen = {}

    def xqa(**arguments):
        seen.update(arguments)
        arguments["output"].zero_()

    contender = with_module(flashinfer.FlashInferXqa(), xqa=xqa)
    problem = problem_of(LOADS[4])
    contender.prepare(problem)
    out = torch.ones(24, 8, 64, dtype=torch.bfloat16)
    assert contender.attend(0, out) is out
    assert not out.any()
    assert seen["q"].shape == seen["output"].shape == (3, 1, 8, 8, 64)
    assert seen["q"].is_contiguous()
    assert torch.equal(seen["q"].view(24, 512), problem.q)
    assert (seen["seq_lens"].dtype, seen["seq_lens"].tolist()) == (torch.uint32, [[65], [24], [24]])
    assert (seen["k_cache"].shape, seen["kv_layout"]) == ((9, 1, 16, 64), "HND")
    assert (seen["sliding_win_size"], seen["q_seq_len"], seen["q_scale"]) == (19, 8, 1.0)
    assert seen["mask"].shape == (3, 8, 2)
    assert (seen["semaphores"].dtype, seen["workspace_buffer"].dtype) == (torch.uint32, torch.uint8)


@pytest.mark.parametrize(
    "compiled, build, reason", [(True, False, ""), (False, False, "--build"), (False, True, "no nvcc")]
)
def test_a_module_that_is_not_built_is_a_reason(monkeypatch, compiled, build, reason):
    """It is only compiled where that was asked for; the answer is kept."""
    asked = []

    def build_and_load():
        raise RuntimeError("no nvcc\nat all")

    def spec(windowed):
        asked.append(windowed)
        return types.SimpleNamespace(name="m", is_compiled=compiled, build_and_load=build_and_load)

    contender = flashinfer.FlashInferFa2(build)
    monkeypatch.setattr(contender, "spec", spec)
    plain, windowed = problem_of(LOADS[3]), problem_of(LOADS[4])
    for problem in (plain, plain, windowed):
        answer = contender.serves(problem)
        assert bool(answer) == (not reason)
        assert reason in answer.reason
    assert asked == [False, True]
