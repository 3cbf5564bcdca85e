"""What there is: the variants of a spec, and the skeletons and stages to choose from, as JSON data."""

from __future__ import annotations

from typing import Any

from generator.catalog import Catalog
from generator.plan import Plan


def listing(plan: Plan, catalog: Catalog) -> dict[str, list[dict[str, Any]]]:
    """Variants, skeletons and stages, each with all that a spec may say about it."""
    return {
        "variants": [
            {
                "module": module.name,
                "variant": variant.name,
                "skeleton": variant.skeleton,
                "serves": {"max_seq_len": variant.max_seq_len, "window": variant.windows},
                "launch": dict(variant.launch),
                "threads": variant.threads,
                "shared_bytes": variant.shared_bytes,
                "stages": {
                    slot: {"stage": stage.name, **stage.parameters} for slot, stage in variant.stages.items()
                },
            }
            for module in plan.modules
            for variant in module.variants
        ],
        "skeletons": [
            {
                "skeleton": skeleton.name,
                "summary": skeleton.summary,
                "slots": list(skeleton.slots),
                "windows": skeleton.windows,
                "bounded": skeleton.bounded,
                "launch": {
                    field.name: {
                        "allowed": list(field.allowed),
                        "default": field.default,
                        "help": field.help,
                        "limit": field.limit,
                    }
                    for field in skeleton.launch
                },
                "requires": {name: list(values) for name, values in skeleton.requires.items()},
            }
            for skeleton in catalog.skeletons.values()
        ],
        "stages": [
            {
                "slot": entry.slot,
                "stage": entry.name,
                "summary": entry.contract.summary,
                "parameters": {
                    p.name: {"allowed": list(p.allowed), "default": p.default, "help": p.help}
                    for p in entry.contract.parameters
                },
                "requires": {name: list(values) for name, values in entry.contract.requires.items()},
                "min_arch": entry.contract.min_arch,
                "file": entry.path,
            }
            for entry in catalog.stages()
        ],
    }
