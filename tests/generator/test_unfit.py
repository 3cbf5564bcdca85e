"""A stage that its own values keep from working: refused, with its reason and its place."""

import dataclasses

from tests.generator.fakes import RING, RINGED, edited, entry, problems_of, with_stages

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


def test_the_project_refuses_a_ring_of_one_step(catalog):
    """Of the stages themselves: the cp.async ring with two pages, both of one step."""
    unfit = catalog.by_slot["ring"]["cp_async_ring"].contract.unfit
    stage = catalog.by_slot["ring"]["cp_async_ring"].contract.stage
    facts = {"head_dim": 64, "page_size": 16, "warps": 4}
    assert unfit(stage(**facts, pages_per_step=1, depth=2)) is None
    assert "holds one step of 2 pages" in unfit(stage(**facts, pages_per_step=2, depth=2))
