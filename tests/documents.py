"""How the commands and snippets of README.md and docs/ are run.

A fenced block is an example, in the order of the document; its language says what is done with it:

    python   runs in the document's namespace, which holds the names of the blocks before it
    bash     runs in the document's own copy of the checkout; a command that fails is a failure
    yaml     is read; what has `modules` is checked as a spec
    output   directly behind a block of the first two kinds: what that block prints
    text     is no example

In `output`, a decimal number stands for any number (times differ, and so do last digits), `...` for any text,
and runs of spaces and the lines of tables do not count. Comments in front of a block:

    <!-- file: PATH -->      the block is the content of this file of the copy
    <!-- append: PATH -->    the block is added at the end of this file of the copy
    <!-- skip: next "REASON" -->   it is not run
    <!-- cuda: next "REASON" -->   it needs a GPU, and runs where there is one

Where there is no GPU, the snippets' "cuda" reads "cpu", and `stagewright.attn2` runs on the emulator.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from sybil import Document, Example, Region
from sybil.parsers.abstract.skip import AbstractSkipParser
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

from tests.modules import PINNED, ROOT, folder_of

COPIED = (
    *("benchmarks", "emulator", "generator", "stages", "tests", "variants", "verification"),
    *("conftest.py", "pyproject.toml"),
)
"""What a document's copy of the checkout has, besides a spec and what is generated from it."""

PRINTING = ("python", "bash")
"""The languages whose blocks may have an output."""

STATE = "_state"
"""The name, among a document's names, of what is known about its examples."""


class State:
    """What the examples of one document share."""

    def __init__(self) -> None:
        self.restore = contextlib.ExitStack()
        self._copy: Path | None = None

    @property
    def copy(self) -> Path:
        """The document's copy of the checkout, made when it is first needed."""
        if self._copy is None:
            self._copy = Path(self.restore.enter_context(tempfile.TemporaryDirectory())) / "stagewright"
            self._copy.mkdir()
            for name in COPIED:
                source, ignored = ROOT / name, shutil.ignore_patterns("__pycache__", ".*")
                if source.is_dir():
                    shutil.copytree(source, self._copy / name, ignore=ignored)
                else:
                    shutil.copy(source, self._copy)
            self._add_spec(self._copy)
        return self._copy

    def _add_spec(self, copy: Path) -> None:
        """The modules of the tests' own spec: documents show the same whatever is added to the checkout's."""
        head = (ROOT / "spec.yaml").read_text(encoding="utf-8").partition("\nmodules:")[0]
        modules = PINNED.read_text(encoding="utf-8").partition("\nmodules:")[2]
        (copy / "spec.yaml").write_text(f"{head}\nmodules:{modules}", encoding="utf-8")
        made = folder_of(PINNED) / "generated"
        shutil.copytree(made, copy / "generated", ignore=shutil.ignore_patterns("__pycache__"))


def set_up(namespace: dict[str, Any]) -> None:
    """Before a document's first example."""
    namespace[STATE] = State()


def tear_down(namespace: dict[str, Any]) -> None:
    """Behind its last."""
    namespace[STATE].restore.close()
    namespace.clear()


def parse(document: Document) -> Iterable[Region]:
    """The examples of a document, each with the output that is expected of it."""
    blocks = list(RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)$\n", re.MULTILINE))(document))
    blocks.sort(key=lambda block: block.start)
    for number, block in enumerate(blocks):
        language, source = block.lexemes["language"], block.lexemes["source"]
        if language == "output":
            before = blocks[number - 1] if number else block
            if before.lexemes["language"] not in PRINTING or not _adjoin(document, before, block):
                raise ValueError(f"{document.path}: output behind no block: {source.splitlines()[:1]}")
            continue
        if language == "text":
            continue
        if language not in EVALUATORS:
            raise ValueError(f"{document.path}: a block in {language!r}; there are {', '.join(EVALUATORS)}")
        evaluator, end, expected = EVALUATORS[language], block.end, None
        found = re.search(r"<!-- (file|append): (\S+) -->\n$", document.text[: block.start])
        if found:
            # As it stands: sybil takes away what all of its lines are indented by.
            lines = document.text[block.start : block.end].splitlines(keepends=True)
            evaluator, source, expected = write, "".join(lines[1:-1]), found.groups()
        following = blocks[number + 1] if number + 1 < len(blocks) else None
        if following is not None and _adjoin(document, block, following):
            if found or language not in PRINTING:
                raise ValueError(f"{document.path}: output of a file: {source.splitlines()[:1]}")
            end, expected = following.end, following.lexemes["source"]
        yield Region(block.start, end, (source, expected), evaluator)


def _adjoin(document: Document, block: Region, following: Region) -> bool:
    between = document.text[block.end : following.start]
    return following.lexemes["language"] == "output" and not between.strip()


def run_python(example: Example) -> str | None:
    """Run a snippet; returns what is wrong with its output."""
    source, expected = example.parsed
    provide_stagewright(example.namespace[STATE])
    if not gpu():
        source = source.replace('"cuda"', '"cpu"')
    code = compile("\n" * example.line + source, example.path, "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, example.namespace)
    return difference(expected, printed.getvalue())


def run_bash(example: Example) -> str | None:
    """Run commands in the document's copy; returns what is wrong with their status or output."""
    source, expected = example.parsed
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # One thread: those that share a core wait for each other.
    quiet = {"COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", source],
        cwd=example.namespace[STATE].copy,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name}
        | {**quiet, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    # Some commands are shown because of what they refuse.
    refused = re.search(r"^exit status (\d+)$", expected or "", re.MULTILINE)
    output = done.stdout + (f"exit status {done.returncode}\n" if refused else "")
    if done.returncode and not refused:
        return f"exit status {done.returncode} of\n{source}\n{output}"
    return difference(expected, output)


def read_yaml(example: Example) -> str | None:
    """Read a file; a spec is checked as the generator does it."""
    import yaml

    from generator.errors import SpecError
    from generator.plan import load_plan

    source, _ = example.parsed
    data = yaml.safe_load(source)
    if not isinstance(data, dict) or "modules" not in data:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(source, encoding="utf-8")
        try:
            load_plan(path)
        except SpecError as error:
            return str(error)
    return None


def write(example: Example) -> None:
    """Write a file of the document's copy, or go on writing it."""
    source, (action, name) = example.parsed
    path = example.namespace[STATE].copy / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if action == "append":
        assert path.exists(), f"{name} is to be continued, and does not exist"
        source = path.read_text(encoding="utf-8") + source
    else:
        assert not path.exists(), f"{name} is to be written, and exists"
    path.write_text(source, encoding="utf-8")


EVALUATORS: dict[str, Callable[[Example], str | None]] = {
    "python": run_python,
    "bash": run_bash,
    "yaml": read_yaml,
}
"""By the language of a block."""


def difference(expected: str | None, output: str) -> str | None:
    """What is wrong with an output, if anything is; any will do where none is expected."""
    if expected is None or re.fullmatch(_pattern(expected), _plain(output), re.DOTALL):
        return None
    return f"expected\n{expected}\ngot\n{output}"


def _pattern(expected: str) -> str:
    """An expression for `_plain` output."""
    words = re.split(r"(\.\.\.|(?<![\w.])\d+\.\d+(?![\w.])|\d+\.\d+(?=s\b))", _plain(expected))
    kinds = {True: ".*", False: r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"}
    return "".join(kinds[w == "..."] if i % 2 else re.escape(w) for i, w in enumerate(words))


def _plain(output: str) -> str:
    """Without the lines of tables, ends of lines and runs of spaces."""
    lines = [" ".join(re.sub("[\u2500-\u257f]", " ", line).split()) for line in output.splitlines()]
    return "\n".join(line for line in lines if line)


def gpu() -> bool:
    """Whether snippets run on a GPU."""
    import torch

    return torch.cuda.is_available()


class CudaParser(AbstractSkipParser):
    """`skip` where there is no GPU."""

    directive = "cuda"

    def __init__(self) -> None:
        super().__init__([DirectiveInHTMLCommentLexer(self.directive)])

    def __call__(self, document: Document) -> Iterable[Region]:
        """Nothing where there is one."""
        return () if gpu() else super().__call__(document)


def provide_stagewright(state: State) -> None:
    """Let `from stagewright import attn2` give the checkout's module, or one that runs on the emulator."""
    if "stagewright" in sys.modules:
        return
    import generated
    from generated import attn2

    package: Any = generated
    if not gpu():
        package = SimpleNamespace(attn2=on_emulator(attn2), __version__=generated.__version__)
    sys.modules["stagewright"] = package
    state.restore.callback(sys.modules.pop, "stagewright")


def on_emulator(module: ModuleType) -> SimpleNamespace:
    """A generated module whose calls are checked as ever, and run on the emulator, on CPU tensors."""
    from verification.runner import run_emulated

    names = ("q", "gate", "kv_cache", "block_table", "seq_lens")

    def attn2(*tensors, out=None, pdl=False, variant=None, validate=False, **more):
        chosen = module.deploy(more["max_seq_len"], more.get("window"), more.get("num_splits"), variant, pdl)
        arguments = dict(zip(names, tensors, strict=True)) | more
        return run_emulated(module, chosen.variant.name, arguments, out=out, pdl=pdl)[0]

    def prepare(
        *, kv_heads, max_seq_len, window=None, num_splits=None, pdl=False, variant=None, from_dir=None
    ):
        module.check_kv_heads(kv_heads)
        module.deploy(max_seq_len, window, num_splits, variant, pdl)

    def allocate_scratch(requests, **more):
        return module.allocate_scratch(requests, **{"device": "cpu"} | more)

    replaced = {"attn2": attn2, "prepare": prepare, "allocate_scratch": allocate_scratch}
    return SimpleNamespace(**{name: getattr(module, name) for name in module.__all__} | replaced)


PARSERS = [parse, SkipParser(), CudaParser()]
