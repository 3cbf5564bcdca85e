"""Memory: addresses, bounds, alignment, spaces, vectors."""

import numpy as np
import pytest

import emulator
from tests.emulator.written import fault, launch, load, store

LANES = np.arange(32, dtype=np.uint32)
DYNAMIC = ".extern .shared .align 16 .b8 dynamic[];\n"


# ---- global memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["u", "s", "b"])
def test_sizes(size, kind):
    """Loads extend to the register, with the sign where the type has one; stores cut."""
    data = np.random.default_rng(size).integers(0, 256, 32 * size, dtype=np.uint8)
    held = data.view(f"{'i' if kind == 's' else 'u'}{size}")
    wide = max(size, 4)
    out = np.zeros(32, f"u{wide}")
    register = "%rd5" if size == 8 else "%r5"
    # The address of the element is in %rd30, put there by the load before.
    body = load("%rs1", 1, size) if size == 2 else load("%rd6", 1, 8) if size == 8 else load("%r6", 1, size)
    body += f"ld.global.{kind}{8 * size} {register}, [%rd30];"
    launch(body + store(register, 0, wide) + "ret;", out, data)
    np.testing.assert_array_equal(out, held.astype(f"i{wide}").view(f"u{wide}"))


def test_a_store_cuts():
    out = np.full(32, 0xFFFF, np.uint16)
    body = "mov.u32 %r1, %laneid; add.s32 %r1, %r1, 65536;" + store("%r1", 0, 2) + "ret;"
    launch(body, out)
    np.testing.assert_array_equal(out, LANES)


@pytest.mark.parametrize(("count", "size"), [(2, 2), (4, 2), (2, 4), (4, 4), (2, 8)])
def test_vectors(count, size):
    data = np.arange(32 * count, dtype=f"u{size}")
    out = np.zeros_like(data)
    stem = {2: "%rs", 4: "%r", 8: "%rd"}[size]
    names = ", ".join(f"{stem}{i}" for i in range(1, count + 1))
    back = ", ".join(f"{stem}{i}" for i in range(count, 0, -1))
    kind = f"v{count}.b{8 * size}"
    body = f"""
    mov.u32 %r20, %tid.x; mul.wide.u32 %rd20, %r20, {count * size};
    ld.param.u64 %rd21, [a0]; ld.param.u64 %rd22, [a1]; add.s64 %rd21, %rd21, %rd20;
    add.s64 %rd22, %rd22, %rd20;
    ld.global.L1::no_allocate.{kind} {{{names}}}, [%rd22]; st.global.{kind} [%rd21], {{{back}}}; ret;
    """
    launch(body, out, data)
    np.testing.assert_array_equal(out.reshape(32, count), data.reshape(32, count)[:, ::-1])


def test_bounds_to_the_byte():
    """One element too few at the end, and one before the start; the message says of what and how far."""
    out, data = np.zeros(32, np.uint32), np.arange(31, dtype=np.uint32)
    said = fault(load("%r1", 1) + "ret;", out, data)
    assert "0 bytes behind the end of argument 1 (124 bytes)" in said
    assert "thread 31 (warp 0, lane 31) of CTA (0, 0, 0)" in said
    assert "ld.global.b32 %r1, [%rd30]" in said
    body = "ld.param.u64 %rd1, [a0]; st.global.b32 [%rd1+-4], %r1; ret;"
    assert "4 bytes before argument 0 (128 bytes)" in fault(body, out)
    assert "no buffer" in fault("mov.b64 %rd1, 0; ld.global.b32 %r1, [%rd1]; ret;")


def test_alignment():
    data = np.zeros(64, np.uint32)
    body = "ld.param.u64 %rd1, [a0]; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1+8]; ret;"
    assert "16 bytes have to be aligned to 16" in fault(body, data)
    launch(body.replace("+8", "+16"), data)


def test_an_address_cut_to_32_bits_is_outside():
    data = np.zeros(64, np.uint32)
    body = "ld.param.u64 %rd1, [a0]; cvt.u32.u64 %r1, %rd1; cvt.u64.u32 %rd1, %r1;"
    body += "ld.global.b32 %r1, [%rd1]; ret;"
    fault(body, data)


def test_a_carry_into_the_upper_half_is_needed():
    """Buffers lie across a multiple of 2^32, small ones too: adding to the low words alone is seen."""
    data = np.arange(1024, dtype=np.uint32)
    good = """
    ld.param.u64 %rd1, [a0]; mov.b64 {%r1, %r2}, %rd1; add.s32 %r1, %r1, 4092; mov.b64 %rd1, {%r1, %r2};
    ld.global.b32 %r3, [%rd1]; ret;
    """
    fault(good, data)


def test_read_only_arguments():
    data = np.zeros(32, np.uint32)
    data.flags.writeable = False
    assert "argument 0, which is read-only" in fault(store("%r1") + "ret;", data)


def test_buffers_of_many_gigabytes():
    """Offsets above 2^31 elements and 2^32 bytes; only touched pages take memory."""
    big = emulator.sparse(5 << 30)
    big[(1 << 32) + 400] = 77
    out = np.zeros(1, np.uint32)
    body = """
    ld.param.u64 %rd1, [a1]; mov.b64 %rd2, 4294967696; add.s64 %rd1, %rd1, %rd2; ld.global.u8 %r9, [%rd1];
    """
    launch(body + store("%r9") + "ret;", out, big, threads=1)
    assert out[0] == 77


def test_threads_may_read_from_several_buffers():
    out, a, b = np.zeros(32, np.uint32), LANES + 100, LANES + 200
    body = """
    mov.u32 %r1, %laneid; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0;
    ld.param.u64 %rd1, [a1]; ld.param.u64 %rd2, [a2]; selp.b64 %rd1, %rd1, %rd2, %p1;
    mul.wide.u32 %rd3, %r1, 4; add.s64 %rd1, %rd1, %rd3; ld.global.b32 %r9, [%rd1];
    add.s32 %r5, %r9, 1; st.global.b32 [%rd1], %r5;
    """
    even = LANES % 2 == 0
    want = np.where(even, a, b)
    launch(body + store("%r9") + "ret;", out, a, b)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(a[even], want[even] + 1)


# ---- shared and local memory --------------------------------------------------------------------------


def test_each_cta_has_its_own_shared_memory():
    out = np.zeros(96, np.uint32)
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.b32 %r3, dynamic; mad.lo.s32 %r4, %r1, 4, %r3;
    mad.lo.s32 %r5, %r2, 100, %r1; st.shared.b32 [%r4+16], %r5; bar.sync 0;
    xor.b32 %r1, %r1, 1; mad.lo.s32 %r4, %r1, 4, %r3; ld.shared.b32 %r9, [%r4+16];
    """
    launch(body + store("%r9") + "ret;", out, grid=3, shared_bytes=144, before=DYNAMIC)
    np.testing.assert_array_equal(out, [100 * c + (t ^ 1) for c in range(3) for t in range(32)])


def test_shared_memory_starts_poisoned():
    out = np.zeros(1, np.uint32)
    body = "ld.shared.b32 %r9, [dynamic];" + store("%r9") + "ret;"
    launch(body, out, threads=1, shared_bytes=16, before=DYNAMIC, checks=False)
    assert np.isnan(out.view(np.float32)[0]) and out[0] > 1 << 31


def test_bounds_of_shared_memory():
    said = fault(
        "mov.b32 %r1, dynamic; st.shared.v4.b32 [%r1+48], {%r1, %r1, %r1, %r1}; ret;",
        shared_bytes=48,
        before=DYNAMIC,
    )
    assert "16 bytes out of bounds" in said and "48 bytes" in said
    fault("mov.b32 %r1, dynamic; ld.shared.b32 %r2, [%r1+-4]; ret;", shared_bytes=48, before=DYNAMIC)
    fault("ld.shared.b32 %r2, [0]; ret;", shared_bytes=48, before=DYNAMIC)


def test_static_shared_memory_comes_before_dynamic():
    out = np.zeros(3, np.uint32)
    body = """
    .shared .align 8 .b8 first[12]; .shared .align 16 .b8 second[4];
    mov.b32 %r1, first; mov.b32 %r2, second; mov.b32 %r3, dynamic; ld.param.u64 %rd1, [a0];
    st.global.b32 [%rd1], %r1; st.global.b32 [%rd1+4], %r2; st.global.b32 [%rd1+8], %r3; ret;
    """
    launch(body, out, threads=1, shared_bytes=16, before=DYNAMIC)
    assert (out - out[0]).tolist() == [0, 16, 32]


REMOTE = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.b32 %r3, dynamic; mad.lo.s32 %r4, %r1, 4, %r3;
    mad.lo.s32 %r5, %r2, 100, %r1; st.shared.b32 [%r4], %r5;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    xor.b32 %r6, %r2, 1; mapa.shared::cluster.u32 %r7, %r4, %r6;
    ld.shared::cluster.b32 %r9, [%r7];
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
"""
CLUSTERS = {"grid": 4, "cluster": 2, "shared_bytes": 128, "before": DYNAMIC}


def test_distributed_shared_memory():
    out = np.zeros(128, np.uint32)
    launch(REMOTE + store("%r9") + "ret;", out, **CLUSTERS)
    np.testing.assert_array_equal(out, [100 * (c % 2 ^ 1) + t for c in range(4) for t in range(32)])


def test_distributed_shared_memory_by_generic_addresses():
    body = REMOTE.replace(
        "mapa.shared::cluster.u32 %r7, %r4, %r6;\n    ld.shared::cluster.b32 %r9, [%r7];",
        "cvt.u64.u32 %rd1, %r4; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r6; ld.b32 %r9, [%rd2];"
        "getctarank.u64 %r10, %rd2; mad.lo.s32 %r9, %r10, 1000, %r9;",
    )
    out = np.zeros(128, np.uint32)
    launch(body + store("%r9") + "ret;", out, **CLUSTERS)
    np.testing.assert_array_equal(out, [1100 * (c % 2 ^ 1) + t for c in range(4) for t in range(32)])


def test_what_addresses_of_another_cta_are_not_for():
    out = np.zeros(128, np.uint32)
    own = REMOTE.replace("ld.shared::cluster", "ld.shared::cta")
    assert "another CTA's shared memory" in fault(own + "ret;", out, **CLUSTERS)
    assert "rank 2 of a cluster of 2" in fault(
        REMOTE.replace("xor.b32 %r6, %r2, 1", "mov.b32 %r6, 2"), **CLUSTERS
    )
    twice = REMOTE.replace("ld.shared::cluster", "mapa.shared::cluster.u32 %r7, %r7, %r2; ld.shared::cluster")
    assert "not in the CTA's own" in fault(twice, **CLUSTERS)


def test_a_cta_that_has_exited():
    body = REMOTE.replace("mapa", "setp.eq.u32 %p1, %r2, 0; @%p1 ret; WAIT: mapa")
    said = fault(body + "ret;", checks=False, **CLUSTERS)
    assert "exited" in said


def test_local_memory():
    out = np.zeros(64, np.uint32)
    body = """
    .local .align 16 .b8 depot[64]; mov.b64 %rd1, depot; cvta.local.u64 %rd2, %rd1; mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 15; mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
    st.local.b32 [%rd4], %r1; ld.b32 %r3, [%rd5]; ld.local.b32 %r4, [%rd4]; add.s32 %r9, %r3, %r4;
    """
    launch(body + store("%r9") + "ret;", out, threads=64)
    np.testing.assert_array_equal(out, 2 * np.arange(64))
    fault(body.replace("and.b32 %r2, %r1, 15", "and.b32 %r2, %r1, 31"), threads=64)


def test_generic_addresses_of_several_spaces():
    data, out = LANES + 50, np.zeros(32, np.uint32)
    body = """
    mov.u32 %r1, %laneid; mov.b32 %r2, dynamic; mad.lo.s32 %r3, %r1, 4, %r2; st.shared.b32 [%r3], %r1;
    cvt.u64.u32 %rd1, %r3; cvta.shared.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [a1]; cvta.to.global.u64 %rd2, %rd2; mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd2, %rd2, %rd3;
    setp.lt.u32 %p1, %r1, 7; selp.b64 %rd4, %rd1, %rd2, %p1; ld.b32 %r9, [%rd4];
    isspacep.shared %p2, %rd4; selp.b32 %r5, 1000, 0, %p2; add.s32 %r9, %r9, %r5;
    """
    launch(body + store("%r9") + "ret;", out, data, shared_bytes=128, before=DYNAMIC)
    np.testing.assert_array_equal(out, np.where(LANES < 7, LANES + 1000, LANES + 50))
