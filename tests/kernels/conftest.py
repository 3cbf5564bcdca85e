"""Fixtures of the kernel tests: generated variants as test subjects, on a GPU or on the emulator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from stages.slots import EpilogueReference
from tests.kernels.scale import GPU
from tests.modules import KERNELS, VARIANTS, epilogue_of, kernel_named, module_of
from verification.partition import Partition, partition_of
from verification.problems import Problem
from verification.runner import entry_name, run_emulated

LONGEST = 2048
"""The longest request of these tests."""


def in_one_cluster(variants: Mapping[str, tuple[ModuleType, Any]]) -> tuple[str, ...]:
    """The names of those that keep a request in one cluster and serve the requests of these tests."""
    return tuple(
        name
        for name, (_, variant) in variants.items()
        if not variant.kernel.splits and variant.max_seq_len >= LONGEST
    )


SHIPPED = in_one_cluster(VARIANTS)
"""The shipped variants that are tested here. Others that are shipped are compiled and verified."""

OF_TESTS = {"cluster8": "attn2", "cluster_plain": "attention"}
"""Variants that only tests need, with their modules.

cluster8: clusters of 8, whose warps take more than one step. cluster_plain: attention itself, because the
norm hides what scales a row.
"""

NAMES = (*SHIPPED, *OF_TESTS)
"""The variants under test."""


@pytest.fixture(scope="session")
def device() -> str:
    """Where tensors lie and kernels run: "cuda", or "cpu" for the emulator."""
    return "cuda" if GPU else "cpu"


@pytest.fixture(scope="session")
def attn2() -> ModuleType:
    """The module with norm and gate of the tests' own spec, of which the host side is tested."""
    return module_of(KERNELS, "attn2")


@dataclass(frozen=True)
class Subject:
    """One variant under test, on the GPU or on the emulator."""

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

    @property
    def partition(self) -> Partition:
        """Which warp attends which page."""
        return partition_of(self.kernel)

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
            return self.entry(**arguments, out=out, pdl=pdl, variant=self.name)
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


def subject_of(name: str, device: str) -> Subject:
    """The variant of `NAMES`, or another of a shipped module."""
    if name in VARIANTS:
        module, variant = VARIANTS[name]
        return Subject(module, variant.name, device)
    return Subject(module_of(KERNELS, OF_TESTS[name]), name, device)


@pytest.fixture(params=NAMES)
def subject(request, device) -> Subject:
    """Each variant in turn."""
    return subject_of(request.param, device)


@pytest.fixture
def plain(device) -> Subject:
    """The variant that stores attention itself."""
    return subject_of("cluster_plain", device)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The BF16 numbers of a tensor as integers, so that NaN and the sign of zero count."""
    return tensor.contiguous().view(torch.int16)


def batches(lengths: Sequence[int], size: int = 8) -> list[list[int]]:
    """The lengths in batches of at most `size` that are as unlike as can be."""
    count = -(-len(lengths) // size)
    return [list(lengths[i::count]) for i in range(count)]
