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

from benchmarks.results import LIMIT, NAMED, OURS, UNAVAILABLE, Row, missing, summary

HEADERS = ("load", "deploy", "ours", "named", "best peer", "lead", "limit", "GB/s", "limit%", "peer")

NOTES = """\
Medians, microseconds a call, cold pages, CUDA graphs. deploy: max_seq_len, in cache entries.
ours: a call that names no variant and no splits; named: as the module recommends for the load.
best peer: attention of a library, then the norm-gate kernel. lead: best peer over ours.
limit: a kernel that only reads the live pages, and its GB/s; limit%: limit over ours."""

SHORT = {UNAVAILABLE: "n/a"}

#: Packages whose versions are recorded where they are installed.
PACKAGES = (
    "triton",
    "nvidia-cutlass-dsl",
    "flashinfer-python",
    "apache-tvm-ffi",
    "flash-attn",
    "flash-attn-4",
    "vllm",
)


def number(value: float | None, form: str) -> str:
    """Return a formatted number, a dash where there is none."""
    return "-" if value is None else format(value, form)


def cells(row: Row) -> list[str]:
    """Return one line of the table."""

    def time_of(key: str) -> str:
        entry = row.entry(key)
        if entry is not None and entry.microseconds is None:
            return SHORT.get(entry.status, entry.status)
        return number(row.median(key), ".2f")

    peer = row.best_peer
    return [
        str(row.load),
        str(row.max_seq_len),
        time_of(OURS),
        time_of(NAMED),
        number(row.median(peer.key) if peer else None, ".2f"),
        number(row.lead(OURS), ".2f"),
        time_of(LIMIT),
        number(row.gigabytes_per_second(LIMIT), ".0f"),
        number(row.limit_fraction(OURS), ".0%"),
        peer.key if peer else "-",
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the rows as columns padded with blanks, the first line underlined."""
    lines = [list(HEADERS), *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADERS))]

    def padded(line: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column in (0, len(HEADERS) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([padded(lines[0]), rule, *map(padded, lines[1:])])


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Return the geometric means of the leads, a line a group of rows that has any."""
    lines = []
    for group, of_group in summary(rows).items():
        parts = [
            f"{label} {found['geometric_mean_lead']:.2f} ({found['least_lead']:.2f} at least, "
            f"below 1 at {found['behind']} of {found['rows']})"
            for label, found in zip(("ours", "named"), of_group.values(), strict=True)
            if found["rows"]
        ]
        if parts:
            lines.append(f"geometric mean lead, {group}: {'; '.join(parts)}")
    return lines


def missing_lines(rows: Sequence[Row]) -> list[str]:
    """Return what was not timed, a line a reason."""
    return [
        f"not timed: {item['name']}: {item['status']}: {item['reason']} ({item['where']})"
        for item in missing(rows)
    ]


def print_report(rows: Sequence[Row], header: str) -> None:
    """Print table, summary and what is missing on standard output."""
    print(header)
    if rows:
        print(table(rows))
        print(NOTES)
    for line in (*summary_lines(rows), *missing_lines(rows)):
        print(line)


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
    return result | {package: installed.get(package) for package in PACKAGES}


def heading(device: torch.device) -> dict[str, Any]:
    """Return when, on what and with what is measured."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "machine": machine(device), "versions": versions()}


def document(rows: Sequence[Row], heading: dict[str, Any], method: dict[str, Any]) -> dict[str, Any]:
    """Return the whole result; `method` says how it was run."""
    return heading | {
        "method": method,
        "summary": summary(rows),
        "missing": missing(rows),
        "rows": [row.as_dict() for row in rows],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON, in which a NaN becomes null."""
    path.write_text(json.dumps(_finite(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")


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
