"""Splits PTX text into tokens: words, numbers, strings, punctuation and whole `.loc` and `.file` lines."""

from __future__ import annotations

import re
from typing import NamedTuple

from emulator.errors import Place, PtxError

_TOKEN = re.compile(
    r"""
      (?P<newline>\n)
    | (?P<space>[ \t\r\f\v]+ | //[^\n]* | /\*.*?\*/)
    | (?P<line>\.(?:loc|file)\b[^\n]*)
    | (?P<string>"[^"\n]*")
    | (?P<number>0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U?
        | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+U?)
    | (?P<word>[%.]?[A-Za-z_$][\w$]*(?:\.\w+(?:::\w+)*)*(?:::\w+)*)
    | (?P<mark>[{}\[\]()<>,;:@!|+\-=*])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """kind: word, number, string, mark or line (all of a `.loc`). line: 1-based. end: offset behind."""

    kind: str
    text: str
    line: int
    end: int

    @property
    def place(self) -> Place:
        """Where it is, for errors."""
        return Place(line=self.line)


def tokens(ptx: str) -> list[Token]:
    """The tokens of PTX text but comments and blanks. Raises PtxError at a character that fits nothing."""
    found = []
    line, at = 1, 0
    match = _TOKEN.match
    while at < len(ptx):
        token = match(ptx, at)
        if token is None:
            raise PtxError(f"{ptx[at]!r} does not belong to PTX", place=Place(line=line))
        kind, text = str(token.lastgroup), token.group()
        if kind == "newline":
            line += 1
        elif kind == "space":
            line += text.count("\n")
        else:
            found.append(Token(kind, text, line, token.end()))
        at = token.end()
    return found


class Cursor:
    """A place in the tokens of a text. Its methods raise PtxError where the text is not as it has to be."""

    def __init__(self, ptx: str):
        self.ptx = ptx
        self.tokens = tokens(ptx)
        self.at = 0

    def peek(self) -> Token:
        """The next token, which stays."""
        if self.at >= len(self.tokens):
            raise PtxError("the text ends in the middle of something", place=Place(line=self.last_line()))
        return self.tokens[self.at]

    def next(self) -> Token:
        """The next token."""
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is this one."""
        if self.at < len(self.tokens) and self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Take the next token, which has to be this one."""
        token = self.next()
        if token.text != text:
            raise PtxError(f"{text!r} expected, not {token.text!r}", place=token.place)
        return token

    def integer(self) -> int:
        """A whole number, with its sign."""
        negative = self.accept("-")
        token = self.next()
        try:
            value = int(token.text.rstrip("U"), 0)
        except ValueError:
            raise PtxError(f"a whole number expected, not {token.text!r}", place=token.place) from None
        return -value if negative else value

    def skip_to(self, text: str) -> None:
        """Leave out everything up to this token, and the token."""
        while self.next().text != text:
            pass

    def skip_braces(self) -> None:
        """Leave out everything between braces."""
        self.expect("{")
        depth = 1
        while depth:
            text = self.next().text
            depth += (text == "{") - (text == "}")

    def last_line(self) -> int:
        """The line of the last token."""
        return self.tokens[-1].line if self.tokens else 1
