"""Which kernel and how many clusters suit a deployment that does not say: a model of a launch's time.

Contract
    A multiprocessor holds a few CTAs at a time. `layer` clusters put one CTA on each multiprocessor that
    clusters of this size can use, and some layers fit on top of each other; what does not fit waits for a
    wave of its own. Clusters run within a GPC, so large ones leave some multiprocessors out. One layer more
    slows everything down, but by less than it adds.

    A CTA that shares a request takes the time of its pages, and some to begin and to merge. Of a request that
    a cluster attends alone, each row group reads all pages, but in few rounds: there it is the number of
    clusters that counts.

    The unit of time is what a page takes with one CTA a multiprocessor, 0.195 us on an H200. The numbers were
    fitted to measurements there (docs/measurements.md shows rules and sweeps); they decide speed only.

    The rules know how many requests a deployment mostly serves, never how many a call has: a number of splits
    that changed with the batch would change bits.
"""

from typing import Any

MAX_SPLITS = 128
"""Clusters of a long request that the kernels were shown to work with."""

GPC_MULTIPROCESSORS = 18
"""Multiprocessors of a GPC of the devices that the kernels are for (Hopper: up to 18)."""

TPC_MULTIPROCESSORS = 2
"""Multiprocessors that are always together, so that clusters up to this size leave none out."""

BEGIN_AND_END = 27
"""What a CTA that shares a request takes besides its pages and its rows."""

A_ROW = 2.7
"""What each row that a warp merges adds to that."""

A_RECORD = 0.3
"""What each cluster's record of such a row adds."""

PAGE_SLOWDOWN = 0.55
"""By how much a CTA more on every multiprocessor stretches the time of a page."""

OTHER_SLOWDOWN = 0.2
"""By how much it stretches everything else."""

ALONE_LAYERS = 4
"""Layers of a kernel that does not say how many CTAs a multiprocessor holds."""

ALONE_LAUNCH = 20
"""What a launch takes in which clusters attend requests alone, besides its waves."""

ALONE_WAVE = 17
"""What each of these waves takes, besides its rounds."""

ALONE_ROUND = 2
"""What a round takes, in which every warp of a cluster attends a page."""


def cheapest_splits(kernel: Any, requests: int, kv_heads: int, pages: int, multiprocessors: int) -> int:
    """The number of clusters for which the model takes least time; the fewest of equals.

    requests, kv_heads: of a launch. pages: of a long request.
    """
    return min(
        range(1, MAX_SPLITS + 1),
        key=lambda splits: shared_time(kernel, requests, kv_heads, splits, pages, multiprocessors),
    )


def shared_time(
    kernel: Any, requests: int, kv_heads: int, splits: int, pages: int, multiprocessors: int
) -> float:
    """The model's time of a launch in which `splits` clusters share each request's pages."""
    layer = layer_clusters(kernel.cluster, multiprocessors)
    each: int = -(-pages // (kernel.cluster * splits))
    rows = max(1, kernel.rows // (kernel.cluster * kernel.warps))
    besides: float = BEGIN_AND_END + rows * (A_ROW + A_RECORD * splits)
    slowdown: float = PAGE_SLOWDOWN * layer * kernel.cluster / multiprocessors

    resident: int = kernel.resident_ctas

    def layers_time(layers: int) -> float:
        further = layers - 1
        return (each * (1 + slowdown * further) + besides * (1 + OTHER_SLOWDOWN * further)) if layers else 0.0

    waves, rest = divmod(requests * kv_heads * splits, layer * resident)
    # A second layer that is just full was measured to be as slow as a third.
    layers = -(-rest // layer) + (rest > layer and rest % layer == 0)
    return waves * layers_time(resident) + layers_time(layers)


def alone_time(kernel: Any, requests: int, kv_heads: int, pages: int, multiprocessors: int) -> float:
    """The model's time of a launch in which a cluster attends each request's row group alone."""
    layers = kernel.resident_ctas if kernel.splits else ALONE_LAYERS
    waves: float = (
        requests * kv_heads * kernel.row_groups / (layers * layer_clusters(kernel.cluster, multiprocessors))
    )
    rounds: float = pages / (kernel.cluster * kernel.warps)
    return ALONE_LAUNCH + waves * (ALONE_WAVE + ALONE_ROUND * rounds)


def layer_clusters(cluster: int, multiprocessors: int) -> int:
    """Clusters of `cluster` CTAs that a device runs at once with one CTA on a multiprocessor; at least 1."""
    if cluster <= TPC_MULTIPROCESSORS:
        return max(1, multiprocessors // cluster)
    return max(1, multiprocessors // GPC_MULTIPROCESSORS * (GPC_MULTIPROCESSORS // cluster))
