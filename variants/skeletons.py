"""What a kernel skeleton declares about itself, as data.

A skeleton is a kernel class (`variants.<name>`) whose fields are facts, shared-memory offsets and stages;
`SKELETONS` says which slots it has, what its launch may look like, and which facts go together. Nothing here
is copied into a generated module.

A fact is a number or a name that is known when a kernel is generated, such as `head_dim`, `warps` or
`max_seq_len`; facts go by their names in `spec.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.contract import MAX_CLUSTER_SIZE
from stages.fragments import ROWS
from variants.kernels.batch import BatchKernel
from variants.kernels.cluster import ClusterKernel
from variants.kernels.split import SplitKernel

Facts = Mapping[str, Any]

MAX_UNROLLED_STEPS = 16
"""Steps that the cluster kernel may unroll; longer contexts are what skeletons with a loop are for."""


@dataclass(frozen=True)
class LaunchField:
    """A number that a variant's `launch` may set.

    default: None if it must be set. limit: why no larger number than the last allowed one can be, if that
    is the hardware's doing.
    """

    name: str
    allowed: tuple[int, ...]
    help: str
    default: int | None = None
    limit: str = ""


@dataclass(frozen=True)
class Rule:
    """What has to hold between some facts.

    facts: the names of those that it reads, the one to blame first. broken: given the facts, what is
    wrong, with the arithmetic; None if nothing is.
    """

    facts: tuple[str, ...]
    broken: Callable[[Facts], str | None]


@dataclass(frozen=True)
class Skeleton:
    """A kernel skeleton.

    name: what `spec.yaml` calls it. kernel: the class. slots: the slots to fill, in the order of the data.
    launch: the fields of `launch`. windows: whether it can serve a sliding window. bounded: whether it
    serves contexts up to a length that `serves: max_seq_len` must give. requires: values of a fact, by its
    name, that the kernel has been built and tested with; others are refused. facts: what the kernel itself
    decides and stages may need. derive: given the facts of the problem, the launch and `max_seq_len`, the
    facts that the kernel class needs besides. rules: what has to hold between facts. overlays: groups of
    regions of shared memory of which a CTA uses one at most.
    """

    name: str
    kernel: type[Any]
    summary: str
    slots: tuple[str, ...]
    launch: tuple[LaunchField, ...]
    windows: bool
    bounded: bool
    requires: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    facts: Mapping[str, int] = field(default_factory=dict)
    derive: Callable[[Facts], Mapping[str, int]] = lambda facts: {}
    rules: tuple[Rule, ...] = ()
    overlays: tuple[tuple[str, ...], ...] = ()


def _cluster_steps(facts: Facts) -> int:
    pages: int = -(-facts["max_seq_len"] // facts["page_size"])
    return -(-pages // _pages_in_a_step(facts))


def _pages_in_a_step(facts: Facts) -> int:
    return int(facts["cluster"] * facts["warps"] * facts["pages_per_step"])


def _few_steps(facts: Facts) -> str | None:
    steps = _cluster_steps(facts)
    if steps <= MAX_UNROLLED_STEPS:
        return None
    longest = MAX_UNROLLED_STEPS * _pages_in_a_step(facts) * facts["page_size"]
    return (
        "max_seq_len {max_seq_len} takes ceil(ceil({max_seq_len} / {page_size}) / ({cluster} * {warps} * "
        "{pages_per_step})) = {steps} steps, and the kernel unrolls at most {most}; with this launch it "
        "serves max_seq_len up to {longest}"
    ).format_map({**facts, "steps": steps, "most": MAX_UNROLLED_STEPS, "longest": longest})


CLUSTER = LaunchField(
    "cluster",
    tuple(range(1, MAX_CLUSTER_SIZE + 1)),
    "CTAs of a cluster",
    limit=f"a cluster has at most {MAX_CLUSTER_SIZE} CTAs",
)

SPREAD_LAUNCH = (
    CLUSTER,
    LaunchField("warps", (4,), "warps of a CTA, one for each row group"),
    LaunchField("ring_pages_per_step", (1, 2, 4, 8), "pages of a long request that a CTA attends at once", 4),
    LaunchField("resident_ctas", (1, 2, 3, 4, 5, 6, 7, 8), "CTAs that fit on a multiprocessor at once", 3),
)
"""Of the kernels that spread a request over clusters."""

SKELETONS: Mapping[str, Skeleton] = {
    skeleton.name: skeleton
    for skeleton in (
        Skeleton(
            name="cluster",
            kernel=ClusterKernel,
            summary="short contexts: one cluster for each row group of a request and KV head",
            slots=(
                "pages",
                "scores",
                "softmax",
                "values",
                "warp_merge",
                "push",
                "cluster_merge",
                "epilogue",
            ),
            launch=(
                CLUSTER,
                LaunchField("warps", (1, 2, 4, 8), "warps of a CTA"),
                LaunchField("pages_per_step", (1, 2), "pages that a warp attends at once", 1),
            ),
            windows=False,
            bounded=True,
            requires={"tokens": (8,)},
            facts={"exchange_rows": ROWS},
            derive=lambda facts: {"steps": _cluster_steps(facts)},
            rules=(Rule(("max_seq_len", "page_size", "cluster", "warps", "pages_per_step"), _few_steps),),
        ),
        Skeleton(
            name="split",
            kernel=SplitKernel,
            summary="long contexts and windows: a long request's pages spread over several clusters",
            slots=(
                "pages",
                "ring",
                "scores",
                "softmax",
                "values",
                "warp_merge",
                "push",
                "cluster_merge",
                "grid_merge",
                "epilogue",
            ),
            launch=(
                *SPREAD_LAUNCH,
                LaunchField(
                    "pages_per_step", (1, 2), "pages of a short request that a warp attends at once", 1
                ),
                LaunchField(
                    "short_rounds",
                    tuple(range(1, 65)),
                    "pages a warp of one cluster, up to which one cluster attends a request alone",
                    8,
                ),
            ),
            windows=True,
            bounded=True,
            requires={"tokens": (8,), "heads_per_kv": (8,)},
            facts={"exchange_rows": 64},
            # The first is the short path's, the second the long path's.
            overlays=(("warp_partials", "page_ring"),),
        ),
        Skeleton(
            name="batch",
            kernel=BatchKernel,
            summary="many requests: every request's pages spread over clusters, each read once",
            slots=(
                "ring",
                "scores",
                "softmax",
                "values",
                "push",
                "cluster_merge",
                "grid_merge",
                "epilogue",
            ),
            launch=SPREAD_LAUNCH,
            windows=True,
            bounded=True,
            requires={"tokens": (8,), "heads_per_kv": (8,)},
            facts={"exchange_rows": 64},
        ),
    )
}
