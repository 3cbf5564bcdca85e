"""Kernels against the float64 reference on whatever deployments and requests chance comes up with."""

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.kernels.conftest import bits
from tests.kernels.scale import GPU
from tests.kernels.tiny import kernel_of, long_length
from verification.attention import PAGE_SIZE, TOKENS
from verification.problems import FLAT_SCALE, INT_MAX, MODEL_SCALE, Layout, make_problem

pytest_plugins = ["tests.kernels.tiny_subject"]

EXAMPLES = 300 if GPU else 10
MOST_REQUESTS = 16 if GPU else 3
MOST_HEADS = 4 if GPU else 2

POISON = st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0, 3e38])
LAYOUTS = st.builds(
    Layout,
    k_poison=POISON,
    v_poison=POISON,
    layers=st.integers(1, 3),
    head_gap=st.integers(0, 2),
    spare_columns=st.integers(0, 3),
    fused=st.booleans(),
    seed=st.integers(0, 99),
)
ENTRIES = st.sampled_from([-1, INT_MAX, -(2**31), 0, 1])
"""What stands in the table where no page is needed."""


def lengths(longest: int):
    """Within a verify step of a bound of pages, or anywhere; short ones as often as not."""
    near = st.tuples(st.integers(0, longest // PAGE_SIZE - 1), st.integers(0, TOKENS + 1))
    return st.one_of(
        st.integers(0, TOKENS + 1),
        near.map(lambda drawn: PAGE_SIZE * drawn[0] + drawn[1]),
        st.integers(0, longest),
    )


def windows(longest: int):
    """None, of about the tokens or a few pages, or of any width."""
    return st.one_of(st.none(), st.integers(1, 40), st.integers(1, 2 * longest))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    # A failure is shown as it is found: to look for a smaller one takes the emulator minutes.
    phases=[Phase.generate],
)
@given(data=st.data())
def test_any_deployment_any_batch(tiny, data):
    """Within the tolerance of the reference; and the same bits with pages and table entries elsewhere."""
    (served,) = (v.max_seq_len for v in tiny.module.VARIANTS if v.name == tiny.name)
    longest = min(2 * long_length(tiny), served)
    batch = data.draw(st.lists(lengths(longest), min_size=1, max_size=MOST_REQUESTS))
    problem = make_problem(
        batch,
        kv_heads=data.draw(st.integers(1, MOST_HEADS)),
        device=tiny.device,
        seed=data.draw(st.integers(0, 99)),
        layout=data.draw(LAYOUTS),
        window=data.draw(windows(longest)) if kernel_of(tiny).splits else None,
        scale=data.draw(st.sampled_from([FLAT_SCALE, MODEL_SCALE, -FLAT_SCALE])),
        max_seq_len=data.draw(st.sampled_from([None, longest])),
    )
    num_splits = data.draw(st.integers(1, 5))
    want = bits(tiny.check(problem, num_splits))
    moved = problem.relocated(1)
    moved.block_table[~moved.needed] = data.draw(ENTRIES)
    assert torch.equal(bits(tiny.run(moved, num_splits)), want)
