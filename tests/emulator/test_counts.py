"""Instructions, bytes, sectors and bank conflicts that can be worked out by hand."""

import numpy as np
import pytest

from emulator.counts import Counts
from tests.emulator.handwritten import run


def counted(body: str, *arrays: np.ndarray, **more) -> Counts:
    """The counts of a kernel by hand."""
    counts = Counts()
    run(body, *arrays, observers=[counts], checks=False, **more)
    return counts


def test_instructions_by_opcode():
    """Threads and warps, by the beginning of the opcode; half a warp is a warp's issue."""
    body = """
        add.u32 %r1, %tid, 1;
        setp.lt.u32 %p0, %tid, 16;
        @%p0 bra A;
        add.u32 %r1, %r1, 1;
        add.s32 %r1, %r1, 1;
        A:
    """
    counts = counted(body, block=64)
    assert (counts.threads("add.u32"), counts.warps("add.u32")) == (64 + 48, 2 + 2)
    assert (counts.threads("add"), counts.warps("add.s32")) == (64 + 48 + 48, 2)
    assert counts.threads("ad") == 0
    assert counts.by_opcode["bra"] == (64, 2)
    assert counts.threads() == sum(threads for threads, _ in counts.by_opcode.values())


def test_mma():
    """Each warp's."""
    body = """
        mov.b32 %r1, 0;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
            {%r2, %r3, %r4, %r5}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%r1, %r1, %r1, %r1};
    """
    assert counted(body, block=96).mma == 3


@pytest.mark.parametrize(
    ("stride", "width", "sectors"),
    [(4, "b32", 4), (32, "b32", 32), (0, "b32", 1), (16, "v4.b32", 16), (8, "v2.b32", 8)],
)
def test_sectors_of_a_warps_load(stride, width, sectors):
    """Lanes `stride` bytes apart."""
    registers = {"b32": "%r1", "v2.b32": "{%r1, %r2}", "v4.b32": "{%r1, %r2, %r3, %r4}"}[width]
    body = (
        f"mul.wide.u32 %d1, %tid, {stride};\nadd.u64 %d2, %d0, %d1;\nld.global.{width} {registers}, [%d2];\n"
    )
    traffic = counted(body, np.zeros(512, np.uint32), block=64 if stride == 0 else 32).buffers["argument 0"]
    assert traffic.load_sectors == sectors * (2 if stride == 0 else 1)
    assert traffic.loaded == {"b32": 4, "v2.b32": 8, "v4.b32": 16}[width] * (64 if stride == 0 else 32)
    assert traffic.stored == traffic.store_sectors == 0


def test_each_byte_is_loaded_once():
    """By range, so that a page that is read twice, or not at all, shows."""
    body = """
        mul.wide.u32 %d1, %tid, 16;
        add.u64 %d2, %d0, %d1;
        ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d2];
        setp.lt.u32 %p0, %tid, 2;
        @%p0 ld.global.b64 %d3, [%d2+1024];
        st.global.b32 [%d2+2048], %r1;
    """
    traffic = counted(body, np.zeros(1024, np.uint32)).buffers["argument 0"]
    assert traffic.loads_of_each_byte(0, 512) == (1.0, 1.0)
    assert traffic.loads_of_each_byte(1024, 32) == (0.5, 0.5)
    assert traffic.loads_of_each_byte(480, 64) == (0.0, 1.0)
    assert traffic.loaded_from(0, 4096) == traffic.loaded == 512 + 16
    assert (traffic.stored, traffic.store_sectors) == (128, 16)
    with pytest.raises(ValueError, match="whole sectors of 32"):
        traffic.loaded_from(8, 32)


CONFLICTS = [
    # Bytes from lane to lane, width, wavefronts of the access, extra ones.
    (4, "b32", 1, 0),
    (8, "b32", 2, 1),
    (128, "b32", 32, 31),
    (0, "b32", 1, 0),
    (132, "b32", 1, 0),
    (2, "b16", 1, 0),
    (8, "v2.b32", 2, 0),
    (16, "v2.b32", 4, 2),
    (16, "v4.b32", 4, 0),
    (32, "v4.b32", 8, 4),
    (128, "v4.b32", 32, 28),
    (144, "v4.b32", 4, 0),
]


@pytest.mark.parametrize(("stride", "width", "wavefronts", "extra"), CONFLICTS)
@pytest.mark.parametrize("grid", [1, 3])
def test_bank_conflicts(stride, width, wavefronts, extra, grid):
    """Lanes `stride` bytes apart; another CTA's banks are other banks."""
    registers = {"b16": "%h1", "b32": "%r1", "v2.b32": "{%r1, %r2}", "v4.b32": "{%r1, %r2, %r3, %r4}"}[width]
    body = (
        f"mov.u32 %r0, memory;\nmad.lo.u32 %r0, %tid, {stride}, %r0;\nld.shared.{width} {registers}, [%r0];\n"
    )
    counts = counted(body, shared=8192, grid=grid)
    assert (counts.shared.accesses, counts.shared.wavefronts) == (grid, grid * wavefronts)
    assert counts.shared.extra == grid * extra == sum(counts.conflicts.values())
    if extra:
        (place,) = counts.conflicts
        assert place.startswith(f"ld.shared.{width}, PTX line ")


def test_shared_and_remote_bytes():
    """A store to a peer is remote, and its banks are not this warp's."""
    body = """
        mov.u32 %r0, memory;
        mov.u32 %r1, %cluster_ctarank;
        xor.b32 %r1, %r1, 1;
        mapa.shared::cluster.u32 %r2, %r0, %r1;
        st.shared::cluster.b32 [%r2], %r1;
        st.shared.b32 [%r0+4], %r1;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
    """
    shared = counted(body, grid=2, cluster=2).shared
    assert (shared.stored, shared.remote, shared.loaded) == (2 * 2 * 128, 2 * 128, 0)
    assert (shared.accesses, shared.extra) == (2, 0)


def test_copies_count_as_read_and_written():
    """cp.async: global bytes once, shared bytes once."""
    body = """
        mov.u32 %r0, memory;
        shl.b32 %r1, %tid, 4;
        add.u32 %r0, %r0, %r1;
        cvt.u64.u32 %d1, %r1;
        add.u64 %d1, %d1, %d0;
        cp.async.cg.shared.global [%r0], [%d1], 16;
        cp.async.wait_all;
    """
    counts = counted(body, np.zeros(128, np.uint32))
    assert counts.buffers["argument 0"].loads_of_each_byte(0, 512) == (1.0, 1.0)
    assert counts.buffers["argument 0"].load_sectors == 16
    assert (counts.shared.stored, counts.shared.accesses) == (512, 0)


def test_launches_and_waves_add_up():
    """One observer may watch several."""
    counts = Counts()
    for resident in (None, 1):
        body = "ld.global.b32 %r1, [%d0];"
        run(body, np.zeros(8, np.uint32), grid=2, observers=[counts], resident=resident)
    assert counts.buffers["argument 0"].loaded == 2 * 2 * 32 * 4
    assert counts.warps("ld.global") == 4
