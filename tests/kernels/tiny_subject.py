"""The smallest kernel of each skeleton as test subjects that are used alike: a plugin of tests that name it.

For what takes many launches, or many kinds of input: on the emulator one takes some hundredths of a second.
On a GPU the variants that users have come on top.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.kernels.conftest import SHIPPED, Subject
from tests.kernels.scale import GPU
from tests.kernels.split_scale import WITH_SHORT, WITHOUT_SHORT
from tests.modules import KERNELS, VARIANTS, module_of
from verification.problems import Problem

pytest_plugins = ["tests.kernels.split_subject"]

NAMES = ("cluster_tiny", "split_tiny", *((*SHIPPED, *WITH_SHORT) if GPU else ()))


@dataclass(frozen=True)
class ClusterSubject(Subject):
    """A cluster variant, which takes a number of splits and makes nothing of it."""

    def run(self, problem: Problem, num_splits: int = 1, **more: Any) -> torch.Tensor:
        """See `Subject.run`."""
        return super().run(problem, **more)

    def check(self, problem: Problem, num_splits: int = 1, **more: Any) -> torch.Tensor:
        """See `Subject.check`."""
        return super().check(problem, **more)


def _subject(name: str, splits: Mapping[str, Any], device: str) -> Any:
    if name in splits:
        return splits[name]
    if name in VARIANTS:
        module, variant = VARIANTS[name]
        return ClusterSubject(module, variant.name, device)
    return ClusterSubject(module_of(KERNELS, "attention"), name, device)


@pytest.fixture(params=NAMES)
def tiny(request, splits, device):
    """Each of them in turn."""
    return _subject(request.param, splits, device)


@pytest.fixture(params=dict.fromkeys((*NAMES, *WITHOUT_SHORT)))
def smallest(request, splits, device):
    """Each of them in turn, then the shipped variants that spread every request, however short."""
    return _subject(request.param, splits, device)
