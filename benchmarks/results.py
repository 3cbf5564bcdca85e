"""What a measurement gives: an entry a contender, a row a load and deployment, and what follows from them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.loads import Load
from benchmarks.timing import Summary

TIMED, UNAVAILABLE, FAILED, WRONG = "timed", "not available", "failed", "wrong"

#: The kernels of ours that leads are given for: of the unnamed call, and as the module recommends.
OURS, NAMED = "ours", "ours-named"
LIMIT = "page-read"


@dataclass
class Entry:
    """What became of one contender at one row; times only where the status is "timed"."""

    key: str
    name: str
    status: str
    reason: str = ""
    peer: bool = False
    worst_error: float | None = None
    microseconds: Summary | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """One load in one deployment."""

    load: Load
    max_seq_len: int
    copies: int
    rounds: int = 0
    noise_microseconds: float | None = None
    entries: list[Entry] = field(default_factory=list)

    def entry(self, key: str) -> Entry | None:
        """Return the entry of a contender."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def median(self, key: str) -> float | None:
        """Return a contender's median microseconds, where it was timed."""
        entry = self.entry(key)
        return entry.microseconds.median if entry and entry.microseconds else None

    @property
    def best_peer(self) -> Entry | None:
        """The peer with the smallest median."""
        timed = [(e.microseconds.median, e) for e in self.entries if e.peer and e.microseconds]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None

    def lead(self, key: str) -> float | None:
        """How many times as long as this kernel of ours the best peer takes."""
        ours, peer = self.median(key), self.best_peer
        return peer.microseconds.median / ours if ours and peer and peer.microseconds else None

    def limit_fraction(self, key: str) -> float | None:
        """The page-read limit's time over a contender's."""
        limit, median = self.median(LIMIT), self.median(key)
        return limit / median if limit and median else None

    def gigabytes_per_second(self, key: str) -> float | None:
        """Bytes of live pages over a contender's time."""
        median = self.median(key)
        return self.load.live_page_bytes / median * 1e-3 if median else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        load, peer = self.load, self.best_peer
        contenders = [
            asdict(entry)
            | {
                "gigabytes_per_second": self.gigabytes_per_second(entry.key),
                "limit_fraction": self.limit_fraction(entry.key),
            }
            for entry in self.entries
        ]
        return {
            "load": load.name,
            "requests": load.requests,
            "kv_heads": load.kv_heads,
            "window": load.window,
            "distribution": {"kind": type(load.distribution).__name__.lower()} | vars(load.distribution),
            "seed": load.seed,
            "lengths": list(load.lengths),
            "max_seq_len": self.max_seq_len,
            "fits": self.max_seq_len == load.longest,
            "live_pages": load.live_pages,
            "live_page_bytes": load.live_page_bytes,
            "read_bytes": load.read_bytes,
            "copies": self.copies,
            "rounds": self.rounds,
            "noise_microseconds": self.noise_microseconds,
            "best_peer": peer.key if peer else None,
            "lead": {key: self.lead(key) for key in (OURS, NAMED)},
            "limit_fraction": {key: self.limit_fraction(key) for key in (OURS, NAMED)},
            "contenders": contenders,
        }


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean, None of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return leads over all rows, over deployments that fit their load, and over the others."""

    def of(some: Iterable[Row], key: str) -> dict[str, Any]:
        leads = [lead for row in some if (lead := row.lead(key)) is not None]
        return {
            "rows": len(leads),
            "geometric_mean_lead": geometric_mean(leads),
            "least_lead": min(leads, default=None),
            "behind": sum(lead < 1 for lead in leads),
        }

    groups = {
        "all": rows,
        "fitting deployments": [row for row in rows if row.max_seq_len == row.load.longest],
        "longer deployments": [row for row in rows if row.max_seq_len != row.load.longest],
    }
    return {name: {key: of(some, key) for key in (OURS, NAMED)} for name, some in groups.items()}


def missing(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return what was not timed and why, each reason once, with the rows that it is about."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for entry in row.entries:
            if entry.status != TIMED:
                where = found.setdefault((entry.name, entry.status, entry.reason), [])
                where.append(f"{row.load} @ {row.max_seq_len}")
    return [
        {
            "name": name,
            "status": status,
            "reason": reason,
            "where": "every row" if len(where) == len(rows) else "; ".join(where),
        }
        for (name, status, reason), where in found.items()
    ]
