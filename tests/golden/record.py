"""Record on a GPU what the emulator is compared with: `python -m tests.golden.record --out tests/golden`.

Runs every case and both attention batches, each twice (equal bits, inputs untouched), and writes `micro.npz`,
`attention.npz` and `record.json`. Takes under a minute on the device.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import re
import sys
from pathlib import Path

import numpy as np
import torch

from tests import device
from tests.golden import attention, store, survey
from tests.golden.case import Case
from tests.golden.instruction_cases import instruction_cases
from tests.golden.stage_cases import stage_cases
from tests.golden.wgmma_cases import wgmma_cases


def machine(date: str) -> dict[str, str]:
    """What the recordings were made on and with; `date` as given."""
    properties = torch.cuda.get_device_properties(0)
    versions = {name: importlib.metadata.version(name) for name in ("nvidia-cutlass-dsl", "torch", "numpy")}
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "python": sys.version.split()[0],
        "date": date,
        **versions,
    }


def _driver() -> str:
    """The driver's version as the kernel module tells it, else the CUDA version that it supports."""
    told = Path("/proc/driver/nvidia/version")
    if told.exists() and (found := re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", told.read_text())):
        return found[1]
    from cuda.bindings import driver

    error, version = driver.cuDriverGetVersion()
    return f"CUDA {version // 1000}.{version % 1000 // 10}" if int(error) == 0 else "unknown"


def ptx_digest(ptx: str) -> str:
    """sha256 of PTX without comments, line information and blank space."""
    kept = re.sub(r"//[^\n]*|^\s*\.(?:loc|file)[^\n]*", "", ptx, flags=re.MULTILINE)
    return hashlib.sha256(" ".join(kept.split()).encode()).hexdigest()


def record(case: Case, arch: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What to store of one case, and its digests."""
    outputs = device.run(case.kernel, case.arguments)
    for got, back in zip(outputs, store.unpack(case, store.pack(case, outputs)), strict=True):
        assert got.tobytes() == back.tobytes(), f"{case.name} does not survive being stored"
    digests = {
        "sources": case.source_digest(),
        "inputs": case.inputs_digest(),
        "ptx": ptx_digest(device.compile_kernel(case.kernel, arch).ptx),
    }
    return store.pack(case, outputs), digests


def main() -> None:
    """Record everything into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="date to note")
    parser.add_argument(
        "--survey", type=Path, help="also write exhaustive tables here: 1.2 MB, for whoever models them"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a CUDA device is needed")
    arch = "sm_{}{}a".format(*torch.cuda.get_device_capability())
    options.out.mkdir(parents=True, exist_ok=True)

    arrays: dict[str, np.ndarray] = {}
    digests = {}
    for case in [*instruction_cases(), *stage_cases(), *wgmma_cases()]:
        stored, digests[case.name] = record(case, arch)
        arrays |= stored
        print(f"{case.name}: {sum(x.nbytes for x in stored.values())} bytes", flush=True)
    store.save(options.out, "micro", arrays)

    arrays = {}
    for batch in attention.BATCHES:
        arrays[f"{batch.name}.0"] = attention.run_on_gpu(batch)
        digests[batch.name] = {"sources": attention.source_digest(), "inputs": batch.inputs_digest()}
        print(f"{batch.name}: {arrays[f'{batch.name}.0'].nbytes} bytes", flush=True)
    store.save(options.out, "attention", arrays)
    exhaustive = survey.digests(survey.on_device)
    store.save_facts(
        options.out, {"machine": machine(options.date), "cases": digests, "exhaustive": exhaustive}
    )
    if options.survey:
        survey.save_tables(options.survey)


if __name__ == "__main__":
    main()
