"""What compute-sanitizer is given: every kernel form of every module of the spec on a small batch, checked.

    options="--report-api-errors no --kernel-name kns=kernel_cutlass"
    compute-sanitizer --tool memcheck  $options python -m tests.sanitize
    compute-sanitizer --tool racecheck $options python -m tests.sanitize
    compute-sanitizer --tool synccheck $options python -m tests.sanitize --cluster 8

Short and padded requests, and where a variant splits long ones, one that all clusters share; with and without
a window and dependent launch. Pages, tables and lengths end where their memory does, so that the tool sees a
read past them. `--cluster` and `--ring` put another size and another ring into the spec. Exit status 1 if a
result is wrong.

API errors are left out because asking a kernel for its parameters ends with one, on purpose. On an H200
memcheck finds nothing, and racecheck no error; it warns of the mbarriers, which one thread starts and uses.
synccheck finds nothing with clusters of 8. With clusters of 16 it reports a missing wait, of rank 8 alone: it
seems to take that rank's mbarrier for the one of rank 0, which lies at the same offset.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
import yaml

from generator.compiled import load_module
from generator.render import generate
from tests.modules import SPEC, epilogue_of
from verification.partition import partition_of
from verification.problems import Layout, make_problem
from verification.runner import entry_name

NUM_SPLITS = 3


def modules_with(folder: Path, cluster: int | None, ring: str | None) -> list[ModuleType]:
    """The spec's modules with this size of all clusters and this ring, made in a folder."""
    spec = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    for module in spec["modules"].values():
        for variant in module["variants"].values():
            if cluster is not None:
                variant["launch"]["cluster"] = cluster
            if ring is not None and "ring" in variant["stages"]:
                variant["stages"]["ring"]["stage"] = ring
    edited = folder / "spec.yaml"
    edited.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    generate(edited, folder)
    return [load_module(folder / f"{name}.py") for name in spec["modules"]]


def run_all(module: ModuleType) -> None:
    """Every form, once."""
    attention = getattr(module, entry_name(module))
    for variant in module.VARIANTS:
        kernel = variant.kernel
        windows = (None, 700) if variant.windows else (None,)
        lengths = [40, 0, 9, 1033]
        if kernel.splits:
            lengths.append(kernel.short_pages * kernel.page_size + 137)
        for window in windows:
            layout = Layout(spare_columns=0)
            problem = make_problem(lengths, kv_heads=2, device="cuda", layout=layout, window=window)
            deployment = {"max_seq_len": problem.max_seq_len, "window": window, "num_splits": NUM_SPLITS}
            deployment["variant"] = variant.name
            workspace, counters = module.allocate_scratch(len(lengths), kv_heads=2, **deployment)
            arguments = problem.arguments() | {"workspace": workspace, "counters": counters} | deployment
            for pdl in (False, True):
                out = attention(**arguments, pdl=pdl)
                problem.check(out, partition_of(kernel, NUM_SPLITS), epilogue_of(kernel))
            print(f"{module.NAME}.{variant.name}, clusters of {kernel.cluster}, window {window}: right")
    torch.cuda.synchronize()


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sanitize", description="All kernels on a small batch."
    )
    parser.add_argument("--cluster", type=int, metavar="N", help="CTAs of a cluster, instead of the spec's")
    parser.add_argument("--ring", metavar="STAGE", help="ring stage, instead of the spec's")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        for module in modules_with(Path(folder), options.cluster, options.ring):
            run_all(module)
    return 0


if __name__ == "__main__":
    sys.exit(main())
