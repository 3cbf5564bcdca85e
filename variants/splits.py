"""How many clusters share a long request where a deployment does not say: a model of a launch's time.

Contract
    Clusters of CTAs run within a GPC, so the device holds so many at a time and no more: `layer` clusters
    put one CTA on nearly every multiprocessor, and some layers fit on top of each other. One layer more slows
    pages down, but by less than it adds; what does not fit waits for a wave of its own. Each CTA takes the
    time of its pages, and some to begin and to merge. The model's numbers were fitted to measurements on an
    H200 (docs/measurements.md shows rule and sweep); they decide speed only.

    The rule knows how many requests a deployment mostly serves, never how many a call has: a number of splits
    that changed with the batch would change bits.
"""

from typing import Any

MAX_SPLITS = 128
"""Clusters of a long request that the kernels were shown to work with."""

GPC_MULTIPROCESSORS = 18
"""Multiprocessors of a GPC of the devices that the kernels are for (Hopper: up to 18)."""

FIXED_PAGES = 24
"""What a CTA takes besides its pages, in pages."""

LAYER_SLOWDOWN = 0.375
"""By how much each further CTA on a multiprocessor stretches the time of a page."""


def cheapest_splits(kernel: Any, requests: int, kv_heads: int, pages: int, multiprocessors: int) -> int:
    """The number of clusters for which the model takes least time; the fewest of equals.

    requests, kv_heads: of a launch. pages: of a long request.
    """
    layer = max(1, multiprocessors // GPC_MULTIPROCESSORS * (GPC_MULTIPROCESSORS // kernel.cluster))

    def cost(splits: int) -> float:
        waves, rest = divmod(requests * kv_heads * splits, layer * kernel.resident_ctas)
        # A second layer that is just full was measured to be as slow as a third.
        layers = -(-rest // layer) + (rest > layer and rest % layer == 0)
        time = waves * _layers_time(kernel.resident_ctas) + _layers_time(layers)
        return time * (-(-pages // (kernel.cluster * splits)) + FIXED_PAGES)

    return min(range(1, MAX_SPLITS + 1), key=cost)


def _layers_time(layers: int) -> float:
    """The time of a page with so many CTAs on each multiprocessor; 0 for none."""
    return 1 + LAYER_SLOWDOWN * (layers - 1) if layers else 0.0
