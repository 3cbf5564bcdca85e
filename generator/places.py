"""Names the stage's own line behind a line of a generated module: in errors of the compiler and the emulator.

Contract
    Definitions are copied word for word into a generated module, under a banner that names their file. So the
    home of a line is the line of the same definition at the same distance from its beginning; where the
    formatter has moved lines, the one that is aligned with it; and where the file has changed since, the file
    alone. Only the texts are read; nothing is imported.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from generator.link import WORKSHOP

DEVICE = ("stages/", "variants/kernels/")
"""Where device code lies; a line of anything else says nothing about what is wrong with a kernel."""

_BANNER = re.compile(r"# ([a-z_]+/[\w/]+\.py)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PTX_ERROR = re.compile(r"line (\d+); (?:error|fatal)\s*: (.*)")
_PTX_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_PTX_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')


@dataclass(frozen=True)
class Place:
    """A line of a file. file: seen from the checkout. line: None if it cannot be told. text: the line."""

    file: str
    line: int | None
    text: str

    def __str__(self) -> str:
        """File and line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


def home(path: Path, number: int, root: Path = WORKSHOP) -> Place:
    """The home of a line of the generated module at `path`; the line itself where no stage's file has it.

    number: from 1. root: the checkout.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    text = lines[number - 1].strip() if number <= len(lines) else ""
    titles = (_BANNER.fullmatch(line) for line in reversed(lines[:number]))
    title = next((found.group(1) for found in titles if found), None)
    if title is None or not (root / title).is_file():
        return Place(path.name, number, text)
    source = (root / title).read_text(encoding="utf-8").split("\n")
    return Place(title, _same_line(lines, source, number), text)


def _same_line(lines: list[str], source: list[str], number: int) -> int | None:
    """The line of `source` that line `number` of the generated `lines` was copied from."""
    try:
        spans, homes = _spans("\n".join(lines)), _spans("\n".join(source))
    except (SyntaxError, ValueError):
        return None
    for name, (first, last) in spans.items():
        if first <= number <= last and name in homes:
            start, end = homes[name]
            guess = start + number - first
            if guess <= end and source[guess - 1] == lines[number - 1]:
                return guess
            pieces = lines[first - 1 : last], source[start - 1 : end]
            for block in difflib.SequenceMatcher(None, *pieces, autojunk=False).get_matching_blocks():
                if block.a <= number - first < block.a + block.size:
                    return start + block.b + (number - first - block.a)
            return None
    same = [i for i, line in enumerate(source, 1) if line == lines[number - 1]]
    return same[0] if len(same) == 1 else None


@functools.lru_cache(maxsize=64)
def _spans(text: str) -> dict[str, tuple[int, int]]:
    """The first and the last line of each top-level function and class, decorators included."""
    spans = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            spans[node.name] = (first, node.end_lineno or first)
    return spans


def at_home(message: str, path: Path, root: Path = WORKSHOP) -> str:
    """A message that names lines of the generated module at `path`, with the stages' own lines instead."""
    pattern = rf"{re.escape(str(path))}:(\d+)"
    return re.sub(pattern, lambda match: str(home(path, int(match.group(1)), root)), message)


def explained(error: BaseException, path: Path, root: Path = WORKSHOP) -> str:
    """An error of compiling or running the generated module at `path`, with the place in the stages.

    The first line says where and what is wrong; then come the line itself, the lines that led to it, and what
    the compiler suggests.
    """
    chain = list(_chain(error))
    found = [(cause, list(_device_places(cause, path, root))) for cause in chain]
    # The cause that was raised first knows best.
    cause, places = next(((c, p) for c, p in reversed(found) if p), (error, []))
    if not places:
        return at_home(_message(error), path, root)
    text = f"{places[0]}: {at_home(_message(cause), path, root)}\n    {places[0].text}"
    for place in places[1:]:
        text += f"\n  called from {place}: {place.text}"
    for suggestion in dict.fromkeys(s for c in chain for s in _suggestions(c)):
        text += f"\n  suggestion: {at_home(suggestion, path, root)}"
    return text


def ptx_errors(error: BaseException) -> dict[int, str]:
    """What ptxas says of lines of the PTX, the first complaint of each; nothing for other errors."""
    found: dict[int, str] = {}
    for match in _PTX_ERROR.finditer(_plain(getattr(error, "raw_error", None) or str(error))):
        found.setdefault(int(match.group(1)), match.group(2).strip())
    return found


def ptx_places(ptx: str, errors: dict[int, str], path: Path, root: Path = WORKSHOP) -> list[str]:
    """Lines that say which lines of the stages ptxas refuses; each place once.

    ptx: with line information. errors: by lines of it. path: the generated module.
    """
    lines = ptx.split("\n")
    files = {match.group(1): match.group(2) for match in map(_PTX_FILE.match, lines) if match}
    told: dict[str, str] = {}
    current = 0
    for number, line in enumerate(lines, 1):
        if match := _PTX_LOC.match(line):
            inside = Path(files.get(match.group(1), path)).name == path.name
            current = int(match.group(2)) if inside else 0
        elif number in errors and current:
            place = home(path, current, root)
            told.setdefault(
                str(place), f"{place}: ptxas: {errors[number]}\n    {place.text}\n    {line.strip()}"
            )
    return list(told.values())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the outermost first."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def system_error(error: BaseException) -> OSError | None:
    """The system's refusal behind an error, if that is what is behind it."""
    return next((cause for cause in _chain(error) if isinstance(cause, OSError)), None)


def _device_places(error: BaseException, path: Path, root: Path) -> Iterator[Place]:
    """Lines of device code that an error comes from, the innermost first, each once."""
    numbers = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    line = getattr(error, "line", None)
    if getattr(error, "filename", None) == str(path) and isinstance(line, int):
        numbers.append(line)
    seen = set()
    for number in reversed([n for n in numbers if n is not None]):
        place = home(path, number, root)
        if place.file.startswith(DEVICE) and place not in seen:
            seen.add(place)
            yield place


def _plain(text: str) -> str:
    """Text without a terminal's colours."""
    return _COLOUR.sub("", text)


def _message(error: BaseException) -> str:
    """What an error says, by its kind: for CuTe DSL's own the message and its code."""
    message, code = getattr(error, "message", None), getattr(error, "code", None)
    if isinstance(message, str) and message:
        kind = f"{type(error).__name__}, {code}" if code else type(error).__name__
        return _plain(f"{kind}: {message}")
    return _plain(f"{type(error).__name__}: {error}")


def _suggestions(error: BaseException) -> list[str]:
    found = getattr(error, "suggestion", None)
    texts = [found] if isinstance(found, str) else list(found or ())
    return [_plain(str(text)) for text in texts]
