"""The JSON Schema of a spec, for completion and checks in editors.

Made from the models of `generator.spec`, and narrowed to what the catalog has: which stages fill which slot
of which skeleton, their parameters, and the values of the launch. It is a help while typing; the generator
itself checks more, and says it better.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator.catalog import Catalog
from generator.discovery import StageEntry
from generator.spec import NAME_PATTERN, Spec
from stages.slots import Slot
from variants.skeletons import Skeleton

PATH = Path(__file__).with_name("spec.schema.json")

Schema = dict[str, Any]


def build_schema(catalog: Catalog) -> Schema:
    """The schema as JSON data, the same for the same models and catalog."""
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stagewright spec",
        **Spec.model_json_schema(),
    }
    definitions = schema["$defs"]
    for definition in (schema, *definitions.values()):
        # Titles only repeat the keys, and an absent default is no null.
        definition.pop("title", None)
        for value in definition.get("properties", {}).values():
            value.pop("title", None)
            if value.get("default", 0) is None:
                del value["default"]
    names = {
        "pattern": f"^{NAME_PATTERN}$",
        "not": {"enum": [word for word in keyword.kwlist if word.islower()]},
    }
    schema["properties"]["modules"]["propertyNames"] = names
    definitions["ModuleSpec"]["properties"]["variants"]["propertyNames"] = names

    del definitions["StageSpec"]
    for slot, stages in sorted(catalog.by_slot.items()):
        definitions[f"slot_{slot}"] = _slot(catalog.slots[slot], list(stages.values()))
    variant = definitions["VariantSpec"]
    variant["properties"]["skeleton"]["enum"] = sorted(catalog.skeletons)
    for key in ("launch", "stages"):
        description = variant["properties"][key]["description"]
        variant["properties"][key] = {"type": "object", "description": description}
    variant["allOf"] = [_variant(skeleton) for _, skeleton in sorted(catalog.skeletons.items())]
    return schema


def _slot(slot: Slot, stages: list[StageEntry]) -> Schema:
    """A stage of the slot: its name, or a mapping with its parameters."""
    return {
        "description": slot.summary,
        "anyOf": [
            *({"const": stage.name, "description": stage.contract.summary} for stage in stages),
            *(
                _closed_object(
                    {
                        "stage": {"const": stage.name, "description": stage.contract.summary},
                        **{
                            p.name: {"enum": list(p.allowed), "default": p.default, "description": p.help}
                            for p in stage.contract.parameters
                        },
                    },
                    required=["stage"],
                )
                for stage in stages
            ),
        ],
    }


def _variant(skeleton: Skeleton) -> Schema:
    """What the rest of a variant is like if it has this skeleton."""
    launch: Schema = {}
    for field in skeleton.launch:
        launch[field.name] = {"enum": list(field.allowed), "description": field.help}
        if field.default is not None:
            launch[field.name]["default"] = field.default
    serves: Schema = {}
    if not skeleton.windows:
        serves["properties"] = {"window": {"const": False}}
    if skeleton.bounded:
        serves["required"] = ["max_seq_len"]
    slots = {slot: {"$ref": f"#/$defs/slot_{slot}"} for slot in skeleton.slots}
    needed = [field.name for field in skeleton.launch if field.default is None]
    then: Schema = {
        "properties": {
            "serves": serves,
            "launch": _closed_object(launch, required=needed),
            "stages": _closed_object(slots, required=list(slots)),
        },
    }
    then["required"] = [*(["serves"] if skeleton.bounded else []), *(["launch"] if needed else [])]
    return {
        "if": {"properties": {"skeleton": {"const": skeleton.name}}, "required": ["skeleton"]},
        "then": then,
    }


def _closed_object(properties: Mapping[str, Any], *, required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def text(catalog: Catalog | None = None) -> str:
    """The schema as its file has it. catalog: the project's own if not given."""
    return json.dumps(build_schema(catalog or Catalog.load()), indent=2, ensure_ascii=False) + "\n"
