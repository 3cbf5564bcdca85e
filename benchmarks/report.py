"""The result for people (a table) and for programs (JSON)."""

import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.compare import FAILED, WRONG, Comparison
from benchmarks.timing import Summary

#: Characters that a line of the table may need.
LEAST_WIDTH = 180

HEADERS = (
    "R H L",
    "ours µs",
    "FA3 + norm-gate µs",
    "FA3 alone µs",
    "norm-gate µs",
    "pair / ours",
    "cache MB",
    "ours GB/s",
    "noise µs",
    "worst error ours / pair",
)


def spread(summary: Summary | None, status: str) -> str:
    """Return median and [10th .. 90th percentile], or why there is none."""
    if summary is None:
        return status
    return f"{summary.median:.2f} [{summary.p10:.2f}..{summary.p90:.2f}]"


def cells(row: Comparison) -> list[str]:
    """Return one line of the table."""

    def time_of(key: str) -> str:
        entry = row.entry(key)
        return spread(entry.microseconds, entry.status) if entry else "-"

    def error_of(key: str) -> str:
        entry = row.entry(key)
        return "-" if entry is None or entry.worst_error is None else f"{entry.worst_error:.1e}"

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return [
        str(row.shape),
        time_of("ours"),
        time_of("pair"),
        time_of("fa3"),
        time_of("norm_gate"),
        number(row.ratio(), ".2f"),
        number(row.shape.read_bytes / 1e6, ".2f"),
        number(row.gigabytes_per_second("ours"), ".0f"),
        number(row.noise_microseconds, ".3f"),
        f"{error_of('ours')} / {error_of('pair')}",
    ]


def remarks(rows: Sequence[Comparison]) -> list[str]:
    """Return why something was not timed, each reason once."""
    lines: dict[str, None] = {}
    for row in rows:
        for entry in row.entries:
            if entry.reason:
                # What failed or was wrong may be so at this shape alone; what is missing is so at all.
                where = f" at {row.shape}" if entry.status in (FAILED, WRONG) else ""
                lines[f"{entry.name}: {entry.status}{where}: {entry.reason}"] = None
    return list(lines)


def plain_table(lines: Sequence[Sequence[str]]) -> str:
    """Return columns padded with blanks, the first line underlined."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([padded[0], "  ".join("-" * width for width in widths), *padded[1:]])


def print_table(rows: Sequence[Comparison], header: str) -> None:
    """Print the table on standard output, by rich where it is installed."""
    lines = [list(HEADERS)] + [cells(row) for row in rows]
    print(header)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(plain_table(lines))
    else:
        # A narrow terminal breaks the lines itself; rich would cut the figures off.
        console = Console(width=max(Console().width, LEAST_WIDTH))
        table = Table()
        for index, title in enumerate(HEADERS):
            table.add_column(title, justify="left" if index == 0 else "right", no_wrap=True)
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)
    print(
        "Medians [10th..90th percentile] over the rounds, microseconds a call, cold cache, in a CUDA graph."
    )
    for remark in remarks(rows):
        print(remark)


def machine(device: torch.device) -> dict[str, Any]:
    """Return what was measured on."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "driver": _driver(),
        "system": platform.platform(),
    }


def versions() -> dict[str, str | None]:
    """Return what was measured with."""
    result: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    installed = {item.name.lower(): item.version for item in metadata.distributions() if item.name}
    return result | {package: installed.get(package) for package in ("triton", "nvidia-cutlass-dsl")}


def document(rows: Sequence[Comparison], device: torch.device, method: dict[str, Any]) -> dict[str, Any]:
    """Return the whole result; `method` says how it was run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(device),
        "versions": versions(),
        "method": method,
        "shapes": [row.as_dict() for row in rows],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON, in which a NaN becomes null."""
    path.write_text(json.dumps(_finite(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Return the same value with null for each number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value


def _driver() -> str | None:
    """Return the driver's version, which only nvidia-smi tells."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.splitlines()[0].strip() if answer.strip() else None
