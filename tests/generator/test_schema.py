"""The JSON Schema for editors: fresh, valid itself, and of one mind with the generator."""

import copy
import dataclasses
from pathlib import Path

import jsonschema
import pytest
import yaml

from generator import schema
from tests.generator.fakes import SPEC, edited, problems_of, with_stages

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def validator(catalog):
    """A validator for the project's schema."""
    return jsonschema.Draft202012Validator(schema.build_schema(catalog))


@pytest.fixture(scope="module")
def ring_validator(ring_catalog):
    """A validator for the schema of a catalog with a stage that has a parameter."""
    return jsonschema.Draft202012Validator(schema.build_schema(ring_catalog))


def test_the_checked_in_schema_is_fresh(catalog):
    """Write it with `python -m generator schema`."""
    fresh = schema.PATH.read_text(encoding="utf-8") == schema.text(catalog)
    assert fresh, "generator/spec.schema.json is stale: run `python -m generator schema`"


def test_it_is_the_same_whenever_it_is_made(catalog):
    """Nothing in it depends on the order in which things were found."""
    assert schema.text(catalog) == schema.text()


def test_it_is_a_schema(validator):
    """By the rules of the draft that it names."""
    validator.check_schema(validator.schema)
    assert validator.schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("text", [(ROOT / "spec.yaml").read_text(encoding="utf-8"), SPEC])
def test_sound_specs(validator, text):
    """What the generator takes, editors do not underline."""
    validator.validate(yaml.safe_load(text))


def test_a_parameter(ring_validator):
    """A stage with parameters goes by its name alone, or with them."""
    ring_validator.validate(yaml.safe_load(edited(("register_prefetch", "ring"))))
    ring_validator.validate(yaml.safe_load(edited(("register_prefetch", "{stage: ring, depth: 8}"))))
    for wrong in ("{stage: ring, depth: 3}", "{stage: ring, size: 8}", "{depth: 8}"):
        assert not ring_validator.is_valid(yaml.safe_load(edited(("register_prefetch", wrong))))


def defaults_of(catalog):
    """(spec with every value given, where one with a default is: keys from a variant on).

    A variant for each skeleton, with every field of its launch and every parameter of its stages.
    """
    base = yaml.safe_load(SPEC)["modules"]["attn2"]
    places, variants = [], {}
    for skeleton in catalog.skeletons.values():
        entries = {slot: next(iter(catalog.by_slot[slot].values())) for slot in skeleton.slots}
        parameters = {slot: entry.contract.parameters for slot, entry in entries.items()}
        variants[skeleton.name] = {
            "skeleton": skeleton.name,
            "serves": {"max_seq_len": 2048, "window": False},
            "launch": {field.name: field.default or field.allowed[-1] for field in skeleton.launch},
            "stages": {
                slot: {"stage": entry.name} | {p.name: p.default for p in parameters[slot]}
                for slot, entry in entries.items()
            },
        }
        places += [(skeleton.name, "serves", "window")]
        places += [(skeleton.name, "launch", f.name) for f in skeleton.launch if f.default is not None]
        places += [(skeleton.name, "stages", slot, p.name) for slot in entries for p in parameters[slot]]
    return {"modules": {"attn2": base | {"variants": variants}}}, places


def test_what_has_a_default_may_be_left_out(catalog, validator):
    """Of the launch, of what is served and of a stage: one at a time, and all together.

    The generator takes it too; what has no default, neither takes.
    """
    whole, places = defaults_of(catalog)
    fields = [f for skeleton in catalog.skeletons.values() for f in skeleton.launch]
    assert {field.default is None for field in fields} == {True, False}
    assert any(place[1] == "stages" for place in places)
    validator.validate(whole)
    assert problems_of(yaml.safe_dump(whole), catalog) == []
    least = copy.deepcopy(whole)
    for variant, *path, key in places:
        fewer = copy.deepcopy(whole)
        for spec in (fewer, least):
            at = spec["modules"]["attn2"]["variants"][variant]
            for step in path:
                at = at[step]
            del at[key]
        validator.validate(fewer)
    validator.validate(least)
    assert problems_of(yaml.safe_dump(least), catalog) == []
    for name, variant in least["modules"]["attn2"]["variants"].items():
        for key in variant["launch"]:
            fewer = copy.deepcopy(least)
            del fewer["modules"]["attn2"]["variants"][name]["launch"][key]
            assert not validator.is_valid(fewer)
            assert problems_of(yaml.safe_dump(fewer), catalog) != []


def test_a_skeleton_that_needs_nothing_may_have_nothing(catalog):
    """Whoever has no bound and a default for every field of the launch needs neither mapping."""
    free = dataclasses.replace(
        catalog.skeletons["cluster"],
        bounded=False,
        launch=tuple(
            dataclasses.replace(f, default=f.allowed[0]) for f in catalog.skeletons["cluster"].launch
        ),
    )
    catalog = with_stages(catalog, skeletons={"cluster": free})
    validator = jsonschema.Draft202012Validator(schema.build_schema(catalog))
    text = edited(
        ("        serves: {max_seq_len: 2048, window: false}\n", ""),
        ("        launch: {cluster: 16, warps: 4, pages_per_step: 2}\n", ""),
    )
    validator.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("head_dim: 64", "head_dim: '64'"),
        ("head_dim: 64, ", ""),
        ("head_dim: 64", "head_dim: 64, colour: 1"),
        ("dtype: bf16", "dtype: fp8"),
        ("attn2:", "../x:"),
        ("attn2:", "class:"),
        ("attn2:", "_a:"),
        ("      cluster:\n", "      a-b:\n"),
        ("skeleton: cluster", "skeleton: clusters"),
        ("        skeleton: cluster\n", ""),
        ("max_seq_len: 2048, ", ""),
        ("max_seq_len: 2048", "max_seq_len: null"),
        ("max_seq_len: 2048", "max_seq_len: 0"),
        ("        serves: {max_seq_len: 2048, window: false}\n", ""),
        ("window: false", "window: true"),
        ("cluster: 16", "cluster: 17"),
        ("cluster: 16, ", ""),
        ("pages_per_step: 2", "page_per_step: 2"),
        ("register_prefetch", "dsmem"),
        ("register_prefetch", "{stage: register_prefetch, depth: 4}"),
        ("          push: dsmem\n", ""),
        ("push: dsmem", "pushes: dsmem"),
    ],
)
def test_wrong_specs(validator, old, new):
    """Each is wrong for the generator as well; an editor shows it while it is typed."""
    assert not validator.is_valid(yaml.safe_load(edited((old, new))))


def test_a_module_without_variants(validator):
    """Neither empty modules nor empty variants."""
    assert not validator.is_valid({"modules": {}})
    text = SPEC[: SPEC.index("variants:")] + "variants: {}\n"
    assert not validator.is_valid(yaml.safe_load(text))
