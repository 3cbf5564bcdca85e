"""The order of tests: folders that take long first, pins last, so that a number fails before a count does."""

import pytest

from tests.conftest import pytest_collection_modifyitems


class Item:
    """What the hook asks of a test."""

    def __init__(self, nodeid: str, *marks: str):
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name: str):
        return name if name in self.marks else None


def test_pins_are_last():
    """A count of a kernel comes after a result of the smallest stage; apart from that the order stays."""
    items = [
        Item("README.md::line:1"),
        Item("tests/test_b.py::test_count", "pin"),
        Item("tests/stages/test_mask.py::test_compiles", "pin"),
        Item("tests/stages/test_mask.py::test_bits"),
        Item("tests/kernels/test_counts.py::test_traffic", "pin"),
        Item("tests/generator/test_compiled.py::test_registers", "cuda", "pin"),
        Item("tests/kernels/test_split.py::test_lengths", "cuda"),
        Item("tests/kernels/test_split.py::test_bits"),
        Item("tests/test_a.py::test_it"),
    ]
    pytest_collection_modifyitems(items)
    assert [item.nodeid.rpartition("/")[2] for item in items] == [
        *("test_split.py::test_lengths", "test_split.py::test_bits", "test_mask.py::test_bits"),
        *("README.md::line:1", "test_a.py::test_it"),
        *("test_counts.py::test_traffic", "test_compiled.py::test_registers", "test_mask.py::test_compiles"),
        "test_b.py::test_count",
    ]


@pytest.mark.pin
def test_a_pin_runs_after_the_others(request):
    """In this very session: behind it are pins alone."""
    items = request.session.items
    assert all(item.get_closest_marker("pin") for item in items[items.index(request.node) :])
