"""The host side of splitting: which kernel a deployment launches, and the scratch memory that it needs."""

import math

import pytest
import torch

from stages.partial import PartialRecord
from tests.kernels.conftest import bits
from tests.kernels.split_subject import SplitSubject
from tests.kernels.test_host import Case, refuse
from verification.attention import HEAD_DIM, PAGE_SIZE, TOKENS
from verification.problems import make_problem
from verification.runner import run_emulated

pytest_plugins = ["tests.kernels.split_subject"]

RECORD = PartialRecord(HEAD_DIM).bytes
"""Bytes of one row's partial of one cluster."""


@pytest.mark.parametrize("window", [*range(1, 70), 2047, 2048, 2049, 8192, 1000003])
def test_window_pages_is_the_most_over_every_alignment(attn2, window):
    """The pages from row 0's first visible key to the last, of a request that ends in each slot of a page."""
    spans = []
    for length in range(window + 64, window + 64 + PAGE_SIZE):
        first = length - TOKENS - window + 1
        spans.append((length - 1) // PAGE_SIZE - first // PAGE_SIZE + 1)
    assert attn2.window_pages(window) == max(spans)


def test_window_pages_holds_for_short_requests_too(attn2):
    """No request needs more, however short it is for the window."""
    for window in range(1, 40):
        for length in range(1, 120):
            first = max(0, length - TOKENS - window + 1)
            pages = (length - 1) // PAGE_SIZE - first // PAGE_SIZE + 1
            assert pages <= attn2.window_pages(window), (window, length)


@pytest.mark.parametrize("window", [0, -1, 2.0, True, "16"])
def test_no_window_is_refused(attn2, window):
    """A window is an integer from 1 on; here it has to be one."""
    with pytest.raises(ValueError, match="window must be"):
        attn2.window_pages(window)


@pytest.mark.parametrize(
    ("max_seq_len", "window", "splits", "form"),
    [
        (8, None, False, ("cluster", False)),
        (2048, None, False, ("cluster", False)),
        (2049, None, True, ("cluster", True)),
        # 256 pages are what one cluster attends alone.
        (4096, None, True, ("cluster", True)),
        (4097, None, True, ("workspace", True)),
        (1048576, None, True, ("workspace", True)),
        (8, 16, True, ("cluster", True)),
        (2048, 2048, True, ("cluster", True)),
        (1048576, 2048, True, ("cluster", True)),
        # 4074 keys and the 7 of the other tokens may begin in the last slot of a page: 256 pages.
        (1048576, 4074, True, ("cluster", True)),
        (1048576, 4075, True, ("workspace", True)),
        (4096, 4075, True, ("cluster", True)),
        (4097, 2**40, True, ("workspace", True)),
    ],
)
def test_which_kernel_a_deployment_launches(attn2, max_seq_len, window, splits, form):
    """`split_kernel` and `split_forms`: short contexts without a window go to the cluster kernel.

    The split kernel needs scratch memory where a request can be spread over clusters, and only there.
    """
    assert attn2.split_kernel(max_seq_len, window) is splits
    assert attn2.split_forms(max_seq_len, window) == form
    needed = form[0] == "workspace"
    assert (attn2.workspace_bytes(1, 2, max_seq_len, window) > 0) is needed
    assert (attn2.counters_bytes(1, 2, max_seq_len, window) > 0) is needed


@pytest.mark.parametrize("function", ["split_kernel", "split_forms"])
def test_what_no_kernel_serves(attn2, function):
    """The error names what was asked for, and what each variant serves."""
    ask = getattr(attn2, function)
    with pytest.raises(ValueError, match=r"max_seq_len=1048577.*split: max_seq_len <= 1048576, any window"):
        ask(1048577)
    with pytest.raises(ValueError, match=r"max_seq_len must be .* 0"):
        ask(0)
    with pytest.raises(ValueError, match=r"window must be .* 0"):
        ask(8, 0)


def test_the_cluster_kernel_serves_no_window(attn2):
    """Not even where it is named; the error says what it serves."""
    arguments = make_problem([40], window=16).arguments()
    case = Case("window", None, "window=16", "cluster: max_seq_len <= 2048, no window")
    refuse(case, lambda: attn2.attn2(**arguments, variant="cluster"))
    with pytest.raises(ValueError, match="'cluster' serves no window"):
        attn2.compile_attn2("cluster", windowed=True, arch="sm_90a")


SPLIT_CASES = [Case("num_splits", n, repr(n), "integer in 1..128") for n in (0, -1, 129, 2.0, True, "2")]


@pytest.mark.parametrize("case", SPLIT_CASES, ids=str)
def test_a_number_of_splits_out_of_range_is_refused(attn2, case):
    """By everything that takes one, at build time too."""
    deployment = {"kv_heads": 2, "max_seq_len": 131072, "num_splits": case.value}
    refuse(case, lambda: attn2.workspace_bytes(1, **deployment))
    refuse(case, lambda: attn2.counters_bytes(1, **deployment))
    refuse(case, lambda: attn2.allocate_scratch(1, **deployment, device="cpu"))
    refuse(case, lambda: attn2.prepare(**deployment))
    arguments = make_problem([40], max_seq_len=16384).arguments()
    refuse(case, lambda: attn2.attn2(**arguments, num_splits=case.value))


NEEDED = {"workspace": 2 * 2 * 64 * 3 * RECORD, "counters": 2 * 2 * 64}
"""Elements for two requests, two KV heads and three splits."""


def offset(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """As large as the tensor, `elements` elements off in its memory."""
    return torch.zeros(len(tensor) + elements, dtype=tensor.dtype)[elements:]


SCRATCH_CASES = [
    Case("workspace", lambda right: None, "is needed", f"{NEEDED['workspace']} bytes"),
    Case("counters", lambda right: None, "is needed", f"{4 * NEEDED['counters']} bytes"),
    Case("workspace", torch.Tensor.tolist, "list", "tensor", TypeError),
    Case("counters", torch.Tensor.tolist, "list", "tensor", TypeError),
    Case("workspace", lambda right: right[:-1], str(NEEDED["workspace"] - 1), f">= {NEEDED['workspace']}"),
    Case("workspace", lambda right: right[:0], "got 0", f">= {NEEDED['workspace']}"),
    # Sized as if it were counters, not bytes.
    Case("counters", lambda right: right[: len(right) // 4], "got 256", f">= {4 * NEEDED['counters']}"),
    Case(
        "counters", lambda right: right[:-1], str(4 * NEEDED["counters"] - 4), f">= {4 * NEEDED['counters']}"
    ),
    Case("workspace", lambda right: right.view(torch.float32), "torch.float32", "uint8"),
    Case("counters", lambda right: right.view(torch.uint8), "torch.uint8", "int32"),
    Case("counters", lambda right: right.float(), "torch.float32", "int32"),
    Case("counters", lambda right: right.long(), "torch.int64", "int32"),
    Case("workspace", lambda right: right.repeat(2)[::2], "strides [2]", "contiguous"),
    Case("counters", lambda right: right.repeat(2)[::2], "strides [2]", "contiguous"),
    Case("workspace", lambda right: offset(right, 8), "address 0x", "16 bytes"),
    Case("counters", lambda right: offset(right, 2), "address 0x", "16 bytes"),
    Case("workspace", lambda right: right.to("meta"), "on meta", "q's device cpu"),
    Case("counters", lambda right: right.to("meta"), "on meta", "q's device cpu"),
]


@pytest.fixture
def good(attn2):
    """Arguments of a deployment that splits, right in all but their device."""
    arguments = make_problem([40, 64], kv_heads=2, max_seq_len=16384).arguments()
    deployment = {"kv_heads": 2, "max_seq_len": 16384, "num_splits": 3}
    workspace, counters = attn2.allocate_scratch(2, **deployment, device="cpu")
    assert (len(workspace), len(counters)) == (NEEDED["workspace"], NEEDED["counters"])
    return {**arguments, "num_splits": 3, "workspace": workspace, "counters": counters}


@pytest.mark.parametrize("case", SCRATCH_CASES, ids=str)
def test_wrong_scratch_is_refused(attn2, good, case):
    """One wrong argument in a call that is otherwise right; the message says how much is needed."""
    wrong = {**good, case.argument: case.value(good[case.argument])}
    refuse(case, lambda: attn2.attn2(**wrong))


def test_a_call_that_is_right_needs_a_cuda_device(attn2, good):
    """So each case above is wrong in one argument alone. More scratch memory than needed is fine."""
    case = Case("q", None, "cpu", "CUDA tensor")
    refuse(case, lambda: attn2.attn2(**good))
    larger = {name: good[name].repeat(2) for name in ("workspace", "counters")}
    refuse(case, lambda: attn2.attn2(**{**good, **larger}))


@pytest.mark.parametrize(("max_seq_len", "window"), [(4096, None), (65536, 2048)])
def test_no_scratch_where_no_request_is_spread(attn2, max_seq_len, window):
    """It need not be given, what is given is not looked at, and the sizes are 0."""
    arguments = make_problem([40], max_seq_len=max_seq_len, window=window).arguments()
    case = Case("q", None, "cpu", "CUDA tensor")
    refuse(case, lambda: attn2.attn2(**arguments))
    refuse(case, lambda: attn2.attn2(**arguments, workspace=torch.zeros(1), counters=torch.zeros(1)))
    workspace, counters = attn2.allocate_scratch(
        4, kv_heads=2, max_seq_len=max_seq_len, window=window, device="cpu"
    )
    assert len(workspace) == len(counters) == 0


def test_the_cluster_kernel_ignores_them(attn2):
    """A context that is short for the cluster kernel is served without, whatever num_splits says."""
    arguments = make_problem([40]).arguments()
    refuse(Case("q", None, "cpu", "CUDA tensor"), lambda: attn2.attn2(**arguments, num_splits=4))


def test_a_window_wider_than_32_bits_is_as_good_as_none(splits):
    """The kernel's numbers are of 32 bits, and differences of keys must stay within them."""
    subject = splits["split_tiny"]
    windows = (4096, 2**31 - 1, 2**31, 2**40)
    outs = []
    for window in windows:
        problem = make_problem([200, 3], device=subject.device, window=window, max_seq_len=1000)
        outs.append(bits(subject.check(problem)))
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_no_requests_are_no_launch(splits):
    """With R = 0 there is nothing to do, and nothing is needed."""
    subject = splits["split_tiny"]
    problem = make_problem([40], device=subject.device, max_seq_len=1000)
    none = {name: getattr(problem, name)[:0] for name in ("q", "gate", "block_table", "seq_lens")}
    scratch = subject.scratch(problem).arguments()
    arguments = {**problem.arguments(), **none, "num_splits": 1, **scratch}
    if subject.device == "cuda":
        out = subject.entry(**arguments, variant=subject.name)
    else:
        out, report = run_emulated(subject.module, subject.name, arguments)
        assert report is None
    assert out.shape == (0, problem.q.shape[1])


@pytest.mark.cuda("chooses by the device")
@pytest.mark.parametrize("window", [None, 20000])
def test_a_call_chooses_its_splits(attn2, window):
    """Without num_splits a call has the bits of the default, and scratch memory sized by default will do."""
    subject = SplitSubject(attn2, "split", "cuda")
    problem = make_problem([30000, 9], kv_heads=2, device="cuda", window=window)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    splits_by_default = subject.module.default_splits(2, 30000, window, multiprocessors=multiprocessors)
    workspace, counters = subject.module.allocate_scratch(2, kv_heads=2, max_seq_len=30000, window=window)
    subject.module.prepare(kv_heads=2, max_seq_len=30000, window=window)
    out = subject.module.attn2(**problem.arguments(), workspace=workspace, counters=counters)
    assert torch.equal(bits(out), bits(subject.run(problem, splits_by_default)))
    assert not counters.any() and math.isfinite(out.float().abs().max().item())
