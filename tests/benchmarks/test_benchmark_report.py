"""What follows from times, and how it is told: table, summary, what is missing, JSON."""

import json

import pytest

from benchmarks import report
from benchmarks.loads import UNEVEN, Load
from benchmarks.results import FAILED, WRONG, Entry, geometric_mean, missing, summary
from benchmarks.timing import LEAST_ROUNDS, plan_rounds, quantile, summarize
from tests.benchmarks.results import all_rows, row_of

HEADING = {"date": "2026-01-01T00:00:00+00:00", "machine": {"gpu": "made up"}, "versions": {}}


def test_quantiles_lie_between_neighbours():
    assert quantile([1.0], 0.9) == 1.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    found = summarize([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.median, found.least, found.most) == (3.0, 1.0, 5.0)
    assert (found.p10, found.p90) == (pytest.approx(1.4), pytest.approx(4.6))


def test_rounds_keep_to_the_budget():
    assert plan_rounds(200, 0.001, 8) == 200
    assert plan_rounds(200, 0.1, 8) == 80
    assert plan_rounds(200, 10.0, 8) == LEAST_ROUNDS
    assert plan_rounds(200, 10.0, 0) == LEAST_ROUNDS
    assert plan_rounds(5, 10.0, 8) == 5


def test_a_line_says_times_lead_and_limit():
    row = row_of(
        Load.even(1, 2, 2048), 131072, **{"ours": 5.0, "fi-fa2": 12.5, "fa3": 14.0, "page-read": 3.0}
    )
    row.entries[1].microseconds = None
    row.entries[1].status = FAILED
    cells = dict(zip(report.HEADERS, report.cells(row), strict=True))
    assert cells == {
        "load": "1 2 2048",
        "deploy": "131072",
        "ours": "5.00",
        "named": "failed",
        "best peer": "12.50",
        "lead": "2.50",
        "limit": "3.00",
        "GB/s": "350",
        "limit%": "60%",
        "peer": "fi-fa2",
    }


def test_the_table_of_a_default_run_has_100_columns_at_most():
    rows = all_rows()
    rows.append(row_of(UNEVEN[4].seeded(12), 131072, ours=12345.678, fa3=98765.432))
    lines = report.table(rows).splitlines()
    assert len(lines) == len(rows) + 2
    assert max(map(len, lines)) <= 100
    assert max(map(len, report.NOTES.splitlines())) <= 100
    assert lines[0].split()[:4] == ["load", "deploy", "ours", "named"]


def test_a_default_run_has_a_row_for_each_load_and_deployment_that_differ():
    rows = all_rows()
    assert len(rows) == 2 * 24 - 4
    assert len({(row.load.name, row.max_seq_len) for row in rows}) == len(rows)


def test_the_lead_is_over_the_fastest_peer():
    row = row_of(Load.even(1, 1, 512), ours=4.0, fa3=6.0, **{"ours-named": 2.0, "fi-fa2": 8.0})
    assert (row.best_peer.key, row.lead("ours"), row.lead("ours-named")) == ("fa3", 1.5, 3.0)
    row.entries = [entry for entry in row.entries if not entry.peer]
    assert (row.best_peer, row.lead("ours")) == (None, None)


def test_summary_is_a_geometric_mean_by_group():
    load = Load.even(1, 1, 512)
    peer = {"fa3": 8.0, "fi-fa2": 9.0, "ours-named": 8.0}
    rows = [row_of(load, None, ours=2.0, **peer), row_of(load, 131072, ours=16.0, **peer)]
    found = summary(rows)
    assert found["all"]["ours"] == {
        "rows": 2,
        "geometric_mean_lead": pytest.approx(2**0.5),
        "least_lead": 0.5,
        "behind": 1,
    }
    assert found["fitting deployments"]["ours"]["geometric_mean_lead"] == 4
    assert found["longer deployments"]["ours"]["geometric_mean_lead"] == 0.5
    assert report.summary_lines(rows)[0] == (
        "geometric mean lead, all: ours 1.41 (0.50 at least, below 1 at 1 of 2); "
        "named 1.00 (1.00 at least, below 1 at 0 of 2)"
    )
    assert report.summary_lines([]) == []
    assert geometric_mean([]) is None


def test_what_is_missing_is_told_once_with_its_rows():
    rows = [row_of(Load.even(1, 1, 512)), row_of(Load.even(1, 1, 1024))]
    rows[1].entries[0] = Entry("ours", "ours", WRONG, "worst row error 1", worst_error=1.0)
    assert report.missing_lines(rows) == [
        "not timed: FlashAttention 4 + norm-gate: not available: no module (every row)",
        "not timed: ours: wrong: worst row error 1 (1 1 1024 @ 1024)",
    ]
    assert missing(rows)[0]["where"] == "every row"


def test_the_report_is_printed(capsys):
    report.print_report([row_of(Load.even(1, 2, 2048))], "the machine")
    printed = capsys.readouterr().out
    for text in (
        "the machine",
        "1 2 2048",
        "limit%",
        "geometric mean lead, all",
        "not timed: FlashAttention 4",
    ):
        assert text in printed
    report.print_report([], "nothing")
    assert capsys.readouterr().out == "nothing\n"


def test_json_is_strict_and_whole(tmp_path):
    row = row_of(UNEVEN[5].seeded(2), ours=5.0)
    row.entries[0].worst_error = float("nan")
    row.entries[0].details = {"variant": "split", "num_splits": 3}
    path = tmp_path / "result.json"
    report.write_json(path, report.document([row], HEADING, {"pdl": False}))
    content = json.loads(path.read_text())
    assert content["machine"] == {"gpu": "made up"}
    assert content["summary"]["all"]["ours"]["rows"] == 1
    assert content["missing"][0]["reason"] == "no module"
    found = content["rows"][0]
    assert (found["load"], found["seed"], found["fits"]) == ("exponential-2k/2", 2, True)
    assert tuple(found["lengths"]) == row.load.lengths
    assert found["distribution"] == {"kind": "exponential", "mean": 2000, "least": 8}
    assert found["best_peer"] == "fi-fa2"
    ours = found["contenders"][0]
    assert ours["microseconds"] == {"median": 5.0, "p10": 4.6, "p90": 5.8, "least": 4.5, "most": 6.0}
    assert ours["worst_error"] is None
    assert ours["details"] == {"variant": "split", "num_splits": 3}
    assert ours["gigabytes_per_second"] == pytest.approx(row.load.live_page_bytes / 5e-6 / 1e9)


def test_versions_name_what_is_not_installed():
    found = report.versions()
    assert found["torch"]
    assert set(report.PACKAGES) <= set(found)
