"""Plots are drawn from a file of an earlier run, of whatever it has data for."""

import json

import pytest

from benchmarks import plots, report
from benchmarks.loads import UNEVEN, Load
from tests.benchmarks.results import all_rows, row_of

HEADING = {"date": "2026-01-01T00:00:00+00:00", "machine": {"gpu": "made up"}, "versions": {}}


def written(folder, rows):
    path = folder / "result.json"
    report.write_json(path, report.document(rows, HEADING, {}))
    return path


def dicts(rows):
    return [row.as_dict() for row in rows]


def test_a_file_becomes_three_png_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "plots"
    assert plots.main([str(written(tmp_path, all_rows())), "--out", str(out)]) == 0
    printed = capsys.readouterr().out.split()
    assert printed == [str(out / f"{name}.png") for name in ("time", "lead", "bandwidth")]
    for path in out.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000


def test_time_is_drawn_for_loads_that_differ_in_length_alone():
    series = plots.length_series(dicts(all_rows()))
    found = {requests: [row["load"] for row in group] for requests, group in series.items()}
    assert found == {
        1: ["1 2 2048", "1 2 8192", "1 2 32768", "1 2 131072"],
        8: ["8 2 2048", "8 2 8192", "8 2 32768"],
        32: ["32 2 2048", "32 2 8192", "32 2 32768"],
    }


def test_figures_show_the_numbers():
    pytest.importorskip("matplotlib")
    peers = {"fa3": 20.0, "fi-fa2": 30.0}
    rows = dicts(
        [
            row_of(Load.even(1, 1, 512), None, ours=5.0, **{"ours-named": 10.0, "page-read": 4.0}, **peers),
            row_of(Load.even(1, 1, 512), 131072, ours=40.0, **{"ours-named": 8.0, "page-read": 4.0}, **peers),
        ]
    )
    (lead,) = plots.lead_figure(rows).axes
    assert [bar.get_width() for bar in lead.patches] == [4.0, 0.5]
    assert [text.get_text() for text in lead.get_yticklabels()] == [
        "1 1 512  (fa3)",
        "1 1 512 @ 131072  (fa3)",
    ]
    (bandwidth,) = plots.bandwidth_figure(rows).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in bandwidth.lines}
    assert drawn["ours"] == [80.0, 10.0]
    assert drawn["best peer + norm-gate"] == [20.0, 20.0]
    assert list(bandwidth.lines[0].get_xdata()) == [32 * 4096 / 1e6] * 2


def test_what_was_not_timed_is_not_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    row = row_of(UNEVEN[0])
    row.entries = [entry for entry in row.entries if entry.key == "ours"]
    assert plots.draw(json.loads(written(tmp_path, [row]).read_text()), tmp_path / "out") == []
    row.entries += [entry for entry in row_of(UNEVEN[0]).entries if entry.key == "fa3"]
    drawn = plots.draw({"rows": dicts([row])}, tmp_path / "out")
    assert [path.name for path in drawn] == ["lead.png"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": []}'])
def test_a_file_that_is_no_result_is_refused(tmp_path, capsys, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    assert plots.main([str(path), "--out", str(tmp_path / "out")]) == 2
    assert "no result of benchmarks.decode" in capsys.readouterr().err
    assert plots.main([str(tmp_path / "missing.json"), "--out", str(tmp_path)]) == 2


def test_without_matplotlib_nothing_is_drawn(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    assert plots.main([str(written(tmp_path, [])), "--out", str(tmp_path)]) == 2
    assert "matplotlib is not installed" in capsys.readouterr().err
