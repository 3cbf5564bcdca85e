"""What a producer wrote is read only after the wait for it; more is in `tests.faults.covered`."""

import numpy as np
import pytest

from emulator import Observer
from tests.kernels.tiny import kernel_of, long_length
from verification.problems import make_problem
from verification.runner import run_emulated

pytest_plugins = ["tests.kernels.tiny_subject"]


class Waiting(Observer):
    """Which threads have waited for the kernels before, and what those touched that had not."""

    def __init__(self):
        self.early, self.accesses = [], 0

    def begin(self, machine):
        self.waited = np.zeros(machine.geometry.thread_count, bool)

    def fence(self, group, instruction):
        if instruction.parts[:2] == ("griddepcontrol", "wait"):
            self.waited[group.threads] = True

    def access(self, access):
        if access.space == "global":
            self.accesses += 1
            if not self.waited[access.group.threads].all():
                self.early.append(f"{access.kind} of {access.region.name}")


@pytest.mark.parametrize("pdl", [False, True])
def test_nothing_is_touched_before_the_wait(tiny, pdl):
    """Neither lengths, table, cache, q and gate, nor what the launch before may still read or write.

    Seen thread by thread as the emulator runs it, wherever the other tests run; without dependent launch no
    thread waits, which shows that the test can see it.
    """
    problem = make_problem([long_length(tiny), 9, 0])
    arguments, watch = problem.arguments(), Waiting()
    if kernel_of(tiny).splits:
        scratch = tiny.scratch(problem).arguments()
        arguments.update({name: tensor.cpu() for name, tensor in scratch.items()}, num_splits=1)
    run_emulated(tiny.module, tiny.name, arguments, pdl=pdl, observers=[watch], checks=False)
    assert watch.accesses
    assert (not watch.early) is pdl, watch.early[:3]
    assert watch.waited.all() == pdl
