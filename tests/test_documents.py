"""Every kind of example in README.md and docs/ fails where it is wrong, and what documents name is there."""

import re
import unittest

import pytest
from sybil import Document
from sybil.example import SybilFailure

from tests import documents

ROOT = documents.ROOT
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

WRITTEN_BY_EXAMPLES = {"stages/epilogue/gate.py", "tests/stages/epilogue/test_gate.py"}
"""Files that a reader of docs/stages.md makes."""

GENERATED_BY_EXAMPLES = {"generated/attention.py", "generated/gated.py"}


@pytest.fixture
def check(tmp_path, monkeypatch):
    """A function that runs the examples of a document's text, in a copy of little."""
    monkeypatch.setattr(documents, "COPIED", ("spec.yaml",))
    found = []

    def run(text: str) -> list[Document]:
        path = tmp_path / "document.md"
        path.write_text(text, encoding="utf-8")
        document = Document.parse(str(path), *documents.PARSERS)
        found.append(document)
        documents.set_up(document.namespace)
        for example in document.examples():
            example.evaluate()

    yield run
    for document in found:
        documents.tear_down(document.namespace)


def block(language: str, source: str, output: str | None = None) -> str:
    """A block and its output."""
    text = f"```{language}\n{source}\n```\n"
    return text if output is None else f"{text}\n```output\n{output}\n```\n"


@pytest.mark.parametrize(
    "text",
    [
        block("python", "print(6 * 7)", "42"),
        block("python", "x = 6") + block("python", "print(x)", "6"),
        block("bash", "echo a; echo b", "a\nb"),
        block("bash", "echo a; exit 3", "a\nexit status 3"),
        block("bash", "echo 'took 12.25 s of 100 (2 tests)'", "took 3.1 s of 100 (2 tests)"),
        block("bash", "echo '2 passed in 2.62s'", "2 passed in 11.05s"),
        block("bash", "echo a; echo b; echo c", "a\n...\nc"),
        block("bash", "printf '┃ a ┃\\n├───┤\\n│ 1.5   │\\n'", "┃ a ┃\n├──────┤\n│ 12.25 │"),
        "<!-- file: some/file.txt -->\n"
        + block("yaml", "  a: 1")
        + block("bash", "cat some/file.txt", "a: 1"),
        "<!-- append: spec.yaml -->\n" + block("yaml", "# end") + block("bash", "tail -1 spec.yaml", "# end"),
        block("yaml", "a: [1, 2]"),
        block("yaml", (ROOT / "spec.yaml").read_text(encoding="utf-8")),
        block("text", "anything"),
    ],
)
def test_sound_examples(check, text):
    """What is right passes."""
    check(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (block("python", "print(6 * 7)", "43"), "expected\n43\n"),
        (block("python", "pass", "43"), "expected\n43\n"),
        (block("bash", "echo a", "b"), "expected\nb\n"),
        (block("bash", "echo a; echo b", "a"), "expected\na\n"),
        (block("bash", "echo 3 passed", "2 passed"), "got\n3 passed"),
        (block("bash", "echo 1.5 WRONG", "1.5 ok"), "got\n1.5 WRONG"),
        (block("bash", "exit 3"), "exit status 3 of\nexit 3"),
        (block("bash", "false; true"), "exit status 1"),
        (block("bash", "no-such-command"), "exit status 127"),
        (block("bash", "true", "exit status 2"), "got\nexit status 0"),
        (block("bash", "python -m no_such_module"), "No module named no_such_module"),
        (
            block("yaml", (ROOT / "spec.yaml").read_text(encoding="utf-8").replace("mma_qk", "mma_kq")),
            "unknown stage 'mma_kq'",
        ),
    ],
)
def test_wrong_examples(check, text, message):
    """Wrong output, too much of it, none, a command that fails or should: each is a failure that says so."""
    with pytest.raises(SybilFailure, match=re.escape(message)):
        check(text)


def test_a_wrong_snippet(check):
    """An error is raised as it is."""
    with pytest.raises(AssertionError):
        check(block("python", "assert 1 == 2"))


@pytest.mark.parametrize(
    "text",
    [
        block("pyhton", "1"),
        block("output", "1"),
        block("text", "a", "1"),
        block("", "a"),
        block("yaml", "a: 1", "1"),
    ],
)
def test_nothing_escapes(check, text):
    """A block in no known language, and output of nothing, are errors of the document."""
    with pytest.raises(ValueError, match=r"a block in|output (behind|of)"):
        check(text)


@pytest.mark.parametrize("directive", ["skip", "cuda"])
def test_what_is_not_run(check, directive, monkeypatch):
    """`skip` never, `cuda` where there is a GPU; only the next example is concerned."""
    monkeypatch.setattr(documents, "gpu", lambda: False)
    text = f'<!-- {directive}: next "why" -->\n' + block("bash", "exit 1")
    with pytest.raises(unittest.SkipTest, match="why"):
        check(text)
    monkeypatch.setattr(documents, "gpu", lambda: True)
    with pytest.raises(unittest.SkipTest if directive == "skip" else SybilFailure):
        check(text)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_are_there(path):
    """Paths in code style, from the root of the checkout or from tests/, with the tests behind `::`."""
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|md|yaml|txt))(?:::(\w+))?`", text))
    named -= {(name, "") for name in WRITTEN_BY_EXAMPLES | GENERATED_BY_EXAMPLES}
    missing = []
    for name, function in sorted(named):
        files = [folder / name for folder in (ROOT, ROOT / "tests") if (folder / name).is_file()]
        if not files or (function and f"def {function}(" not in files[0].read_text(encoding="utf-8")):
            missing.append(f"{name}::{function}" if function else name)
    assert not missing


def test_documents_are_found():
    """The patterns of the root's conftest.py, and what it is to find."""
    assert {path.name for path in DOCUMENTS} >= {"README.md", "stages.md", "calling.md", "spec.md"}
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
