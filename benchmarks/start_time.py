"""Start time: what an engine waits for its kernels, compiled at the start or read from a folder.

    python -m benchmarks.start_time                        # the table
    python -m benchmarks.start_time --json start.json      # for programs as well

Method
    Each run is a process of its own, in which PyTorch is imported and the device awake. Timed are, one after
    the other, the import of the generated module; `prepare` for a context that the cluster kernel serves, one
    that is split, and a window: all kernels without dependent launch that deployments get which name no
    variant; and a call, until the device is done with it. Runs of both ways alternate. The folder is written
    before, by `export_kernels`; its files are in the system's cache, as they are on an engine's second start.
    The import is the same either way and is shown for comparison.

Exit status: 0, or 2 for a wrong call or no GPU.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.contenders import OUR_MODULES, import_first
from benchmarks.loads import Load
from benchmarks.problem import EPS, SCALE, Problem
from benchmarks.timing import Summary, summarize

DEPLOYMENTS = ({"max_seq_len": 2048}, {"max_seq_len": 131072}, {"max_seq_len": 131072, "window": 2048})
"""One for each of these kernels."""

STEPS = ("import", "prepare", "first call")


def start(folder: str | None) -> dict[str, float]:
    """Seconds of each step, in this process. folder: of exported kernels; they are compiled without it."""
    torch.zeros(1, device="cuda").item()
    began = time.perf_counter()
    module, reason = import_first(OUR_MODULES)
    if module is None:
        raise RuntimeError(reason)
    imported = time.perf_counter()
    for deployment in DEPLOYMENTS:
        module.prepare(kv_heads=1, **deployment, from_dir=folder)
    prepared = time.perf_counter()

    load, device = Load.even(1, 1, 512), torch.device("cuda", 0)
    problem = Problem(load, calls=1, copies=1, max_seq_len=2048, device=device)
    (out,) = problem.outputs()
    tensors = (problem.q, problem.gate, problem.cache(0), problem.block_table, problem.seq_lens)
    torch.cuda.synchronize()
    before = time.perf_counter()
    module.attn2(*tensors, **DEPLOYMENTS[0], scale=SCALE, eps=EPS, out=out)
    torch.cuda.synchronize()
    called = time.perf_counter()
    assert bool(torch.isfinite(out).all())
    return dict(zip(STEPS, (imported - began, prepared - imported, called - before), strict=True))


def start_elsewhere(folder: str | None) -> dict[str, float]:
    """Seconds of each step, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.start_time", "--one", folder or ""]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the table; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start_time", description="Start time with and without exported kernels."
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="processes of each way (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    parser.add_argument("--one", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.runs < 1:
        parser.error(f"--runs: at least 1 is needed, not {options.runs}")
    if not torch.cuda.is_available():
        print("error: a CUDA GPU is needed; nothing was measured", file=sys.stderr)
        return 2
    if options.one is not None:
        print(json.dumps(start(options.one or None)))
        return 0
    module, reason = import_first(OUR_MODULES)
    if module is None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        module.export_kernels(folder, arch=f"sm_{major}{minor}a")
        ways = {"compiled": None, "read": folder}
        found = [{way: start_elsewhere(place) for way, place in ways.items()} for _ in range(options.runs)]
    times: dict[str, dict[str, Summary]] = {
        way: {step: summarize([1e3 * run[way][step] for run in found]) for step in STEPS} for way in ways
    }
    print(f"{torch.cuda.get_device_name()}, {len(DEPLOYMENTS)} kernels, {options.runs} processes of each way")
    print(f"{'ms':10} " + " ".join(f"{step:>24}" for step in STEPS))
    for way, steps in times.items():
        cells = [f"{s.median:.1f} ({s.least:.1f} to {s.most:.1f})" for s in steps.values()]
        print(f"{way:10} " + " ".join(f"{cell:>24}" for cell in cells))
    if options.json:
        content = {way: {step: vars(s) for step, s in steps.items()} for way, steps in times.items()}
        options.json.write_text(json.dumps({"milliseconds": content}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
