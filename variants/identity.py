"""What a generated module says of itself; its own values take the place of these."""

from typing import Any

from variants.variant import Variant

NAME = "attn2"
"""The module's name in the spec, and its entry point's."""

DIGEST = "workshop"
"""What the module was made from: the digest in its docstring."""

VARIANTS: tuple[Variant, ...] = ()
"""The module's kernels, in the order of the spec."""


def variant_named(name: Any) -> Variant:
    """The variant of this name. Raises ValueError."""
    for variant in VARIANTS:
        if variant.name == name:
            return variant
    known = ", ".join(v.name for v in VARIANTS)
    raise ValueError(f"variant must be one of {known}, got {name!r}")
