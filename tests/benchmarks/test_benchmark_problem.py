"""Inputs and float64 reference of the benchmark, against loops over single rows."""

import math

import pytest
import torch

from benchmarks.loads import Load, OneLong
from benchmarks.problem import EPS, SCALE, Problem, plan_copies, worst_row_error

CPU = torch.device("cpu")


UNEVEN = Load("uneven", 3, 2, OneLong(53, 17))
UNEVEN_WINDOW = Load("uneven, window", 3, 2, OneLong(53, 17), window=19)


def problem_of(load: Load | str, **options) -> Problem:
    """Return a small problem on the CPU."""
    load = Load.parse(load) if isinstance(load, str) else load
    options = {"calls": 3, "copies": 2} | options
    return Problem(load, device=CPU, **options)


def test_copies_fit_the_limit_but_are_never_one():
    load = Load.even(1, 1, 512)
    assert plan_copies(load, 64, limit_bytes=64 * load.cache_bytes) == 64
    assert plan_copies(load, 64, limit_bytes=10 * load.cache_bytes) == 10
    assert plan_copies(load, 64, limit_bytes=1) == 2


@pytest.mark.parametrize(
    "load", ["1 1 8", "2 1 17", "2 2 37", "2 2 37 16", "1 1 70 17", UNEVEN, UNEVEN_WINDOW], ids=str
)
def test_reference_is_the_definition(load):
    problem = problem_of(load)
    load = problem.load
    attention = problem.attention_reference(1)
    result = problem.norm_gate_reference(attention)
    for request, length in enumerate(load.lengths):
        for token in range(8):
            for head in range(load.query_heads):
                row = request * 8 + token
                q = problem.q[row, head * 64 : head * 64 + 64].double()
                weights, values = [], []
                own = length - 8 + token
                for key in range(0 if load.window is None else max(0, own - load.window + 1), own + 1):
                    page = problem.block_table[request, key // 16]
                    entry = problem.caches[1, page, head // 8, key % 16].double()
                    weights.append(math.exp(SCALE * float(q @ entry[:64])))
                    values.append(entry[64:])
                o = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
                torch.testing.assert_close(attention[row, head], o, rtol=1e-12, atol=1e-14)
                gate = problem.gate[row, head * 64 : head * 64 + 64].double()
                root = math.sqrt(float(o.square().sum()) / 64 + EPS)
                torch.testing.assert_close(result[row, head], o / root / (1 + torch.exp(-gate)))


def test_reference_is_computed_once_a_cache():
    problem = problem_of("1 1 16")
    assert problem.attention_reference(0) is problem.deployed(100).attention_reference(2)
    assert not torch.equal(problem.attention_reference(0), problem.attention_reference(1))


def test_another_deployment_has_the_same_tensors_but_for_its_table():
    problem = problem_of(UNEVEN)
    other = problem.deployed(1000)
    assert (problem.max_seq_len, other.max_seq_len) == (53, 1000)
    assert (problem.block_table.shape, other.block_table.shape) == ((3, 4), (3, 63))
    assert torch.equal(other.block_table[:, :4], problem.block_table)
    assert other.caches is problem.caches
    assert other.q is problem.q


def test_live_table_is_the_live_part_of_the_block_table():
    table = problem_of(UNEVEN_WINDOW).block_table
    # Keys 27..52 of the first request, all of the others.
    wanted = [*table[0, 1:4].tolist(), *table[1, :2].tolist(), *table[2, :2].tolist()]
    assert problem_of(UNEVEN_WINDOW).live_table().tolist() == wanted


def test_calls_take_turns_in_caches_that_differ():
    problem = problem_of("1 1 16")
    assert problem.cache(0).data_ptr() == problem.cache(2).data_ptr() != problem.cache(1).data_ptr()
    assert not torch.equal(problem.cache(0), problem.cache(1))


def test_table_holds_every_page_once_and_zeros_behind():
    problem = problem_of(UNEVEN, max_seq_len=100)
    assert problem.block_table.shape == (3, 7)
    live = [problem.block_table[0, :4], problem.block_table[1, :2], problem.block_table[2, :2]]
    assert sorted(torch.cat(live).tolist()) == list(range(8))
    assert not problem.block_table[0, 4:].any()
    assert not problem.block_table[1:, 2:].any()


def test_peers_read_the_same_memory():
    problem = problem_of("1 2 32")
    k, v = problem.keys_values(1)
    assert k.shape == v.shape == (2, 16, 2, 64)
    assert k.data_ptr() == problem.cache(1).data_ptr()
    assert torch.equal(k[1, 3, 1], problem.caches[1, 1, 1, 3, :64])
    assert torch.equal(v[1, 3, 1], problem.caches[1, 1, 1, 3, 64:])
    k, v = problem.head_major(1)
    assert k.shape == v.shape == (2, 2, 16, 64)
    assert torch.equal(k[1, 1, 3], problem.caches[1, 1, 1, 3, :64])
    assert torch.equal(v[1, 1, 3], problem.caches[1, 1, 1, 3, 64:])


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
