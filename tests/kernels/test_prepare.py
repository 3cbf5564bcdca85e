"""Before the first call: each kernel is compiled and loaded once, and never in a graph capture."""

import threading
import time

import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.driver import NotedDriver, pretend_there_is_a_device
from tests.kernels.test_host import Case, refuse
from verification.problems import make_problem
from verification.runner import kernel_ptx

DEPLOYMENT = {"kv_heads": 2, "max_seq_len": 2048, "variant": "cluster"}


@pytest.fixture
def driver(attn2, monkeypatch) -> NotedDriver:
    """A machine with two Hopper devices, for the module's kernels of the cluster skeleton."""
    noted = NotedDriver(kernel_ptx(attn2, "cluster"))
    pretend_there_is_a_device(monkeypatch, attn2, noted)
    return noted


@pytest.fixture
def compiled(attn2, monkeypatch) -> list:
    """The forms that were compiled, each of which takes a moment."""
    forms = []

    def compile_image(form, arch):
        time.sleep(0.02)
        forms.append((str(form), arch))
        return attn2.Image(b"an entry", "entry")

    monkeypatch.setattr(attn2, "compile_image", compile_image)
    return forms


@pytest.mark.parametrize(
    "case",
    [
        Case("kv_heads", 0, "0", "1..65535"),
        Case("kv_heads", 65536, "65536", "1..65535"),
        Case("kv_heads", True, "True", "1..65535"),
        Case("kv_heads", 2.0, "2.0", "1..65535"),
        Case("max_seq_len", 1048577, "max_seq_len=1048577", "split: max_seq_len <= 1048576"),
        Case("window", 0, "0", "integer >= 1"),
        Case("num_splits", 0, "0", "1..128"),
        Case("pdl", "no", "'no'", "True or False"),
        Case("variant", "spilt", "'spilt'", "cluster, split, batch, cluster8, split_small"),
    ],
    ids=str,
)
def test_prepare_refuses_what_no_call_could_serve(attn2, case):
    """`prepare` checks a deployment as a call does, so that an engine hears of it at build time."""
    deployment = {"kv_heads": 2, "max_seq_len": 2048, case.argument: case.value}
    refuse(case, lambda: attn2.prepare(**deployment))


def at_once(count, function) -> list:
    """What a function of 0..count-1 returns or raises, called by as many threads."""
    results: list = [None] * count
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            results[number] = function(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_compile_each_form_once(driver, compiled, attn2):
    """Sixteen threads, two forms: two compilations, two kernels on the device."""
    results = at_once(16, lambda n: attn2.prepare(**DEPLOYMENT, pdl=n % 2 == 1))
    assert results == [None] * 16
    assert sorted(compiled) == [("cluster", "sm_90a"), ("cluster-pdl", "sm_90a")]
    assert len(driver.images) == 2


def test_another_device_loads_what_is_compiled(driver, compiled, attn2):
    """Machine code belongs to an architecture, a loaded kernel to a device."""
    for device in ("cuda:0", 1, torch.device("cuda", 1), None):
        attn2.prepare(**DEPLOYMENT, device=device)
    assert len(compiled) == 1 and len(driver.images) == 2
    assert {key[1] for key in attn2.LOADED.values} == {0, 1}


def test_a_longer_deployment_of_the_same_form_needs_nothing(driver, compiled, attn2):
    """What the machine code does not depend on is not in the key."""
    for max_seq_len, kv_heads in ((2048, 2), (64, 1), (100, 16)):
        attn2.prepare(kv_heads=kv_heads, max_seq_len=max_seq_len)
    assert len(compiled) == len(driver.images) == 1


def test_one_key_does_not_wait_for_another(attn2):
    """While one thread makes its value, others get theirs."""
    once, slow_began, other_done = attn2.Once(), threading.Event(), threading.Event()

    def slow():
        slow_began.set()
        assert other_done.wait(10)
        return "slow"

    thread = threading.Thread(target=once.get, args=("a", slow))
    thread.start()
    assert slow_began.wait(10)
    assert once.get("b", lambda: "fast") == "fast"
    other_done.set()
    thread.join()
    assert once.values == {"a": "slow", "b": "fast"}


def test_a_failure_is_everybodys_and_the_next_tries_again(attn2):
    """Nobody gets half a kernel, and nothing is remembered of it."""
    once, tries = attn2.Once(), []

    def fail():
        tries.append(1)
        time.sleep(0.01)
        raise MemoryError

    assert [type(result) for result in at_once(3, lambda _: once.get("a", fail))] == [MemoryError] * 3
    assert len(tries) == 3 and not once.values
    assert once.get("a", lambda: "made") == "made"


def test_the_compiler_runs_in_one_thread_at_a_time(attn2, monkeypatch):
    """CuTe DSL keeps what it traces in one place, whatever module it comes from."""
    running, seen = [], []

    def compile_one(*_, **__):
        running.append(1)
        time.sleep(0.01)
        seen.append(len(running))
        running.pop()

    monkeypatch.setattr(attn2.cute, "compile", compile_one)
    at_once(4, lambda n: attn2.compile_attn2(pdl=n % 2 == 1, arch="sm_90a"))
    assert seen == [1] * 4


def test_kernels_from_a_folder_are_loaded_without_compiling(driver, compiled, attn2, monkeypatch):
    """And what the folder's checks refuse never reaches the driver."""
    image = attn2.Image(b"exported entry", "entry")

    def read(folder, form, arch):
        assert (folder, arch) == ("kernels", "sm_90a")
        if form.pdl:
            raise ValueError("from_dir: stale")
        return image

    monkeypatch.setattr(attn2, "read", read)
    with pytest.raises(ValueError, match="from_dir: stale"):
        attn2.prepare(**DEPLOYMENT, pdl=True, from_dir="kernels")
    assert not driver.images
    attn2.prepare(**DEPLOYMENT, from_dir="kernels")
    assert driver.images == [image.cubin] and not compiled


def test_nothing_is_compiled_or_loaded_in_a_capture(driver, compiled, attn2, monkeypatch):
    """The error says what to do; what is loaded already needs nothing and is found."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for prepare in (lambda: attn2.prepare(**DEPLOYMENT), lambda: find(attn2)):
        with pytest.raises(RuntimeError, match=r"kernel cluster is not loaded on cuda:0.*call prepare\(\)"):
            prepare()
    assert not driver.images and not compiled
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    attn2.prepare(**DEPLOYMENT)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    attn2.prepare(**DEPLOYMENT)
    assert find(attn2) is not None


def find(module):
    """The kernel as a call finds it."""
    return module.loaded_kernel(module.deploy(2048).form, 0)


@pytest.mark.cuda("captures a graph")
def test_a_first_call_in_a_capture_leaves_the_capture_usable(attn2, monkeypatch):
    """The error is clear, and what else is captured can be replayed."""
    monkeypatch.setattr(attn2, "LOADED", attn2.Once())
    problem = make_problem([40, 1025], kv_heads=2, device="cuda")
    out, copied = torch.zeros_like(problem.q), torch.zeros_like(problem.q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copied.copy_(problem.q)
        with pytest.raises(RuntimeError, match=r"not loaded on cuda:0.*call prepare\(\) first"):
            attn2.attn2(**problem.arguments(), out=out)
        copied.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(copied, problem.q + 1) and not out.any()


@pytest.mark.cuda("counts what a call does to it")
def test_a_prepared_call_only_launches(subject):
    """In eager mode it neither synchronises nor allocates; captured, it is one kernel node and no more."""
    import cuda.bindings.driver as cuda

    problem = make_problem([40, 1025], kv_heads=2, device="cuda")
    subject.prepare(problem)
    expected = subject.run(problem)
    out = problem.poisoned_out()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        subject.call(problem.arguments(), out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert torch.equal(bits(out), bits(expected))

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(3):
            subject.call(problem.arguments(), out=out)
    handle = cuda.CUgraph(graph.raw_cuda_graph())
    error, _, count = cuda.cuGraphGetNodes(handle)
    assert not error
    error, nodes, count = cuda.cuGraphGetNodes(handle, count)
    kinds = [cuda.cuGraphNodeGetType(node)[1] for node in nodes]
    assert kinds == [cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL] * 3
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(bits(out), bits(expected))


@pytest.mark.cuda("runs what was exported")
@pytest.mark.parametrize("pdl", [False, True])
def test_exported_kernels_have_the_same_bits(attn2, tmp_path_factory, monkeypatch, pdl):
    """Loaded from a folder, with no compiler at hand."""
    major, minor = torch.cuda.get_device_capability()
    problem = make_problem([40, 1025, 0], kv_heads=2, device="cuda")
    expected = attn2.attn2(**problem.arguments(), pdl=pdl)
    folder = tmp_path_factory.mktemp("exported")
    attn2.export_kernels(folder, arch=f"sm_{major}{minor}a")

    def no_compiler(*_):
        raise AssertionError("nothing may be compiled")

    monkeypatch.setattr(attn2, "LOADED", attn2.Once())
    monkeypatch.setattr(attn2, "compile_image", no_compiler)
    attn2.prepare(kv_heads=2, max_seq_len=2048, pdl=pdl, from_dir=folder)
    assert torch.equal(bits(attn2.attn2(**problem.arguments(), pdl=pdl)), bits(expected))


@pytest.mark.cuda("loads kernels on it from several threads")
def test_threads_prepare_and_call(attn2, monkeypatch):
    """Threads that never touched the device prepare and call at once; all get the same bits."""
    monkeypatch.setattr(attn2, "LOADED", attn2.Once())
    monkeypatch.setattr(attn2, "IMAGES", attn2.Once())
    problem = make_problem([40, 1025, 0], kv_heads=2, device="cuda")
    torch.cuda.synchronize()

    def call(number: int) -> torch.Tensor:
        pdl = number % 2 == 1
        attn2.prepare(**DEPLOYMENT, pdl=pdl)
        out = attn2.attn2(**problem.arguments(), pdl=pdl)
        torch.cuda.current_stream().synchronize()
        return out

    outs = at_once(8, call)
    assert all(isinstance(out, torch.Tensor) for out in outs), outs
    assert all(torch.equal(bits(out), bits(outs[0])) for out in outs)
    assert len(attn2.IMAGES.values) == len(attn2.LOADED.values) == 2
