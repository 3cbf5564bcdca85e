"""Observers: what each hook is told, and which hooks are called."""

import numpy as np

from emulator.wave.hooks import Hooks
from emulator.wave.observing import Observer
from tests.emulator.written import launch


def test_observers_see_blocks_barriers_and_exits():
    class Seen(Observer):
        def __init__(self):
            self.events = []

        def begin(self, machine):
            self.events.append(("begin", machine.geometry.thread_count))

        def block(self, block, group):
            self.events.append(("block", block.index, group.size))

        def access(self, access):
            self.events.append(
                (access.kind, access.space, access.region.name, access.size, access.group.size)
            )

        def barrier_complete(self, kind, arrived, waiting, instruction):
            self.events.append((kind, len(arrived), len(waiting), instruction.opcode))

        def fence(self, group, instruction):
            self.events.append(("fence", instruction.opcode))

        def exit(self, group):
            self.events.append(("exit", group.size))

        def end(self):
            self.events.append(("end",))

    seen = Seen()
    body = "ld.param.u64 %rd1, [a0]; fence.acq_rel.gpu; bar.sync 0; st.global.v2.b32 [%rd1], {%r1, %r1}; ret;"
    launch(body, np.zeros(2, np.uint32), threads=64, observers=[seen], checks=False)
    assert seen.events == [
        ("begin", 64),
        ("block", 0, 64),
        ("fence", "fence.acq_rel.gpu"),
        ("cta", 64, 64, "bar.sync"),
        ("block", 1, 64),
        ("store", "global", "argument 0", 8, 64),
        ("exit", 64),
        ("end",),
    ]


def test_hooks_are_those_of_observers():
    assert set(vars(Hooks([]))) == {name for name in vars(Observer) if not name.startswith("_")}


def test_only_overridden_hooks_are_called():
    called = []

    class Blocks(Observer):
        def block(self, block, group):
            called.append((self, block, group))

    first, second = Blocks(), Blocks()
    hooks = Hooks([first, Observer(), second])
    assert hooks.block and not hooks.access
    hooks.block("block", "group")
    hooks.access("access")
    assert called == [(first, "block", "group"), (second, "block", "group")]
    assert not Hooks([]).block
