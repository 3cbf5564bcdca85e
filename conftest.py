"""The commands and snippets of README.md and docs/ are tests; `tests/documents.py` says how they run."""

from sybil import Sybil

from tests import documents

pytest_collect_file = Sybil(
    parsers=documents.PARSERS,
    patterns=["README.md", "docs/*.md"],
    setup=documents.set_up,
    teardown=documents.tear_down,
).pytest()
