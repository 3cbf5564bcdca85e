"""Loading and launching: what the driver is told, and what is refused before it could fail in service.

There is no GPU in these tests; `tests.kernels.driver` notes what a module tells the driver.
"""

import threading

import pytest
import torch

import emulator
from tests.kernels.conftest import bits
from tests.kernels.driver import (
    CONTEXT,
    PTX_TYPES,
    STREAM,
    NotedDriver,
    OnDevice,
    parameter_types,
    pretend_there_is_a_device,
)
from verification.problems import make_problem
from verification.runner import kernel_ptx, run_emulated


@pytest.fixture(params=["cluster", "split"])
def variant(request, attn2):
    """A variant of each skeleton."""
    return next(v for v in attn2.VARIANTS if v.name == request.param)


@pytest.fixture
def driver(variant, attn2, monkeypatch) -> NotedDriver:
    """The driver of a machine with a device, for the form without PDL and window."""
    noted = NotedDriver(kernel_ptx(attn2, variant.name))
    pretend_there_is_a_device(monkeypatch, attn2, noted)
    monkeypatch.setattr(attn2, "compile_image", lambda form, arch: attn2.Image(b"an entry", "entry"))
    return noted


def loaded(module, variant, pdl: bool = False, device: int = 0):
    """The kernel of a form on a device."""
    return module.loaded_kernel(module.Form(variant.name, pdl, False), device)


def bound(module, variant, lengths=(40, 0, 9)):
    """A problem, its call of a variant, and the call's output."""
    problem = make_problem(list(lengths), kv_heads=2)
    out = problem.poisoned_out()
    given = problem.arguments()
    call = module.bind(
        module.deploy(problem.max_seq_len, variant=variant.name),
        *(given[name] for name in ("q", "gate", "kv_cache", "block_table", "seq_lens")),
        *(out, None, None, problem.scale, problem.eps),
    )
    return problem, call, out


def test_parameters_are_those_of_the_ptx(variant, attn2):
    """What is packed is what the compiled kernel takes: the same number, sizes and order."""
    codes = attn2.parameters(type(variant.kernel))
    assert [PTX_TYPES[code] for code in codes.values()] == parameter_types(kernel_ptx(attn2, variant.name))


def test_a_signature_in_another_order_is_refused(attn2):
    """Addresses, integers, floats: calls are packed in this order, so a skeleton must not have another."""
    m = attn2

    class Swapped:
        def kernel(self, integers: m.Integers, addresses: m.Addresses, floats: m.Floats):
            pass

    class Short:
        def kernel(self, addresses: m.Addresses, floats: m.Floats):
            pass

    for kernel in (Swapped, Short):
        needed = "needed are addresses, integers, floats"
        with pytest.raises(TypeError, match=rf"{kernel.__name__} takes .*Addresses.*: {needed}"):
            m.parameters(kernel)


def test_what_is_launched_computes_what_the_emulator_does(driver, variant, attn2):
    """The kernel runs right with the launch and the very values that the driver finds in memory."""
    problem, call, out = bound(attn2, variant)
    loaded(attn2, variant).launch(call.values, call.layout.grid, 7)
    (launch,) = driver.launches
    tensors = {tensor.data_ptr(): tensor for tensor in call.tensors}
    emulator.launch(
        driver.ptx,
        grid=launch.grid,
        cluster=launch.cluster,
        block=launch.block,
        shared_bytes=launch.shared_bytes,
        arguments=[
            tensors[value] if number < len(call.tensors) else value
            for number, value in enumerate(launch.values)
        ],
        unwritten=[5],
    )
    expected, _ = run_emulated(attn2, variant.name, problem.arguments())
    assert torch.equal(bits(out), bits(expected))


@pytest.mark.parametrize("pdl", [False, True])
def test_the_launch_is_the_kernels_own(driver, variant, attn2, pdl):
    """Threads, cluster, shared memory, dependent launch, stream; and the grid is that of R and H."""
    _, call, _ = bound(attn2, variant)
    loaded(attn2, variant, pdl).launch(call.values, call.layout.grid, 0xABC0)
    (launch,) = driver.launches
    kernel = variant.kernel
    assert launch.grid == (kernel.cluster * kernel.row_groups * 3, 2, 1)
    assert (launch.block, launch.cluster) == ((32 * kernel.warps, 1, 1), (kernel.cluster, 1, 1))
    assert (launch.shared_bytes, launch.pdl, launch.stream) == (kernel.shared_bytes, pdl, 0xABC0)


def test_a_kernel_is_loaded_with_what_its_launches_need(driver, variant, attn2):
    """Its shared memory, clusters beyond 8 where it has them, and the question whether one fits."""
    loaded(attn2, variant)
    kernel, names = variant.kernel, driver.CUfunction_attribute
    assert driver.attributes == {
        names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: kernel.shared_bytes,
        names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: 1,
    }
    assert driver.occupancy == [(kernel.cluster, kernel.shared_bytes)]
    if variant.name == "cluster":
        loaded(attn2, next(v for v in attn2.VARIANTS if v.name == "cluster8"))
        assert driver.attributes[names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] == 0


@pytest.mark.parametrize(
    "contexts", [[], [CONTEXT], [CONTEXT + 1], [CONTEXT, 0x77]], ids=["none", "own", "other", "foreign"]
)
def test_the_current_context_stays_as_it_was(driver, variant, attn2, contexts):
    """A thread may have another device's current, or none at all: the launch is in the tensors' context."""
    _, call, _ = bound(attn2, variant)
    kernel = loaded(attn2, variant)
    driver.contexts[:] = contexts
    kernel.launch(call.values, call.layout.grid, 0)
    assert driver.launches[-1].context == CONTEXT
    assert driver.contexts == contexts


def test_a_launch_that_the_driver_refuses_is_an_error(driver, variant, attn2):
    """With the driver's own name for it, and the current context as it was."""
    _, call, _ = bound(attn2, variant)
    kernel = loaded(attn2, variant)
    driver.launch_error = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    for contexts in ([], [CONTEXT]):
        driver.contexts[:] = contexts
        with pytest.raises(RuntimeError, match="CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: in words"):
            kernel.launch(call.values, call.layout.grid, 0)
        assert driver.contexts == contexts


@pytest.mark.parametrize("how", ["none", "error"])
def test_a_device_too_small_for_a_cluster_is_refused(driver, variant, attn2, how):
    """At build time, with the way out; a variant with smaller clusters is still served."""
    if how == "none":
        driver.clusters = 0
    else:
        driver.residency_error = driver.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE
    deployment = {"kv_heads": 2, "max_seq_len": 2048, "variant": variant.name}
    with pytest.raises(ValueError, match="cannot hold a cluster") as caught:
        attn2.prepare(**deployment)
    for part in (
        *("cuda:0 (NVIDIA H200 MIG 1g.18gb)", f"cluster of {variant.kernel.cluster} CTAs"),
        *(f"{variant.kernel.shared_bytes} bytes of shared memory", variant.kernel.name),
        *("variant batch, cluster8, or another device",),
    ):
        assert part in str(caught.value)
    assert not driver.contexts and not driver.launches
    driver.clusters, driver.residency_error = 1, driver.CUresult.CUDA_SUCCESS
    attn2.prepare(**deployment)


def test_machine_code_with_other_parameters_is_refused(driver, variant, attn2):
    """Whatever the manifest said: the driver knows where the kernel's parameters lie."""
    for wrong in (
        driver.ptx.replace(".param .f32", ".param .u64", 1),
        driver.ptx.replace(".param .u64 ", ".x ", 1),
        driver.ptx.replace("(\n", "(\n.param .u32 more,\n", 1),
    ):
        driver.ptx = wrong
        with pytest.raises(RuntimeError, match=r"the kernel's parameters lie at \[\(0, "):
            loaded(attn2, variant)


def test_each_launch_has_its_own_grid_and_stream(driver, variant, attn2):
    """They are set only when they change: either of them alone, and back again."""
    kernel = loaded(attn2, variant)
    values = [1] * len(attn2.parameters(type(variant.kernel)))
    driver.contexts.append(CONTEXT)
    small, large = (16, 1, 1), (32, 2, 1)
    places = [(small, 7), (small, 7), (large, 7), (large, 8), (small, 8), (small, 7)]
    for place in places:
        kernel.launch(values, *place)
    assert [(launch.grid, launch.stream) for launch in driver.launches] == places


def test_threads_launch_at_once(driver, variant, attn2):
    """Each with its own values and stream, though all of them launch the same kernel."""
    kernel = loaded(attn2, variant)
    count = len(attn2.parameters(type(variant.kernel)))
    driver.contexts.append(CONTEXT)
    driver.delay = 0.002

    def launch(number: int) -> None:
        for _ in range(5):
            kernel.launch([number] * count, (16 * number, number, 1), number)

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(launch.stream for launch in driver.launches) == sorted([*range(1, 9)] * 5)
    for launch in driver.launches:
        assert launch.values == [launch.stream] * count
        assert launch.grid == (16 * launch.stream, launch.stream, 1)


def call_on_device_1(module, variant, lengths, **more):
    """A call of the entry point with tensors of device 1, while device 0 is the current one."""
    problem = make_problem(list(lengths) or [40], kv_heads=2)
    given = problem.arguments()
    if not lengths:
        given |= {name: given[name][:0] for name in ("q", "gate", "block_table", "seq_lens")}
    there = {k: v.as_subclass(OnDevice) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    out = torch.zeros_like(given["q"], memory_format=torch.contiguous_format).as_subclass(OnDevice)
    return module.attn2(**there, out=out, variant=variant.name, **more)


@pytest.mark.parametrize("pdl", [False, True])
def test_a_call_launches_once_on_the_current_stream_of_its_tensors_device(driver, variant, attn2, pdl):
    """In that device's context, with the kernel that was loaded there; the current device is another."""
    for requests in (1, 3):
        out = call_on_device_1(attn2, variant, [40] * requests, pdl=pdl)
        *_, launch = driver.launches
        assert (launch.stream, launch.context, launch.pdl) == (STREAM + 1, CONTEXT + 1, pdl)
        assert launch.grid == (variant.kernel.cluster * variant.kernel.row_groups * requests, 2, 1)
        assert out.data_ptr() in launch.values
    assert len(driver.launches) == 2 and len(driver.images) == 1 and not driver.contexts
    assert [device for _, device in attn2.LOADED.values] == [1]


@pytest.mark.parametrize("validate", [False, True])
def test_an_empty_batch_launches_nothing(driver, variant, attn2, validate):
    """No kernel is loaded for it either, and its output is returned as it is."""
    out = call_on_device_1(attn2, variant, [], validate=validate)
    assert out.shape == (0, 1024)
    assert not driver.launches and not driver.images
    call_on_device_1(attn2, variant, [0])
    assert len(driver.launches) == 1
