"""The host benchmark: what it counts, and when it refuses to."""

import types

import pytest
import torch

from benchmarks import host_overhead
from benchmarks.host_overhead import BATCH, WARM_UP_ROUNDS, check_outputs, main, measure


@pytest.fixture
def clock(monkeypatch):
    """A clock in nanoseconds that stands still but for what the ways add to it."""
    now = types.SimpleNamespace(ns=0)
    monkeypatch.setattr(host_overhead.time, "perf_counter_ns", lambda: now.ns)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return now


def test_times_are_microseconds_a_call(clock):
    """Of every way, in every round that counts; the order turns round by round."""
    order = []

    def way(name, nanoseconds):
        def call():
            clock.ns += nanoseconds
            order.append(name)

        return call

    times = measure({"a": (way("a", 3000), None), "b": (way("b", 500), None)}, rounds=3)
    assert (times["a"].median, times["a"].most, times["b"].least) == (3.0, 3.0, 0.5)
    assert len(order) == 2 * BATCH * (WARM_UP_ROUNDS + 3)
    assert order[: 4 * BATCH : BATCH] == ["a", "b", "b", "a"]


def test_a_wrong_output_is_named(clock):
    """A way that launches something else is not timed beside the call."""
    right = torch.full((4,), 2.0)
    timed = {
        "call": (lambda: None, right),
        "near": (lambda: None, right + 2**-9),
        "far": (lambda: None, right + 0.5),
        "nothing": (lambda: None, torch.full((4,), torch.nan)),
        "check": (lambda: None, None),
    }
    assert check_outputs(timed) == ["far", "nothing"]


def test_a_wrong_call_measures_nothing(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--rounds", "0"])
    assert caught.value.code == 2
    assert "--rounds: at least 1 is needed" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main([]) == 2
        assert "a CUDA GPU is needed" in capsys.readouterr().err
