"""The variants of a module compute one function: a spec that mixes is refused by name."""

import dataclasses

import pytest

from stages.contract import Parameter
from tests.generator.fakes import edited, entry, problems_of, with_stages


def spec_of(**stages: dict[str, str]) -> str:
    """A module with a variant for each keyword, which has these stages in the place of the sound ones."""
    first, sound = edited().split("      cluster:\n")
    text = first
    for name, others in stages.items():
        variant = f"      {name}:\n{sound}"
        for old, new in others.items():
            variant = edited((f": {old}\n", f": {new}\n"), text=variant)
        text += variant
    return text


def refusal(line: int, column: int, path: str, variant: str, stage: str, first: str, its: str) -> str:
    """The whole message."""
    return (
        f"spec.yaml:{line}:{column}: modules.attn2.variants.{variant}.stages.{path}: variant {variant!r} "
        f"with {stage!r} does not compute what variant {first!r} with {its!r} does; the variants of a module "
        f"compute one function, so put {variant!r} into a module of its own"
    )


def sound(catalog, slot: str):
    """The contract of the stage that the sound spec has in a slot."""
    return catalog.by_slot[slot][{"epilogue": "norm_gate", "scores": "mma_qk"}[slot]].contract


def test_another_epilogue_is_refused(catalog):
    """An engine that names no variant would lose norm and gate, and not hear of it."""
    text = spec_of(cluster={}, bare={"norm_gate": "plain"}, more={"norm_gate": "{stage: plain}"})
    assert problems_of(text, catalog) == [
        refusal(30, 21, "epilogue", "bare", "plain", "cluster", "norm_gate"),
        refusal(43, 29, "epilogue.stage", "more", "plain", "cluster", "norm_gate"),
    ]


def test_alike_variants_are_served(catalog):
    """The same stages, whatever they are, in modules that may differ."""
    plain = {"norm_gate": "plain"}
    assert problems_of(spec_of(cluster={}, other={}, third={}), catalog) == []
    assert problems_of(spec_of(cluster=plain, other=plain), catalog) == []
    other = spec_of(cluster=plain).replace("modules:\n", "").replace("attn2", "attention")
    assert problems_of(spec_of(cluster={}) + other, catalog) == []


def test_another_stage_with_the_same_reference_is_served(catalog):
    """It is the function that counts, not the stage: two epilogues may compute it, in two ways."""
    faster = entry("epilogue", "faster", sound(catalog, "epilogue"))
    assert problems_of(spec_of(cluster={}, other={"norm_gate": "faster"}), with_stages(catalog, faster)) == []


def test_an_equal_function_is_another_reference(catalog):
    """Functions are not compared by what they compute, which nobody can tell."""
    contract = sound(catalog, "epilogue")
    copied = dataclasses.replace(contract, reference=lambda attended, gate, eps: contract.reference)
    mixed = with_stages(catalog, entry("epilogue", "copied", copied))
    assert problems_of(spec_of(cluster={}, other={"norm_gate": "copied"}), mixed) == [
        refusal(30, 21, "epilogue", "other", "copied", "cluster", "norm_gate")
    ]


@pytest.mark.parametrize("slot", ["scores", "epilogue"])
def test_a_stage_without_a_reference_is_like_itself_alone(catalog, slot):
    """A softcap, say, declares none: beside itself it is served, beside another cap or none it is not."""
    contract = sound(catalog, slot)
    capped = dataclasses.make_dataclass("Capped", [("cap", int)], bases=(contract.stage,), frozen=True)
    cap = Parameter("cap", (30, 50), 50, "a cap")
    contract = dataclasses.replace(contract, stage=capped, reference=None, parameters=(cap,))
    catalog = with_stages(catalog, entry(slot, "capped", contract), entry(slot, "other", contract))
    old = {"scores": "mma_qk", "epilogue": "norm_gate"}[slot]
    line = {"scores": 24, "epilogue": 30}[slot]
    column = {"scores": 19, "epilogue": 21}[slot]

    def problems(first: str, second: str) -> list[str]:
        return problems_of(spec_of(cluster={old: first}, two={old: second}), catalog)

    assert problems("capped", "{stage: capped, cap: 50}") == []
    assert problems("capped", "{stage: capped, cap: 30}") == [
        refusal(line, column + 8, f"{slot}.stage", "two", "capped", "cluster", "capped")
    ]
    for first, second in (("capped", "other"), (old, "capped"), ("capped", old)):
        assert problems(first, second) == [refusal(line, column, slot, "two", second, "cluster", first)]


def test_a_stage_that_moves_data_may_differ(catalog):
    """Whichever of them a variant has, it computes the same."""
    contract = catalog.by_slot["push"]["dsmem"].contract
    catalog = with_stages(catalog, entry("push", "faster", contract))
    assert problems_of(spec_of(cluster={}, other={"dsmem": "faster"}), catalog) == []


def test_what_is_wrong_already_is_not_compared(catalog):
    """An unknown stage is one problem, and the others are compared with the first that is known."""
    text = spec_of(cluster={"norm_gate": "norm_gte"}, bare={"norm_gate": "plain"}, third={})
    unknown, mixed = problems_of(text, catalog)
    assert "unknown stage 'norm_gte'" in unknown
    assert mixed == refusal(43, 21, "epilogue", "third", "norm_gate", "bare", "plain")
