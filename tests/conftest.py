"""Fixtures of all tests, the marker of those that need a GPU, and the order in which tests are dealt out.

What takes seconds to import is imported where it is used: the process that deals out tests needs none of it.
"""

import gc

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU itself, `@pytest.mark.cuda("what it needs of it")`, where there is none."""
    import torch

    marker = item.get_closest_marker("cuda")
    if marker is not None and not torch.cuda.is_available():
        pytest.skip(f"no CUDA device: {marker.args[0]}")


LONG_FIRST = ("tests/kernels/", "tests/faults/", "tests/generator/", "tests/stages/")
"""Folders whose files take long: they come first, so that no worker is left with one at the end."""

OF_SPLIT_KERNELS = (
    *("test_custom_op", "test_properties", "test_rings", "test_scales", "test_schedules", "test_split"),
)
"""How files of `tests/kernels` are called that run kernels which spread requests, or the smallest ones."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the folders that take long first, and pins last of all; apart from that the order stays.

    So what a fault does to a result is seen before what it does to a count, also with `-x`. Of several
    workers, each runs its own tests in this order.
    """

    def rank(item: pytest.Item) -> tuple[bool, int]:
        place = [n for n, folder in enumerate(LONG_FIRST) if item.nodeid.startswith(folder)]
        return item.get_closest_marker("pin") is not None, place[0] if place else len(LONG_FIRST)

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Before a worker's first test: one thread for PyTorch, and less work for the garbage collector.

    The tensors of tests on the CPU are small, and threads that share a core wait for each other. What was
    imported stays, so it is not looked at again; collecting it takes a twentieth of the time.
    """
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class _ByKernels(LoadScopeScheduling):
    """Tests that compile the same kernels go to the same worker, where they are compiled once.

    Micro-kernels belong to one file of tests, generated kernels to those of a module.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        folder, _, name = file.rpartition("/")
        if folder.endswith("tests/kernels"):
            return "split kernels" if name.startswith(OF_SPLIT_KERNELS) else "cluster kernels"
        return "split kernels" if folder.endswith("tests/faults") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How `pytest -n` deals out tests: in the order in which they were collected."""
    config.option.loadscopereorder = False
    return _ByKernels(config, log)


@pytest.fixture(params=("sm_90a", "sm_100a"))
def arch(request) -> str:
    """Each architecture that micro-kernels are compiled for: see `tests.device.ARCHITECTURES`."""
    return request.param


@pytest.fixture
def launch():
    """A function that compiles a micro-kernel for its architectures, then runs it and returns its outputs.

    See `tests.device.run` for the arguments, and for where it runs.
    """
    from tests.device import compile_kernel, run

    def compile_and_run(kernel, *arguments):
        for arch in kernel.architectures:
            compile_kernel(kernel, arch)
        return run(kernel, list(arguments))

    return compile_and_run
