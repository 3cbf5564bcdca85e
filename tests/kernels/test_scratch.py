"""The scratch memory that a deployment needs, and the splits of its launch, by default and on request."""

import types

import pytest
import torch

from stages.partial import PartialRecord
from tests.kernels.scale import GPU
from tests.kernels.test_host import Case, refuse
from tests.modules import PINNED, module_of
from verification.attention import HEAD_DIM
from verification.problems import make_problem

pytest_plugins = ["tests.kernels.split_subject"]

RECORD = PartialRecord(HEAD_DIM).bytes
"""Bytes of one row's partial of one cluster."""


@pytest.fixture
def pinned():
    """The module of a variant of each skeleton, among which a load chooses."""
    return module_of(PINNED, "attn2")


@pytest.mark.parametrize(
    ("requests", "kv_heads", "num_splits"), [(1, 1, 1), (8, 2, 3), (3, 16, 32), (0, 2, 4)]
)
def test_scratch_is_a_record_a_row_and_cluster(attn2, requests, kv_heads, num_splits):
    """64 rows a request and KV head, each split a cluster; one counter of 4 bytes a row."""
    rows = requests * kv_heads * 64
    deployment = {"kv_heads": kv_heads, "max_seq_len": 131072, "num_splits": num_splits}
    assert attn2.workspace_bytes(requests, **deployment) == rows * num_splits * RECORD
    assert attn2.counters_bytes(requests, **deployment) == 4 * rows
    workspace, counters = attn2.allocate_scratch(requests, **deployment, device="cpu")
    assert workspace.dtype == torch.uint8 and workspace.shape == (rows * num_splits * RECORD,)
    assert counters.dtype == torch.int32 and counters.shape == (rows,) and not counters.any()


def test_a_cluster_of_another_size_needs_the_same(attn2):
    """Records are those of clusters, not of CTAs."""
    small, large = (attn2.workspace_bytes(2, 2, 16384, None, 3, variant=name) for name in ("batch", "split"))
    assert small == large > 0


def test_splits_by_default(attn2):
    """What was fastest, or nearly, in the sweep of docs/measurements.md; 1 where nothing is spread."""
    default = attn2.default_splits
    assert default(2, 8192, multiprocessors=132) == 3
    assert default(2, 32768, multiprocessors=132) == 6
    assert default(2, 131072, multiprocessors=132) == 10
    assert default(4, 32768, multiprocessors=132) == 5
    assert default(1, 131072, multiprocessors=132) == 21
    assert default(4, 131072, multiprocessors=132, requests=8) == 3
    assert default(2, 32768, multiprocessors=132, requests=8) in (1, 2)
    assert default(16, 131072, multiprocessors=132, requests=64) == 1
    # One CTA on each of twice as many multiprocessors, where half as many have three.
    assert default(1, 131072, multiprocessors=264) == 14
    assert default(1, 131072, multiprocessors=8) >= 1
    assert default(1, 131072, 2048) == default(1, 4096) == default(1, 2048) == 1
    with pytest.raises(ValueError, match="max_seq_len=1048577"):
        default(1, 1048577)


@pytest.mark.parametrize(
    ("requests", "kv_heads", "max_seq_len", "window", "variant", "num_splits"),
    [
        # What was fastest on an H200, or within 15% of it (docs/measurements.md).
        (1, 1, 512, None, "cluster", 1),
        (1, 2, 2048, None, "cluster", 1),
        (4, 2, 2048, None, "cluster", 1),
        (16, 2, 1024, None, "batch", 2),
        (16, 2, 2048, None, "batch", 2),
        (32, 2, 512, None, "batch", 1),
        (8, 2, 2048, None, "cluster", 1),
        (32, 2, 2048, None, "batch", 2),
        (1, 2, 8192, None, "split", 3),
        (1, 2, 131072, None, "split", 10),
        (8, 2, 8192, None, "split", 1),
        (8, 2, 32768, None, "batch", 8),
        (8, 4, 131072, None, "batch", 6),
        (32, 2, 8192, None, "batch", 3),
        (32, 2, 32768, None, "batch", 3),
        # By the model alone.
        (1, 2, 131072, 2048, "split", 1),
        (32, 2, 131072, 2048, "batch", 2),
    ],
)
def test_the_variant_for_a_load(pinned, requests, kv_heads, max_seq_len, window, variant, num_splits):
    """Few requests take large clusters, many take small ones that leave no multiprocessor out."""
    load = {"multiprocessors": 132, "requests": requests}
    assert pinned.default_variant(kv_heads, max_seq_len, window, **load) == variant
    chosen = {"window": window, "variant": variant}
    assert pinned.default_splits(kv_heads, max_seq_len, **chosen, **load) == num_splits


@pytest.mark.parametrize("count", [1, 7, 8, 46, 78, 132, 264])
def test_the_variant_of_any_device_serves(pinned, count):
    """Whatever part of a device a MIG slice has, and however long the contexts are."""
    for max_seq_len, window in ((1, None), (2048, 16), (2049, None), (1048576, None)):
        for requests in (1, 300):
            load = {"multiprocessors": count, "requests": requests}
            name = pinned.default_variant(16, max_seq_len, window, **load)
            assert pinned.deploy(max_seq_len, window, None, name).variant.name == name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kv_heads": 0}, "kv_heads must be"),
        ({"max_seq_len": 1048577}, "no kernel here serves max_seq_len=1048577"),
        ({"window": 0}, "window must be"),
        ({"requests": 0}, "requests must be an integer >= 1, got 0"),
        ({"multiprocessors": 2.5}, "multiprocessors must be an integer >= 1, got 2.5"),
    ],
)
def test_no_variant_for_a_load_that_is_none(pinned, wrong, said):
    """The error names the argument, what it was and what it has to be."""
    with pytest.raises(ValueError, match=said):
        pinned.default_variant(**{"kv_heads": 2, "max_seq_len": 4096} | wrong)


def test_splits_do_not_depend_on_the_batch(attn2):
    """A launch of any number of requests has the splits of the deployment, so it has their bits too."""
    deployment, device = attn2.deploy(131072), torch.device("cpu")
    one = attn2.default_splits(1, 131072)
    for requests in (1, 3, 64):
        problem = make_problem([9] * requests, max_seq_len=131072)
        scratch = attn2.allocate_scratch(requests, kv_heads=1, max_seq_len=131072, device=device)
        tensors = (problem.q, problem.gate, problem.kv_cache, problem.block_table, problem.seq_lens)
        call = attn2.bind(deployment, *tensors, problem.poisoned_out(), *scratch, 1.0, 0.0)
        names = list(attn2.parameters(type(deployment.variant.kernel)))
        assert call.values[names.index("num_splits")] == one > 1


@pytest.mark.parametrize("window", [None, 100000])
def test_scratch_of_the_default_splits(attn2, window):
    """Without num_splits, the scratch memory is that of the splits that a call will choose."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count if GPU else 132
    splits = attn2.default_splits(2, 131072, window, multiprocessors=multiprocessors)
    for name in ("workspace_bytes", "counters_bytes"):
        size = getattr(attn2, name)
        assert size(3, 2, 131072, window) == size(3, 2, 131072, window, splits)


@pytest.mark.parametrize("window", [None, 100000])
def test_scratch_is_that_of_the_named_device(attn2, monkeypatch, window):
    """The default splits are those of the device that will run the calls, whichever is current."""
    counts = {"cuda:0": 264, "cuda:1": 66}
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: types.SimpleNamespace(multi_processor_count=counts[str(device)]),
    )
    sizes = attn2.workspace_bytes, attn2.counters_bytes
    for device, multiprocessors in ((0, 264), ("cuda:1", 66), (torch.device("cuda", 1), 66), ("cpu", 132)):
        splits = attn2.default_splits(1, 131072, window, multiprocessors=multiprocessors)
        assert attn2.deploy(131072, window).clusters(1, attn2.as_device(device)) == splits
        for size in sizes:
            assert size(3, 1, 131072, window, device=device) == size(3, 1, 131072, window, splits)


@pytest.mark.parametrize(
    "case",
    [
        Case("requests", -1, "-1", "integer >= 0"),
        Case("requests", 2.0, "2.0", "integer >= 0"),
        Case("kv_heads", 0, "0", "1..65535"),
        Case("kv_heads", True, "True", "1..65535"),
    ],
    ids=str,
)
def test_sizes_of_nothing_sensible_are_refused(attn2, case):
    """The scratch memory's as well as a call's."""
    given = {"requests": 1, "kv_heads": 2, "max_seq_len": 131072, case.argument: case.value}
    refuse(case, lambda: attn2.workspace_bytes(**given))
    refuse(case, lambda: attn2.counters_bytes(**given))
    refuse(case, lambda: attn2.allocate_scratch(given.pop("requests"), **given, device="cpu"))
