"""What a generated module says of itself; its own values take the place of these."""

from variants.variant import Variant

NAME = "attn2"
"""The module's name in the spec, and its entry point's."""

DIGEST = "workshop"
"""What the module was made from: the digest in its docstring."""

VARIANTS: tuple[Variant, ...] = ()
"""The module's kernels, in the order of the spec."""
