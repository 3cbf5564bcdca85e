"""A sound spec to spoil, and stages and a skeleton that the project itself does not have."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from generator.catalog import Catalog
from generator.discovery import StageEntry
from generator.document import parse_document
from generator.errors import SpecError
from generator.plan import Plan, resolve
from generator.spec import check_format
from stages.contract import Barrier, Contract, Parameter, Region
from variants.kernels.cluster import ClusterKernel
from variants.skeletons import SKELETONS, LaunchField, Skeleton

SPEC = """\
modules:
  attn2:
    problem: {head_dim: 64, heads_per_kv: 8, tokens: 8, page_size: 16, dtype: bf16}
    variants:
      cluster:
        skeleton: cluster
        serves: {max_seq_len: 2048, window: false}
        launch: {cluster: 16, warps: 4, pages_per_step: 2}
        stages:
          pages: register_prefetch
          scores: mma_qk
          softmax: online
          values: mma_pv
          warp_merge: shared
          push: dsmem
          cluster_merge: rank_order
          epilogue: norm_gate
"""


def edited(*edits: tuple[str, str], text: str = SPEC) -> str:
    """The sound spec with pieces of it replaced, each of which stands in it once."""
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def plan_of(text: str, catalog: Catalog) -> Plan:
    """The plan for the text of a spec."""
    return resolve(check_format(parse_document(text.encode(), "spec.yaml")), catalog)


def problems_of(text: str, catalog: Catalog) -> list[str]:
    """The messages for the text of a spec."""
    try:
        plan_of(text, catalog)
    except SpecError as error:
        return str(error).splitlines()
    return []


@dataclass(frozen=True)
class Ring:
    """A page loader with a ring in shared memory; its parameter is the ring's depth."""

    page_size: int
    warps: int
    depth: int

    def empty(self):
        """As the protocol has it."""

    def begin(self, walk):
        """As the protocol has it."""

    def start(self, walk, live, last, incoming):
        """As the protocol has it."""

    def take(self, walk, live, step, last, incoming, pages):
        """As the protocol has it."""


RING = Contract(
    slot="pages",
    stage=Ring,
    summary="pages go through a ring",
    parameters=(Parameter("depth", (2, 4, 8, 16), 4, "pages in flight for each warp"),),
    shared=lambda stage: (Region("ring", stage.depth * 4096 * stage.warps),),
)


@dataclass(frozen=True)
class Wide:
    """An epilogue for other head dims than the project's, with a barrier of its own."""

    head_dim: int
    cluster: int

    def load_gate(self, row):
        """As the protocol has it."""

    def store(self, row, l, o, gate, eps):
        """As the protocol has it."""


WIDE = Contract(
    slot="epilogue",
    stage=Wide,
    summary="wide heads",
    requires={"head_dim": (128, 256)},
    shared=lambda stage: (Region("done", 8, align=8), Region("arrived", 8, align=8)),
    barriers=lambda stage: (Barrier("done", 1, 131072 * stage.cluster, f"{stage.cluster} ranks x 131072 B"),),
    min_arch=100,
)


def entry(slot: str, name: str, contract: Contract) -> StageEntry:
    """A stage of this module."""
    return StageEntry(slot, name, contract.stage.__module__, contract)


def with_stages(catalog: Catalog, *entries: StageEntry, skeletons: Any = None) -> Catalog:
    """`catalog` with more stages, and with other skeletons in the place of its own if they are given."""
    return Catalog([*catalog.stages(), *entries], {**catalog.skeletons, **(skeletons or {})})


RING_KERNEL = dataclasses.make_dataclass(
    "RingKernel",
    [
        *((f.name, f.type) for f in dataclasses.fields(ClusterKernel) if f.name != "pdl"),
        ("ring", int),
        ("pdl", bool, False),
    ],
    frozen=True,
)
RING_KERNEL.__module__ = __name__

RINGED: Skeleton = dataclasses.replace(SKELETONS["cluster"], kernel=RING_KERNEL)
"""The cluster skeleton with a place for a ring."""

MANY_WARPS: Skeleton = dataclasses.replace(
    SKELETONS["cluster"],
    name="many",
    launch=(
        LaunchField("cluster", (1, 2, 4, 8, 16), "CTAs of a cluster"),
        LaunchField("warps", (4, 64), "warps of a CTA"),
        LaunchField("pages_per_step", (1, 2), "pages at once", 1),
    ),
)
"""The cluster skeleton without a limit of warps."""
