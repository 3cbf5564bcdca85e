"""What a stage declares about itself, as data: the part of a stage that the generator checks.

A stage module holds one device class (a frozen dataclass whose fields are compile-time facts) and one
`CONTRACT` beside it. The class says what the stage does; the contract says where it fits and what it
needs. Neither repeats the other: the fields of the class are filled by name from the problem, the launch
and the stage's own parameters, and the contract's functions are given the finished stage.

Nothing here touches a GPU, and nothing here is copied into a generated module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_SHARED_BYTES = 227 * 1024
"""Dynamic shared memory that one CTA may have on sm_90 and sm_100 (CUDA C++ Programming Guide)."""

MAX_CLUSTER_SIZE = 16
"""CTAs a cluster on sm_90 and sm_100, with the non-portable attribute that CuTe DSL always sets."""


@dataclass(frozen=True)
class Parameter:
    """A number that `spec.yaml` may set for one stage.

    allowed: every legal value, in ascending order.
    """

    name: str
    allowed: tuple[int, ...]
    default: int
    help: str


@dataclass(frozen=True)
class Region:
    """A piece of a CTA's shared memory that one stage owns.

    name: the skeleton's name for the region's byte offset. align: in bytes, a power of two.
    """

    name: str
    bytes: int
    align: int = 16


@dataclass(frozen=True)
class Barrier:
    """What completes one phase of an mbarrier: arrivals, and bytes of asynchronous stores.

    arithmetic: how `transaction_bytes` comes about, for people.
    """

    name: str
    arrivals: int
    transaction_bytes: int
    arithmetic: str


@dataclass(frozen=True)
class Contract:
    """Where a stage fits and what it needs.

    slot: the name of a slot in `stages.slots`.
    stage: the device class.
    summary: one line for tables.
    parameters: what the spec may set for the stage.
    requires: values of a fact of the problem or the launch, by its name, that the stage has been built and
        tested with; others are refused, without saying that no kernel could serve them.
    shared: the regions of shared memory that a finished stage owns.
    barriers: the mbarriers that a finished stage completes.
    unfit: why a finished stage cannot work although each of its values is allowed; None if it can.
    min_arch: the first architecture that has the stage's instructions (90 for sm_90).
    """

    slot: str
    stage: type[Any]
    summary: str
    parameters: tuple[Parameter, ...] = ()
    requires: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    shared: Callable[[Any], tuple[Region, ...]] = lambda stage: ()
    barriers: Callable[[Any], tuple[Barrier, ...]] = lambda stage: ()
    unfit: Callable[[Any], str | None] = lambda stage: None
    min_arch: int = 80

    def facts(self) -> tuple[str, ...]:
        """The names of the facts that the stage class is built from."""
        return tuple(f.name for f in dataclasses.fields(self.stage))

    def build(self, facts: Mapping[str, Any]) -> Any:
        """The finished stage for these facts (problem, launch and parameters, by name)."""
        return self.stage(**{name: facts[name] for name in self.facts()})
