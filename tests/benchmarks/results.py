"""A synthetic result: every default load in both deployments, on made-up times."""

from benchmarks.loads import POINTS, UNEVEN, Load, deployments
from benchmarks.results import TIMED, UNAVAILABLE, Entry, Row
from benchmarks.timing import summarize


def entry(key: str, microseconds: float, peer: bool = False) -> Entry:
    """Return a contender that was timed."""
    samples = [0.9 * microseconds, microseconds, 1.2 * microseconds]
    name = f"{key} + norm-gate" if peer else key
    return Entry(key, name, TIMED, peer=peer, worst_error=3e-3, microseconds=summarize(samples))


def row_of(load: Load, max_seq_len: int | None = None, **changes: float) -> Row:
    """Return a row in which each contender takes twice to five times the limit, FlashAttention 4 missing."""
    limit = 2 + load.live_page_bytes / 4e6
    times = {"ours": 2 * limit, "ours-named": 2.5 * limit, "page-read": limit, "fa3": 5 * limit}
    times |= {"fi-fa2": 4 * limit} | changes
    entries = [entry(key, time, key in ("fa3", "fi-fa2")) for key, time in times.items()]
    entries.append(Entry("fa4", "FlashAttention 4 + norm-gate", UNAVAILABLE, "no module", peer=True))
    deployed = load.longest if max_seq_len is None else max_seq_len
    return Row(load, deployed, 64, rounds=20, noise_microseconds=0.01, entries=entries)


def all_rows() -> list[Row]:
    """Return a row for every load and deployment of a default run."""
    loads = (*POINTS, *UNEVEN)
    return [row_of(load, deployed) for load in loads for deployed in deployments(load, [None, 131072])]
