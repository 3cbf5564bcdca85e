"""Kernels against the float64 reference on whatever deployments and requests chance comes up with."""

import dataclasses

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.conftest import bits
from tests.kernels.scale import GPU
from tests.kernels.tiny import kernel_of, long_length
from verification.problems import FLAT_SCALE, INT_MAX, MODEL_SCALE, Layout, make_problem

pytest_plugins = ["tests.kernels.tiny_subject"]

EXAMPLES = 300 if GPU else 10
MOST_REQUESTS = 16 if GPU else 3
MOST_HEADS = 4 if GPU else 2

POISON = st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0, 3e38])
ENTRIES = st.sampled_from([-1, INT_MAX, -(2**31), 0, 1])


@st.composite
def cases(draw, longest: int, windowed: bool):
    """(problem, splits, value of the table entries that are not needed): on the CPU, small numbers first.

    Lengths lie near bounds of pages, or anywhere up to `longest`; windows are none, small, or of any width.
    """
    near = st.builds(
        lambda page, off: max(0, 16 * page + off), st.integers(0, longest // 16 - 1), st.integers(-1, 9)
    )
    length = st.one_of(st.integers(0, 9), near, st.integers(0, longest))
    width = st.one_of(st.none(), st.integers(1, 40), st.integers(1, 2 * longest))
    lengths = draw(st.lists(length, min_size=1, max_size=MOST_REQUESTS))
    layout = Layout(
        k_poison=draw(POISON),
        v_poison=draw(POISON),
        layers=draw(st.integers(1, 3)),
        head_gap=draw(st.integers(0, 2)),
        spare_columns=draw(st.integers(0, 3)),
        fused=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )
    problem = make_problem(
        lengths,
        kv_heads=draw(st.integers(1, MOST_HEADS)),
        seed=draw(st.integers(0, 99)),
        layout=layout,
        window=draw(width) if windowed else None,
        scale=draw(st.sampled_from([FLAT_SCALE, MODEL_SCALE])),
        max_seq_len=max(longest, *lengths) if draw(st.booleans()) else None,
    )
    return problem, draw(st.integers(1, 5)), draw(ENTRIES)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(data=st.data())
def test_any_deployment_any_batch(tiny, data):
    """Within the tolerance of the reference, whatever lies where nobody may look; the same bits elsewhere."""
    problem, num_splits, entry = data.draw(cases(2 * long_length(tiny), kernel_of(tiny).splits))
    tensors = {k: v.to(tiny.device) for k, v in vars(problem).items() if isinstance(v, torch.Tensor)}
    problem = dataclasses.replace(problem, **tensors)
    want = bits(tiny.check(problem, num_splits))
    moved = problem.relocated(1)
    moved.block_table[~moved.needed] = entry
    assert torch.equal(bits(tiny.run(moved, num_splits)), want)
