"""Calls the hooks of all observers of a launch.

Contract
    `hooks.access(access)` calls `access` of every observer that overrides it, in the order of the observers.
    `bool(hooks.access)` says whether there is one, for callers that have something to prepare.

Who calls what, when
    machine, start of a wave     `begin`
    machine, before a block      `block`
    machine, ret and exit        `exit`, after the asynchronous engine has been told
    machine, end of a wave       `end`, after the asynchronous engine has finished
    memory, ld/st/atom/red       `access`, before data moves, once for each region touched
    barriers                     `barrier_arrive` when threads arrive, then `barrier_complete` when all have
    warp-synchronous operations  `warp_sync`
    fences                       `fence`
    asynchronous engine          `access` with kind "async read" when a copy is issued and "async write" when
                                 its bytes move, and the hooks async_* and mbarrier_*
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, Generic, ParamSpec

from emulator.wave.observing import Observer

P = ParamSpec("P")


class Hook(Generic[P]):
    """One hook of all observers that override it. method: the hook as `Observer` has it."""

    __slots__ = ("_methods",)

    def __init__(self, observers: Sequence[Observer], method: Callable[Concatenate[Observer, P], None]):
        name = method.__name__
        self._methods: tuple[Callable[P, None], ...] = tuple(
            getattr(observer, name) for observer in observers if getattr(type(observer), name) is not method
        )

    def __bool__(self) -> bool:
        return bool(self._methods)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the observers that override it."""
        for method in self._methods:
            method(*args, **kwargs)


class Hooks:
    """Every hook of the observers of a launch, by its name in `Observer`."""

    def __init__(self, observers: Sequence[Observer]):
        self.begin = Hook(observers, Observer.begin)
        self.block = Hook(observers, Observer.block)
        self.access = Hook(observers, Observer.access)
        self.barrier_arrive = Hook(observers, Observer.barrier_arrive)
        self.barrier_complete = Hook(observers, Observer.barrier_complete)
        self.warp_sync = Hook(observers, Observer.warp_sync)
        self.fence = Hook(observers, Observer.fence)
        self.mbarrier_init = Hook(observers, Observer.mbarrier_init)
        self.mbarrier_inval = Hook(observers, Observer.mbarrier_inval)
        self.mbarrier_arrive = Hook(observers, Observer.mbarrier_arrive)
        self.mbarrier_complete = Hook(observers, Observer.mbarrier_complete)
        self.mbarrier_wait = Hook(observers, Observer.mbarrier_wait)
        self.async_issued = Hook(observers, Observer.async_issued)
        self.async_landed = Hook(observers, Observer.async_landed)
        self.async_tracked = Hook(observers, Observer.async_tracked)
        self.async_waited = Hook(observers, Observer.async_waited)
        self.exit = Hook(observers, Observer.exit)
        self.end = Hook(observers, Observer.end)
