"""A wrong contender is never timed; one that fails stops no other; a run keeps to its budget."""

import types
import weakref

import pytest
import torch

from benchmarks import compare as comparing
from benchmarks.contenders import base
from benchmarks.loads import Load
from benchmarks.results import FAILED, TIMED, UNAVAILABLE, WRONG
from tests.benchmarks.problems import CPU


class Exact(base.Contender):
    """Writes the reference, apart from what a test spoils."""

    key, name = "ours", "exact"

    def __init__(self, spoil=lambda index, out: None):
        self.spoil_outputs = spoil

    def prepare(self, problem):
        self.start(problem)

    def call(self, index):
        out = self.outputs[index]
        out.copy_(self.reference(index).reshape(out.shape))
        self.spoil_outputs(index, out)


def compare(*some, deployments=(24,)):
    budget = comparing.Budget(1, len(deployments))
    load = Load.even(1, 1, 24)
    rows = list(comparing.compare(load, deployments, some, device=CPU, rounds=5, budget=budget))
    assert [row.max_seq_len for row in rows] == list(deployments)
    return rows[0]


def test_right_contender_is_timed_in_every_deployment(on_cpu):
    prototype = Exact()
    row = compare(prototype, deployments=(24, 100))
    # Tensors go with the row.
    assert set(vars(prototype)) == {"spoil_outputs"}
    entry = row.entries[0]
    assert (entry.status, entry.microseconds.median, row.rounds) == (TIMED, 2.0, 5)
    assert entry.worst_error < 5e-3
    assert row.noise_microseconds == 0


def test_contenders_live_until_their_graphs_are_timed(on_cpu, monkeypatch):
    """A graph does not own its memory: what a contender allocated would be given to the next one."""
    prepared, measure = [], comparing.interleaved

    class Watched(Exact):
        def prepare(self, problem):
            super().prepare(problem)
            prepared.append(weakref.ref(self))

    def timed(graphs, **more):
        assert len(prepared) == 2 and all(reference() is not None for reference in prepared)
        return measure(graphs, **more)

    class Graph:
        """As one of the device's: the calls that it was captured from may go."""

        replay = staticmethod(lambda: None)

    def capture(calls):
        for call in calls:
            call()
        return Graph()

    monkeypatch.setattr(comparing, "interleaved", timed)
    monkeypatch.setattr(comparing, "capture", capture)
    monkeypatch.setattr(Watched, "spoil", lambda self: None)
    assert [entry.status for entry in compare(Watched(), Watched()).entries] == [TIMED, TIMED]


@pytest.mark.parametrize("index", [0, 1, comparing.CALLS - 1])
def test_contender_that_leaves_an_element_is_not_timed(on_cpu, index):
    row = compare(Exact(lambda i, out: out[7, 511:].fill_(float("nan")) if i == index else None), Exact())
    assert [entry.status for entry in row.entries] == [WRONG, TIMED]
    assert row.entries[0].microseconds is None


def test_contender_with_one_wrong_row_is_not_timed(on_cpu):
    row = compare(Exact(lambda i, out: out[3, 64:128].mul_(1.02)))
    assert row.entries[0].status == WRONG
    assert "1e-02" in row.entries[0].reason


def test_contender_that_raises_does_not_stop_the_others(on_cpu):
    def refuse(index, out):
        raise ValueError("not for this shape")

    row = compare(Exact(refuse), Exact())
    assert [entry.status for entry in row.entries] == [FAILED, TIMED]
    assert "not for this shape" in row.entries[0].reason


def test_contender_that_serves_no_such_load_is_not_prepared(on_cpu):
    class Refusing(Exact):
        def serves(self, problem):
            return base.no("no windows")

        def prepare(self, problem):
            raise AssertionError

    row = compare(Refusing(), Exact())
    assert [entry.status for entry in row.entries] == [UNAVAILABLE, TIMED]
    assert row.entries[0].reason == "no windows"


def test_a_fault_of_the_device_ends_the_run(on_cpu, monkeypatch):
    def fail(index, out):
        def synchronize():
            raise RuntimeError("an illegal memory access was encountered")

        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        raise RuntimeError("launch failed")

    with pytest.raises(comparing.DeviceFault, match="exact: RuntimeError: launch failed"):
        compare(Exact(fail))


def test_budget_is_shared_by_the_rows_to_come(monkeypatch):
    now = types.SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(comparing.time, "perf_counter", lambda: now.seconds)
    budget = comparing.Budget(30, 3)
    budget.start_row()
    assert budget.left() == 10
    now.seconds += 16
    assert budget.left() == 0
    budget.start_row()
    assert (budget.elapsed(), budget.left()) == (16, 7)
    now.seconds += 2
    budget.start_row()
    assert budget.left() == 12
