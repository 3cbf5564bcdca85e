"""Errors of device code name the stage's file and line: whatever finds them, and however they are raised."""

import re

import pytest

from generator import console
from generator.compiled import compile_variant, load_module
from generator.places import at_home, explained, home
from tests.generator.command import ROOT, copy_checkout, first_variant, run

NORM_GATE, DSMEM = "stages/epilogue/norm_gate.py", "stages/push/dsmem.py"
STORE = "        y = unpack_bf16(normalised(l, o))\n"
SEND = "        if mine.units[0] == 0:\n"

BROKEN = {
    "an unknown name": (NORM_GATE, STORE, STORE + "        nosuch(y)\n", "nosuch(y)", "NameError"),
    "an index out of range": (NORM_GATE, STORE, STORE + "        y = o[77]\n", "y = o[77]", "IndexError"),
    "an attribute": (NORM_GATE, STORE, STORE + "        y = self.none\n", "y = self.none", "AttributeError"),
    "a wrong type": (
        NORM_GATE,
        STORE,
        STORE + '        z = load_global_i32("x")\n',
        'z = load_global_i32("x")',
        "called from",
    ),
    "an if of a runtime value": (
        NORM_GATE,
        STORE,
        STORE + "        if l == 0.0:\n            y = o\n",
        "if l == 0.0:",
        "PHASE_DYNAMIC_TO_STATIC_BOOL",
    ),
    "a dynamic if that defines a name": (
        DSMEM,
        SEND,
        SEND
        + "            fresh = mine.m\n        store_async_f32x2(record, (fresh, fresh), barrier)\n"
        + SEND,
        "store_async_f32x2(record, (fresh, fresh), barrier)",
        "NameError",
    ),
    "a dynamic if that changes a type": (
        DSMEM,
        SEND,
        "        kind = 1\n        if mine.row == 0:\n            kind = mine.m\n" + SEND,
        "if mine.row == 0:",
        "TYPE_UNSTABLE_JOIN",
    ),
    "an early return": (
        DSMEM,
        SEND,
        SEND + "            return\n" + SEND,
        "return",
        "UNSUP_EARLY_EXIT",
    ),
}
"""For each kind of fault a stage, an edit of it, the line that is to be named, and a part of the message."""

PTXAS = ("stages/ptx/arithmetic.py", '"ex2.approx.ftz.f32 $0, $1;"', '"ex2.bogus.f32 $0, $1;"')
"""An edit that only ptxas objects to."""

TO_THE_END = ("a dynamic if that defines a name",)
"""A fault that a user's command is run for, in CuTe DSL's own words; the others are told to the function."""


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def number_of(path, guilty):
    """The last line of a file that is `guilty`, without its indentation."""
    return max(i for i, line in enumerate(path.read_text().splitlines(), 1) if line.strip() == guilty)


@pytest.fixture
def checkout(tmp_path):
    """A copy with the first variant alone."""
    spec = copy_checkout(tmp_path) / "spec.yaml"
    spec.write_text(first_variant(spec.read_text()))
    return tmp_path


@pytest.mark.parametrize("kind", BROKEN)
def test_the_stage_and_its_line_are_named(checkout, kind):
    """What is wrong, where, the line, and nothing of the folder in which the module was compiled."""
    name, old, new, guilty, said = BROKEN[kind]
    generated = checkout / "generated" / "attn2.py"
    for path in (checkout / name, generated):
        edit(path, old, new)
    with pytest.raises(Exception) as caught:
        compile_attn2(load_module(generated))
    told = explained(caught.value, generated, checkout)
    assert f"{name}:{number_of(checkout / name, guilty)}: " in told, told
    assert guilty in told and said in told and str(checkout) not in told


def compile_attn2(module):
    module.compile_attn2("cluster", arch="sm_90a")


@pytest.mark.parametrize("kind", TO_THE_END)
def test_the_command_names_them(checkout, kind):
    """With exit status 1 and no traceback."""
    name, old, new, guilty, said = BROKEN[kind]
    edit(checkout / name, old, new)
    result = run(checkout, "compile")
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("attn2.cluster does not compile for sm_90a: ")
    assert f"{name}:{number_of(checkout / name, guilty)}: " in result.stderr and said in result.stderr
    assert "Traceback" not in result.stderr and not re.search(r"/tmp\S*attn2\.py", result.stderr)


def test_what_ptxas_refuses_is_named(checkout):
    """The stage that uses the instruction, by the line information of the PTX."""
    edit(checkout / PTXAS[0], *PTXAS[1:])
    result = run(checkout, "compile")
    assert result.returncode == 1, result.stderr
    softmax = checkout / "stages/softmax/online.py"
    uses = [i for i, line in enumerate(softmax.read_text().splitlines(), 1) if "exp2(" in line]
    named = re.findall(r"stages/softmax/online\.py:(\d+): ptxas: ", result.stderr)
    assert named and {int(number) for number in named} <= set(uses)
    assert "ex2.bogus.f32" in result.stderr and not re.search(r"/tmp\S*attn2\.py", result.stderr)


def test_an_export_names_them_too(checkout):
    """The command goes another way through the module."""
    edit(checkout / NORM_GATE, STORE, STORE + "        nosuch(y)\n")
    line = number_of(checkout / NORM_GATE, "nosuch(y)")
    result = run(checkout, "export", "--out", "kernels")
    assert result.returncode == 1
    assert f"{NORM_GATE}:{line}: NameError" in result.stderr


def test_every_line_of_device_code_has_its_home():
    """Lines of the checked-in module, of functions and classes: file and line, the texts are the same."""
    path = ROOT / "generated" / "attn2.py"
    lines = path.read_text().splitlines()
    seen = 0
    for number in range(1, len(lines) + 1, 23):
        place = home(path, number)
        if place.line is not None and place.file != path.name:
            assert (ROOT / place.file).read_text().splitlines()[place.line - 1] == lines[number - 1]
            seen += 1
    assert seen > 60


def test_lines_that_occur_twice_are_told_apart():
    """By the definition that they are in, and their distance from its beginning."""
    path = ROOT / "generated" / "attn2.py"
    lines = path.read_text().splitlines()
    twice = [i for i, line in enumerate(lines, 1) if line == "        cta_sync()"]
    places = {str(home(path, number)) for number in twice}
    assert len(places) == len(twice) > 1
    assert at_home(f"at {path}:{twice[0]}", path) == f"at {home(path, twice[0])}"


def test_a_stage_that_the_formatter_changes_keeps_its_lines(tmp_path):
    """What moves lines on their way into the generated module does not move the place."""
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "odd.py").write_text(
        '"""Doc."""\n\n\ndef odd(a,\n        b):\n    x = [a,\n         b]\n    return x[2]\n'
    )
    made = tmp_path / "made.py"
    made.write_text("# stages/odd.py\n# ====\n\n\ndef odd(a, b):\n    x = [a, b]\n    return x[2]\n")
    assert str(home(made, 7, tmp_path)) == "stages/odd.py:8"


def test_a_full_disk_is_no_fault_of_a_kernel(monkeypatch):
    """The system's refusal passes through the compiler's errors."""
    module = load_module(ROOT / "generated" / "attn2.py")

    def full(*arguments, **options):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RuntimeError("internal problem") from error

    monkeypatch.setattr(module, "compile_attn2", full)
    with pytest.raises(OSError, match="No space left"), console.temporary_folder():
        compile_variant(module, "attn2", "cluster", 0, "sm_90a")
