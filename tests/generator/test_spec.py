"""The format of a spec: names, types and ranges, and every message in our own words."""

import keyword

import pytest

from generator.document import parse_document
from generator.spec import ServesSpec, Spec, SpecDocument, check_format
from tests.generator.fakes import SPEC, edited


def checked(text: str) -> SpecDocument:
    """The text of a spec, its format checked."""
    return check_format(parse_document(text.encode(), "spec.yaml"))


def messages(text: str) -> list[str]:
    """What is wrong with the format of a spec, in the order of the file."""
    return [str(p) for p in sorted(checked(text).problems, key=lambda p: (p.line, p.column))]


ROOT = "modules.attn2"
PROBLEM = f"{ROOT}.problem"
CLUSTER = f"{ROOT}.variants.cluster"


def test_a_sound_spec():
    """Nothing is wrong, nothing is left out, and the models take it."""
    spec = checked(SPEC)
    assert spec.problems == ()
    model = Spec.model_validate(spec.data)
    assert model.modules["attn2"].variants["cluster"].stages["pages"].stage == "register_prefetch"
    assert model.modules["attn2"].variants["cluster"].serves == ServesSpec(max_seq_len=2048)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "head_dim: 64",
            "head_dim: '64'",
            f"3:25: {PROBLEM}.head_dim: a whole number is wanted, found the string '64'",
        ),
        (
            "tokens: 8",
            "tokens: true",
            f"3:54: {PROBLEM}.tokens: a whole number is wanted, found the boolean true",
        ),
        (
            "tokens: 8",
            "tokens: 8.0",
            f"3:54: {PROBLEM}.tokens: a whole number is wanted, found the fractional number 8.0",
        ),
        ("tokens: 8", "tokens: ", f"3:53: {PROBLEM}.tokens: a whole number is wanted, found nothing (null)"),
        (
            "tokens: 8",
            "tokens: 0",
            f"3:54: {PROBLEM}.tokens: out of range, found the whole number 0; allowed: 1 to 1024",
        ),
        (
            "dtype: bf16",
            "dtype: fp8",
            f"3:79: {PROBLEM}.dtype: unknown value, found the string 'fp8'; allowed: bf16",
        ),
        (
            "dtype: bf16",
            "dtype: [bf16]",
            f"3:79: {PROBLEM}.dtype: unknown value, found a list; allowed: bf16",
        ),
        (
            "max_seq_len: 2048",
            "max_seq_len: 0",
            f"7:31: {CLUSTER}.serves.max_seq_len: out of range, found the whole number 0; allowed: 1 to "
            f"1048576",
        ),
        (
            "max_seq_len: 2048",
            "max_seq_len: 1048577",
            f"7:31: {CLUSTER}.serves.max_seq_len: out of range, found the whole number 1048577; "
            "allowed: 1 to 1048576",
        ),
        (
            "max_seq_len: 2048",
            "max_seq_len: null",
            f"7:31: {CLUSTER}.serves.max_seq_len: a whole number is wanted, found nothing (null)",
        ),
        (
            "window: false",
            "window: 0",
            f"7:45: {CLUSTER}.serves.window: true or false is wanted, found the whole number 0",
        ),
        (
            "window: false",
            "window: no",
            f"7:45: {CLUSTER}.serves.window: true or false is wanted, found the string 'no'",
        ),
        (
            "window: false",
            "windows: false",
            f"7:37: {CLUSTER}.serves.windows: unknown key; allowed: max_seq_len, window; did you mean "
            f"'window'?",
        ),
        (
            "cluster: 16",
            "cluster: sixteen",
            f"8:27: {CLUSTER}.launch.cluster: a whole number is wanted, found the string 'sixteen'",
        ),
        (
            "{cluster: 16, warps: 4, pages_per_step: 2}",
            "[16, 4]",
            f"8:17: {CLUSTER}.launch: a mapping is wanted, found a list",
        ),
        (
            "skeleton: cluster",
            "skeleton: 1",
            f"6:19: {CLUSTER}.skeleton: a string is wanted, found the whole number 1",
        ),
        ("        skeleton: cluster\n", "", f"5:7: {CLUSTER}: the key 'skeleton' is missing"),
        (
            "register_prefetch",
            "[ring]",
            f"10:18: {CLUSTER}.stages.pages: the name of a stage, or a mapping with `stage`, is wanted, "
            f"found a list",
        ),
        ("register_prefetch", "{depth: 4}", f"10:11: {CLUSTER}.stages.pages: the key 'stage' is missing"),
        (
            "register_prefetch",
            "{stage: ring, depth: '4'}",
            f"10:39: {CLUSTER}.stages.pages.depth: a whole number is wanted, found the string '4'",
        ),
        (
            "    problem:",
            "    poblem:",
            f"3:5: {ROOT}.poblem: unknown key; allowed: problem, variants; did you mean 'problem'?",
        ),
    ],
)
def test_wrong_values(old, new, message):
    """One wrong value, one message, in its place; a key that is spelt wrongly is also missing."""
    found = messages(edited((old, new)))
    assert f"spec.yaml:{message}" in found
    assert len(found) == (2 if old.strip() == "problem:" else 1), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "1:1: a mapping is wanted, found an empty list"),
        ("5", "1:1: a mapping is wanted, found the whole number 5"),
        ("{}", "1:1: the key 'modules' is missing"),
        ("modules:", "1:9: modules: a mapping is wanted, found nothing (null)"),
        ("modules: {}", "1:10: modules: at least one entry is wanted, found an empty mapping"),
    ],
)
def test_wrong_outlines(text, message):
    """Files that say nothing."""
    assert messages(text) == [f"spec.yaml:{message}"]


def test_a_module_without_variants():
    """A module is its variants."""
    text = SPEC[: SPEC.index("variants:")] + "variants: {}\n"
    assert messages(text) == [
        f"spec.yaml:4:15: {ROOT}.variants: at least one entry is wanted, found an empty mapping"
    ]


FORM = "is not 1 to 40 lower-case letters, digits and _ of which the first is a letter"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../x", FORM),
        ("/tmp/x", FORM),
        ("a/b", FORM),
        ("a.b", FORM),
        ("a-b c", FORM),
        ("", FORM),
        ("_a", FORM),
        ("__init__", FORM),
        ("Attn", FORM),
        ("2d", FORM),
        ("é", FORM),
        ("attn2\n", FORM),
        ("a" * 41, FORM),
        ("class", "is a Python keyword"),
        ("torch", "is the name of another package here"),
        ("cutlass", "is the name of another package here"),
        ("stagewright", "is the name of another package here"),
        ("math", "is a name of Python itself"),
        ("range", "is a name of Python itself"),
    ],
)
def test_module_names(name, reason):
    """A module's name becomes a file in the output folder, and names in Python."""
    quoted = repr(name).replace("'", '"') if "\n" in name else repr(name)
    key = name if name and name.replace("_", "").isascii() and name.replace("_", "").isalnum() else repr(name)
    assert messages(edited(("attn2", quoted))) == [
        f"spec.yaml:2:3: modules.{key}: {name!r} cannot name a module: it {reason}"
    ]


@pytest.mark.parametrize("name", [*keyword.kwlist, "../x", "a b", "", "_"])
def test_variant_names(name):
    """A variant's name becomes part of names in Python."""
    (message,) = messages(edited(("      cluster:\n", f"      '{name}':\n")))
    assert f"{name!r} cannot name a variant: it is " in message
    assert message.startswith("spec.yaml:5:7: modules.attn2.variants.")


@pytest.mark.parametrize("name", ["torch", "math", "a", "a" * 40, "x_1"])
def test_variant_names_that_are_no_files(name):
    """No file is called after a variant."""
    assert messages(edited(("      cluster:\n", f"      {name}:\n"))) == []


def test_what_is_left_can_be_checked_on():
    """Broken parts, and only they, are gone from the data; what they were is remembered."""
    spec = checked(
        edited(("head_dim: 64", "head_dim: '64'"), ("cluster: 16, ", "cluster: x, "), ("skeleton", "skeletn"))
    )
    variant = ("modules", "attn2", "variants", "cluster")
    module = spec.data["modules"]["attn2"]
    assert module["problem"] == {"heads_per_kv": 8, "tokens": 8, "page_size": 16, "dtype": "bf16"}
    assert module["variants"]["cluster"]["launch"] == {"warps": 4, "pages_per_step": 2}
    assert spec.broken == {
        ("modules", "attn2", "problem", "head_dim"),
        (*variant, "launch", "cluster"),
        (*variant, "skeleton"),
        (*variant, "skeletn"),
    }
    assert spec.is_broken((*variant, "skeleton"))
    assert not spec.is_broken((*variant, "launch"))
    assert (
        "skeletn" in spec.document.data["modules"]["attn2"]["variants"]["cluster"]
    ), "the document is as it was"


def test_a_long_text_is_cut():
    """A message stays a line that one can read."""
    (message,) = messages(edited(("2048", "'" + "9" * 9999 + "'")))
    assert message.endswith(f"found the string '{'9' * 60}'...")
