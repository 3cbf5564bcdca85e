"""A YAML file as plain data, with the line and column of every key and value.

Reads the part of YAML that a spec needs, and refuses the rest by name rather than guess: no anchors, aliases
or merge keys, no tags beyond the core ones, only strings as keys, one document. Scalars are those of the YAML
1.2 core schema, of which numbers are decimal, so `no` is a string and `010` is not eight. Size, depth and the
number of nodes are bounded, so no file takes long to refuse.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from generator.errors import KeyPath, Problem, SpecError, described, key_path, quoted, shortened

MAX_BYTES = 1 << 18
MAX_DEPTH = 32
MAX_NODES = 20_000

_CORE = "tag:yaml.org,2002:"
_ODD_CHARACTER = re.compile(
    "[^\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, order=True)
class Position:
    """A place in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Document:
    """The data of a file, and where each part of it stands.

    keys: of every entry of a mapping, where its key is. values: of every value, where it begins. problems:
    what is wrong with the file that does not keep the rest from being checked.
    """

    file: str
    data: Any
    keys: Mapping[KeyPath, Position]
    values: Mapping[KeyPath, Position]
    problems: tuple[Problem, ...] = ()

    def position(self, path: KeyPath, *, of_key: bool = False) -> Position:
        """Where the value at `path` begins, or its key; where there is none, the nearest key above it."""
        if path in self.values and not of_key:
            return self.values[path]
        for length in range(len(path), 0, -1):
            if path[:length] in self.keys:
                return self.keys[path[:length]]
        return self.values.get((), Position(1, 1))

    def problem(
        self,
        path: KeyPath,
        message: str,
        *,
        of_key: bool = False,
        found: str | None = None,
        allowed: tuple[str, ...] = (),
        nearest: str | None = None,
    ) -> Problem:
        """A problem with the value at `path`, or with its key."""
        at = self.position(path, of_key=of_key)
        return Problem(self.file, at.line, at.column, key_path(path), message, found, allowed, nearest)


def read_document(path: str | os.PathLike[str]) -> Document:
    """The document in the file at `path`. Raises SpecError."""
    file = os.fspath(path)
    try:
        # Opening a pipe or a device could wait or read for ever.
        if not stat.S_ISREG(os.stat(file).st_mode):
            is_folder = os.path.isdir(file)
            raise _refusal(file, "is a folder, not a file" if is_folder else "is not a regular file")
        with Path(file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _refusal(file, f"cannot be read: {reason[0].lower()}{reason[1:]}") from error
    except ValueError as error:
        raise _refusal(file, "cannot be read: its name holds a NUL character") from error
    return parse_document(content, file)


def parse_document(content: bytes, file: str) -> Document:
    """The document in these bytes; `file` is what messages call them. Raises SpecError."""
    text = _decode(content, file)
    builder = _Builder(file)
    loader = _Loader(text, builder)
    try:
        node = loader.get_node() if loader.check_node() else None
        if node is not None and loader.check_node():
            second = loader.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _refusal(file, "a second YAML document begins here; a spec is one document", second)
    except yaml.MarkedYAMLError as error:
        context = f" ({error.context})" if error.context else ""
        mark = error.problem_mark or error.context_mark
        raise _refusal(file, f"not valid YAML: {error.problem}{context}", mark) from error
    except (ValueError, OverflowError) as error:
        # PyYAML converts the numbers in escapes and directives without a look at their range.
        wrong = "not valid YAML: an escape or a directive holds a number out of range"
        raise _refusal(file, wrong, loader.get_mark()) from error
    if node is None or (node.tag == f"{_CORE}null" and node.value == ""):
        raise _refusal(file, "the file is empty: it holds no YAML data")
    data = builder.build(node, ())
    if builder.fatal:
        raise SpecError(builder.fatal + builder.duplicates)
    return Document(file, data, builder.keys, builder.values, tuple(builder.duplicates))


def _decode(content: bytes, file: str) -> str:
    if len(content) > MAX_BYTES:
        raise _refusal(file, f"the file has more than {MAX_BYTES} bytes, which no spec needs")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", errors="replace")
        wrong = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        raise _refusal(file, wrong, _position(before, len(before))) from error
    odd = _ODD_CHARACTER.search(text)
    if odd:
        if odd.group() == "\t":
            wrong = "a tab: YAML does not indent with tabs; write spaces"
        else:
            wrong = f"the character U+{ord(odd.group()):04X} may not stand in a spec"
        raise _refusal(file, wrong, _position(text, odd.start()))
    return text


def _position(text: str, index: int) -> Position:
    breaks = [m.end() for m in _LINE_BREAK.finditer(text, 0, index)]
    return Position(len(breaks) + 1, index - (breaks[-1] if breaks else 0) + 1)


def _refusal(file: str, message: str, at: Position | yaml.Mark | None = None) -> SpecError:
    if at is None:
        at = Position(1, 1)
    elif not isinstance(at, Position):
        at = Position(at.line + 1, at.column + 1)
    return SpecError([Problem(file, at.line, at.column, "", message)])


class _Loader(yaml.SafeLoader):
    """Composes nodes within the bounds; reports anchors, aliases and tags."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  filled below; PyYAML's own are those of YAML 1.1

    def __init__(self, text: str, builder: _Builder) -> None:
        super().__init__(text)
        self._builder = builder
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            self.get_event()  # type: ignore[no-untyped-call]
            name = shortened(str(event.anchor))
            self._builder.report(mark, f"aliases are not supported (*{name}): write the value out")
            return yaml.ScalarNode(f"{_CORE}null", "~", mark, mark)
        if event.anchor is not None:
            name = shortened(str(event.anchor))
            self._builder.report(mark, f"anchors are not supported (&{name}): write each value out")
            event.anchor = None
        if event.tag is not None and event.tag.removeprefix(_CORE) not in _TAGS:
            tag = quoted(event.tag.replace(_CORE, "!!"))
            self._builder.report(mark, f"the tag {tag} is not supported")
        self._nodes += 1
        self._depth += 1
        if self._nodes > MAX_NODES:
            raise _refusal(self._builder.file, f"more than {MAX_NODES} values, which no spec needs", mark)
        if self._depth > MAX_DEPTH:
            raise _refusal(
                self._builder.file, f"nested more than {MAX_DEPTH} deep, which no spec needs", mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


_SCALARS: Mapping[str, tuple[re.Pattern[str], str, Callable[[str], Any]]] = {
    # Name of the core tag: what it matches, first characters of that, and its value.
    "null": (re.compile("~|null|Null|NULL|"), "~nN", lambda text: None),
    "bool": (re.compile("true|True|TRUE|false|False|FALSE"), "tTfF", lambda text: text.lower() == "true"),
    "int": (re.compile("[-+]?(0|[1-9][0-9]{0,99})"), "-+0123456789", int),
    "float": (
        re.compile(r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|nan))"),
        "-+.0123456789",
        lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
    ),
}

for _name, (_pattern, _first, _) in _SCALARS.items():
    _anchored = re.compile(f"(?:{_pattern.pattern})\\Z")
    _Loader.add_implicit_resolver(_CORE + _name, _anchored, [*_first, *([""] if _name == "null" else [])])

_NATURAL_TAGS = {yaml.MappingNode: "map", yaml.SequenceNode: "seq", yaml.ScalarNode: "str"}
_TAGS = {*_SCALARS, *_NATURAL_TAGS.values()}


@dataclass
class _Builder:
    """Turns nodes into plain data, and notes positions and problems."""

    file: str
    keys: dict[KeyPath, Position] = field(default_factory=dict)
    values: dict[KeyPath, Position] = field(default_factory=dict)
    fatal: list[Problem] = field(default_factory=list)
    duplicates: list[Problem] = field(default_factory=list)

    def report(self, mark: yaml.Mark, message: str, path: KeyPath = ()) -> None:
        """Note a problem that makes the data unfit for further checks."""
        self.fatal.append(Problem(self.file, mark.line + 1, mark.column + 1, key_path(path), message))

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """The data of `node`, which is at `path`."""
        self.values[path] = Position(node.start_mark.line + 1, node.start_mark.column + 1)
        tag = node.tag.removeprefix(_CORE)
        if tag not in _TAGS:  # which has been reported
            tag = _NATURAL_TAGS[type(node)]
        if isinstance(node, yaml.MappingNode) and tag == "map":
            return {key: self.build(value, (*path, key)) for key, value in self._entries(node, path)}
        if isinstance(node, yaml.SequenceNode) and tag == "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            if tag == "str":
                if _SURROGATE.search(node.value):
                    self.report(node.start_mark, "an escape gives half a surrogate pair, no character", path)
                return node.value
            if tag in _SCALARS:
                pattern, _, convert = _SCALARS[tag]
                if pattern.fullmatch(node.value):
                    return convert(node.value)
        self.report(node.start_mark, f"the value does not fit its tag !!{tag}", path)
        return None

    def _entries(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            key = _Builder(self.file).build(key_node, ())
            if not isinstance(key, str):
                self.report(mark, f"a key must be a string, found {described(key)}", path)
            elif key == "<<":
                self.report(mark, "merge keys (<<) are not supported: write the entries out", path)
            elif _SURROGATE.search(key):
                self.report(mark, "an escape gives half a surrogate pair, no character", path)
            elif (*path, key) in self.keys:
                first = self.keys[(*path, key)]
                self.duplicates.append(
                    Problem(
                        self.file,
                        mark.line + 1,
                        mark.column + 1,
                        key_path((*path, key)),
                        f"duplicate key; the first is at line {first.line}, column {first.column}",
                    )
                )
            else:
                self.keys[(*path, key)] = Position(mark.line + 1, mark.column + 1)
                yield key, value_node
