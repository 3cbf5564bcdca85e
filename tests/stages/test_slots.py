"""Stages of a slot can be exchanged: same methods, same parameters; and contracts fit their classes."""

import importlib
import inspect
import pkgutil

import pytest

from stages.contract import MAX_SHARED_BYTES, Contract
from stages.fragments import PageFragments
from stages.ring.bulk_ring import RowPage
from stages.ring.cp_async_ring import SwizzledPage
from stages.slots import SLOTS, Page, Slot
from variants.kernels.base import SHARED_ALIGN

FACTS = {
    "head_dim": 64,
    "heads_per_kv": 8,
    "tokens": 8,
    "page_size": 16,
    "dtype": "bf16",
    "cluster": 16,
    "warps": 4,
    "pages_per_step": 2,
    "ring_pages_per_step": 4,
    "exchange_rows": 64,
}
"""What the problem and the launch of the checked-in variants give to a stage."""


def contracts(slot: Slot) -> dict[str, Contract]:
    """The contracts in a slot's package, by module."""
    package = importlib.import_module(slot.package)
    modules = [
        importlib.import_module(f"{slot.package}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return {module.__name__: module.CONTRACT for module in modules if hasattr(module, "CONTRACT")}


STAGES = [(slot, contract) for slot in SLOTS.values() for contract in contracts(slot).values()]
NAMES = [contract.stage.__name__ for _, contract in STAGES]


def methods(kind: type) -> dict[str, list[str]]:
    """A class's public methods and the names of their parameters."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: list(inspect.signature(inspect.unwrap(method)).parameters)
        for name, method in found
        if not name.startswith("_")
    }


@pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS)
def test_every_slot_has_a_stage(slot):
    """A slot without a stage would make its skeleton unusable."""
    assert contracts(slot)


@pytest.mark.parametrize(("slot", "contract"), STAGES, ids=NAMES)
def test_stage_fits_its_slot(slot, contract):
    """A stage names its own package's slot, and has the slot's methods with the slot's parameters."""
    assert contract.slot == slot.name
    for name, _ in inspect.getmembers(slot.protocol, lambda member: isinstance(member, property)):
        assert isinstance(getattr(contract.stage, name, None), property), f"{contract.stage.__name__}.{name}"
    have = methods(contract.stage)
    for name, parameters in methods(slot.protocol).items():
        assert have.get(name) == parameters, f"{contract.stage.__name__}.{name}"


@pytest.mark.parametrize(("slot", "contract"), STAGES, ids=NAMES)
def test_stages_that_decide_the_result_have_a_reference(slot, contract):
    """And the others have none: there is nothing that they could change about it."""
    assert (contract.reference is not None) == slot.decides_result


@pytest.mark.parametrize("kind", [PageFragments, RowPage, SwizzledPage])
def test_pages_can_be_exchanged(kind):
    """Wherever a page comes from, it gives its fragments by the same methods."""
    assert methods(Page).items() <= methods(kind).items()


@pytest.mark.parametrize(("slot", "contract"), STAGES, ids=NAMES)
def test_contract_is_complete(slot, contract):
    """A stage is built from facts that exist, requires what these fulfil, and owns aligned shared memory."""
    parameters = {parameter.name: parameter.default for parameter in contract.parameters}
    for parameter in contract.parameters:
        assert list(parameter.allowed) == sorted(set(parameter.allowed))
        assert parameter.default in parameter.allowed
    facts = FACTS | parameters
    assert set(contract.facts()) <= set(facts)
    for name, allowed in contract.requires.items():
        assert facts[name] in allowed
    stage = contract.build(facts)
    regions = {region.name: region for region in contract.shared(stage)}
    assert len(regions) == len(contract.shared(stage))
    for region in regions.values():
        assert region.align & (region.align - 1) == 0
        assert region.align <= SHARED_ALIGN
        assert 0 < region.bytes <= MAX_SHARED_BYTES
    for barrier in contract.barriers(stage):
        assert regions[barrier.name].bytes % 8 == 0
        assert barrier.arrivals >= 1
        assert barrier.arithmetic
