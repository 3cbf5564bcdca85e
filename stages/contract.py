"""What a stage declares about itself, as data: the part of a stage that the generator checks.

A stage module holds one device class (a frozen dataclass whose fields are compile-time facts) and one
`CONTRACT` beside it. The class says what the stage does; the contract says where it fits and what it
needs. Neither repeats the other: the fields of the class are filled by name from the problem, the launch
and the stage's own parameters, and the contract's functions `shared`, `barriers` and `unfit` are given the
finished stage.

`reference` says what a stage computes, for `python -m generator verify` and the kernel tests: they compose
the float64 reference of a kernel from the references of its stages.

Nothing here touches a GPU. Neither a contract nor a reference is copied into a generated module: the
generator links what the stage's class uses, so the class must not use its reference.
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

SLOT_REFERENCE = "slot"
"""A `Contract.reference`: the stage computes what the docstring of its slot's protocol defines.

The protocols are in `stages.slots`; `verification.attention` implements their definitions in float64.
"""


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
    reference: what the stage computes. Which form it has depends on the slot:
        scores, softmax, values: `SLOT_REFERENCE`. There is no other form, so a stage that computes anything
            else (a softcap, say) declares none.
        epilogue: a function `reference(attended, gate, eps)` on float64 tensors, as
            `stages.slots.EpilogueReference` defines it, beside the stage.
        the others: None. These stages only move and merge data (`Slot.decides_result` is False).
        A stage of the first two kinds that declares none can be generated and run, but not verified:
        `verify` reports "no reference" for its variants.
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
    reference: Callable[..., Any] | str | None = None

    def facts(self) -> tuple[str, ...]:
        """The names of the facts that the stage class is built from."""
        return tuple(f.name for f in dataclasses.fields(self.stage))

    def build(self, facts: Mapping[str, Any]) -> Any:
        """The finished stage for these facts (problem, launch and parameters, by name)."""
        return self.stage(**{name: facts[name] for name in self.facts()})
