"""Fixtures of the kernel tests: generated variants as test subjects, on a GPU or on the emulator."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from generator.compiled import load_module
from generator.render import generate
from stages.slots import EpilogueReference
from tests.kernels.scale import GPU
from tests.references import epilogue_of
from verification.partition import Partition, partition_of
from verification.problems import Problem
from verification.runner import run_emulated

SPEC = Path(__file__).resolve().parents[2] / "spec.yaml"

NAMES = ("cluster", "cluster8", "cluster_plain")
"""The variants under test."""


@pytest.fixture(scope="session")
def device() -> str:
    """Where tensors lie and kernels run: "cuda", or "cpu" for the emulator."""
    return "cuda" if GPU else "cpu"


@pytest.fixture(scope="session")
def workshop_path(tmp_path_factory) -> Path:
    """A generated module with the checked-in variant and two that only tests need.

    cluster8: clusters of 8, whose warps take more than one step. cluster_plain: attention itself, because
    the norm hides what scales a row.
    """
    folder = tmp_path_factory.mktemp("workshop")
    spec = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    variants = spec["modules"]["attn2"]["variants"]
    variants["cluster8"] = copy.deepcopy(variants["cluster"])
    variants["cluster8"]["launch"]["cluster"] = 8
    variants["cluster_plain"] = copy.deepcopy(variants["cluster"])
    variants["cluster_plain"]["stages"]["epilogue"] = "plain"
    edited = folder / "spec.yaml"
    edited.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    generate(edited, folder / "generated")
    return folder / "generated" / "attn2.py"


@pytest.fixture(scope="session")
def workshop_module(workshop_path) -> ModuleType:
    """The module at `workshop_path`."""
    return load_module(workshop_path)


@dataclass(frozen=True)
class Subject:
    """One variant under test, on the GPU or on the emulator."""

    module: ModuleType
    name: str
    device: str

    @property
    def epilogue(self) -> EpilogueReference:
        """The reference of its epilogue."""
        return epilogue_of(self.module, self.name)

    @property
    def partition(self) -> Partition:
        """Which warp attends which page."""
        (kernel,) = (v.kernel for v in self.module.VARIANTS if v.name == self.name)
        return partition_of(kernel)

    def prepare(self, problem: Problem, **more: Any) -> None:
        """Compile what `run` will launch."""
        self.module.prepare(
            kv_heads=problem.kv_cache.shape[1], max_seq_len=problem.max_seq_len, variant=self.name, **more
        )

    def call(
        self,
        arguments: dict[str, Any],
        *,
        out: torch.Tensor | None = None,
        pdl: bool = False,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Call the kernel. seed: of the emulator's schedule; a GPU makes its own."""
        if self.device == "cuda":
            return self.module.attn2(**arguments, out=out, pdl=pdl, variant=self.name)
        return run_emulated(self.module, self.name, arguments, out=out, pdl=pdl, seed=seed)[0]

    def run(self, problem: Problem, *, out: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        """`call` for a problem; the kernel writes to an output full of NaN unless one is given."""
        out = problem.poisoned_out() if out is None else out
        assert self.call(problem.arguments(), out=out, **more) is out
        return out

    def compare(self, out: torch.Tensor, problem: Problem) -> None:
        """Compare an output with the reference."""
        problem.check(out, self.partition, self.epilogue)

    def check(self, problem: Problem, **more: Any) -> torch.Tensor:
        """Call the kernel and compare with the reference; returns the output."""
        out = self.run(problem, **more)
        self.compare(out, problem)
        return out


@pytest.fixture(params=NAMES)
def subject(request, device, workshop_module) -> Subject:
    """Each variant in turn."""
    return Subject(workshop_module, request.param, device)


@pytest.fixture
def plain(device, workshop_module) -> Subject:
    """The variant that stores attention itself."""
    return Subject(workshop_module, "cluster_plain", device)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The BF16 numbers of a tensor as integers, so that NaN and the sign of zero count."""
    return tensor.contiguous().view(torch.int16)


def batches(lengths: Sequence[int], size: int = 8) -> list[list[int]]:
    """The lengths in batches of at most `size` that are as unlike as can be."""
    count = -(-len(lengths) // size)
    return [list(lengths[i::count]) for i in range(count)]
