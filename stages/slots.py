"""The slots of the skeletons, and the functions that every stage of a slot has.

Stages of one slot are exchanged in `spec.yaml` by name, so they have the same methods with the same
parameters. A protocol below says which; what a method must do, barrier obligations included, the stages'
own contracts say. Nothing here is copied into a generated module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from stages.fragments import PageFragments, RowState
from stages.mask import KeyRange
from stages.pages.walk import PageWalk
from stages.partial import RowUnits


class Pages(Protocol):
    """Brings the pages of a warp's walk into its registers, step by step."""

    def empty(self) -> list[PageFragments]:
        """Registers for the pages of one step."""

    def begin(self, walk: PageWalk) -> Any:
        """What may be read before the length is known."""

    def start(self, walk: PageWalk, live: Int32, last: bool, incoming: Any) -> None:
        """Begin to load the walk's first pages."""

    def take(
        self,
        walk: PageWalk,
        live: Int32,
        step: Int32,
        last: bool,
        incoming: Any,
        pages: list[PageFragments],
    ) -> None:
        """Hand over a step's fragments, and go on loading."""


class Page(Protocol):
    """Where the fragments of one page come from, when they are asked for."""

    def keys(self) -> cute.Tensor:
        """K's: see `stages.fragments.PageFragments`."""

    def values(self) -> cute.Tensor:
        """V's, in rows like K's or in columns: see the values stages."""


class Ring(Protocol):
    """Brings a CTA's pages through shared memory, for all of its warps to read."""

    @property
    def v_columns(self) -> bool:
        """Whether its pages give V in columns."""

    def start(self, walk: PageWalk, live: Int32, region: Int32) -> Any:
        """Begin to copy the walk's first pages."""

    def take(self, walk: PageWalk, live: Int32, step: Int32, region: Int32, entries: Any) -> None:
        """Wait for a step's pages, and go on copying."""

    def page(self, step: Int32, page: Int32 | int, region: Int32) -> Page:
        """One of the pages of the step that was taken last."""

    def close(self) -> None:
        """After the last step: nothing is in flight any more."""


class Scores(Protocol):
    """Query rows times keys."""

    def load_query(self, row: Int64, row_plus_8: Int64) -> cute.Tensor:
        """The query rows of a warp's row group, in registers."""

    def scores(self, query: cute.Tensor, k: cute.Tensor) -> list[Float32]:
        """The raw scores of a page."""


class Softmax(Protocol):
    """Scores become weights."""

    def weigh(
        self,
        scores: list[Float32],
        first_keys: list[Int32],
        visible: tuple[KeyRange, KeyRange],
        scale_log2: Float32,
        state: RowState,
        first: bool,
        masked: bool,
    ) -> cute.Tensor:
        """The weights of one step; the row state moves on."""

    def finish(self, state: RowState) -> None:
        """Complete the row state after the last step."""


class Values(Protocol):
    """Weights times values."""

    def accumulate(
        self,
        weights: list[Int32],
        v: cute.Tensor,
        v_columns: bool,
        first_key: Int32,
        visible: tuple[KeyRange, KeyRange],
        masked: bool,
        o: cute.Tensor,
    ) -> None:
        """Add a page's weighted values to the output."""

    def finish(self, o: cute.Tensor, v_columns: bool) -> None:
        """Complete the output after the last step."""


class WarpMerge(Protocol):
    """The partials of a CTA's warps become one partial a row."""

    def merge(self, region: Int32, state: RowState) -> RowUnits:
        """Merge; returns the calling thread's share."""


class Push(Protocol):
    """The CTAs' rows travel to the ranks that own them."""

    def rows_per_rank(self, rows: int) -> int:
        """How many consecutive rows of an exchange each rank owns."""

    def open(self, arrived: Int32, rows: int) -> None:
        """Get ready to receive an exchange of so many rows."""

    def meet(self) -> None:
        """Wait until all ranks are ready to receive."""

    def send(self, region: Int32, arrived: Int32, rank: Int32, mine: RowUnits, rows: int) -> None:
        """Send the calling thread's share of one row."""

    def wait(self, arrived: Int32) -> None:
        """Wait for what all ranks sent."""


class ClusterMerge(Protocol):
    """The ranks' partials of an owned row become one."""

    def merge(self, region: Int32, row: Int32) -> tuple[Float32, Float32, list[Float32]]:
        """(m, l, the lane's dims of o) over the cluster's keys."""


class GridMerge(Protocol):
    """The clusters' partials of a row become one."""

    def leave(self, row: Int64, cluster: Int32, m: Float32, l: Float32, o: list[Float32]) -> None:
        """Leave a cluster's partial of a row."""

    def arrive(self, counters: Int64, rows: int, clusters: Int32) -> Int32:
        """Count the warp's arrival at all of its rows."""

    def last(self, before: Int32, row: Int32, clusters: Int32) -> Boolean:
        """Whether it was the last at one of them, by what `arrive` said."""

    def collect(self, row: Int64, clusters: Int32) -> tuple[Float32, list[Float32]]:
        """(l, the lane's dims of o) over all keys."""


class Epilogue(Protocol):
    """A merged row becomes a row of the output."""

    def load_gate(self, row: Int64) -> Int32:
        """The lane's values of the gate's row."""

    def store(self, row: Int64, l: Float32, o: list[Float32], gate: Int32, eps: Float32) -> None:
        """Finish and store the row."""


@dataclass(frozen=True)
class Slot:
    """A place in a skeleton, and the methods that fill it."""

    name: str
    protocol: type[Any]

    @property
    def summary(self) -> str:
        """One line for tables."""
        return (self.protocol.__doc__ or "").splitlines()[0]

    @property
    def package(self) -> str:
        """The package whose modules are this slot's stages."""
        return f"stages.{self.name}"


SLOTS: dict[str, Slot] = {
    slot.name: slot
    for slot in (
        Slot("pages", Pages),
        Slot("ring", Ring),
        Slot("scores", Scores),
        Slot("softmax", Softmax),
        Slot("values", Values),
        Slot("warp_merge", WarpMerge),
        Slot("push", Push),
        Slot("cluster_merge", ClusterMerge),
        Slot("grid_merge", GridMerge),
        Slot("epilogue", Epilogue),
    )
}
