"""Where regions of shared memory lie: one after the other, aligned, and some of them in the same place."""

import dataclasses
from types import SimpleNamespace

import pytest

from generator.errors import CatalogError
from generator.layout import build_stage, lay_out, shared_bytes, shared_sum
from generator.plan import load_plan
from stages.contract import Region
from tests.generator.fakes import RING, RINGED, edited, entry, plan_of, problems_of, with_stages
from tests.modules import PINNED

OVERLAID = dataclasses.replace(RINGED, overlays=(("warp_partials", "ring"),))
"""The skeleton with a ring, in whose place the warps merge."""


@pytest.fixture
def overlaid(catalog):
    """The project's catalog with a ring and that skeleton."""
    return with_stages(catalog, entry("pages", "ring", RING), skeletons={"cluster": OVERLAID})


def owner(slot: str, *regions: Region) -> SimpleNamespace:
    """A stage with these regions."""
    return SimpleNamespace(slot=slot, regions=regions)


def places(stages, overlays=()) -> list[tuple[str, int]]:
    """The regions' names and offsets."""
    return [(region.name, region.offset) for region in lay_out(stages, overlays)]


STAGES = (
    owner("a", Region("first", 9, align=1)),
    owner("b", Region("small", 40, align=8), Region("odd", 3, align=1)),
    owner("c", Region("large", 300, align=128)),
    owner("d", Region("last", 8, align=8)),
)


def test_regions_follow_each_other():
    """In the order of their stages, each at the first offset that is aligned as it asks."""
    assert places(STAGES) == [("first", 0), ("small", 16), ("odd", 56), ("large", 128), ("last", 432)]
    assert shared_bytes(lay_out(STAGES)) == 440
    assert shared_bytes(()) == 0


def test_regions_of_a_group_begin_together():
    """At an offset that suits all of the group, and what follows lies behind the largest, whichever it is."""
    overlays = (("large", "small"),)
    regions = lay_out(STAGES, overlays)
    assert places(STAGES, overlays) == [
        ("first", 0),
        ("small", 128),
        ("odd", 428),
        ("large", 128),
        ("last", 432),
    ]
    assert [(region.bytes, region.align) for region in regions if region.offset == 128] == [
        (40, 8),
        (300, 128),
    ]
    assert shared_sum(regions) == (
        "first 9 B + small 40 B or large 300 B + odd 3 B + last 8 B + padding 120 B = 440 B"
    )
    backwards = lay_out(reversed(STAGES), overlays)
    assert {region.name: region.offset for region in backwards} == {
        "last": 0, "large": 128, "small": 128, "odd": 428, "first": 431,
    }  # fmt: skip
    assert shared_bytes(backwards) == 440


def test_a_region_at_the_end_may_be_the_smaller_one():
    """The sum is that of the region that reaches farthest, not that of the last."""
    stages = owner("a", Region("large", 64)), owner("b", Region("small", 16))
    assert shared_bytes(lay_out(stages, (("large", "small"),))) == 64


def test_the_split_variant(catalog):
    """The warps of its short path merge where its long path has the ring; each offset suits its region."""
    plan = load_plan(PINNED, catalog)
    (split,) = (variant for variant in plan.modules[0].variants if variant.name == "split")
    assert [(region.name, region.offset, region.bytes, region.align) for region in split.regions] == [
        ("page_ring", 0, 32768, 128),
        ("warp_partials", 0, 17408, 16),
        ("rank_partials", 32768, 17408, 16),
        ("arrived", 50176, 8, 8),
    ]
    assert split.shared_bytes == 50184


def test_offsets_of_an_overlay_reach_the_kernel(overlaid):
    """Both fields of the kernel have the same offset; the CTA has no bytes for the smaller region."""
    (variant,) = plan_of(edited(("register_prefetch", "ring")), overlaid).modules[0].variants
    fields = variant.kernel_fields
    assert (fields["ring"], fields["warp_partials"], fields["rank_partials"]) == (0, 0, 65536)
    assert (fields["shared_bytes"], variant.shared_bytes) == (69896, 69896)


def test_too_much_shared_memory_with_an_overlay(monkeypatch, overlaid):
    """The message says that a CTA has one region or the other, and what fits is found with the overlay."""
    for module in ("generator.compose", "generator.layout"):
        monkeypatch.setattr(f"{module}.MAX_SHARED_BYTES", 69896)
    assert problems_of(edited(("register_prefetch", "{stage: ring, depth: 4}")), overlaid) == []
    (problem,) = problems_of(edited(("register_prefetch", "{stage: ring, depth: 8}")), overlaid)
    assert problem.endswith(
        "too much shared memory: ring 131072 B or warp_partials 17408 B + rank_partials 4352 B + arrived 8 B "
        "= 135432 B; a CTA has at most 69896 B; allowed: depth 2, depth 4"
    )


@pytest.mark.parametrize("align", [1, 2, 4, 8, 16, 32, 64, 128])
def test_alignments(align):
    """Powers of two, up to what the kernels ask of a CTA's shared memory."""
    region = Region("ring", 16, align=align)
    contract = dataclasses.replace(RING, shared=lambda stage: (region,))
    stage = build_stage(entry("pages", "ring", contract), {"page_size": 16, "warps": 4}, {"depth": 4})
    assert stage.regions == (region,)


@pytest.mark.parametrize(
    ("size", "align"), [(16, 0), (16, -1), (16, 3), (16, 48), (16, 256), (0, 16), (-1, 16)]
)
def test_regions_that_cannot_be(size, align):
    """An empty region, and alignments that are no power of two or more than shared memory has."""
    contract = dataclasses.replace(RING, shared=lambda stage: (Region("ring", size, align=align),))
    with pytest.raises(CatalogError, match="its alignment is a power of two, at most 128"):
        build_stage(entry("pages", "ring", contract), {"page_size": 16, "warps": 4}, {"depth": 4})
