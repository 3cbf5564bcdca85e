"""The reference page of the spec, `docs/spec.md`: every key of a spec, with its values, default and meaning.

Made from the models of `generator.spec` and from the catalog, as the JSON Schema for editors is, so it lists
the skeletons, slots, stages and parameters that there are. Everything it says comes from their declarations.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from generator.catalog import Catalog
from generator.discovery import StageEntry, source_path
from generator.spec import NAME_PATTERN, ModuleSpec, ProblemSpec, ServesSpec, VariantSpec
from stages.slots import Slot
from variants.skeletons import Skeleton

PATH = Path(__file__).resolve().parent.parent / "docs" / "spec.md"

COMMAND = "python -m generator docs"

_WIDTH = 112

_HEAD = f"""\
<!-- Written by `{COMMAND}`; do not edit. It is made from generator/spec.py, variants/skeletons.py,
     stages/slots.py and the contracts of the stages. -->

# The spec

A spec is a YAML file that says what is generated. It holds modules; each becomes one Python file.
A module has a problem, which is what its kernels compute, and variants, which are its kernels.
The variants of a module compute one function: in each slot that decides the result, their stages
have the same reference. A call uses the first variant, in the order of the file, that serves the
call's deployment, unless it names one.

    modules:
      <module>:
        problem: {{head_dim: ..., heads_per_kv: ..., tokens: ..., page_size: ..., dtype: ...}}
        variants:
          <variant>:
            skeleton: <skeleton>
            serves: {{max_seq_len: ..., window: ...}}
            launch: {{<field>: ..., ...}}
            stages:
              <slot>: <stage>
              <slot>: {{stage: <stage>, <parameter>: ...}}

Names of modules and variants match `{NAME_PATTERN}` and are no Python keywords. A key that is not
listed here is an error, and so is a value outside its range. `python -m generator list` shows what
a spec resolves to.

## Keys"""

_NONE = "\N{EN DASH}"
"""In a cell: there is nothing."""


def text(catalog: Catalog | None = None) -> str:
    """The page as its file has it. catalog: the project's own if not given."""
    catalog = catalog or Catalog.load()
    parts = [
        *_HEAD.split("\n\n"),
        *_model("problem", ProblemSpec),
        "Which of these values can be built depends on what the skeleton and the stages need, below.",
        *_model("serves", ServesSpec),
        *_model("A module", ModuleSpec),
        *_model("A variant", VariantSpec),
        "## Skeletons",
        "A skeleton is the part of a kernel that says which threads call which stage, and in which order.",
    ]
    for skeleton in catalog.skeletons.values():
        parts += _skeleton(skeleton)
    parts += [
        "## Slots and stages",
        "A slot is a place in a skeleton. All stages of a slot have the same methods, so any of them fits.",
    ]
    for name, stages in catalog.by_slot.items():
        parts += _slot(catalog.slots[name], list(stages.values()), catalog.skeletons)
    return "\n\n".join(_filled(part) for part in parts) + "\n"


def _model(title: str, model: type[BaseModel]) -> Iterable[str]:
    """A section with a row for each key of a model."""
    yield f"### {title if ' ' in title else f'`{title}`'}"
    yield inspect.cleandoc(model.__doc__ or "")
    yield _table(
        ("key", "values", "default", "meaning"),
        [
            (f"`{name}`", _values(field), _default(field), field.description or "")
            for name, field in model.model_fields.items()
        ],
    )


_KINDS = {bool: "`true` or `false`", str: "a name", int: "a whole number"}


def _values(field: FieldInfo) -> str:
    """What a key of a spec may hold."""
    bounds = {
        kind: getattr(constraint, kind)
        for constraint in field.metadata
        for kind in ("ge", "le")
        if hasattr(constraint, kind)
    }
    if bounds:
        return f"{bounds['ge']:,} to {bounds['le']:,}"
    if field.annotation in _KINDS:
        return _KINDS[field.annotation]
    return ", ".join(f"`{value}`" for value in get_args(field.annotation) if isinstance(value, str)) or (
        "a mapping"
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    # What may be left out has a factory or None, and the skeleton says whether it may.
    return _NONE if field.default_factory is not None or field.default is None else _yaml(field.default)


def _yaml(value: Any) -> str:
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"{value:,}"


def _skeleton(skeleton: Skeleton) -> Iterable[str]:
    yield f"### Skeleton `{skeleton.name}`"
    summary = skeleton.summary[0].upper() + skeleton.summary[1:]
    yield f"{summary}. File: `{source_path(skeleton.kernel.__module__)}`."
    window = "`true` or `false`" if skeleton.windows else "`false` only"
    bound = "must be given" if skeleton.bounded else "may be left out"
    facts = [f"`serves`: `max_seq_len` {bound}; `window` may be {window}."]
    facts += [f"Needs {_needs(skeleton.requires)}."] if skeleton.requires else []
    yield " ".join(facts)
    yield _table(
        ("`launch`", "values", "default", "meaning"),
        [
            (
                f"`{field.name}`",
                _numbers(field.allowed),
                "must be given" if field.default is None else str(field.default),
                field.help + (f"; {field.limit}" if field.limit else ""),
            )
            for field in skeleton.launch
        ],
    )
    yield f"Slots: {', '.join(f'`{slot}`' for slot in skeleton.slots)}."


def _slot(slot: Slot, stages: Sequence[StageEntry], skeletons: Mapping[str, Skeleton]) -> Iterable[str]:
    yield f"### Slot `{slot.name}`"
    yield from inspect.cleandoc(slot.protocol.__doc__ or "").split("\n\n")
    users = ", ".join(f"`{s.name}`" for s in skeletons.values() if slot.name in s.slots)
    decides = "decide what a kernel computes" if slot.decides_result else "only move and merge data"
    methods = f"`{slot.protocol.__name__}` in `stages/slots.py`"
    yield f"In the skeletons {users}. Its stages {decides}. Methods: {methods}."
    rows = []
    for stage in stages:
        needs = _needs(stage.contract.requires) or _NONE
        arch = f"sm_{stage.contract.min_arch} or later"
        rows.append((f"`{stage.name}`", stage.contract.summary, needs, arch, f"`{stage.path}`"))
    yield _table(("stage", "what it does", "needs", "architecture", "file"), rows)
    parameters = [(stage, parameter) for stage in stages for parameter in stage.contract.parameters]
    if parameters:
        yield _table(
            ("stage", "parameter", "values", "default", "meaning"),
            [
                (f"`{s.name}`", f"`{p.name}`", _numbers(p.allowed), str(p.default), p.help)
                for s, p in parameters
            ],
        )


def _needs(requires: Mapping[str, tuple[Any, ...]]) -> str:
    return ", ".join(f"`{name}` {' or '.join(map(str, values))}" for name, values in requires.items())


def _numbers(values: Sequence[int]) -> str:
    """A list of numbers, or its ends where none between them is missing."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]:,} to {values[-1]:,}"
    return ", ".join(f"{value:,}" for value in values)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _filled(part: str) -> str:
    """Prose in lines of the page's width; formulas, tables, headings and the head stay as they are."""
    if part.startswith(("#", "|", "<!--", " ")):
        return part
    return textwrap.fill(part, _WIDTH, break_long_words=False, break_on_hyphens=False)
