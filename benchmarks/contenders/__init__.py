"""What is compared: one small module for each family of contenders."""

from collections.abc import Sequence

from benchmarks.contenders.base import (
    ERROR_LIMIT,
    Attention,
    Availability,
    Contender,
    first_line,
    import_first,
)
from benchmarks.contenders.flash_attention3 import FlashAttention3, Library
from benchmarks.contenders.flash_attention4 import FlashAttention4
from benchmarks.contenders.flashinfer import FlashInferFa2, FlashInferXqa
from benchmarks.contenders.ours import OUR_MODULES, Ours, OursNamed, OursVariant, variant_names
from benchmarks.contenders.page_read import PageRead
from benchmarks.contenders.pair import AttentionAlone, NormGateAlone, Pair, Picked
from benchmarks.contenders.vllm_triton import VllmTriton

__all__ = [
    "ALONE",
    "DEFAULT",
    "ERROR_LIMIT",
    "OUR_MODULES",
    "Attention",
    "Availability",
    "Contender",
    "Library",
    "first_line",
    "import_first",
    "make_contenders",
    "variant_names",
]

PEERS = ("fa3", "fi-fa2", "fi-xqa", "fa4", "vllm")

#: Keys of what is run where nothing else is asked for.
DEFAULT = ("ours", "ours-named", "page-read", *PEERS)

#: Keys of the parts of pairs, which are run where they are asked for.
ALONE = (*(f"{peer}-alone" for peer in PEERS), "norm-gate")


def make_contenders(
    keys: Sequence[str] = DEFAULT,
    *,
    library: Library | None = None,
    variants: Sequence[str] = (),
    num_splits: int | None = None,
    pdl: bool = False,
    build: bool = False,
) -> list[Contender]:
    """Return the contenders of these keys, then the variants of our module.

    library: of FlashAttention 3. num_splits: of the variants. pdl: programmatic dependent launch in ours and
    in the norm-gate kernel. build: let FlashInfer compile modules that are not there. Raises ValueError.
    """
    library = library or Library()
    picked: Picked = {}

    def attention(key: str) -> Attention:
        # A contender is prepared for itself, so a pair and a part of it get objects of their own.
        match key:
            case "fa3":
                return FlashAttention3(library)
            case "fi-fa2":
                return FlashInferFa2(build)
            case "fi-xqa":
                return FlashInferXqa(build)
            case "fa4":
                return FlashAttention4()
            case _:
                return VllmTriton()

    def contender(key: str) -> Contender:
        if key == "ours":
            return Ours(pdl)
        if key == "ours-named":
            return OursNamed(pdl)
        if key == "page-read":
            return PageRead()
        if key == "norm-gate":
            return NormGateAlone(pdl, picked)
        if key in ALONE:
            return AttentionAlone(attention(key.removesuffix("-alone")))
        if key in PEERS:
            return Pair(attention(key), NormGateAlone(pdl, picked))
        raise ValueError(f"no contender {key!r}; there are {', '.join([*DEFAULT, *ALONE])}")

    chosen = [contender(key) for key in dict.fromkeys(keys)]
    return chosen + [OursVariant(name, pdl, num_splits) for name in dict.fromkeys(variants)]
