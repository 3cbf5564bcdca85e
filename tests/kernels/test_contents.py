"""`validate=True`: what the tensors hold is looked at too, and only where a kernel would."""

import pytest
import torch

from verification.problems import make_problem

KERNEL_OF = {None: "cluster", 20: "split"}
"""The variant that a deployment with this window launches."""


def check(module, problem, counters=None, **changed):
    """Check the contents of a problem's tensors, some of them exchanged."""
    given = {"block_table": problem.block_table, "seq_lens": problem.seq_lens, **changed}
    kernel = next(v.kernel for v in module.VARIANTS if v.name == KERNEL_OF[problem.window])
    module.check_contents(
        *(kernel, problem.max_seq_len, problem.window, problem.kv_cache.shape[0]),
        *(given["block_table"], given["seq_lens"]),
        torch.zeros(8, dtype=torch.int32) if counters is None else counters,
    )


def set_to(tensor: torch.Tensor, place, value: int) -> torch.Tensor:
    """A copy with one entry changed."""
    changed = tensor.clone()
    changed[place] = value
    return changed


@pytest.fixture(params=[None, 20])
def problem(request):
    """Three requests of 100, 0 and 33 entries; with the window of 20 pages before entry 73 are not read."""
    return make_problem([100, 0, 33], window=request.param, max_seq_len=128)


def test_what_is_right_passes(attn2, problem):
    check(attn2, problem)


@pytest.mark.parametrize("place", [(0, 7), (1, 0), (2, 3), (2, 7)])
@pytest.mark.parametrize("value", [-1, 1 << 30])
def test_entries_that_are_not_live_may_hold_anything(attn2, problem, place, value):
    """ceil(100 / 16) = 7 pages are live, none and 3."""
    check(attn2, problem, block_table=set_to(problem.block_table, place, value))


@pytest.mark.parametrize("place", [(0, 6), (2, 2)])
@pytest.mark.parametrize("value", [-1, None, 1 << 30])
def test_a_live_entry_has_to_be_a_page(attn2, problem, place, value):
    """The number of pages is no page; the message says where, what, and why it is live."""
    value = problem.kv_cache.shape[0] if value is None else value
    with pytest.raises(ValueError, match="must be a page of kv_cache") as caught:
        check(attn2, problem, block_table=set_to(problem.block_table, place, value))
    length = problem.seq_lens[place[0]]
    for part in (
        *(f"block_table[{place[0]}, {place[1]}]", f"in 0..{problem.kv_cache.shape[0] - 1}"),
        *(f"got {value};", f"seq_lens[{place[0]}] is {length}"),
    ):
        assert part in str(caught.value)


def test_a_window_leaves_out_the_pages_before_it(attn2):
    """Row 0 of the request of 100 entries sees keys from 100 - 8 - 20 + 1 = 73 on: page 4, slot 9."""
    problem = make_problem([100, 0, 33], window=20, max_seq_len=128)
    for column in range(4):
        check(attn2, problem, block_table=set_to(problem.block_table, (0, column), -1))
    with pytest.raises(ValueError, match=r"block_table\[0, 4\] must be"):
        check(attn2, problem, block_table=set_to(problem.block_table, (0, 4), -1))
    unbounded = make_problem([100, 0, 33], max_seq_len=128)
    with pytest.raises(ValueError, match=r"block_table\[0, 0\] must be"):
        check(attn2, unbounded, block_table=set_to(unbounded.block_table, (0, 0), -1))


@pytest.mark.parametrize("length", [-1, 129, 2**31 - 1])
def test_lengths_are_within_the_deployments(attn2, problem, length):
    """0 and max_seq_len are the ends. All requests have page 0 alone, however long they are."""
    table = torch.zeros_like(problem.block_table)
    for end in (0, 128):
        check(attn2, problem, block_table=table, seq_lens=set_to(problem.seq_lens, 1, end))
    with pytest.raises(ValueError, match=rf"seq_lens\[1\] must be in 0\.\.128 .*, got {length}"):
        check(attn2, problem, block_table=table, seq_lens=set_to(problem.seq_lens, 1, length))


def test_counters_are_zero(attn2, problem):
    """What an aborted call left behind would let the next one finish a row too early."""
    dirty = torch.tensor([0, 0, 3, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"counters must be zero before a call, got counters\[2\] = 3"):
        check(attn2, problem, counters=dirty)


@pytest.mark.cuda("reads its memory")
def test_a_call_that_validates(attn2):
    """It has the same bits where all is right, refuses what is wrong, and cannot be captured."""
    problem = make_problem([100, 0, 33], max_seq_len=128, device="cuda")
    arguments = problem.arguments()
    expected = attn2.attn2(**arguments)
    assert torch.equal(attn2.attn2(**arguments, validate=True), expected)
    arguments["block_table"] = set_to(arguments["block_table"], (2, 1), -5)
    with pytest.raises(ValueError, match=r"block_table\[2, 1\] must be .*, got -5"):
        attn2.attn2(**arguments, validate=True)
    out = torch.zeros_like(expected)
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(ValueError, match="validate must be False"):
        attn2.attn2(**problem.arguments(), out=out, validate=True)
