"""Percentiles, rounds, table, JSON and the command line of the benchmark."""

import json
import sys

import pytest
import torch

from benchmarks import decode, report
from benchmarks.compare import FAILED, TIMED, UNAVAILABLE, Comparison, Entry
from benchmarks.problem import Shape
from benchmarks.timing import LEAST_ROUNDS, plan_rounds, quantile, summarize


def row_of(**changes) -> Comparison:
    """Return a result with ours and the pair timed and FlashAttention 3 alone not there."""
    entries = [
        Entry("ours", "ours", TIMED, worst_error=3e-3, microseconds=summarize([4.0, 5.0, 6.0])),
        Entry("pair", "pair", TIMED, worst_error=4e-3, microseconds=summarize([10.0])),
        Entry("fa3", "FlashAttention 3", UNAVAILABLE, "no library"),
    ]
    options = {"rounds": 3, "noise_microseconds": 0.01, "entries": entries} | changes
    return Comparison(Shape(1, 2, 2048), 2048, 64, **options)


def test_quantiles_lie_between_neighbours():
    assert quantile([1.0], 0.9) == 1.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    summary = summarize([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (summary.median, summary.least, summary.most) == (3.0, 1.0, 5.0)
    assert (summary.p10, summary.p90) == (pytest.approx(1.4), pytest.approx(4.6))


def test_rounds_keep_to_the_budget():
    assert plan_rounds(200, 0.001, 8) == 200
    assert plan_rounds(200, 0.1, 8) == 80
    assert plan_rounds(200, 10.0, 8) == LEAST_ROUNDS
    assert plan_rounds(5, 10.0, 8) == 5


def test_a_line_says_times_ratio_and_bandwidth():
    cells = dict(zip(report.HEADERS, report.cells(row_of()), strict=True))
    assert cells["R H L"] == "1 2 2048"
    assert cells["ours µs"] == "5.00 [4.20..5.80]"
    assert cells["FA3 alone µs"] == "not available"
    assert cells["norm-gate µs"] == "-"
    assert cells["pair / ours"] == "2.00"
    assert cells["ours GB/s"] == f"{2 * 2048 * 256 / 5e-6 / 1e9:.0f}"


def test_without_ours_there_is_no_ratio():
    row = row_of(entries=[Entry("ours", "ours", FAILED, "refused"), row_of().entries[1]])
    assert row.ratio() is None
    assert report.remarks([row, row]) == ["ours: failed at 1 2 2048: refused"]


@pytest.mark.parametrize("rich", [True, False])
def test_table_is_printed_with_and_without_rich(monkeypatch, capsys, rich):
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    report.print_table([row_of()], "the machine")
    printed = capsys.readouterr().out
    for text in (
        "the machine",
        "1 2 2048",
        "5.00 [4.20..5.80]",
        "FlashAttention 3: not available: no library",
    ):
        assert text in printed


def test_json_is_strict(tmp_path):
    row = row_of()
    row.entries[0].worst_error = float("nan")
    report.write_json(tmp_path / "result.json", {"shapes": [row.as_dict()]})
    shape = json.loads((tmp_path / "result.json").read_text())["shapes"][0]
    assert (shape["requests"], shape["kv_heads"], shape["length"]) == (1, 2, 2048)
    assert shape["pair_over_ours"] == 2.0
    assert shape["contenders"][0]["microseconds"]["median"] == 5.0
    assert shape["contenders"][0]["worst_error"] is None


def test_default_shapes_are_read():
    assert [str(shape) for shape in decode.arguments([]).shapes] == list(decode.DEFAULT_SHAPES)


@pytest.mark.parametrize(
    "words",
    [
        ["--shapes", "1 1"],
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
