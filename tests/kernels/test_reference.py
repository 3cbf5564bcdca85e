"""The float64 reference against slower ones and by hand, and the comparison against planted faults."""

import math
import re

import pytest
import torch

from stages.epilogue.norm_gate import reference as norm_gate
from stages.epilogue.plain import reference as plain
from verification import attention as reference
from verification.attention import HEAD_DIM, PAGE_SIZE, TOKENS
from verification.comparison import assert_close, worst_ulps
from verification.partition import Partition
from verification.problems import Problem, make_problem, model_like, padded, place
from verification.rounding import bf16_ulp, round_bf16, round_weights

CLUSTER = Partition(cluster=16, warps=4, pages_per_step=2)


def exact(problem: Problem) -> torch.Tensor:
    return reference.attention_exact(
        problem.q,
        problem.kv_cache,
        problem.block_table,
        problem.seq_lens,
        scale=problem.scale,
        window=problem.window,
    )


@pytest.mark.parametrize("window", [None, 1, 5, 16, 100])
@pytest.mark.parametrize("partition", [CLUSTER, Partition(1, 2, 1), Partition(2, 2, 2)], ids=str)
def test_only_rounded_weights_separate_it_from_exact_attention(partition, window):
    """No output is further from exact attention than the rounding of weights and of o / l explains.

    Both round by at most 2**-8 of themselves, so the bound is relative to the mean of |v| under the
    weights. Windows: one key, within the verified tokens, one page, several pages.
    """
    problem = make_problem([0, 3, 8, 40, 129, 333], kv_heads=2, window=window)
    absolute = torch.cat((problem.kv_cache[..., :HEAD_DIM], problem.kv_cache[..., HEAD_DIM:].abs()), -1)
    bound = exact(Problem(**{**vars(problem), "kv_cache": absolute}))
    got, want = problem.expected(partition, plain), exact(problem)
    assert not want.isnan().any()
    assert ((got - want).abs() <= 2.0**-8 * (bound + want.abs()) * (1 + 2.0**-8)).all()


def literal(problem: Problem, partition: Partition, request: int, token: int, head: int) -> list[float]:
    """One row by the documented steps, in Python floats and loops."""
    length = int(problem.seq_lens[request])
    query = problem.q[request * TOKENS + token].unflatten(0, (-1, HEAD_DIM))[head].tolist()
    factor = reference.log2_scale(problem.scale)
    partials = []
    for warp in range(partition.stride):
        m, l, o = -math.inf, 0.0, [0.0] * HEAD_DIM
        pages = list(range(warp, math.ceil(length / PAGE_SIZE), partition.stride))
        for at in range(0, len(pages), partition.pages_per_step):
            scores, values = [], []
            for page in pages[at : at + partition.pages_per_step]:
                slots = problem.kv_cache[problem.block_table[request, page], head // 8].tolist()
                for slot, kv in enumerate(slots):
                    if page * PAGE_SIZE + slot <= length - TOKENS + token:
                        dot = math.fsum(a * b for a, b in zip(query, kv[:HEAD_DIM], strict=True))
                        scores.append(dot * factor)
                        values.append(kv[HEAD_DIM:])
            if not scores:
                continue
            top = max(m, *scores)
            rescale = 2.0 ** (m - top)
            weights = [2.0 ** (score - top) for score in scores]
            rounded = torch.tensor(weights).to(torch.bfloat16).tolist()
            l = l * rescale + sum(weights)
            for d in range(HEAD_DIM):
                o[d] = o[d] * rescale + sum(w * v[d] for w, v in zip(rounded, values, strict=True))
            m = top
        partials.append((m, l, o))
    top = max(m for m, _, _ in partials)
    factors = [2.0 ** (m - top) for m, _, _ in partials]
    total = sum(f * l for f, (_, l, _) in zip(factors, partials, strict=True))
    return [sum(f * o[d] for f, (_, _, o) in zip(factors, partials, strict=True)) / total for d in range(64)]


def test_weights_near_a_tie_may_go_the_other_way():
    """Within 2**-8 of an ulp the other neighbour is right too; a little further on it is not."""
    for low in (0.5, 0.75, 1.0 - 2.0**-8, 2.0**-20):
        ulp = 2.0 ** (math.frexp(low)[1] - 8)
        for off, ways in ((-0.01, (0, 0)), (-0.003, (0, 1)), (0.003, (1, 0)), (0.01, (1, 1))):
            weight = torch.tensor(low + (0.5 + off) * ulp, dtype=torch.float64)
            got = [round_weights(weight, other_way).item() for other_way in (False, True)]
            assert got == [low + up * ulp for up in ways], (low, off)
    exact = torch.tensor([0.0, 1.0, 0.625, 0.1], dtype=torch.float64)
    assert torch.equal(round_weights(exact, True), round_bf16(exact))


def test_an_element_may_be_close_to_either():
    """The other result is asked for only if one is off, and an element close to neither is wrong."""
    expected = make_problem([40], seed=5).expected(CLUSTER, norm_gate)
    other = expected * 1.5
    mixed = expected.clone()
    mixed[3] = other[3]
    assert_close(expected, expected, or_to=lambda: pytest.fail("asked without need"))
    assert_close(mixed, expected, or_to=lambda: other)
    with pytest.raises(AssertionError, match="token 3"):
        assert_close(mixed, expected)
    mixed[5] = 2 * expected[5]
    with pytest.raises(AssertionError, match="token 5"):
        assert_close(mixed, expected, or_to=lambda: other)


@pytest.mark.parametrize("pages_per_step", [1, 2])
def test_it_follows_the_documented_steps(pages_per_step):
    """The vectorised reference is the literal loop, rounded to BF16.

    Warps have none to three pages, the last page is partly visible, and a step's maximum falls or rises.
    """
    partition = Partition(cluster=2, warps=1, pages_per_step=pages_per_step)
    problem = make_problem([9, 75, 83], kv_heads=2, seed=3)
    got = problem.expected(partition, plain)
    for request, token, head in [(0, 0, 0), (0, 7, 3), (1, 0, 15), (1, 4, 8), (2, 7, 9), (2, 3, 0)]:
        want = torch.tensor(literal(problem, partition, request, token, head), dtype=torch.float64)
        row = got[request * TOKENS + token, head]
        assert torch.equal(row, round_bf16(want)), (request, token, head)


def test_a_weight_is_rounded_relative_to_its_own_warps_maximum():
    """Two keys of scores 0 and -x in one step: o holds the BF16 rounding of 2**-x, l does not.

    In two warps both weights are 1, and nothing is rounded.
    """
    content = model_like(1, 32, 1)
    content.q.zero_(), content.k.zero_(), content.v.zero_()
    content.q[..., 0] = 1.0
    content.k[0, :, 0, 0] = -500.0
    content.k[0, 0, 0, 0], content.k[0, 16, 0, 0] = 0.0, -1.0
    content.v[0, 16, 0, 0] = 1.0
    problem = place(content, [32], scale=1.0)
    weight = 2.0 ** -reference.log2_scale(1.0)
    rounded = torch.tensor(weight, dtype=torch.bfloat16).item()
    assert rounded != pytest.approx(weight, rel=1e-4)
    together = reference.attention(**of(problem), partition=Partition(1, 1, 2))
    apart = reference.attention(**of(problem), partition=Partition(1, 2, 1))
    as_bf16 = [torch.tensor(w / (1 + weight)).to(torch.bfloat16).item() for w in (rounded, weight)]
    assert together[7, 0, 0].item() == as_bf16[0]
    assert apart[7, 0, 0].item() == as_bf16[1]
    assert as_bf16[0] != as_bf16[1]


def of(problem: Problem) -> dict:
    names = ("q", "kv_cache", "block_table", "seq_lens", "scale")
    return {name: getattr(problem, name) for name in names}


def test_equal_scores_give_the_mean_of_the_visible_keys():
    """q = 0, V one-hot by key: token t gives 1 / (L - 7 + t) to each key that it sees and 0 to the others."""
    length = 21
    content = model_like(1, padded(length), 1)
    content.q.zero_(), content.v.zero_()
    content.v[0, :, 0, : padded(length)] = torch.eye(padded(length), dtype=torch.bfloat16)
    got = place(content, [length]).expected(CLUSTER, plain)
    for token in range(TOKENS):
        keys = length - TOKENS + token + 1
        mean = torch.tensor(1.0 / keys).to(torch.bfloat16).double()
        assert (got[token, :, :keys] == mean).all()
        assert (got[token, :, keys:] == 0.0).all()


def test_norm_and_gate_by_hand():
    """Rows (3, -4, 0, ...) have the mean square 25 / 64; gates 0, +-inf and 200 pass 1/2, 1, 0 and 1."""
    value = torch.zeros(TOKENS, 8, HEAD_DIM, dtype=torch.float64)
    value[..., 0], value[..., 1], value[..., 2] = 3.0, -4.0, 4.0
    gate = torch.zeros(TOKENS, 8 * HEAD_DIM, dtype=torch.bfloat16).view(TOKENS, 8, HEAD_DIM)
    gate[0, 0, :2], gate[1, 0, 0] = torch.tensor([math.inf, -math.inf]), 200.0
    got = reference.finish(norm_gate, value, gate.flatten(1), 0.5, torch.tensor([8], dtype=torch.int32))
    norm = 1 / math.sqrt((9 + 16 + 16) / 64 + 0.5)
    want = torch.tensor([3 * norm, 0.0, 4 * norm / 2, 3 * norm, -4 * norm / 2]).to(torch.bfloat16).double()
    assert torch.equal(torch.stack([*got[0, 0, :3], *got[1, 0, :2]]), want)


def test_the_result_of_an_epilogue_is_rounded_and_rows_without_a_key_are_zeros():
    """Whatever its reference returns: 1 + 3 * 2**-9 becomes 1 + 2**-7, the nearest BF16 number."""
    value = torch.ones(TOKENS, 8, HEAD_DIM, dtype=torch.float64)
    gate = torch.zeros(TOKENS, 8 * HEAD_DIM, dtype=torch.bfloat16)
    seq_lens = torch.tensor([5], dtype=torch.int32)
    got = reference.finish(lambda y, gate, eps: y + 3 * 2.0**-9 + gate + eps, value, gate, 0.0, seq_lens)
    assert (got[:3] == 0.0).all() and (got[3:] == 1 + 2.0**-7).all()


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda y, gate, eps: y.float(), "torch.float32 [8, 8, 64]"),
        (lambda y, gate, eps: y.mean(-1, keepdim=True), "torch.float64 [8, 8, 1]"),
        (lambda y, gate, eps: None, "NoneType"),
    ],
)
def test_an_epilogue_that_returns_something_else_is_refused(wrong, found):
    """A mean would broadcast, and FP32 would round."""
    value = torch.ones(TOKENS, 8, HEAD_DIM, dtype=torch.float64)
    message = re.escape(f"the epilogue's reference returned {found}; a float64 tensor of the shape of")
    with pytest.raises(ValueError, match=message):
        reference.finish(wrong, value, value.flatten(1), 0.0, torch.tensor([8], dtype=torch.int32))


def test_rows_without_a_key_are_zero_and_visible_nan_reaches_its_rows():
    """L = 0 and the early tokens of L = 3 are zeros, with NaN in q and gate too.

    NaN in V at key 5 reaches one dim of the tokens that see it, and all dims of a normed row; NaN in K
    reaches all dims.
    """
    lengths = [0, 3, 11, 11]
    content = model_like(len(lengths), 16, 1)
    content.q[0], content.gate[0], content.q[1, :5], content.gate[1, :5] = (math.nan,) * 4
    content.v[2, 5, 0, 9] = math.nan
    content.k[3, 5, 0, 9] = math.nan
    problem = place(content, lengths)
    attended, normed = (problem.expected(CLUSTER, epilogue) for epilogue in (plain, norm_gate))
    for got in (attended, normed):
        assert (got[:13] == 0.0).all()
        assert got[13:16].isfinite().all() and (got[13:16] != 0.0).any(-1).all()
        assert got[24 + 2 : 32].isnan().all() and not got[24:26].isnan().any()
    assert attended[16 + 2 : 24, :, 9].isnan().all()
    assert attended[16:24].isnan().sum() == 6 * 8
    assert normed[16 + 2 : 24].isnan().all() and not normed[16:18].isnan().any()


@pytest.fixture(scope="module")
def case() -> tuple[torch.Tensor, torch.Tensor]:
    """A right output, and what is expected."""
    expected = make_problem([40, 100], kv_heads=2, seed=5).expected(CLUSTER, norm_gate)
    return expected.to(torch.bfloat16), expected


def test_two_ulps_pass_and_three_fail(case):
    """The message says where: request 1, token 2, head 11, the row's largest dim."""
    right, expected = case
    row = right[10, 11]
    dim = int(row.abs().argmax())
    step = bf16_ulp(row[dim].double())
    for ulps in (-2, 2):
        out = right.clone()
        out[10, 11, dim] = row[dim].double() + ulps * step
        assert_close(out, expected)
    out = right.clone()
    out[10, 11, dim] = row[dim].double() - math.copysign(3 * step, row[dim])
    assert worst_ulps(out, expected) >= 3
    with pytest.raises(
        AssertionError, match=rf"request 1, token 2, head 11, dim {dim}: got .*, want .*, off by 3"
    ):
        assert_close(out.flatten(1), expected)


def test_small_elements_are_held_to_their_row(case):
    """An element near zero may be off by 2**-9 of its row's largest magnitude, and by no more."""
    right, expected = case
    row = right[3, 4].double()
    dim, limit = int(row.abs().argmin()), 2.0**-9 * row.abs().max()
    out = right.double()
    out[3, 4, dim] += 0.99 * limit
    assert_close(out, expected)
    out[3, 4, dim] += 0.02 * limit
    with pytest.raises(AssertionError, match=f"token 3, head 4, dim {dim}"):
        assert_close(out, expected)


def swap_dims(out):
    out[5, 5, [20, 21]] = out[5, 5, [21, 20]]


def scale_row(out):
    out[5, 5] *= 1 + 2.0**-5


def swap_heads(out):
    out[5, [5, 6]] = out[5, [6, 5]]


def lose_a_row(out):
    out[5, 5] = 0.0


def nan_in_place_of_a_number(out):
    out[5, 5, 5] = math.nan


def infinity_in_place_of_a_number(out):
    out[5, 5, 5] = math.inf


@pytest.mark.parametrize(
    "plant",
    [swap_dims, scale_row, swap_heads, lose_a_row, nan_in_place_of_a_number, infinity_in_place_of_a_number],
)
def test_planted_faults_fail(case, plant):
    """A fault in one row of 256 is seen, and the message names its token."""
    right, expected = case
    assert_close(right, expected)
    out = right.clone()
    plant(out)
    with pytest.raises(AssertionError, match="request 0, token 5, head"):
        assert_close(out, expected)


def test_nan_must_be_where_it_is_expected(case):
    """A number where NaN is expected is as wrong as NaN where a number is."""
    right, expected = case
    value = expected.clone()
    value[5, 5, 5] = math.nan
    out = right.clone()
    with pytest.raises(AssertionError, match=r"token 5, head 5, dim 5: got .*, want nan, off by inf"):
        assert_close(out, value)
    out[5, 5, 5] = math.nan
    assert_close(out, value)


def test_flushed_outputs_and_zero_rows(case):
    """What FP32 cannot hold normally may be zero; where zeros are expected, nothing else will do."""
    right, expected = case
    tiny = torch.full_like(expected, 2.0**-127)
    zero = torch.zeros_like(right)
    assert_close(zero, tiny)
    assert_close(zero, torch.zeros_like(tiny))
    with pytest.raises(AssertionError, match="want 0, off by"):
        assert_close(zero + 1e-30, torch.zeros_like(tiny))
