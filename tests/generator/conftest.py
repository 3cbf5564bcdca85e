"""Fixtures of the generator's tests."""

import pytest

from generator.catalog import Catalog
from tests.generator.fakes import RING, RINGED, WIDE, entry, with_stages


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The project's own."""
    return Catalog.load()


@pytest.fixture(scope="session")
def ring_catalog(catalog) -> Catalog:
    """The project's own with a ring among the page loaders, and a kernel that has a place for it."""
    stages = entry("pages", "ring", RING), entry("epilogue", "wide", WIDE)
    return with_stages(catalog, *stages, skeletons={"cluster": RINGED})
