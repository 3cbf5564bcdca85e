"""Run the tests in a copy of the checkout to whose spec a variant and a module have been added.

    python -m tests.extended                          # all tests, on two workers
    python -m tests.extended tests/kernels -k bits    # or what pytest is told

No test may depend on what else the spec holds, and the added variants have to be tested like the others. The
copy lies in a temporary folder, uses this checkout's `.venv` and is removed in the end.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.modules import ROOT

VARIANT = """
      cluster8:
        skeleton: cluster
        serves: {max_seq_len: 2048, window: false}
        launch: {cluster: 8, warps: 4, pages_per_step: 2}
        stages: {pages: register_prefetch, scores: mma_qk, softmax: online, values: mma_pv,
                 warp_merge: shared, push: dsmem, cluster_merge: rank_order, epilogue: norm_gate}
"""
"""Added to the last module of the spec."""

MODULE = """
  attention:
    problem: {head_dim: 64, heads_per_kv: 8, tokens: 8, page_size: 16, dtype: bf16}
    variants:
      cluster_plain:
        skeleton: cluster
        serves: {max_seq_len: 2048, window: false}
        launch: {cluster: 16, warps: 4, pages_per_step: 2}
        stages: {pages: register_prefetch, scores: mma_qk, softmax: online, values: mma_pv,
                 warp_merge: shared, push: dsmem, cluster_merge: rank_order, epilogue: plain}
"""
"""Added behind it."""

IGNORED = (".git", ".venv*", ".whl", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")


def extended(spec: str) -> str:
    """The text of a spec with the variant and the module."""
    return spec.rstrip() + "\n" + VARIANT + MODULE


def copy_extended(folder: Path) -> Path:
    """A copy of the checkout in `folder`, with the extended spec and what is generated from it."""
    copy = shutil.copytree(ROOT, folder / "checkout", ignore=shutil.ignore_patterns(*IGNORED))
    (copy / ".venv").symlink_to((ROOT / ".venv").resolve())
    spec = copy / "spec.yaml"
    spec.write_text(extended(spec.read_text(encoding="utf-8")), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "generator", "generate"], cwd=copy, check=True)
    return copy


def main(arguments: Sequence[str]) -> int:
    """Run pytest in the copy; its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_extended(Path(folder))
        command = [sys.executable, "-m", "pytest", "-q", *(arguments or ("-n", "2", "tests"))]
        return subprocess.run(command, cwd=copy, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
