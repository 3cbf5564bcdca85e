"""The syntax of opcodes: which modifiers an instruction takes, in which order.

Contract
    A form is written as in the PTX ISA: `membar.cta|gl|sys` has one of three parts behind the name, and what
    is in braces, `{.ftz}` or `{.release|relaxed.cta|cluster}`, may be left out. Alternatives of the name are
    written the same way. An opcode is covered if one of its instruction's forms matches all of it.

    The modifiers of some instructions may come in any order; ptxas takes `atom.global.gpu.acq_rel.add.u32`
    for `atom.acq_rel.gpu.global.add.u32`. The name and the type keep their places.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

U, S, B = "u16|u32|u64", "s16|s32|s64", "b16|b32|b64"
INTEGER = "u16|s16|u32|s32|u64|s64"
REGISTER = f"{B}|{U}|{S}|f32|f64"
"""Types of instructions that only copy registers."""

MEMORY = f"b8|u8|s8|{REGISTER}"
"""Types of loads and stores."""

SCOPE = ".cta|cluster|gpu|sys"
OWN = "{.shared|shared::cta}"
ANY_SHARED = "{.shared|shared::cta|shared::cluster}"


_LONG = 200
"""Characters of forms that an error message has at most."""


def _pattern(form: str) -> str:
    """A form as a regular expression; in the name, before the first dot, | means the same as behind it."""
    name, parts = re.fullmatch(r"([\w|]+)(.*)", form).groups()  # type: ignore[union-attr]
    parts = re.sub(r"\.([\w:|]+)", r"\\.(?:\1)", parts)
    return f"(?:{name})" + parts.replace("{", "(?:").replace("}", ")?")


class Forms:
    """The forms of an instruction. any_order: whether its modifiers may come in any order."""

    def __init__(self, forms: Sequence[str], any_order: bool = False):
        self.forms = tuple(forms)
        self._patterns = [re.compile(_pattern(form)) for form in forms]
        # With any order: of each modifier, its place in the order of the form.
        self._places: list[dict[str, int]] = []
        for form in forms if any_order else ():
            groups = re.findall(r"\.([\w:|]+)", form)
            self._places.append({part: i for i, group in enumerate(groups) for part in group.split("|")})

    def match(self, parts: Sequence[str]) -> bool:
        """Whether the parts of an opcode are one of the forms."""
        opcode = ".".join(parts)
        if any(pattern.fullmatch(opcode) for pattern in self._patterns):
            return True
        for pattern, places in zip(self._patterns, self._places, strict=False):
            if all(part in places for part in parts[1:]):
                middle = sorted(parts[1:-1], key=places.__getitem__)
                if pattern.fullmatch(".".join((parts[0], *middle, parts[-1]))):
                    return True
        return False

    def explain(self, parts: Sequence[str]) -> str:
        """What is wrong with an opcode that matches none of the forms, and the forms, unless long."""
        forms = [
            form for form in self.forms if parts[0] in form.partition(".")[0].partition("{")[0].split("|")
        ]
        known = {part for form in forms for part in re.findall(r"[\w:]+", form)}
        strange = [part for part in parts[1:] if part not in known]
        why = f"modifier .{strange[0]}" if strange else "modifiers and types that do not go together"
        said = " or ".join(forms)
        return f"{why}; the forms are {said}" if len(said) <= _LONG else why
