"""The public functions of a generated module say what they take, return and raise."""

import inspect
import re

import pytest

from generated import attn2 as module

FUNCTIONS = [name for name in module.__all__ if inspect.isfunction(getattr(module, name))]

GIVES = ("Whether ", "How ", "The most ", "Bytes ", "A workspace ")
"""How a docstring begins that says at once what the function returns."""

DOCUMENTED = r"(?:(?<=[.;] )|^)((?:\w+, )*\w+): (.*?)(?=$|[.;] (?:\w+, )*\w+: )"
"""Some names of parameters, a colon and what is said of them."""


def text_of(name: str) -> str:
    """A function's docstring in one line."""
    return " ".join((inspect.getdoc(getattr(module, name)) or "").split())


def documented(name: str) -> set[str]:
    """The parameters that a docstring documents: `a, b: words`, or `a, b: as in `function``.

    What is said to be as in another function has to be documented there.
    """
    found = set()
    for names, words in re.findall(DOCUMENTED, text_of(name)):
        elsewhere = re.match(r"as in `(\w+)`", words)
        known = documented(elsewhere.group(1)) if elsewhere else names.split(", ")
        found |= set(names.split(", ")) & set(known)
    return found


def test_every_function_is_looked_at():
    """All that is public is a function, but for the table of variants."""
    assert {"VARIANTS", *FUNCTIONS} == set(module.__all__) and len(FUNCTIONS) > 5


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_documented(name):
    """By its name and some words, or by a reference to a function that does."""
    missing = set(inspect.signature(getattr(module, name)).parameters) - documented(name)
    assert missing == set()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_returned_and_raised_is_said(name):
    """What is returned, if anything is, and the errors that a caller has to expect."""
    text = text_of(name)
    assert re.search(r"\bRaises [A-Z]\w*Error\b", text)
    if inspect.signature(getattr(module, name)).return_annotation is not None:
        assert text.startswith(GIVES) or re.search(r"\b[Rr]eturns\b", text)
