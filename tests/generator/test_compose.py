"""What is said about specs that are wrong: each message whole, with its place."""

import dataclasses

import pytest

from generator.catalog import Catalog
from generator.errors import UNTESTED
from stages.contract import Region
from tests.generator.fakes import (
    MANY_WARPS,
    RING,
    RINGED,
    SPEC,
    WIDE,
    edited,
    entry,
    problems_of,
    with_stages,
)

VARIANT = "modules.attn2.variants.cluster"
SLOTS = "pages, scores, softmax, values, warp_merge, push, cluster_merge, epilogue"
EPILOGUES = ", ".join(Catalog.load().by_slot["epilogue"])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            ("register_prefetch", "register_prefech"),
            f"10:18: {VARIANT}.stages.pages: unknown stage 'register_prefech'; allowed: register_prefetch; "
            "did you mean 'register_prefetch'?",
        ),
        (
            ("norm_gate", "{stage: norms_gate}"),
            f"17:29: {VARIANT}.stages.epilogue.stage: unknown stage 'norms_gate'; allowed: {EPILOGUES}; "
            "did you mean 'norm_gate'?",
        ),
        (("dsmem", "xyz"), f"15:17: {VARIANT}.stages.push: unknown stage 'xyz'; allowed: dsmem"),
        (
            ("register_prefetch", "dsmem"),
            f"10:18: {VARIANT}.stages.pages: 'dsmem' is a stage of the slot 'push', not of 'pages'; "
            "allowed: register_prefetch",
        ),
        (
            ("          push: dsmem\n", ""),
            f"9:9: {VARIANT}.stages: no stage fills the slot 'push'; allowed: dsmem",
        ),
        (
            ("skeleton: cluster", "skeleton: clusters"),
            f"6:19: {VARIANT}.skeleton: unknown skeleton 'clusters'; allowed: cluster, split, batch; "
            f"did you mean 'cluster'?",
        ),
        (
            ("cluster: 16", "cluster: 17"),
            f"8:27: {VARIANT}.launch.cluster: cluster 17 is not allowed: a cluster has at most 16 CTAs; "
            "allowed: 1, 2, 4, 8, 16",
        ),
        (
            ("cluster: 16", "cluster: 3"),
            f"8:27: {VARIANT}.launch.cluster: cluster 3 is not supported by dsmem (push), "
            f"rank_order (cluster_merge) ({UNTESTED}); allowed: 1, 2, 4, 8, 16",
        ),
        (
            ("cluster: 16", "cluster: 0"),
            f"8:27: {VARIANT}.launch.cluster: cluster 0 is not allowed ({UNTESTED}); "
            "allowed: 1, 2, 4, 8, 16",
        ),
        (
            ("warps: 4", "warps: 3"),
            f"8:38: {VARIANT}.launch.warps: warps 3 is not allowed ({UNTESTED}); allowed: 1, 2, 4, 8",
        ),
        (
            ("warps: 4, ", ""),
            f"8:9: {VARIANT}.launch: the launch field 'warps' (warps of a CTA) is missing; allowed: 1, 2, "
            f"4, 8",
        ),
        (
            ("pages_per_step: 2", "page_per_step: 2"),
            f"8:41: {VARIANT}.launch.page_per_step: skeleton 'cluster' has no launch field 'page_per_step'; "
            "allowed: cluster, warps, pages_per_step; did you mean 'pages_per_step'?",
        ),
        (
            ("dsmem", "{stage: dsmem, depth: 4}"),
            f"15:32: {VARIANT}.stages.push.depth: stage 'dsmem' has no parameter 'depth', nor any other",
        ),
        (
            ("head_dim: 64", "head_dim: 63"),
            "3:25: modules.attn2.problem.head_dim: head_dim 63 is not supported by register_prefetch "
            "(pages), "
            "mma_qk (scores), mma_pv (values), shared (warp_merge), dsmem (push), rank_order "
            "(cluster_merge), "
            f"norm_gate (epilogue) ({UNTESTED}); allowed: 64",
        ),
        (
            ("heads_per_kv: 8", "heads_per_kv: 4"),
            "3:43: modules.attn2.problem.heads_per_kv: heads_per_kv 4 is not supported by mma_pv (values) "
            f"({UNTESTED}); allowed: 8",
        ),
        (
            ("tokens: 8", "tokens: 3"),
            "3:54: modules.attn2.problem.tokens: tokens 3 is not supported by skeleton cluster "
            f"({UNTESTED}); allowed: 8",
        ),
        (
            ("window: false", "window: true"),
            f"7:45: {VARIANT}.serves.window: skeleton 'cluster' serves no sliding window, found the boolean "
            f"true; "
            "allowed: false",
        ),
        (
            ("max_seq_len: 2048, ", ""),
            f"7:9: {VARIANT}.serves: max_seq_len is missing: skeleton 'cluster' serves contexts up to a "
            f"fixed "
            "length; allowed: 1 to 1048576",
        ),
        (
            ("        serves: {max_seq_len: 2048, window: false}\n", ""),
            f"5:7: {VARIANT}.serves: max_seq_len is missing: skeleton 'cluster' serves contexts up to a "
            f"fixed "
            "length; allowed: 1 to 1048576",
        ),
        (
            ("max_seq_len: 2048", "max_seq_len: 32769"),
            f"7:31: {VARIANT}.serves.max_seq_len: max_seq_len 32769 takes ceil(ceil(32769 / 16) / (16 * 4 * "
            f"2)) = "
            "17 steps, and the kernel unrolls at most 16; with this launch it serves max_seq_len up to 32768",
        ),
        (
            ("  attn2:", "  prepare:"),
            "2:3: modules.prepare: 'prepare' cannot name a module: generated code uses that name itself",
        ),
    ],
)
def test_one_problem(catalog, edit, message):
    """What is wrong, where, and what would be right; nothing else is complained about."""
    assert problems_of(edited(edit), catalog) == [f"spec.yaml:{message}"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cluster: 16", "cluster: x"),
        ("warps: 4", "warps:"),
        ("{cluster: 16, warps: 4, pages_per_step: 2}", "[]"),
        ("register_prefetch", "[ring]"),
        ("register_prefetch", "{depth: 4}"),
        ("skeleton: cluster", "skeleton: 1"),
        ("max_seq_len: 2048", "max_seq_len: long"),
        ("{max_seq_len: 2048, window: false}", "short"),
        ("tokens: 8", "tokens: '8'"),
        ("{head_dim: 64, heads_per_kv: 8, tokens: 8, page_size: 16, dtype: bf16}", "large"),
    ],
)
def test_what_broke_the_format_is_not_judged_again(catalog, old, new):
    """A value of the wrong type is neither missing nor the cause of anything else."""
    assert len(problems_of(edited((old, new)), catalog)) == 1


def test_a_slot_that_is_not_there(catalog):
    """The slot is unknown, and so the one that was meant is empty."""
    assert problems_of(edited(("pages: r", "page: r")), catalog) == [
        f"spec.yaml:9:9: {VARIANT}.stages: no stage fills the slot 'pages'; allowed: register_prefetch",
        f"spec.yaml:10:11: {VARIANT}.stages.page: 'page' is no slot of skeleton 'cluster'; allowed: {SLOTS}; "
        "did you mean 'pages'?",
    ]


def test_a_ring_deeper_than_shared_memory(ring_catalog):
    """The sum is shown region by region, and which depths would do."""
    text = edited(("register_prefetch", "{stage: ring, depth: 16}"))
    assert problems_of(text, ring_catalog) == [
        f"spec.yaml:10:39: {VARIANT}.stages.pages.depth: too much shared memory: ring 262144 B + "
        "warp_partials 17408 B + rank_partials 4352 B + arrived 8 B = 283912 B; a CTA has at most 232448 B; "
        "allowed: depth 2, depth 4, depth 8"
    ]


@pytest.mark.parametrize(("limit", "fits"), [(283912, True), (283911, False)])
def test_the_last_byte_of_shared_memory(monkeypatch, ring_catalog, limit, fits):
    """The limit itself is allowed."""
    monkeypatch.setattr("generator.compose.MAX_SHARED_BYTES", limit)
    text = edited(("register_prefetch", "{stage: ring, depth: 16}"))
    assert len(problems_of(text, ring_catalog)) == (0 if fits else 1)


def test_a_stage_too_large_for_shared_memory(catalog):
    """Without a parameter that would help, the stage itself is to blame."""
    contract = dataclasses.replace(RING, shared=lambda stage: (Region("ring", 1 << 20),))
    catalog = with_stages(catalog, entry("pages", "ring", contract), skeletons={"cluster": RINGED})
    assert problems_of(edited(("register_prefetch", "ring")), catalog) == [
        f"spec.yaml:10:18: {VARIANT}.stages.pages: too much shared memory: ring 1048576 B + "
        "warp_partials 17408 B + rank_partials 4352 B + arrived 8 B = 1070344 B; a CTA has at most 232448 B"
    ]


def test_padding_counts(ring_catalog):
    """Bytes that no region owns are shared memory, too."""
    contract = dataclasses.replace(RING, shared=lambda stage: (Region("ring", 232441, align=1),))
    catalog = with_stages(Catalog.load(), entry("pages", "ring", contract), skeletons={"cluster": RINGED})
    (problem,) = problems_of(edited(("register_prefetch", "ring")), catalog)
    assert (
        "ring 232441 B + warp_partials 17408 B + rank_partials 4352 B + arrived 8 B + padding 7 B = "
        in problem
    )


def test_a_parameter_out_of_its_values(ring_catalog):
    """Parameters are checked like the fields of the launch."""
    text = edited(("register_prefetch", "{stage: ring, depth: 3, dept: 4}"))
    assert problems_of(text, ring_catalog) == [
        f"spec.yaml:10:39: {VARIANT}.stages.pages.depth: depth 3 is not allowed ({UNTESTED}); "
        "allowed: 2, 4, 8, 16",
        f"spec.yaml:10:42: {VARIANT}.stages.pages.dept: stage 'ring' has no parameter 'dept'; allowed: "
        f"depth; "
        "did you mean 'depth'?",
    ]


def test_stages_that_do_not_go_together(ring_catalog):
    """No head dim suits both; a clash of regions; a barrier that counts too far. All of one variant."""
    clashing = edited(("norm_gate", "wide"))
    (problem,) = problems_of(clashing, ring_catalog)
    assert problem.startswith(
        "spec.yaml:3:25: modules.attn2.problem.head_dim: head_dim 64 is not supported by wide (epilogue) "
        f"({UNTESTED}); no value suits all stages (register_prefetch (pages): 64; "
    )
    assert problem.endswith("; wide (epilogue): 128, 256)")
    anywhere = dataclasses.replace(WIDE, requires={})
    catalog = with_stages(Catalog.load(), entry("epilogue", "wide", anywhere))
    assert problems_of(clashing, catalog) == [
        f"spec.yaml:17:21: {VARIANT}.stages.epilogue: dsmem (push) has a shared-memory region 'arrived' as "
        f"well",
        f"spec.yaml:17:21: {VARIANT}.stages.epilogue: the barrier done would count 16 ranks x 131072 B = "
        f"2097152 B; "
        "an mbarrier counts at most 1048575 B",
    ]


def test_too_many_threads(catalog):
    """A skeleton may leave the warps open; the hardware does not."""
    text = edited(("skeleton: cluster", "skeleton: many"), ("warps: 4", "warps: 64"))
    stage = catalog.by_slot["warp_merge"]["shared"]
    free = dataclasses.replace(stage, contract=dataclasses.replace(stage.contract, requires={}))
    others = [entry for entry in catalog.stages() if entry != stage]
    message, _ = problems_of(text, Catalog([*others, free], {**catalog.skeletons, "many": MANY_WARPS}))
    assert message == (
        f"spec.yaml:8:38: {VARIANT}.launch.warps: 64 warps * 32 = 2048 threads; a CTA has at most 1024"
    )


def test_all_problems_at_once(catalog):
    """Those of the file, of its format and of the composition, in the order of the file, each once."""
    second = SPEC[SPEC.index("      cluster:\n") :].replace("      cluster:\n", "      other:\n")
    text = edited(
        ("head_dim: 64", "head_dim: 63"),
        ("tokens: 8", "tokens: '8'"),
        ("skeleton: cluster\n", "skeleton: cluster\n        skeleton: cluster\n"),
        ("window: false", "window: true"),
        ("cluster: 16", "cluster: 17"),
        ("pages: register_prefetch", "pages: mma_qk"),
        ("epilogue: norm_gate", "epilogues: norm_gate"),
    )
    found = problems_of(text + second, catalog)
    assert [message.split(":", 4)[1:4] for message in found] == [
        ["3", "25", " modules.attn2.problem.head_dim"],
        ["3", "54", " modules.attn2.problem.tokens"],
        ["7", "9", f" {VARIANT}.skeleton"],
        ["8", "45", f" {VARIANT}.serves.window"],
        ["9", "27", f" {VARIANT}.launch.cluster"],
        ["10", "9", f" {VARIANT}.stages"],
        ["11", "18", f" {VARIANT}.stages.pages"],
        ["18", "11", f" {VARIANT}.stages.epilogues"],
    ]


def test_kernels_of_one_name(catalog):
    """Module a_b with variant c, and module a with variant b_c, would both have a kernel a_b_c."""
    body = SPEC[SPEC.index("    problem") :]
    first, second = body.replace("      cluster:\n", "      c:\n"), body.replace(
        "      cluster:\n", "      b_c:\n"
    )
    assert problems_of(f"modules:\n  a_b:\n{first}  a:\n{second}", catalog) == [
        "spec.yaml:21:7: modules.a.variants.b_c: its kernel a_b_c is called like that of "
        "modules.a_b.variants.c"
    ]
