"""The command line of the decode benchmark, and a whole run of it on stand-ins for the device."""

import json
import types

import pytest
import torch

from benchmarks import compare as comparing
from benchmarks import contenders, decode, plots, report
from benchmarks.contenders import base
from benchmarks.loads import POINTS, UNEVEN
from benchmarks.options import parse
from tests.benchmarks.problems import CPU


def names(words):
    return [load.name for load in parse(words).chosen]


def test_a_default_run_measures_everything_in_both_deployments():
    options = parse([])
    assert options.chosen == [*POINTS, *UNEVEN]
    assert options.deployment == [None, 131072]
    assert (options.contenders, options.variants, options.plots) == (None, None, None)
    assert options.budget <= 360


def test_loads_and_shapes_are_picked():
    assert names(["--loads", "one-131k", "8 2 2048"]) == ["one-131k", "8 2 2048"]
    assert names(["--shapes", "1 1 512", "2 1 512 64"]) == ["1 1 512", "2 1 512 64"]
    assert names(["--shapes", "1 1 64", "--loads", "uniform-8k", "--seeds", "1"]) == [
        "1 1 64",
        "uniform-8k",
        "uniform-8k/1",
    ]
    assert parse(["--deployment", "fit", "4096"]).deployment == [None, 4096]
    assert parse(["--variants"]).variants == []
    assert parse(["--variants", "split"]).variants == ["split"]


@pytest.mark.parametrize(
    "words",
    [
        ["--shapes", "1 1"],
        ["--loads", "nothing"],
        ["--deployment", "long"],
        ["--contenders", "flash"],
        ["--fa3", "/no/such/file"],
        ["--replays", "0"],
        ["--json", "/no/such/folder/x.json"],
    ],
)
def test_wrong_call_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        decode.main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_without_a_gpu_it_ends_with_2(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert decode.main([]) == 2
    assert "GPU" in capsys.readouterr().err


class Stand(base.Contender):
    """Writes the reference, or something else."""

    def __init__(self, key, peer=False, factor=1.0):
        self.key = self.name = key
        self.peer, self.factor = peer, factor

    def prepare(self, problem):
        self.start(problem)
        self.details = {"factor": self.factor}

    def call(self, index):
        out = self.outputs[index]
        out.copy_((self.factor * self.reference(index)).reshape(out.shape))


@pytest.fixture
def run(on_cpu, monkeypatch):
    """Run the command with contenders that are given, on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(decode, "current_device", lambda: CPU)
    monkeypatch.setattr(report, "machine", lambda device: {"gpu": "none"})
    monkeypatch.setattr(comparing, "clean_up", lambda: None)
    monkeypatch.setattr(comparing, "CALLS", 3)

    def run(words, *stands):
        monkeypatch.setattr(contenders, "make_contenders", lambda keys, **options: list(stands))
        return decode.main(words)

    return run


def test_a_run_reports_writes_and_draws(run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "result.json"
    words = ["--shapes", "1 1 24", "2 1 24 16", "--deployment", "fit", "100", "--replays", "5"]
    words += ["--json", str(path), "--plots", str(tmp_path / "plots")]
    assert run(words, Stand("ours"), Stand("ours-named"), Stand("page-read"), Stand("fa3", peer=True)) == 0
    printed = capsys.readouterr()
    assert "geometric mean lead, longer deployments: ours 1.00" in printed.out
    assert "[2/2] 2 1 24 16: max_seq_len 100: timing 4 contenders" in printed.err
    content = json.loads(path.read_text())
    assert [(row["load"], row["max_seq_len"]) for row in content["rows"]] == [
        ("1 1 24", 24),
        ("1 1 24", 100),
        ("2 1 24 16", 24),
        ("2 1 24 16", 100),
    ]
    assert content["method"]["calls_per_graph"] == 3
    assert content["method"]["broken"] == ""
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"lead.png", "bandwidth.png"}


def test_the_exit_status_is_that_of_ours_and_of_what_was_asked_for(run):
    words = ["--shapes", "1 1 24", "--deployment", "fit"]
    wrong = Stand("fa3", peer=True, factor=1.1)
    assert run(words, Stand("ours"), wrong) == 0
    assert run([*words, "--contenders", "ours", "fa3"], Stand("ours"), wrong) == 1
    assert run([*words, "--fa3", __file__], Stand("ours"), wrong) == 1
    assert run(words, Stand("ours", factor=1.1)) == 1


def test_a_load_that_fits_no_deployment_is_left_out_aloud(run, capsys):
    assert run(["--shapes", "1 1 24", "1 1 40", "--deployment", "30"], Stand("ours")) == 0
    assert "1 1 40: left out, its longest length 40 fits no deployment" in capsys.readouterr().err


def test_a_broken_device_leaves_what_was_measured(run, capsys, monkeypatch, tmp_path):
    def prepare(self, problem):
        if problem.load.requests == 2:
            monkeypatch.setattr(torch.cuda, "synchronize", fail)
            fail()
        Stand.prepare(self, problem)

    def fail():
        raise RuntimeError("an illegal memory access was encountered")

    stand = type("Faulty", (Stand,), {"prepare": prepare})("ours")
    path = tmp_path / "result.json"
    words = ["--shapes", "1 1 24", "2 1 24", "1 1 40", "--deployment", "fit", "--json", str(path)]
    assert run(words, stand) == 1
    assert "error: load 2 1 24: ours: RuntimeError: an illegal memory access" in capsys.readouterr().err
    content = json.loads(path.read_text())
    assert [row["load"] for row in content["rows"]] == ["1 1 24"]
    assert "illegal" in content["method"]["broken"]


def test_plots_need_matplotlib_before_anything_is_measured(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(plots.importlib, "util", types.SimpleNamespace(find_spec=lambda name: None))
    assert run(["--plots", str(tmp_path)], Stand("ours")) == 2
    assert "matplotlib is not installed" in capsys.readouterr().err
