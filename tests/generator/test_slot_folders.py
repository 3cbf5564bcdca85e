"""What may lie in a slot's folder: stages, and the helpers that the folder names; nothing is passed over."""

import importlib
import re
import sys

import pytest

from generator import catalog as catalog_module
from generator.catalog import Catalog
from generator.errors import CatalogError
from stages.slots import SLOTS, Slot, Softmax
from tests.generator.command import copy_checkout, run

STAGE = '''"""A stage."""

from dataclasses import dataclass

from stages.contract import Contract


@dataclass(frozen=True)
class Stage:
    """Does nothing."""

    def weigh(self, scores, first_keys, visible, scale_log2, state, first, masked):
        """As the protocol has it."""

    def finish(self, state):
        """As the protocol has it."""


CONTRACT = Contract(slot="softmax", stage=Stage, summary="nothing")
'''


class SlotElsewhere(Slot):
    """A slot whose stages lie in another package."""

    @property
    def package(self) -> str:
        return "softmaxes"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a slot, with a sound stage and a helper."""
    package = tmp_path / "softmaxes"
    package.mkdir()
    (package / "__init__.py").write_text('HELPERS = ("shared",)\n')
    (package / "shared.py").write_text('"""What stages share."""\n')
    (package / "sound.py").write_text(STAGE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    slots = {**SLOTS, "softmax": SlotElsewhere("softmax", Softmax, decides_result=True)}
    monkeypatch.setattr(catalog_module, "SLOTS", slots)
    monkeypatch.setattr(catalog_module, "_refuse_strays", lambda: None)
    yield package
    for name in [name for name in sys.modules if name.split(".")[0] == "softmaxes"]:
        del sys.modules[name]


def refusal() -> str:
    with pytest.raises(CatalogError) as caught:
        Catalog.load()
    return str(caught.value)


def test_stages_and_helpers(folder):
    """A helper is no stage, a stage is found by its file's name."""
    assert list(Catalog.load().by_slot["softmax"]) == ["sound"]


def test_a_file_without_contract(folder):
    """Neither a stage nor a helper: the message says what to do."""
    (folder / "new.py").write_text('"""Forgot its contract."""\n')
    assert refusal() == (
        "softmaxes/new.py: it has no CONTRACT, so it is no stage: give it one, or name 'new' in HELPERS of "
        "softmaxes/__init__.py"
    )


def test_a_folder_in_a_slots_folder(folder):
    """The same."""
    (folder / "deep").mkdir()
    (folder / "deep" / "__init__.py").touch()
    assert "softmaxes/deep.py: it has no CONTRACT" in refusal()


def test_a_helper_with_a_contract(folder):
    """It would silently be no stage."""
    (folder / "shared.py").write_text(STAGE)
    assert refusal() == (
        "softmaxes/shared.py: it has a CONTRACT, and softmaxes/__init__.py names it in HELPERS"
    )


def test_a_helper_that_is_not_there(folder):
    """A name that was mistyped, or left behind."""
    (folder / "shared.py").unlink()
    assert refusal() == ("softmaxes/__init__.py: HELPERS names shared, and there is no softmaxes/shared.py")


@pytest.mark.parametrize("name", ["sound", "shared"])
def test_a_missing_docstring(folder, name):
    """Of a stage and of a helper."""
    path = folder / f"{name}.py"
    path.write_text(re.sub('"""[^"]*"""', "", path.read_text(), count=1))
    assert refusal() == (
        f"softmaxes/{name}.py: it has no docstring, which states what the module promises and needs"
    )


def test_a_contract_of_another_slot(folder):
    """A slot that there is not, too."""
    for slot in ("pages", "softmaxs"):
        (folder / "sound.py").write_text(STAGE.replace('slot="softmax"', f'slot="{slot}"'))
        for name in ("softmaxes.sound",):
            sys.modules.pop(name, None)
        assert refusal() == f"softmaxes/sound.py: stage sound (softmax): its contract says slot {slot}"


def test_a_name_that_cannot_be_imported(folder):
    """A spec could not name it, and generated code not import it."""
    (folder / "my-stage.py").write_text(STAGE)
    assert "softmaxes/my-stage.py: a stage has the name of its file" in refusal()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = (\n", r"softmaxes/sound\.py:\d: not valid Python"),
        ("import no_such_module\n", r"softmaxes/sound\.py: cannot be imported: there is no module no_such_"),
        ('"""Doc."""\n\nx = 1 // 0\n', r"softmaxes/sound\.py:3: cannot be imported: ZeroDivisionError: "),
    ],
)
def test_a_file_that_cannot_be_imported(folder, source, said):
    """File, line and reason, in words of our own where Python has some of its own."""
    (folder / "sound.py").write_text(source)
    assert re.match(said, refusal())


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("stages/softmax/new.py", '"""Doc."""\n', "stages/softmax/new.py: it has no CONTRACT"),
        (
            "stages/softmaxs/new.py",
            STAGE,
            "stages/softmaxs/new.py: it has a CONTRACT, and lies in no slot's folder; the slots are pages, ",
        ),
        ("stages/other.py", "x = (\n", "stages/other.py:1: not valid Python"),
        ("variants/kernels/other.py", "é".encode("latin-1"), "variants/kernels/other.py: it is not UTF-8"),
    ],
)
def test_the_command_line_says_it(tmp_path, file, content, said):
    """Exit status 1 and one line."""
    path = copy_checkout(tmp_path) / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = run(tmp_path, "list")
    assert (result.returncode, result.stderr.count("\n")) == (1, 1), result.stderr
    assert result.stderr.startswith(said)
