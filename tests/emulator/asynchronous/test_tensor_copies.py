"""Tensor copies by hand: what is refused, and faults planted around them."""

import numpy as np
import pytest
import torch

import emulator
from emulator import TensorMap
from emulator.errors import (
    BarrierFault,
    Deadlock,
    EmulatorError,
    LaunchError,
    MemoryFault,
    PtxError,
    Race,
    UnfinishedAsync,
    UninitialisedRead,
    Unsupported,
)
from tests.emulator.handwritten import INIT, kernel, line_of, store, wait
from tests.emulator.handwritten import run as launch

COPY = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    "[%r1], [%d0, {{%r2, %r3}}], [%r0];"
)

BODY = (
    INIT.replace("{arrivals}", "1").replace("memory;", "memory;\nadd.u32 %r0, %r0, 8192;")
    + """
    mov.u32 %r1, memory;
    mov.u32 %r2, 0;
    mov.u32 %r3, 1;
    @%p0 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 1024;
    {copy}
    ISSUED:
    """
    + wait(0)
    + """
    shl.b32 %r4, %tid, 2;
    add.u32 %r4, %r4, %r1;
    ld.shared.b32 %r5, [%r4];
    """
    + store("%r5", 1)
)
BODY = BODY.replace("{copy}", COPY.replace("{{", "{").replace("}}", "}"))

HELD = np.arange(64 * 20, dtype=np.uint16).reshape(20, 64)


def rows(array: np.ndarray = HELD, **more) -> TensorMap:
    """A map of 20 rows of 64 numbers, 8 rows a box."""
    return TensorMap(array, **{"dims": (64, 20), "strides": (128,), "box": (64, 8), "swizzle": 128, **more})


def run(body: str = BODY, tensor=None, **more) -> np.ndarray:
    """What the threads read behind the copy."""
    result = np.zeros(32, np.uint32)
    launch(body, rows() if tensor is None else tensor, result, shared=8200, **{"unwritten": [1], **more})
    return result


def found(kind: type[EmulatorError], match: str, old: str, new: str, at: str = "", tensor=None, **more):
    """Assert that an edit is reported, at the first line with this text."""
    assert BODY.count(old) == 1, old
    body = BODY.replace(old, new)
    with pytest.raises(kind, match=match) as caught:
        run(body, tensor, **more)
    if at:
        assert caught.value.line == line_of(kernel(body, 2, 8200), at), str(caught.value)
    for seed in (0, 1):
        with pytest.raises((kind, UninitialisedRead, UnfinishedAsync)):
            run(body, tensor, seed=seed, **more)


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_as_it_is(seed):
    """The first row of the box is the tensor's second, and not swizzled."""
    assert np.array_equal(run(seed=seed).view(np.uint16), HELD[1])


def test_an_array_that_is_an_argument_too():
    """What the kernel may write there, the copies see; the buffer is one."""
    result = np.zeros(32, np.uint32)
    launch(BODY.replace("%d1", "%d2"), rows(), HELD, result, shared=8200)
    assert np.array_equal(result.view(np.uint16), HELD[1])


def test_a_tensor_of_torch():
    """BF16, and a view into more."""
    tensor = torch.arange(21 * 64).to(torch.bfloat16).view(21, 64)
    expected = tensor[2].view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(run(tensor=rows(tensor[1:])).view(np.uint16), expected)


def test_unwritten_tensors():
    """A copy reads the array, of which nobody may have written anything."""
    result, held = np.zeros(32, np.uint32), HELD.copy()
    with pytest.raises(UninitialisedRead):
        launch(BODY.replace("%d1", "%d2"), rows(held), held, result, shared=8200, unwritten=[1])


# ---- alignment, addresses, coordinates ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("swizzle", "columns", "align"), [(0, 64, 128), (32, 16, 256), (64, 32, 512), (128, 64, 1024)]
)
def test_destinations(swizzle, columns, align):
    """Aligned to 128 bytes, and with a swizzle to its atoms of 8 rows."""
    tensor = rows(box=(columns, 8), swizzle=swizzle)
    size = tensor.box_bytes
    body = BODY.replace("_, [%r0], 1024;", f"_, [%r0], {size};")
    at = "mov.u32 %r1, memory;"
    run(body.replace(at, f"{at}\nadd.u32 %r1, %r1, {align};"), tensor)
    with pytest.raises(MemoryFault, match=f"has to be aligned to {align} bytes"):
        run(body.replace(at, f"{at}\nadd.u32 %r1, %r1, {align // 2};"), tensor)


@pytest.mark.parametrize("new", ["[%d1, {%r2, %r3}]", "[%d0+64, {%r2, %r3}]"])
def test_what_is_no_tensor_map(new):
    """Another buffer, or a place inside of a map."""
    found(MemoryFault, "there is no tensor map at byte", "[%d0, {%r2, %r3}]", new, "cp.async.bulk.tensor")


def test_a_map_of_another_rank():
    """The instruction's rank is the map's."""
    tensor = rows(dims=(64, 10, 2), strides=(128, 1280), box=(64, 8, 1))
    with pytest.raises(MemoryFault, match="a tensor map of 3 dims"):
        run(tensor=tensor)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (".tile.", ".im2col.", Unsupported),
        (".mbarrier::complete_tx::bytes", ".mbarrier::complete_tx::bytes.multicast::cluster", Unsupported),
        ("{%r2, %r3}", "{%r2, %r3, %r3}", PtxError),
        ("[%d0, {%r2, %r3}]", "[%d0]", PtxError),
    ],
)
def test_other_forms(old, new, kind):
    """They are refused before anything runs."""
    with pytest.raises(kind):
        run(BODY.replace(old, new))


# ---- bytes and waits ------------------------------------------------------------------------------------


def test_a_box_counts_whole():
    """The bytes outside the tensor are zeros, and complete on the mbarrier."""
    assert not run(BODY.replace("mov.u32 %r3, 1;", "mov.u32 %r3, 20;")).any()


@pytest.mark.parametrize(
    ("size", "kind", "match"),
    [
        (512, BarrierFault, "512 bytes more than the phase expects"),
        (2048, Deadlock, "1024 transaction bytes are"),
    ],
)
def test_bytes_that_do_not_add_up(size, kind, match):
    """More or fewer than the box has."""
    found(kind, match, "_, [%r0], 1024;", f"_, [%r0], {size};")


def test_no_wait():
    """What is read before the wait for the phase is in flight."""
    found(
        UnfinishedAsync, "where an asynchronous write is in flight", wait(0), "bar.sync 0;", "ld.shared.b32"
    )


def test_a_write_into_the_box():
    """In flight nobody writes there; behind the wait it is ordinary memory."""
    planted = "st.shared.b32 [%r1], 0;\n"
    found(UnfinishedAsync, "in flight", wait(0), "bar.sync 0;\n" + planted + wait(0), planted.strip(";\n"))


def test_a_box_over_what_others_still_read():
    """The issue of a copy is a write: others' reads come before it by a barrier."""
    read = "shl.b32 %r6, %tid, 2;\nadd.u32 %r6, %r6, %r1;\nld.shared.b32 %r7, [%r6];\n"
    first = "st.shared.b32 [%r6], 0;\nbar.sync 0;\n"
    body = BODY.replace(
        "mov.u32 %r2, 0;\n", read.replace("ld.shared", first + "ld.shared") + "mov.u32 %r2, 0;\n"
    )
    with pytest.raises(Race, match="; read by"):
        run(body, block=64, unwritten=[])
    run(body.replace("@%p0 bra ISSUED;", "bar.sync 0;\n@%p0 bra ISSUED;"), block=32)


# ---- tensor maps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"dims": (64, 20, 1)}, "of 3 dims, 1 strides"),
        ({"dims": (64, 0)}, "not all from 1 to"),
        ({"strides": (120,)}, "not all multiples of 16"),
        ({"box": (64, 257)}, "not all from 1 to 256"),
        ({"box": (60, 8)}, "rows of 120 bytes in its box, no multiple of 16"),
        ({"box": (32, 8)}, "only covered as wide as its swizzle"),
        ({"swizzle": 96}, "a swizzle of 96 bytes"),
        ({"dims": (64, 21)}, "a tensor of 2688 bytes, in 2560 bytes"),
        ({"array": HELD.reshape(-1)[4:]}, "aligned to 16 bytes"),
    ],
)
def test_maps_that_are_refused(wrong, match):
    """What the driver refuses, what is not covered, and an array that is too small."""
    with pytest.raises(LaunchError, match=match):
        run(tensor=rows(**{"array": HELD, **wrong}))


def test_a_map_is_given_by_its_address():
    """The parameter is one of 64 bits."""
    ptx = kernel(BODY, 2, 8200).replace(".param .u64 by_hand_param_0", ".param .u32 by_hand_param_0")
    with pytest.raises(LaunchError, match=r"argument 0 is a tensor map, and the parameter \.u32"):
        emulator.launch(ptx, grid=1, block=32, arguments=[rows(), np.zeros(32, np.uint32)])
