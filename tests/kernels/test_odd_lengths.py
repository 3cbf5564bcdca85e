"""Lengths that no engine should give: what is outside of the tables is not read, and every call ends.

A launch reads nothing outside of its buffers, which the emulator checks; on a GPU, compute-sanitizer does.
"""

import pytest
import torch

from generated import attn2
from tests.kernels.conftest import bits
from tests.modules import kernel_named
from verification.problems import FLAT_SCALE, make_problem
from verification.runner import run_emulated

NEGATIVE = (-1, -16, -64, -1000, -(2**31))
"""Of a page and more, so low that a page number is far before the table, and the lowest of all."""

LONGEST = 6000
"""Cache entries: more than the split kernel attends in one cluster."""

FORMS = [(v.name, window) for v in attn2.VARIANTS for window in ((None, 100) if v.windows else (None,))]


def arguments(variant, lengths, num_splits, window, longest=LONGEST):
    """Of a call whose table has as many columns as the deployment needs, and no more."""
    longest = min(longest, next(v.max_seq_len for v in attn2.VARIANTS if v.name == variant))
    problem = make_problem([longest] * len(lengths), max_seq_len=longest, scale=FLAT_SCALE)
    problem.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
    deployment = {"max_seq_len": longest, "window": window, "num_splits": num_splits, "variant": variant}
    workspace, counters = attn2.allocate_scratch(len(lengths), kv_heads=1, device="cpu", **deployment)
    given = {**problem.arguments(), **deployment, "workspace": workspace, "counters": counters}
    return problem, given


@pytest.mark.parametrize(("variant", "window"), FORMS)
def test_negative_lengths_are_padding(variant, window):
    """Rows of zeros, for each negative length beside one that is served."""
    lengths = [*NEGATIVE, 40]
    problem, given = arguments(variant, lengths, 3, window)
    out, _ = run_emulated(attn2, variant, given, out=problem.poisoned_out())
    rows = bits(out).view(len(lengths), -1)
    assert not rows[:-1].any()
    assert rows[-1].any()


@pytest.mark.parametrize(("variant", "window"), FORMS)
def test_a_length_past_the_table_sees_what_the_table_holds(variant, window):
    """The bits of the request that fills the table, in bounded time: every key that is there is seen.

    Kernels that split take the length for that of the table; the cluster kernel has no key that the last row
    of such a request does not see. It rounds the length up to pages within 32 bits.
    """
    problem, given = arguments(variant, [0], 2, window)
    held = given["block_table"].shape[1] * 16
    given["seq_lens"].fill_(held)
    want, most = run_emulated(attn2, variant, given, out=problem.poisoned_out())
    assert want.isfinite().all() and bits(want).any()
    splits = kernel_named(attn2, variant).splits
    rows = slice(None) if splits else slice(7, None)
    for length in (held + 1, 2**31 - 1 if splits else 2**31 - 16):
        given["seq_lens"].fill_(length)
        got, report = run_emulated(attn2, variant, given, out=problem.poisoned_out())
        assert torch.equal(bits(got)[rows], bits(want)[rows]), length
        assert report.instructions <= 1.1 * most.instructions


def test_a_length_past_a_table_that_is_shorter_than_the_kernel_could_attend():
    """The cluster kernel too sees no page behind the table's last, nor that one twice."""
    problem, given = arguments("cluster", [0], 2, None, longest=1008)
    last = []
    for length in (1008, 1009, 1017):
        given["seq_lens"].fill_(length)
        out, _ = run_emulated(attn2, "cluster", given, out=problem.poisoned_out())
        last.append(bits(out)[7])
    assert given["block_table"].shape[1] == 63 and last[0].any()
    assert all(torch.equal(row, last[0]) for row in last)
