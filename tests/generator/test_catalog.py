"""The catalog finds every stage, and refuses those that contradict themselves, naming their files."""

import dataclasses
import pkgutil
import sys
from dataclasses import dataclass

import pytest

import stages
from generator.catalog import Catalog
from generator.discovery import StageEntry
from generator.errors import CatalogError
from stages.contract import SLOT_REFERENCE, Parameter
from stages.slots import Pages, Slot
from tests.generator.fakes import RING, RINGED, Ring, entry, with_stages
from variants.skeletons import SKELETONS, Rule

HERE = "tests/generator/fakes.py: stage ring (pages)"


def refusal(catalog: Catalog, slot: str = "pages", **changes) -> str:
    """Why the ring is refused with these changes of its contract."""
    changed = StageEntry(slot, "ring", Ring.__module__, dataclasses.replace(RING, **changes))
    with pytest.raises(CatalogError) as caught:
        with_stages(catalog, changed)
    return str(caught.value)


def test_every_module_of_a_slot_with_a_contract_is_a_stage(catalog):
    """Found by looking, not by a list; what the stages of a slot share is none."""
    found = {module.name for module in pkgutil.walk_packages(stages.__path__, "stages.") if not module.ispkg}
    declared = {entry.module for entry in catalog.stages()}
    assert declared < found
    assert "stages.push.dsmem" in declared
    assert not {"stages.pages.walk", "stages.epilogue.output", "stages.ptx.arithmetic"} & declared
    assert [e.path for e in catalog.stages() if e.slot == "push"] == ["stages/push/dsmem.py"]
    assert catalog.slots_of("dsmem") == ("push",)
    assert catalog.launch_names("cluster") == ("cluster", "warps", "pages_per_step")


def test_a_sound_stage_is_taken(catalog):
    """So that the refusals below are those of the faults."""
    assert "ring" in with_stages(catalog, entry("pages", "ring", RING)).by_slot["pages"]


def test_contract_of_another_slot(catalog):
    """A module in the wrong folder."""
    assert refusal(catalog, slot="push").endswith("fakes.py: stage ring (push): its contract says slot pages")


def test_unknown_slot(catalog):
    """A folder that no protocol describes."""
    changed = entry("page", "ring", dataclasses.replace(RING, slot="page"))
    with pytest.raises(
        CatalogError, match=r"ring \(page\): there is no such slot; there are pages, ring, scores"
    ):
        with_stages(catalog, changed)


def test_two_stages_of_one_name(catalog):
    """Cannot come from files, but from a catalog made by hand."""
    with pytest.raises(CatalogError, match="there are two of that name"):
        with_stages(catalog, entry("pages", "ring", RING), entry("pages", "ring", RING))


@dataclass(frozen=True)
class NoTake:
    """Lacks a method."""

    empty = Ring.empty
    begin = Ring.begin
    start = Ring.start


@dataclass(frozen=True)
class OtherNames(Ring):
    """A method with another parameter name."""

    def start(self, walk, length, incoming):
        """Not as the protocol has it."""


@dataclass(frozen=True)
class KeywordOnly(Ring):
    """A method with another kind of parameter."""

    def start(self, walk, *, live, incoming):
        """Not as the protocol has it."""


@dataclass(frozen=True)
class UnknownFact(Ring):
    """A field that nothing fills."""

    colour: int


@pytest.mark.parametrize(
    ("stage", "wrong"),
    [
        (NoTake, "NoTake has no method take(self, walk, live, step, last, incoming, pages)"),
        (
            OtherNames,
            "OtherNames.start(self, walk, length, incoming) should be "
            "start(self, walk, live, last, incoming)",
        ),
        (
            KeywordOnly,
            "KeywordOnly.start(self, walk, *, live, incoming) should be "
            "start(self, walk, live, last, incoming)",
        ),
        (UnknownFact, "the field colour of UnknownFact is no known fact"),
        (type("Plain", (), {}), "Plain is not a dataclass"),
    ],
)
def test_class_unlike_its_protocol(catalog, stage, wrong):
    """The class has the methods of its slot, and fields that facts fill."""
    assert refusal(catalog, stage=stage) == f"{HERE}: {wrong}"


@pytest.mark.parametrize(
    ("parameter", "wrong"),
    [
        (Parameter("depth", (), 4, ""), "the values of parameter depth do not ascend"),
        (Parameter("depth", (4, 2), 4, ""), "the values of parameter depth do not ascend"),
        (Parameter("depth", (2, 2, 4), 4, ""), "the values of parameter depth do not ascend"),
        (Parameter("depth", (2, 4), 3, ""), "the default of parameter depth is not allowed"),
        (Parameter("warps", (2, 4), 4, ""), "the name of parameter warps is taken"),
        (Parameter("stage", (2, 4), 4, ""), "the name of parameter stage is taken"),
        (Parameter("width", (2, 4), 4, ""), "Ring has no field for the parameter width"),
    ],
)
def test_unsound_parameters(catalog, parameter, wrong):
    """A parameter has values, one of them its default, a name of its own and a field to fill."""
    assert refusal(catalog, parameters=(parameter,)) == f"{HERE}: {wrong}"


def test_requirement_of_nothing(catalog):
    """A requirement that no spec could break."""
    message = refusal(catalog, requires={"heads": (8,)})
    assert message == f"{HERE}: it requires something of heads, which is no known fact"


def of_two(attended, gate):
    """Not as the protocol has it."""


@pytest.mark.parametrize(
    ("slot", "reference", "wrong"),
    [
        ("pages", SLOT_REFERENCE, "it has a reference, but stages of pages decide no result"),
        ("push", of_two, "it has a reference, but stages of push decide no result"),
        ("scores", of_two, "its reference is neither SLOT_REFERENCE nor None"),
        ("softmax", "slots", "its reference is neither SLOT_REFERENCE nor None"),
        ("epilogue", SLOT_REFERENCE, "its reference is not a function reference(attended, gate, eps)"),
        ("epilogue", of_two, "reference(attended, gate) should be reference(attended, gate, eps)"),
    ],
)
def test_a_reference_has_the_form_of_its_slot(catalog, slot, reference, wrong):
    """SLOT_REFERENCE, a function, or none at all."""
    sound, *_ = catalog.by_slot[slot].values()
    spoilt = dataclasses.replace(
        sound, name="spoilt", contract=dataclasses.replace(sound.contract, reference=reference)
    )
    with pytest.raises(CatalogError) as caught:
        with_stages(catalog, spoilt)
    assert str(caught.value) == f"{sound.path}: stage spoilt ({slot}): {wrong}"


def test_a_stage_may_declare_no_reference(catalog):
    """It can be generated and run; `verify` says what it lacks."""
    sound, *_ = catalog.by_slot["epilogue"].values()
    without = dataclasses.replace(
        sound, name="without", contract=dataclasses.replace(sound.contract, reference=None)
    )
    assert "without" in with_stages(catalog, without).by_slot["epilogue"]


def test_methods_behind_jit_are_seen_through(catalog):
    """`cute.jit` wraps a method; the parameters are those of the method behind it."""
    assert catalog.by_slot["grid_merge"]["workspace"].contract.stage.leave.__wrapped__


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"slots": ("pages", "colour")}, "skeleton cluster has a slot colour that no protocol describes"),
        ({"kernel": Ring}, "Ring has no field for the slot pages"),
        ({"launch": RINGED.launch[:1]}, "the launch of skeleton cluster has no field warps"),
        (
            {"rules": (Rule(("height",), lambda facts: None),)},
            "a rule of skeleton cluster reads an unknown fact height",
        ),
    ],
)
def test_unsound_skeletons(catalog, changes, wrong):
    """A skeleton is held to its declarations, too."""
    with pytest.raises(CatalogError) as caught:
        Catalog(catalog.stages(), {"cluster": dataclasses.replace(SKELETONS["cluster"], **changes)})
    assert str(caught.value).endswith(wrong)
    assert ".py: " in str(caught.value)


class SlotElsewhere(Slot):
    """A slot whose stages lie in another package."""

    @property
    def package(self) -> str:
        return "page_loaders"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import no_such_module", ": cannot be imported: there is no module no_such_module"),
        ("syntax error", ":1: not valid Python"),
        ("CONTRACT = {}", ": CONTRACT is no Contract"),
        ("from tests.generator.fakes import RING as CONTRACT", ": Ring is defined in another module"),
    ],
)
def test_modules_that_are_no_stages(tmp_path, monkeypatch, source, wrong):
    """A file among the stages that cannot be one is named."""
    package = tmp_path / "page_loaders"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "bad.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("page_loaders", "page_loaders.bad"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    slot = SlotElsewhere("pages", Pages, decides_result=False)
    monkeypatch.setattr("generator.catalog.SLOTS", {"pages": slot})
    with pytest.raises(CatalogError) as caught:
        Catalog.load()
    assert str(caught.value) == f"page_loaders/bad.py{wrong}"


def test_names_that_generated_code_uses(catalog):
    """All that the workshop's modules define and import, except for the name that a module gives."""
    assert {"dataclass", "cute", "mul", "RowState", "ClusterKernel", "prepare"} <= catalog.taken_names
    assert "attn2" not in catalog.taken_names
