"""What orders accesses to global memory: counters, fences, scopes, waves."""

import numpy as np
import pytest

import emulator
from emulator.errors import Race, UninitialisedRead
from tests.emulator.handwritten import fails, kernel, line_of, run

SEEDS = [None, *range(20)]


LAST = """
    mov.u32 %r0, %ctaid.x;
    mul.wide.u32 %d2, %r0, 128;
    add.u64 %d3, %d0, %d2;
    mul.wide.u32 %d4, %tid, 4;
    add.u64 %d3, %d3, %d4;
    add.u32 %r1, %tid, %r0;
    st.global.b32 [%d3], %r1;
    {before}
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra ARRIVED;
    {fence}
    {atom} %r2, [%d1], 1;
    {behind}
    mov.u32 %r9, memory;
    st.shared.b32 [%r9], %r2;
    ARRIVED:
    {after}
    mov.u32 %r9, memory;
    ld.shared.b32 %r2, [%r9];
    setp.ne.u32 %p1, %r2, {last};
    @%p1 bra END;
    mul.wide.u32 %d4, %tid, 4;
    add.u64 %d5, %d0, %d4;
    mov.b32 %r3, 0;
    mov.b32 %r4, 0;
    LOOP:
    ld.global.b32 %r5, [%d5];
    add.u32 %r3, %r3, %r5;
    add.u64 %d5, %d5, 128;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p2, %r4, 4;
    @%p2 bra LOOP;
    add.u64 %d5, %d5, %d4;
    sub.u64 %d5, %d5, %d4;
    st.global.b32 [%d5], %r3;
    @%p0 bra END;
    mov.b32 %r5, 0;
    st.global.b32 [%d1], %r5;
    END:
"""
"""Four CTAs leave partials in a workspace; the last to arrive adds them up and resets the counter."""


def last_arriver(
    before: str = "bar.sync 0;",
    fence: str = "",
    atom: str = "atom.acq_rel.gpu.global.add.u32",
    behind: str = "",
    after: str = "bar.sync 0;",
    last: int = 3,
) -> str:
    """LAST with these pieces; as it is, it is right."""
    pieces = {"before": before, "fence": fence, "atom": atom, "behind": behind, "after": after, "last": last}
    body = LAST
    for name, piece in pieces.items():
        body = body.replace("{" + name + "}", str(piece))
    return body


def workspace() -> tuple[np.ndarray, np.ndarray]:
    """Four partials and the result, and the counter."""
    return np.zeros((5, 32), np.uint32), np.zeros(1, np.uint32)


FENCE = "fence.acq_rel.gpu;"
RELAXED = "atom.relaxed.gpu.global.add.u32"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "pieces",
    [
        {},
        {"atom": RELAXED, "fence": FENCE, "behind": FENCE},
        {"atom": "atom.global.add.u32", "fence": "fence.sc.gpu;", "behind": "membar.gl;"},
        {"atom": "atom.release.gpu.global.add.u32", "behind": FENCE},
        {"atom": "atom.acquire.gpu.global.add.u32", "fence": FENCE},
        {"atom": RELAXED, "fence": "fence.release.gpu;", "behind": "fence.acquire.gpu;"},
        {"atom": RELAXED, "fence": "fence.release.gpu;\nfence.acq_rel.cta;", "behind": "fence.acquire.sys;"},
        {"atom": RELAXED, "fence": FENCE, "behind": "fence.acq_rel.cta;\n" + FENCE},
    ],
    ids=[
        *("acq_rel", "fences", "older forms", "release", "acquire", "fences of one direction"),
        *("a release, and a narrow fence", "a narrow fence, and an acquire"),
    ],
)
def test_the_last_arriver_sees_all_partials(pieces, seed):
    """Release, counter, acquire: in every form that the memory model has for it."""
    space, counter = workspace()
    run(last_arriver(**pieces), space, counter, grid=4, seed=seed)
    assert np.array_equal(space[4], space[:4].sum(axis=0)) and space[4].any()
    assert counter[0] == 0


@pytest.mark.parametrize(
    "pieces",
    [
        {"atom": RELAXED},
        {"atom": RELAXED, "fence": FENCE},
        {"atom": RELAXED, "behind": FENCE},
        {"atom": RELAXED, "before": FENCE + "\nbar.sync 0;", "behind": FENCE},
        {"atom": RELAXED, "fence": "fence.acq_rel.cta;", "behind": FENCE},
        {"atom": RELAXED, "fence": FENCE, "behind": "fence.acq_rel.cta;"},
        {"atom": RELAXED, "fence": FENCE, "behind": "fence.acq_rel.cluster;"},
        {"atom": RELAXED, "fence": "fence.acquire.gpu;", "behind": FENCE},
        {"atom": RELAXED, "fence": FENCE, "behind": "fence.release.gpu;"},
        {"atom": "atom.release.gpu.global.add.u32", "behind": "fence.release.gpu;"},
        {"atom": "atom.acquire.gpu.global.add.u32", "fence": "fence.acquire.gpu;"},
        {"atom": "atom.acq_rel.cta.global.add.u32"},
        {"before": ""},
        {"last": 2},
    ],
    ids=[
        "no fences",
        "no acquire",
        "no release",
        "fence in another thread",
        "cta fence",
        "cta fence behind",
        "cluster fence behind",
        "acquire for release",
        "release for acquire",
        "release for acquire behind an atom",
        "acquire for release before an atom",
        "cta scope",
        "no barrier before",
        "a CTA too early",
    ],
)
def test_a_race_on_a_global_workspace(pieces):
    """Every part of the pattern is needed, though the numbers are right without it."""
    body = last_arriver(**pieces)
    for seed in range(4):
        with pytest.raises((Race, UninitialisedRead), match="race") as caught:
            run(body, *workspace(), grid=4, seed=seed)
        where = {line_of(kernel(body, 2), text) for text in ("st.global", "atom", "ld.global.b32 %r5")}
        assert caught.value.line in where
        assert "argument 0" in caught.value.address or "argument 1" in caught.value.address


HAND_OVER = """
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READ;
    st.global.b32 [%d0], 7;
    {release}
    st.relaxed.gpu.global.b32 [%d0+4], 1;
    ret;
    READ:
    ld.relaxed.gpu.global.b32 %r1, [%d0+4];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra READ;
    {acquire}
    ld.global.b32 %r2, [%d0];
"""
"""CTA 0 stores a number and sets a flag; CTA 1 polls the flag and reads the number."""


def test_fences_of_one_direction_around_a_flag():
    for release in ("fence.release.gpu;", FENCE):
        for acquire in ("fence.acquire.gpu;", FENCE):
            for seed in SEEDS[:6]:
                body = HAND_OVER.format(release=release, acquire=acquire)
                run(body, np.zeros(2, np.uint32), grid=2, block=1, seed=seed)
    for release, acquire in (("fence.acquire.gpu;", FENCE), (FENCE, "fence.release.gpu;"), ("", FENCE)):
        body = HAND_OVER.format(release=release, acquire=acquire)
        fails(Race, "written by thread", body, np.zeros(2, np.uint32), at="ld.global", grid=2, block=1)


def test_each_lane_fences_for_itself():
    """Lane 0 releases at cta scope, and lane 1's fence at gpu scope is not lane 0's."""
    lanes = "setp.eq.u32 %p2, %tid, {lane};\n@%p2 fence.acq_rel.{scope};\n"
    store = "setp.eq.u32 %p2, %tid, 0;\n@%p2 st.relaxed"
    both = HAND_OVER.replace("st.relaxed", store).replace("st.global", store.replace("relaxed", "global"))
    late = lanes.format(lane=0, scope="cta") + lanes.format(lane=1, scope="gpu")
    right = lanes.format(lane=0, scope="gpu") + lanes.format(lane=1, scope="cta")
    run(both.format(release=right, acquire=FENCE), np.zeros(2, np.uint32), grid=2, block=2)
    body = both.format(release=late, acquire=FENCE)
    fails(Race, "written by thread 0", body, np.zeros(2, np.uint32), at="ld.global", grid=2, block=2)


@pytest.mark.parametrize(
    ("first", "second", "at"),
    [
        ("atom.global.add.u64 %d2, [%d0], 1;", "atom.global.add.u32 %r2, [%d0], 1;", "add.u32"),
        ("atom.global.add.u32 %r2, [%d0+4], 1;", "atom.global.add.u64 %d2, [%d0], 1;", "add.u64"),
        ("red.global.add.u64 [%d0], 1;", "red.global.add.u32 [%d0+4], 1;", "add.u32"),
        (
            "atom.relaxed.gpu.global.cas.b16 %h1, [%d0], 1, 2;",
            "atom.global.add.u32 %r2, [%d0], 1;",
            "add.u32",
        ),
    ],
)
def test_strong_accesses_of_unlike_width_are_a_race(first, second, at):
    """Morally strong are only those of the same bytes."""
    body = """
    mov.u32 %r0, %ctaid.x;
    mov.b16 %h1, 0;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra SECOND;
    {first}
    ret;
    SECOND:
    {second}
    """
    wrong = body.format(first=first, second=second)
    fails(Race, "not ordered; written by thread 0", wrong, np.zeros(2, np.uint32), at=at, grid=2, block=1)
    run(body.format(first=first, second=first), np.zeros(2, np.uint32), grid=2, block=1)


def test_strong_loads_of_unlike_width():
    """A vector is so many words."""
    body = """
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra SECOND;
    st.relaxed.gpu.global.v2.b32 [%d0], {%r0, %r0};
    ret;
    SECOND:
    ld.relaxed.gpu.global.b32 %r2, [%d0+4];
    """
    for seed in SEEDS[:4]:
        run(body, np.zeros(2, np.uint32), grid=2, block=1, seed=seed)
    wide = body.replace("v2.b32 [%d0], {%r0, %r0}", "b64 [%d0], 1")
    with pytest.raises(Race, match=r"this read .* written by thread 0"):
        run(wide, np.zeros(2, np.uint32), grid=2, block=1)


CONSTANT = "no barrier or fence orders such a load"


@pytest.mark.parametrize("resident", [None, 1])
def test_a_non_coherent_load_of_what_the_launch_writes(resident):
    """By another CTA, in the same wave or in one before, or by the thread itself, in either order."""
    load, store = "ld.global.nc.b32 %r1, [%d1];", "st.global.b32 [%d1], %r0;"
    head = "mov.u32 %r0, %ctaid.x;\nmul.wide.u32 %d2, %r0, 4;\nadd.u64 %d1, %d0, %d2;\n"
    more = {"grid": 2, "block": 1, "resident": resident}
    for order in (store + "\nfence.sc.gpu;\nbar.sync 0;\n" + load, load + "\nbar.sync 0;\n" + store):
        at = order.rpartition("\n")[2]
        fails(Race, CONSTANT, head + order, np.zeros(2, np.uint32), at=at, **more)
    run(head + load, np.zeros(2, np.uint32), **more)
    other = head + "xor.b32 %r3, %r0, 1;\nmul.wide.u32 %d2, %r3, 4;\nadd.u64 %d3, %d0, %d2;\n"
    for seed in (None, 0, 1):
        with pytest.raises(Race, match=CONSTANT):
            run(other + load.replace("d1", "d3") + store, np.zeros(2, np.uint32), seed=seed, **more)
    coherent = head + store + "\nld.global.b32 %r1, [%d1];"
    run(coherent, np.zeros(2, np.uint32), **more)


def test_ctas_that_store_to_one_place():
    """Different CTAs, no order."""
    body = "mov.u32 %r0, %ctaid.x;\nst.global.b32 [%d0], %r0;"
    fails(Race, "write", body, np.zeros(1, np.uint32), at="st.global", grid=2, block=1)


def test_waves_do_not_order():
    """CTAs that happen to run one after the other are not ordered by it."""
    body = "mov.u32 %r0, %ctaid.x;\nst.global.b32 [%d0], %r0;"
    with pytest.raises(Race, match="by a CTA that ran before"):
        run(body, np.zeros(1, np.uint32), grid=2, block=1, resident=1)
    space, counter = workspace()
    run(last_arriver(), space, counter, grid=4, resident=1)
    assert np.array_equal(space[4], space[:4].sum(axis=0))
    with pytest.raises(Race):
        run(last_arriver(atom=RELAXED), *workspace(), grid=4, resident=1)


def test_checks_can_be_left_off():
    """Then nothing is reported."""
    ptx = kernel("mov.u32 %r0, memory;\nld.shared.b32 %r1, [%r0];", 0)
    emulator.launch(ptx, grid=1, block=32, arguments=[], checks=False)
