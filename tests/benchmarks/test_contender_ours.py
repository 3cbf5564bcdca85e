"""Ours is called through the module's public interface: unnamed, as it recommends, by variant."""

import types

import pytest
import torch

from benchmarks.contenders import ours
from benchmarks.problem import EPS, SCALE
from tests.benchmarks.problems import CPU, attend, problem_of


class Module:
    """The public interface of a generated module, which checks that calls agree with each other."""

    __name__ = "module"
    VARIANTS = (types.SimpleNamespace(name="cluster"), types.SimpleNamespace(name="batch"))

    def __init__(self):
        self.prepared = []
        self.scratch = []
        self.called = []

    def deploy(self, max_seq_len, window=None, num_splits=None, variant=None, pdl=False):
        name = variant or "cluster"
        return types.SimpleNamespace(
            variant=types.SimpleNamespace(name=name),
            splits=name == "batch",
            clusters=lambda kv_heads, device: num_splits or 1,
        )

    def prepare(self, *, kv_heads, max_seq_len, device, **names):
        assert (kv_heads, max_seq_len, device) == (1, 60, CPU)
        self.prepared.append(names)

    def allocate_scratch(self, requests, *, kv_heads, max_seq_len, device, **names):
        assert (requests, kv_heads, max_seq_len, device) == (1, 1, 60, CPU)
        self.scratch.append(names)
        size = 16 if names.get("variant") == "batch" else 0
        return torch.zeros(size), torch.zeros(size)

    def default_variant(self, *, kv_heads, max_seq_len, window, multiprocessors, requests):
        assert (kv_heads, max_seq_len, window, multiprocessors, requests) == (1, 60, None, 7, 1)
        return "batch"

    def default_splits(self, *, kv_heads, max_seq_len, window, variant, multiprocessors, requests):
        assert (kv_heads, max_seq_len, window, multiprocessors, requests) == (1, 60, None, 7, 1)
        if variant == "other":
            raise ValueError("variant must be one of cluster, batch")
        return 3

    def attn2(self, q, gate, cache, table, lengths, *, max_seq_len, scale, eps, out, **names):
        assert (max_seq_len, scale, eps) == (60, SCALE, EPS)
        self.called.append(names)
        attention = torch.empty(8, 8, 64, dtype=torch.float64)
        k, v = cache.transpose(1, 2).split(64, dim=-1)
        attend(q.view(8, 8, 64), k, v, attention, table, lengths)
        out.copy_(self.problem.norm_gate_reference(attention).view(out.shape))


@pytest.fixture
def module(monkeypatch):
    """A module in the place of the generated one, on a device of 7 multiprocessors."""
    device = types.SimpleNamespace(multi_processor_count=7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    module = Module()
    monkeypatch.setattr(ours, "import_first", lambda names: (module, ""))
    return module


@pytest.mark.parametrize(
    "make, names",
    [
        (lambda: ours.Ours(pdl=True), {}),
        (lambda: ours.OursNamed(pdl=True), {"variant": "batch", "num_splits": 3}),
        (lambda: ours.OursVariant("cluster", pdl=True), {"variant": "cluster", "num_splits": 3}),
        (lambda: ours.OursVariant("batch", True, num_splits=5), {"variant": "batch", "num_splits": 5}),
    ],
    ids=["unnamed", "named", "variant", "variant with splits"],
)
def test_ours_is_called_through_its_public_interface(module, make, names):
    """Unnamed: with neither a variant nor splits, in no call of the interface."""
    contender = make()
    problem = module.problem = problem_of("1 1 20")
    assert contender.available()
    assert contender.serves(problem)
    contender.prepare(problem)
    for index in range(3):
        contender.call(index)
    assert contender.check()[1] == ""
    deployment = {"window": None} | names
    assert module.prepared == [deployment | {"pdl": True}]
    assert module.scratch == [deployment]
    scratch = {"workspace", "counters"} if names.get("variant") == "batch" else set()
    for called in module.called:
        assert set(called) == {*deployment, "pdl", *scratch}
        assert deployment.items() <= called.items()
    assert contender.details["variant"] == names.get("variant", "cluster")
    splits = names["num_splits"] if names.get("variant") == "batch" else 1
    assert contender.details["num_splits"] == splits


def test_a_variant_that_does_not_serve_says_why(module):
    answer = ours.OursVariant("other").serves(problem_of("1 1 20"))
    assert not answer
    assert "must be one of" in answer.reason
    assert ours.variant_names() == ["cluster", "batch"]
