"""Plots of a result: `python -m benchmarks.plots result.json --out DIR`. No GPU is needed.

    time.png       time against context length, a panel for each number of requests
    lead.png       lead over the best peer at every load and deployment
    bandwidth.png  share of the page-read limit against the bytes of live pages

Exit status: 0, or 2 for a wrong call, a file that is no result, or no matplotlib.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

OURS, NAMED, LIMIT, PEER = "ours", "ours-named", "page-read", "best peer"

#: Colour, marker and label of each line.
STYLES = {
    OURS: ("tab:blue", "o", "ours"),
    NAMED: ("tab:cyan", "s", "ours, named"),
    PEER: ("tab:orange", "^", "best peer + norm-gate"),
    LIMIT: ("tab:gray", ".", "reading the live pages"),
}


def available() -> str:
    """Return why nothing can be drawn here, or ""."""
    return "" if importlib.util.find_spec("matplotlib") else "matplotlib is not installed"


def microseconds(row: Row, key: str) -> float | None:
    """Return a contender's median, where it was timed."""
    key = row["best_peer"] if key == PEER else key
    for entry in row["contenders"]:
        if entry["key"] == key and entry["microseconds"]:
            return float(entry["microseconds"]["median"])
    return None


def label(row: Row) -> str:
    """Return a row's name in the bar chart."""
    return str(row["load"]) if row["fits"] else f"{row['load']} @ {row['max_seq_len']}"


def length_series(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Return the rows of even loads that differ in length, by requests, in the order of their lengths.

    Of the deployments that fit, without a window, one KV head count a number of requests: the one with most.
    """
    even = [r for r in rows if r["fits"] and r["window"] is None and r["distribution"]["kind"] == "even"]
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in even:
        groups.setdefault((row["requests"], row["kv_heads"]), []).append(row)
    series: dict[int, list[Row]] = {}
    for (requests, _), group in sorted(groups.items()):
        if len(group) > len(series.get(requests, [])):
            series[requests] = sorted(group, key=lambda row: max(row["lengths"]))
    return {requests: group for requests, group in series.items() if len(group) > 1}


def time_figure(rows: Sequence[Row]) -> "Figure | None":
    """Return time against length, or None where no two loads differ in nothing else."""
    series = length_series(rows)
    if not series:
        return None
    figure, axes = _figure(len(series), 4.2 * len(series), 4.2)
    for axis, (requests, group) in zip(axes, series.items(), strict=True):
        for key, (color, marker, text) in STYLES.items():
            points = [(max(row["lengths"]), time) for row in group if (time := microseconds(row, key))]
            if points:
                style = "--" if key == LIMIT else "-"
                axis.plot(*zip(*points, strict=True), style, color=color, marker=marker, label=text)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(f"R = {requests}, H = {group[0]['kv_heads']}")
        axis.set_xlabel("cache entries a request")
        axis.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel("microseconds a call")
    axes[0].legend(fontsize="small")
    return figure


def lead_figure(rows: Sequence[Row]) -> "Figure | None":
    """Return a bar for the lead of the unnamed call at every row, and a mark for the named one."""
    found = [row for row in rows if row["lead"][OURS] or row["lead"][NAMED]]
    if not found:
        return None
    figure, (axis,) = _figure(1, 8.0, 1.5 + 0.24 * len(found))
    places = range(len(found))
    leads = [row["lead"][OURS] or 0.0 for row in found]
    colors = ["tab:blue" if lead >= 1 else "tab:red" for lead in leads]
    axis.barh(places, leads, color=colors, label="ours")
    named = [(row["lead"][NAMED], place) for place, row in enumerate(found) if row["lead"][NAMED]]
    if named:
        axis.plot(*zip(*named, strict=True), "k|", markersize=9, label="ours, named")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(places, [f"{label(row)}  ({row['best_peer']})" for row in found], fontsize="x-small")
    axis.invert_yaxis()
    axis.margins(y=0.01)
    axis.set_xlabel("time of the best peer over ours")
    # Above the bars, which may fill the axes.
    axis.legend(fontsize="small", loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    axis.grid(True, axis="x", alpha=0.3)
    return figure


def bandwidth_figure(rows: Sequence[Row]) -> "Figure | None":
    """Return the limit's time over that of ours and of the best peer, against bytes."""
    timed = [(row, limit) for row in rows if (limit := microseconds(row, LIMIT))]
    if not timed:
        return None
    figure, (axis,) = _figure(1, 7.0, 4.5)
    for key in (OURS, NAMED, PEER):
        color, marker, text = STYLES[key]
        points = [
            (row["live_page_bytes"] / 1e6, 100 * limit / time)
            for row, limit in timed
            if (time := microseconds(row, key))
        ]
        if points:
            axis.plot(*zip(*points, strict=True), linestyle="", color=color, marker=marker, label=text)
    axis.set_xscale("log")
    axis.axhline(100, color="black", linewidth=0.8)
    axis.set_ylim(0, max(105, axis.get_ylim()[1]))
    axis.set_xlabel("live pages, MB a call")
    axis.set_ylabel("% of page-read bandwidth")
    axis.legend(fontsize="small")
    axis.grid(True, which="both", alpha=0.3)
    return figure


def draw(document: dict[str, Any], folder: Path) -> list[Path]:
    """Write the plots that the result has data for; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = document.get("machine", {}).get("gpu", "")
    figures = {"time": time_figure, "lead": lead_figure, "bandwidth": bandwidth_figure}
    paths = []
    for name, make in figures.items():
        if (figure := make(document["rows"])) is None:
            continue
        figure.suptitle(f"{machine}, {document.get('date', '')[:10]}", fontsize="small")
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=130)
    return paths


def _figure(panels: int, width: float, height: float) -> tuple["Figure", "list[Axes]"]:
    """Return a figure with panels side by side. It belongs to no window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)
    return figure, list(axes[0])


def main(words: Sequence[str] | None = None) -> int:
    """Read a result, write its plots, print their paths; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plots", description="Plots of a result of python -m benchmarks.decode."
    )
    parser.add_argument("result", type=Path, help="file that --json wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the PNG files go")
    options = parser.parse_args(words)
    if reason := available():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    try:
        document = json.loads(options.result.read_text(encoding="utf-8"))
        if not document["rows"]:
            raise ValueError("it has no rows")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {options.result} is no result of benchmarks.decode: {error!r}", file=sys.stderr)
        return 2
    for path in draw(document, options.out):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
