"""No spec breaks the generator, however spoiled: see `tests.generator.fuzz`, of which this is a taste."""

import ast
import time
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from generator import cli
from generator.document import MAX_BYTES, read_document
from generator.errors import SpecError
from tests.generator.fuzz import Fault, Tally, check_problems, compile_some
from tests.generator.mutants import NAMES, NUMBERS, TAGGED, WORDS, mutant
from tests.modules import PINNED

TEXT = PINNED.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tally(catalog, tmp_path_factory) -> Tally:
    """Of mutants that are planned, and not rendered."""
    return Tally(catalog, tmp_path_factory.mktemp("fuzz"), renders=0)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=False))
def test_every_mutant_is_sound_or_refused(tally, random):
    """With errors that say where, and with the output as it was."""
    tally.examine(mutant(TEXT, random))


@pytest.mark.parametrize("pieces", [NUMBERS, WORDS, TAGGED, NAMES], ids=["numbers", "words", "tags", "names"])
def test_every_odd_piece_is_sound_or_refused(tally, pieces):
    """Each once in the place of a number and of a name."""
    for piece in pieces:
        for old in ("16,", "cp_async_ring", "attn2", "norm_gate"):
            tally.examine(TEXT.replace(old, piece, 1).encode(errors="surrogatepass"))


def test_sound_mutants_are_generated_and_compile(catalog, tmp_path):
    """What is rendered is Python, and a kernel compiles; what comes later and is refused leaves it alone."""
    tally = Tally(catalog, tmp_path, renders=1)
    for number in range(16):
        tally.examine(mutant(TEXT, Random(f"0:{number}")))
    assert tally.texts and tally.refused and compile_some(tally, 1, Random(0)) == 1


def test_a_fault_of_the_generator_is_seen(tally, monkeypatch):
    """A traceback, a problem beside the file, a refusal that leaves its mark, and one that says nothing."""
    wrong = TEXT.replace("norm_gate", "norm_gat").encode()
    with pytest.raises(SpecError) as caught:
        tally.folder.joinpath("spec.yaml").write_bytes(wrong)
        cli.load_plan(tally.folder / "spec.yaml", tally.catalog)
    problems = caught.value.problems
    check_problems(problems, wrong, problems[0].file)
    for content, file in ((wrong[:100], problems[0].file), (wrong, "other.yaml")):
        with pytest.raises(Fault):
            check_problems(problems, content, file)
    with pytest.raises(Fault):
        check_problems((), wrong, "spec.yaml")

    def write_and_refuse(path, catalog):
        made = tally.folder / "generated"
        made.mkdir(exist_ok=True)
        made.joinpath("attn2.py").write_text("half a mod")
        raise caught.value

    monkeypatch.setattr("tests.generator.fuzz.load_plan", write_and_refuse)
    with pytest.raises(Fault, match="the output changed"):
        tally.examine(wrong)
    monkeypatch.setattr("tests.generator.fuzz.load_plan", lambda path, catalog: {}["x"])
    with pytest.raises(KeyError):
        tally.examine(wrong)


def test_a_huge_file_is_refused_at_once(tmp_path):
    """Of 100 MB no more is read than it takes to see that it is too much."""
    path = tmp_path / "spec.yaml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    tracemalloc.start()
    with pytest.raises(SpecError, match="no spec needs"):
        read_document(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MAX_BYTES


def test_the_largest_file_takes_seconds(tally):
    """Of all that was tried, a string of many lines that look like comments keeps the parser busy longest."""
    content = b'modules: "' + b"# \n" * (MAX_BYTES // 3 - 10) + b'"'
    began = time.process_time()
    tally.examine(content)
    assert time.process_time() - began < 10


def test_names_of_files_are_no_code_and_no_markup(tmp_path, monkeypatch):
    """A file may be called anything; what is generated and what is printed take no harm."""
    spec = Path(f'{tmp_path}/[x] """{{{{ 1 - x }}}}\n\udcff.yaml')
    spec.write_bytes(PINNED.read_bytes())
    folder = tmp_path / "a" / "[" / "bold]"
    call = ["generate", "--spec", str(spec), "--out", str(folder)]
    made = CliRunner().invoke(cli.app, call)
    assert made.exit_code == 0, made.output
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert ast.get_docstring(ast.parse(texts["attn2.py"])).count("Generated from the spec;") == 1

    monkeypatch.setattr(cli, "render", lambda plan, name: texts)
    assert CliRunner().invoke(cli.app, [*call, "--check"]).exit_code == 0
    (folder / "attn2.py").unlink()
    (folder / "attn2.py").mkdir()
    for more in ([], ["--check"]):
        refused = CliRunner().invoke(cli.app, [*call, *more])
        assert refused.exit_code == 2 and not isinstance(refused.exception, OSError), refused.output
