"""Reading YAML: positions of what is right, and a message of its own for everything that is refused."""

import os

import pytest

from generator.document import MAX_BYTES, MAX_DEPTH, MAX_NODES, Position, parse_document, read_document
from generator.errors import SpecError


def refusals(content: str | bytes) -> list[str]:
    """The messages for a file of this content."""
    with pytest.raises(SpecError) as caught:
        parse_document(content if isinstance(content, bytes) else content.encode(), "spec.yaml")
    return str(caught.value).splitlines()


def test_positions_are_those_of_keys_and_values():
    """Lines and columns count from 1, in characters and not in bytes, in block and flow style."""
    document = parse_document("a:\n  'ü ü': {b: 1, c: [2, 3]}\n".encode(), "spec.yaml")
    assert document.data == {"a": {"ü ü": {"b": 1, "c": [2, 3]}}}
    assert document.keys[("a", "ü ü")] == Position(2, 3)
    assert document.values[("a",)] == Position(2, 3)
    assert document.values[("a", "ü ü", "b")] == Position(2, 14)
    assert document.values[("a", "ü ü", "c", 1)] == Position(2, 24)
    assert document.position(("a", "ü ü", "d", "e")) == Position(2, 3), "the nearest key above"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("'true'", "true"),
        ("64", 64),
        ("-3", -3),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("8.0", 8.0),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("null", None),
        ("~", None),
        ("", None),
        ("''", ""),
        ("!!str 64", "64"),
        ("!!int '64'", 64),
        ("a: 1".join("{}"), {"a": 1}),
        ("[]", []),
    ],
)
def test_scalars_are_those_of_the_core_schema(text, value):
    """YAML 1.2, decimal numbers: nothing turns into a number or a boolean that does not look like one."""
    found = parse_document(f"a: {text}".encode(), "spec.yaml").data["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ("", ["spec.yaml:1:1: the file is empty: it holds no YAML data"]),
        ("# words\n---\n", ["spec.yaml:1:1: the file is empty: it holds no YAML data"]),
        (b"a: 1\nb: \xc3\xbc\xff", ["spec.yaml:2:5: the byte 0xff is not UTF-8"]),
        ("a: 1\n".encode("utf-16"), ["spec.yaml:1:1: the byte 0xff is not UTF-8"]),
        ("a:\n\tb: 1", ["spec.yaml:2:1: a tab: YAML does not indent with tabs; write spaces"]),
        ("a: 1\r\nb: \x07", ["spec.yaml:2:4: the character U+0007 may not stand in a spec"]),
        ("a: \u2028", ["spec.yaml:1:4: the character U+2028 may not stand in a spec"]),
        (
            "a: &x [1]\nb: {c: *x}",
            [
                "spec.yaml:1:4: anchors are not supported (&x): write each value out",
                "spec.yaml:2:8: aliases are not supported (*x): write the value out",
            ],
        ),
        ("a:\n  <<: {b: 1}", ["spec.yaml:2:3: a: merge keys (<<) are not supported: write the entries out"]),
        ("a: {1: b}", ["spec.yaml:1:5: a: a key must be a string, found the whole number 1"]),
        ("a: {true: b}", ["spec.yaml:1:5: a: a key must be a string, found the boolean true"]),
        ("? [a]\n: b", ["spec.yaml:1:3: a key must be a string, found a list"]),
        ("a: !!set {b}", ["spec.yaml:1:4: the tag '!!set' is not supported"]),
        ("a: !x 1", ["spec.yaml:1:4: the tag '!x' is not supported"]),
        ("a: !!int b", ["spec.yaml:1:4: a: the value does not fit its tag !!int"]),
        ("a: !!map [b]", ["spec.yaml:1:4: a: the value does not fit its tag !!map"]),
        ("a: 1\n--- \nb: 2", ["spec.yaml:2:1: a second YAML document begins here; a spec is one document"]),
        ("a: b: c", ["spec.yaml:1:5: not valid YAML: mapping values are not allowed here"]),
        (
            "a: [1\nb: 2",
            [
                "spec.yaml:2:2: not valid YAML: expected ',' or ']', but got ':' (while parsing a flow "
                "sequence)"
            ],
        ),
        (
            'a: "\\Uffffffff"',
            ["spec.yaml:1:7: not valid YAML: an escape or a directive holds a number out of range"],
        ),
        ('a: "\\ud800"', ["spec.yaml:1:4: a: an escape gives half a surrogate pair, no character"]),
        ('"\\ud800": 1', ["spec.yaml:1:1: an escape gives half a surrogate pair, no character"]),
        (
            b"a: 1\n" + b"#" * MAX_BYTES,
            [f"spec.yaml:1:1: the file has more than {MAX_BYTES} bytes, which no spec needs"],
        ),
        (
            "[" * 40 + "]" * 40,
            [f"spec.yaml:1:{MAX_DEPTH + 1}: nested more than {MAX_DEPTH} deep, which no spec needs"],
        ),
        (
            "\n".join(["- 1"] * (MAX_NODES + 5)),
            [f"spec.yaml:{MAX_NODES}:3: more than {MAX_NODES} values, which no spec needs"],
        ),
    ],
)
def test_refused(content, messages):
    """Each kind of file that no spec should be, with the whole message."""
    assert refusals(content) == messages


def test_a_bomb_is_refused_at_once():
    """Nested aliases multiply to gigabytes where they are followed."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    assert "aliases are not supported (*a0)" in refusals("\n".join(lines))[2]


def test_messages_do_not_repeat_endless_names():
    """An anchor's or alias's name may be as long as the file."""
    name = "a" * 50000
    for message in refusals(f"a: &{name} 1\nb: *{name}"):
        assert len(message) < 300 and "aaa..." in message


def test_a_duplicate_key_does_not_hide_the_rest():
    """The first entry counts; the problem goes along with those of later checks."""
    document = parse_document(b"a: {b: 1, c: 2,\n  b: 3}\na: 4\n", "spec.yaml")
    assert document.data == {"a": {"b": 1, "c": 2}}
    assert [str(problem) for problem in document.problems] == [
        "spec.yaml:2:3: a.b: duplicate key; the first is at line 1, column 5",
        "spec.yaml:3:1: a: duplicate key; the first is at line 1, column 1",
    ]


def unreadable(path) -> str:
    """The message for a file that cannot be read."""
    with pytest.raises(SpecError) as caught:
        read_document(path)
    return str(caught.value)


def test_unreadable_files(tmp_path, monkeypatch):
    """Named as the user named them, each with its own reason."""
    monkeypatch.chdir(tmp_path)
    assert unreadable("no/such.yaml") == "no/such.yaml:1:1: cannot be read: no such file or directory"
    assert unreadable(tmp_path) == f"{tmp_path}:1:1: is a folder, not a file"
    assert unreadable(os.devnull) == f"{os.devnull}:1:1: is not a regular file"
    assert unreadable("a\0b.yaml") == r"a\x00b.yaml:1:1: cannot be read: its name holds a NUL character"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path):
    """The system's reason is passed on."""
    path = tmp_path / "spec.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert unreadable(path) == f"{path}:1:1: cannot be read: permission denied"


def test_a_file_that_the_system_does_not_let_read(tmp_path, monkeypatch):
    """The same for whoever runs the tests as root."""
    path = tmp_path / "spec.yaml"
    path.write_text("a: 1")

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    assert unreadable(path) == f"{path}:1:1: cannot be read: permission denied"


def test_a_byte_order_mark_is_no_character(tmp_path):
    """Some editors begin a file with one."""
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    document = read_document(path)
    assert document.data == {"a": 1, "b": 2}
    assert document.keys[("a",)] == Position(1, 1)
    assert document.keys[("b",)] == Position(2, 1)
