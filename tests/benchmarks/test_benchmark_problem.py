"""Inputs and float64 reference of the benchmark, against loops over single rows."""

import math

import pytest
import torch

from benchmarks.problem import EPS, SCALE, Problem, Shape, plan_copies, worst_row_error

CPU = torch.device("cpu")


def problem_of(text: str, **options) -> Problem:
    """Return a small problem on the CPU."""
    shape = Shape.parse(text)
    options = {"calls": 3, "copies": 2, "max_seq_len": shape.length} | options
    return Problem(shape, device=CPU, **options)


@pytest.mark.parametrize("text", ["1 2 2048", "1,2,2048", " 1  2 2048 "])
def test_shape_is_read(text):
    shape = Shape.parse(text)
    assert (shape.requests, shape.kv_heads, shape.length) == (1, 2, 2048)
    assert shape.read_bytes == shape.cache_bytes == 2 * 2048 * 256


@pytest.mark.parametrize("text", ["", "1 2", "1 2 3 4", "1 x 512", "0 1 512", "1 0 512", "1 1 7", "-1 1 512"])
def test_wrong_shape_is_refused(text):
    with pytest.raises(ValueError, match="shape"):
        Shape.parse(text)


def test_part_of_a_page_counts_as_read_only_where_used():
    shape = Shape(1, 1, 17)
    assert shape.read_bytes == 17 * 256
    assert shape.cache_bytes == 32 * 256


def test_copies_fit_the_limit_but_are_never_one():
    shape = Shape(1, 1, 512)
    assert plan_copies(shape, 64, limit_bytes=64 * shape.cache_bytes) == 64
    assert plan_copies(shape, 64, limit_bytes=10 * shape.cache_bytes) == 10
    assert plan_copies(shape, 64, limit_bytes=1) == 2


@pytest.mark.parametrize("text", ["1 1 8", "2 1 17", "2 2 37"])
def test_reference_is_the_definition(text):
    problem = problem_of(text)
    shape = problem.shape
    attention = problem.attention_reference(1)
    result = problem.norm_gate_reference(attention)
    for request in range(shape.requests):
        for token in range(8):
            for head in range(shape.query_heads):
                row = request * 8 + token
                q = problem.q[row, head * 64 : head * 64 + 64].double()
                weights, values = [], []
                for key in range(shape.length - 8 + token + 1):
                    page = problem.block_table[request, key // 16]
                    entry = problem.caches[1, page, head // 8, key % 16].double()
                    weights.append(math.exp(SCALE * float(q @ entry[:64])))
                    values.append(entry[64:])
                o = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
                torch.testing.assert_close(attention[row, head], o, rtol=1e-12, atol=1e-14)
                gate = problem.gate[row, head * 64 : head * 64 + 64].double()
                root = math.sqrt(float(o.square().sum()) / 64 + EPS)
                torch.testing.assert_close(result[row, head], o / root / (1 + torch.exp(-gate)))


def test_calls_take_turns_in_caches_that_differ():
    problem = problem_of("1 1 16")
    assert problem.cache(0).data_ptr() == problem.cache(2).data_ptr() != problem.cache(1).data_ptr()
    assert not torch.equal(problem.cache(0), problem.cache(1))


def test_table_holds_every_page_once_and_zeros_behind():
    problem = problem_of("2 1 40", max_seq_len=100)
    assert problem.block_table.shape == (2, 7)
    assert sorted(problem.block_table[:, :3].flatten().tolist()) == list(range(6))
    assert not problem.block_table[:, 3:].any()


def test_peers_read_the_same_memory():
    problem = problem_of("1 2 32")
    k, v = problem.keys_values(1)
    assert k.shape == v.shape == (2, 16, 2, 64)
    assert k.data_ptr() == problem.cache(1).data_ptr()
    assert torch.equal(k[1, 3, 1], problem.caches[1, 1, 1, 3, :64])
    assert torch.equal(v[1, 3, 1], problem.caches[1, 1, 1, 3, 64:])


def test_rows_are_slices_of_one_fused_row():
    problem = problem_of("1 2 16")
    assert problem.q.shape == problem.gate.shape == (8, 1024)
    assert problem.q.stride(0) == problem.gate.stride(0) == 1152 * 2
    assert problem.gate.data_ptr() - problem.q.data_ptr() == 640 * 2 * 2


def test_length_above_the_deployment_is_refused():
    with pytest.raises(ValueError, match="max_seq_len"):
        problem_of("1 1 64", max_seq_len=63)


def test_error_is_that_of_the_worst_row():
    reference = torch.ones(4, 2 * 64, dtype=torch.float64)
    result = reference.clone()
    result[3, 64:] *= 1.5
    assert worst_row_error(result, reference) == pytest.approx(0.5)
    result[0, 0] = float("nan")
    assert math.isnan(worst_row_error(result, reference))
