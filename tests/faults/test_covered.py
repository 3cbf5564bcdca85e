"""The tests that `covered` and docs/promises.md name exist, and those of this folder are all named."""

import ast
import re
from pathlib import Path

import pytest

from tests.faults.covered import COVERED, FAULTS

ROOT = Path(__file__).resolve().parents[2]


def names_in(file: Path) -> set[str]:
    """The names of a file's tests."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("kind", [kind for section in COVERED for kind in section])
def test_a_kind_has_its_tests(kind):
    """At least one, each of which is there."""
    (named,) = (section[kind] for section in COVERED if kind in section)
    assert named
    for name in named:
        file, _, test = name.partition("::")
        assert test in names_in(ROOT / file), name


def test_every_test_here_shows_a_kind():
    """None is left out of the table."""
    named = {name for section in COVERED for names in section.values() for name in names}
    for file in sorted((ROOT / FAULTS).glob("test_*.py")):
        if file != Path(__file__).resolve():
            assert {f"{FAULTS}{file.name}::{test}" for test in names_in(file)} <= named


def test_the_promises_name_tests_that_exist():
    """As `folder/test_file.py::test_name`."""
    promises = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", promises)
    assert len(named) > 10
    for file, test in named:
        assert test in names_in(ROOT / "tests" / file), f"{file}::{test}"
