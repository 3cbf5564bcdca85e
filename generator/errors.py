"""What is wrong with a spec, and where: shown like a compiler shows it, all of it at once.

    spec.yaml:16:18: modules.attn2.variants.cluster.stages.pages: unknown stage 'ring'; allowed: ...

A `Problem` is the fault of whoever wrote the spec. A `CatalogError` is the fault of whoever wrote a stage or
a skeleton, which no edit of a spec can mend.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Where a value is in the data of a spec: the keys, and the indices of lists, that lead to it."""

UNTESTED = "only the allowed values have been built and tested"
"""Why a value is refused that no limit of the hardware rules out."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")
_LONGEST_QUOTE = 60
_NEAR = 0.6
"""How much alike two names have to be, in difflib's ratio, that one may be a slip of the other."""


class CatalogError(Exception):
    """A stage or skeleton contradicts its own declarations; the message names the file."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a spec.

    file: as the user gave it. line, column: from 1, columns in characters. key: the key path, empty for
    the file as a whole. message: what is wrong; found, allowed and nearest complete it where they say more.
    """

    file: str
    line: int
    column: int
    key: str
    message: str
    found: str | None = None
    allowed: tuple[str, ...] = ()
    nearest: str | None = None

    def __str__(self) -> str:
        """The problem on one line."""
        text = f"{printable(self.file)}:{self.line}:{self.column}: "
        if self.key:
            text += f"{self.key}: "
        text += self.message
        if self.found is not None:
            text += f", found {self.found}"
        if self.allowed:
            text += f"; allowed: {', '.join(self.allowed)}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest!r}?"
        return text


class SpecError(Exception):
    """A spec was refused. `problems` are all of its problems, each once, by position."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(
            sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.key, p.message))
        )
        super().__init__(self.problems)

    def __str__(self) -> str:
        """One line a problem."""
        return "\n".join(map(str, self.problems))


def nearest_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is most like `name`, the first of equals; None if none comes close."""
    if len(name) > _LONGEST_QUOTE:  # difflib is quadratic, and nothing that long is a slip of the pen
        return None
    likeness = {known: difflib.SequenceMatcher(None, known, name).ratio() for known in names}
    nearest = max(likeness, key=likeness.__getitem__, default=None)
    return nearest if nearest is not None and likeness[nearest] >= _NEAR else None


def quoted(text: str) -> str:
    """A user's text as it may stand in a message: quoted, escaped, and not too long."""
    return repr(text) if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]!r}..."


def printable(text: str) -> str:
    """A text as it may stand in a line: what no terminal prints, line ends included, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(word: str) -> str:
    """A word of letters and digits as it may stand in a message: not too long."""
    return word if len(word) <= _LONGEST_QUOTE else f"{word[:_LONGEST_QUOTE]}..."


def described(value: object) -> str:
    """A value of a spec in words, its type included."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int():
            return f"the whole number {value}"
        case float():
            return f"the fractional number {value}"
        case str():
            return f"the string {quoted(value)}"
        case list():
            return "a list" if value else "an empty list"
        case dict():
            return "a mapping" if value else "an empty mapping"
    raise TypeError(f"YAML has no {type(value).__name__}")


def listed(values: Iterable[object]) -> tuple[str, ...]:
    """Values for `Problem.allowed`: each in turn, or only the ends of a long run of whole numbers."""
    values = tuple(values)
    numbers = [v for v in values if isinstance(v, int)]
    if len(numbers) == len(values) > 16 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return (f"{numbers[0]} to {numbers[-1]}",)
    return tuple(map(str, values))


def key_path(path: KeyPath) -> str:
    """`path` with dots between the keys; a key that is no plain word is quoted."""
    return ".".join(k if isinstance(k, str) and _PLAIN_KEY.fullmatch(k) else _odd_key(k) for k in path)


def _odd_key(key: str | int) -> str:
    return quoted(key) if isinstance(key, str) else str(key)
