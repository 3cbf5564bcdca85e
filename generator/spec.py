"""The format of a spec: what its file may say, before asking whether it makes sense.

The models below are the format, and the JSON Schema that editors use is made from them. What goes on to the
checks across entries (`generator.plan`) is the file's plain data without the parts that broke the format, so
that those checks find what is wrong with the rest, and a user sees everything at once.
"""

from __future__ import annotations

import builtins
import copy
import keyword
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from generator.document import Document, read_document
from generator.errors import KeyPath, Problem, described, listed, nearest_name, quoted

NAME_PATTERN = "[a-z][a-z0-9_]{0,39}"
"""Module and variant names: they become parts of Python names, and a module's also becomes a file."""

MAX_SEQ_LEN = 1 << 20

# What a generated module imports, and the packages beside the generated one.
_IMPORTED = ("cuda", "cutlass", "numpy", "torch")
_BESIDE = ("benchmarks", "emulator", "generated", "generator", "stages", "stagewright", "tests", "variants")


def _variant_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise PydanticCustomError(
            "name",
            "is not 1 to 40 lower-case letters, digits and _ of which the first is a letter",
        )
    if keyword.iskeyword(name):
        raise PydanticCustomError("name", "is a Python keyword")
    return name


def _module_name(name: str) -> str:
    _variant_name(name)
    if name in (*_IMPORTED, *_BESIDE):
        raise PydanticCustomError("name", "is the name of another package here")
    # A generated file of such a name would hide the standard library's, and a function of it the built-in.
    if name in sys.stdlib_module_names or hasattr(builtins, name):
        raise PydanticCustomError("name", "is a name of Python itself")
    return name


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


_ABSENT: Any = None
"""Default of what may be left out; a null that stands in a file is refused, as a value that was forgotten."""

_Count = Annotated[int, Field(ge=1, le=1024)]


class ProblemSpec(_Model):
    """What a module computes, as far as its kernels are compiled for it."""

    head_dim: _Count
    """Dimensions of a head."""
    heads_per_kv: _Count
    """Query heads that share one KV head."""
    tokens: _Count
    """Tokens that a request verifies in one call."""
    page_size: _Count
    """Cache entries of a page."""
    dtype: Literal["bf16"]
    """Type of queries, cache, gate and output."""


class ServesSpec(_Model):
    """The deployments that a variant is for."""

    max_seq_len: int = Field(default=_ABSENT, ge=1, le=MAX_SEQ_LEN)
    """The longest context that it serves; not needed where the skeleton has no such bound."""
    window: bool = False
    """Whether it serves a sliding window."""


class StageSpec(_Model):
    """A stage and its parameters; the name alone will do where every parameter keeps its default."""

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, int]
    stage: str
    """The stage's name."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        if isinstance(value, str):
            return {"stage": value}
        if not isinstance(value, dict):
            raise PydanticCustomError("stage", "the name of a stage, or a mapping with `stage`, is wanted")
        return value


class VariantSpec(_Model):
    """One kernel of a module."""

    skeleton: str
    """The kernel's skeleton."""
    serves: ServesSpec = Field(default_factory=ServesSpec)
    """The deployments that it is for; of two variants that serve the same, the first is used."""
    launch: dict[str, int] = Field(default_factory=dict)
    """Numbers that shape the launch."""
    stages: dict[str, StageSpec]
    """For each slot of the skeleton, the stage that fills it."""


class ModuleSpec(_Model):
    """One generated module."""

    problem: ProblemSpec
    """What the module computes."""
    variants: Annotated[dict[Annotated[str, AfterValidator(_variant_name)], VariantSpec], Field(min_length=1)]
    """The module's kernels, by name, the first choice first."""


class Spec(_Model):
    """What is generated."""

    modules: Annotated[dict[Annotated[str, AfterValidator(_module_name)], ModuleSpec], Field(min_length=1)]
    """The modules, by name."""


@dataclass(frozen=True)
class SpecDocument:
    """A spec whose format has been checked.

    data: the file's data without its broken parts. broken: where those were, keys that are missing
    included. problems: what is wrong with them.
    """

    document: Document
    data: Mapping[str, Any]
    broken: frozenset[KeyPath]
    problems: tuple[Problem, ...]

    def is_broken(self, path: KeyPath) -> bool:
        """Whether the value at `path` was left out of the data, by itself or with what it is part of."""
        return any(path[:length] in self.broken for length in range(len(path) + 1))


def read_spec(path: str | os.PathLike[str]) -> SpecDocument:
    """The spec in the file at `path`. Raises SpecError if it cannot be read as YAML."""
    return check_format(read_document(path))


def check_format(document: Document) -> SpecDocument:
    """`document` as a spec."""
    problems = list(document.problems)
    broken: set[KeyPath] = set()
    data = copy.deepcopy(document.data)
    try:
        Spec.model_validate(document.data)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path = details["loc"]
            if details["type"] == "name":
                # The name alone is wrong; what it names is checked on.
                problems.append(_bad_name(document, path[:-1], details))
            else:
                problems.append(_problem(document, path, details))
                broken.add(path)
                data = _without(data, path)
    return SpecDocument(document, data, frozenset(broken), tuple(problems))


def _without(data: Any, path: KeyPath) -> Any:
    if not path:
        return {}
    holder = data
    for key in path[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else None
    if isinstance(holder, dict):
        holder.pop(path[-1], None)
    return data


def _bad_name(document: Document, path: KeyPath, details: ErrorDetails) -> Problem:
    kind = "module" if len(path) == 2 else "variant"
    message = f"{quoted(str(path[-1]))} cannot name a {kind}: it {details['msg']}"
    return document.problem(path, message, of_key=True)


_WANTED = {
    "int_type": "a whole number is wanted",
    "bool_type": "true or false is wanted",
    "string_type": "a string is wanted",
    "dict_type": "a mapping is wanted",
    "model_type": "a mapping is wanted",
}


def _problem(document: Document, path: KeyPath, details: ErrorDetails) -> Problem:
    """One of pydantic's errors in our words."""
    kind, found = details["type"], described(details["input"])
    if kind == "missing":
        return document.problem(path[:-1], f"the key {path[-1]!r} is missing", of_key=True)
    if kind == "extra_forbidden":
        fields = tuple(_fields(path[:-1]))
        near = nearest_name(str(path[-1]), fields)
        return document.problem(path, "unknown key", of_key=True, allowed=fields, nearest=near)
    if kind in ("greater_than_equal", "less_than_equal"):
        bounds = (f"{_bound(path, 'ge')} to {_bound(path, 'le')}",)
        return document.problem(path, "out of range", found=found, allowed=bounds)
    if kind == "literal_error":
        choices = get_args(_fields(path[:-1])[str(path[-1])].annotation)
        return document.problem(path, "unknown value", found=found, allowed=listed(choices))
    if kind == "too_short":
        return document.problem(path, "at least one entry is wanted", found=found)
    return document.problem(path, _WANTED.get(kind, details["msg"]), found=found)


def _fields(path: KeyPath) -> dict[str, FieldInfo]:
    """The fields of the model that describes the mapping at `path`."""
    model: Any = Spec
    for key in path:
        if get_origin(model) is dict:
            model = get_args(model)[1]
        else:
            model = model.model_fields[key].annotation
    return dict(model.model_fields)


def _bound(path: KeyPath, name: Literal["ge", "le"]) -> int:
    """The bound of the number at `path` that pydantic calls `name`."""
    metadata = _fields(path[:-1])[str(path[-1])].metadata
    return int(next(getattr(constraint, name) for constraint in metadata if hasattr(constraint, name)))
