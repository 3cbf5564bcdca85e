"""A stage that its own values keep from working: refused, with its reason and its place."""

import dataclasses

import pytest

from tests.generator.fakes import RING, RINGED, edited, entry, problems_of, with_stages
from tests.modules import PINNED

VARIANT = "modules.attn2.variants.cluster"


def test_a_stage_that_cannot_work(catalog):
    """Each value is allowed, but not all of them together: the stage says why, at its first parameter.

    Nor is such a value offered where others are too large.
    """
    contract = dataclasses.replace(
        RING,
        unfit=lambda stage: "a ring of depth 2 is too short" if stage.depth == 2 else None,
    )
    catalog = with_stages(catalog, entry("pages", "ring", contract), skeletons={"cluster": RINGED})
    assert problems_of(edited(("register_prefetch", "{stage: ring, depth: 4}")), catalog) == []
    assert problems_of(edited(("register_prefetch", "{stage: ring, depth: 2}")), catalog) == [
        f"spec.yaml:10:39: {VARIANT}.stages.pages.depth: a ring of depth 2 is too short"
    ]
    (problem,) = problems_of(edited(("register_prefetch", "{stage: ring, depth: 16}")), catalog)
    assert problem.endswith("allowed: depth 4, depth 8")


@pytest.mark.parametrize(
    ("ring", "depth", "wrong"),
    [
        ("cp_async_ring", 8, None),
        ("cp_async_ring", 6, "a ring of depth 6 holds no two steps of 4 pages"),
        ("bulk_ring", 4, None),
        ("bulk_ring", 2, "a ring of depth 2 holds no step of 4 pages"),
    ],
)
def test_the_project_refuses_rings_too_small_for_their_steps(catalog, ring, depth, wrong):
    """The cp.async ring needs two steps, one to attend while the other is on its way; the bulk ring one."""
    spec, _, _ = PINNED.read_text().partition("      batch:")
    old = "ring: {stage: cp_async_ring, depth: 8}"
    text = edited((old, f"ring: {{stage: {ring}, depth: {depth}}}"), text=spec)
    problems = problems_of(text, catalog)
    assert len(problems) == (wrong is not None)
    for problem in problems:
        assert f"modules.attn2.variants.split.stages.ring.depth: {wrong}" in problem
