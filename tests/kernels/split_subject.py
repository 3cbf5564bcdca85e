"""The split variants as test subjects, on a GPU or on the emulator: a plugin of the tests that name it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from stages.slots import EpilogueReference
from tests.kernels.split_scale import GUARD, UNITS
from tests.modules import KERNELS, VARIANTS, epilogue_of, kernel_named, module_of
from verification.partition import Partition, partition_of
from verification.problems import Problem
from verification.runner import entry_name, run_emulated

OF_TESTS = {"split_plain": "attention", "split_small": "attn2", "split_tiny": "attention"}
"""Variants that only tests need, with their modules: see `tests/specs/kernels.yaml`."""

UNTOUCHED = 0xFF
"""What every byte of a workspace holds before a call: its numbers are NaN."""


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
        return epilogue_of(self.kernel)

    @property
    def kernel(self) -> Any:
        """The kernel object."""
        return kernel_named(self.module, self.name)

    @property
    def entry(self) -> Callable[..., torch.Tensor]:
        """The module's entry point."""
        return getattr(self.module, entry_name(self.module))

    def partition(self, num_splits: int) -> Partition:
        """Which share attends which page."""
        return partition_of(self.kernel, num_splits)

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
            return self.entry(**arguments, out=out, pdl=pdl, variant=self.name)
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


def split_subject(name: str, device: str) -> SplitSubject:
    """The variant of that name: of a shipped module, or one of the tests' own."""
    if name in VARIANTS:
        module, variant = VARIANTS[name]
        return SplitSubject(module, variant.name, device)
    return SplitSubject(module_of(KERNELS, OF_TESTS[name]), name, device)


class Splits(Mapping[str, SplitSubject]):
    """The variants under test by their names; a module is loaded when a variant of it is asked for."""

    def __init__(self, device: str):
        self.device = device

    def __getitem__(self, name: str) -> SplitSubject:
        return split_subject(name, self.device)

    def __iter__(self) -> Iterator[str]:
        return iter(UNITS)

    def __len__(self) -> int:
        return len(UNITS)


@pytest.fixture
def splits(device) -> Mapping[str, SplitSubject]:
    """The variants that spread requests over clusters, by their names in `split_scale.UNITS`."""
    return Splits(device)
