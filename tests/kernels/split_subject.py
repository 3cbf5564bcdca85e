"""The split variants as test subjects, on a GPU or on the emulator: a plugin of the tests that name it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from generated import attn2 as checked_in
from generator.compiled import load_module
from generator.render import generate
from stages.slots import EpilogueReference
from tests.kernels.conftest import SPEC
from tests.kernels.split_scale import GUARD
from tests.references import epilogue_of
from verification.partition import Partition, partition_of
from verification.problems import Problem
from verification.runner import run_emulated

NAMES = ("split", "batch", "split_plain", "split_small", "split_tiny")
"""The variants under test."""

UNTOUCHED = 0xFF
"""What every byte of a workspace holds before a call: its numbers are NaN."""


@pytest.fixture(scope="session")
def split_module(tmp_path_factory) -> ModuleType:
    """A generated module with the split variant and some that only tests need.

    split_plain: attention itself, because the norm hides what scales a row. split_small: requests of more
    than 64 pages are long. split_tiny: clusters of 2, two pages a step, requests of more than 8 pages are
    long, rings of 4 pages, attention itself. cluster_tiny: the cluster kernel in clusters of 2, attention
    itself.
    """
    folder = tmp_path_factory.mktemp("split")
    spec = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    variants = spec["modules"]["attn2"]["variants"]
    plain, small, tiny = (copy.deepcopy(variants["split"]) for _ in range(3))
    plain["stages"]["epilogue"] = tiny["stages"]["epilogue"] = "plain"
    small["launch"]["short_rounds"] = tiny["launch"]["short_rounds"] = 1
    tiny["launch"].update(cluster=2, pages_per_step=2, ring_pages_per_step=2)
    tiny["stages"]["ring"]["depth"] = 4
    short = copy.deepcopy(variants["cluster"])
    short["serves"]["max_seq_len"], short["launch"]["cluster"] = 512, 2
    short["stages"]["epilogue"] = "plain"
    variants.update(split_plain=plain, split_small=small, split_tiny=tiny, cluster_tiny=short)
    edited = folder / "spec.yaml"
    edited.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    generate(edited, folder / "generated")
    return load_module(folder / "generated" / "attn2.py")


@dataclass(frozen=True)
class Scratch:
    """Workspace and counters of a call, in larger memory."""

    workspace: torch.Tensor
    counters: torch.Tensor

    def arguments(self) -> dict[str, torch.Tensor]:
        """What the call gets."""
        return {"workspace": self.workspace[:-GUARD], "counters": self.counters[:-GUARD]}

    def check(self) -> None:
        """The counters are zero again, and nothing behind either was written."""
        assert not self.counters.any()
        assert (self.workspace[-GUARD:] == UNTOUCHED).all()


@dataclass(frozen=True)
class SplitSubject:
    """One split variant under test, on the GPU or on the emulator."""

    module: ModuleType
    name: str
    device: str

    @property
    def epilogue(self) -> EpilogueReference:
        """The reference of its epilogue."""
        return epilogue_of(self.module, self.name)

    def partition(self, num_splits: int) -> Partition:
        """Which share attends which page."""
        (kernel,) = (v.kernel for v in self.module.VARIANTS if v.name == self.name)
        return partition_of(kernel, num_splits)

    def deployment(self, problem: Problem, num_splits: int) -> dict[str, Any]:
        """What is known of a problem before its first call."""
        return {
            "kv_heads": problem.kv_cache.shape[1],
            "max_seq_len": problem.max_seq_len,
            "window": problem.window,
            "num_splits": num_splits,
            "variant": self.name,
        }

    def scratch(self, problem: Problem, num_splits: int = 1) -> Scratch:
        """Counters of zero and a workspace full of NaN, just as large as they have to be."""
        workspace, counters = self.module.allocate_scratch(
            len(problem.seq_lens), **self.deployment(problem, num_splits), device=self.device
        )
        return Scratch(
            torch.full_like(workspace.new_empty(len(workspace) + GUARD), UNTOUCHED),
            torch.zeros_like(counters.new_empty(len(counters) + GUARD)),
        )

    def prepare(self, problem: Problem, *, pdl: bool = False) -> None:
        """Compile what `run` will launch."""
        self.module.prepare(**self.deployment(problem, 1), pdl=pdl)

    def call(
        self,
        problem: Problem,
        scratch: Scratch,
        *,
        num_splits: int = 1,
        out: torch.Tensor | None = None,
        pdl: bool = False,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Call the kernel, with nothing checked. seed: of the emulator's schedule; a GPU makes its own."""
        out = problem.poisoned_out() if out is None else out
        arguments = {**problem.arguments(), "num_splits": num_splits, **scratch.arguments()}
        if self.device == "cuda":
            return self.module.attn2(**arguments, out=out, pdl=pdl, variant=self.name)
        return run_emulated(self.module, self.name, arguments, out=out, pdl=pdl, seed=seed)[0]

    def run(self, problem: Problem, num_splits: int = 1, **more: Any) -> torch.Tensor:
        """`call` into an output full of NaN and with scratch memory of its own, which is checked."""
        scratch = self.scratch(problem, num_splits)
        out = self.call(problem, scratch, num_splits=num_splits, **more)
        scratch.check()
        return out

    def compare(self, out: torch.Tensor, problem: Problem, num_splits: int = 1) -> None:
        """Compare an output with the reference."""
        problem.check(out, self.partition(num_splits), self.epilogue)

    def check(self, problem: Problem, num_splits: int = 1, **more: Any) -> torch.Tensor:
        """Call the kernel and compare with the reference; returns the output."""
        out = self.run(problem, num_splits, **more)
        self.compare(out, problem, num_splits)
        return out


@pytest.fixture
def splits(split_module, device) -> Mapping[str, SplitSubject]:
    """The variants by their names; those that are shipped from the checked-in module."""
    shipped = {variant.name for variant in checked_in.VARIANTS}
    modules = {name: checked_in if name in shipped else split_module for name in NAMES}
    return {name: SplitSubject(module, name, device) for name, module in modules.items()}
