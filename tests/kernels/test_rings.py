"""What a ring is made of changes nothing but time: its stage, and how many pages it holds.

Bits depend on which pages are attended at once, because those share a maximum. So variants are compared that
attend as many at once. All are compiled with a window, each once; one wider than any request is none.
"""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from emulator.counts import Counts
from generator.compiled import load_module
from generator.render import generate
from tests.kernels.conftest import bits
from tests.kernels.scale import GPU
from tests.kernels.split_scale import NO_WINDOW
from tests.modules import KERNELS
from verification.problems import make_problem
from verification.runner import run_emulated

pytest_plugins = ["tests.kernels.split_subject"]


@dataclass(frozen=True)
class Ring:
    """A ring, and how many of its pages are attended at once."""

    pages_per_step: int
    stage: str
    depth: int

    def __str__(self) -> str:
        """The name of the variant that has this ring."""
        return f"{self.stage}_{self.depth}_by_{self.pages_per_step}"


OF_SPLIT_TINY = Ring(2, "cp_async_ring", 4)
"""Other tests compile this one, so it is taken from their module."""

TINY = (
    *(Ring(1, "cp_async_ring", 2), Ring(1, "bulk_ring", 16)),
    *(OF_SPLIT_TINY, Ring(2, "cp_async_ring", 16), Ring(2, "bulk_ring", 4)),
)
"""`split_tiny` with other rings. Compiling takes nearly all of the time here: no more than is needed."""

ON_GPU = (
    *(Ring(1, "cp_async_ring", 16), Ring(1, "bulk_ring", 2), Ring(1, "bulk_ring", 4)),
    *(Ring(4, "cp_async_ring", depth) for depth in (8, 12, 16)),
    *(Ring(4, "bulk_ring", depth) for depth in (8, 16)),
)
"""Further ones; four pages a step in the launch that users have."""

RINGS = (*TINY, *(ON_GPU if GPU else ()))

TINY_LENGTHS, LENGTHS = (2313, 0, 9, 137), (131081, 0, 9, 4200, 20003)
"""Of tiny kernels and of those that users have: long requests, padding, and a short request.

One cluster gives each CTA of the longest tiny request 72 pages: the deepest ring comes round four times, and
the walk looks up a third batch of table entries. In the last pages some tokens see fewer keys than others.
"""

TINY_CASES, CASES = (
    [(window, num_splits) for window in windows for num_splits in (1, 2, 5, 8)]
    for windows in ((NO_WINDOW, 1171), (NO_WINDOW, 9001))
)
"""(window, clusters that share a long request). The windows begin within a page and are long themselves.

Eight clusters leave CTAs of a request of nine pages without one.
"""

if not GPU:
    TINY_CASES = [(NO_WINDOW, 1), (1171, 8)]


@pytest.fixture(scope="session")
def ring_module(tmp_path_factory) -> ModuleType:
    """A generated module with a variant for each of the rings."""
    folder = tmp_path_factory.mktemp("rings")
    spec = yaml.safe_load(KERNELS.read_text(encoding="utf-8"))
    module = spec["modules"]["attention"]
    tiny, large = (module["variants"][name] for name in ("split_tiny", "split_plain"))
    module["variants"] = {}
    for ring in RINGS:
        variant = copy.deepcopy(tiny if ring.pages_per_step < 4 else large)
        variant["launch"]["ring_pages_per_step"] = ring.pages_per_step
        if ring.depth > 12:  # no three CTAs with such a ring fit on a multiprocessor
            variant["launch"]["resident_ctas"] = 2
        variant["stages"]["ring"] = {"stage": ring.stage, "depth": ring.depth}
        module["variants"][str(ring)] = variant
    edited = folder / "spec.yaml"
    edited.write_text(yaml.safe_dump({"modules": {"attention": module}}, sort_keys=False), encoding="utf-8")
    generate(edited, folder / "generated")
    return load_module(folder / "generated" / "attention.py")


@pytest.fixture
def rings(ring_module, splits) -> Mapping[Ring, Any]:
    """The variants by their rings, as test subjects."""
    tiny = splits["split_tiny"]
    subjects = {ring: dataclasses.replace(tiny, module=ring_module, name=str(ring)) for ring in RINGS}
    return {**subjects, OF_SPLIT_TINY: tiny}


def compare(subjects, lengths, window, num_splits):
    """The first variant is right, and the others have its bits."""
    first, *others = subjects
    problem = make_problem(lengths, device=first.device, seed=5, window=window)
    want = bits(first.check(problem, num_splits))
    for subject in others:
        assert torch.equal(bits(subject.run(problem, num_splits)), want), subject.name


@pytest.mark.parametrize("pages_per_step", [1, 2])
@pytest.mark.parametrize(("window", "num_splits"), TINY_CASES)
def test_all_rings_give_the_same_bits(rings, pages_per_step, window, num_splits):
    """Rings of 2 to 16 pages that threads fill by `cp.async`, and that the copy engine fills."""
    subjects = [rings[ring] for ring in RINGS if ring.pages_per_step == pages_per_step]
    compare(subjects, TINY_LENGTHS, window, num_splits)


@pytest.mark.cuda("compares large kernels")
@pytest.mark.parametrize(("window", "num_splits"), CASES)
def test_all_rings_of_the_shipped_launch_give_the_same_bits(rings, window, num_splits):
    """Clusters of 16 and four pages a step, at lengths that only a GPU is quick enough for."""
    compare([rings[ring] for ring in RINGS if ring.pages_per_step == 4], LENGTHS, window, num_splits)


@pytest.mark.pin
@pytest.mark.parametrize("ring", TINY, ids=str)
def test_no_ring_reads_twice_or_waits_for_a_bank(rings, ring):
    """A ring brings each byte of a live page once and no other; its shared memory has no bank conflicts.

    As the emulator counts it, wherever the other tests run.
    """
    subject = dataclasses.replace(rings[ring], device="cpu")
    problem = make_problem([345], window=NO_WINDOW)
    arguments = {**problem.arguments(), "num_splits": 2, **subject.scratch(problem, 2).arguments()}
    counts = Counts()
    run_emulated(subject.module, subject.name, arguments, observers=[counts])
    cache = counts.buffers[f"argument {list(arguments).index('kv_cache')}"]
    assert cache.loads_of_each_byte(0, cache.bytes) == (0, 1)
    assert cache.loaded == int(problem.needed.sum()) * problem.kv_cache.stride(0) * 2
    assert counts.shared.accesses > 0
    assert counts.shared.extra == 0, counts.conflicts
