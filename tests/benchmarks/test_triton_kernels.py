"""The Triton kernels, in Triton's interpreter where it is installed and TRITON_INTERPRET=1 is set."""

import os
import types

import pytest
import torch

from benchmarks.contenders import make_contenders
from tests.benchmarks.problems import problem_of


@pytest.fixture
def triton_interpreter(monkeypatch):
    """Let Triton's kernels run on the CPU where TRITON_INTERPRET was set before the first import."""
    pytest.importorskip("triton", reason="needs Triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs TRITON_INTERPRET=1")


@pytest.mark.usefixtures("triton_interpreter", "on_cpu")
def test_norm_gate_and_pair_are_right(flash_attention):
    library, _ = flash_attention
    everyone = make_contenders(["fa3", "fa3-alone", "norm-gate"], library=library)
    problem = problem_of("2 1 24")
    for contender in everyone:
        assert contender.available(), contender.available().reason
        contender.prepare(problem)
        for index in range(3):
            contender.call(index)
        assert contender.check()[1] == ""
    assert everyone[0].details["rows_per_block"] == everyone[2].details["rows_per_block"]


@pytest.mark.usefixtures("triton_interpreter", "on_cpu")
@pytest.mark.parametrize("text", ["1 1 24", "3 2 70", "2 2 70 20", "2 3 40"])
def test_page_read_reads_every_live_page_once(monkeypatch, text):
    device = types.SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    (limit,) = make_contenders(["page-read"])
    problem = problem_of(text)
    # The interpreter refuses sums that wrap around, as those of a device do.
    problem.caches.view(torch.int32).random_(0, 1000)
    limit.prepare(problem)
    for config in limit.kernels.CONFIGS:
        limit.spoil()
        for index in range(3):
            limit.run(index, config)
        assert limit.check() == (None, "")
    limit.outputs[2, 0] += 1
    assert "checksum of call 2" in limit.check()[1]
