"""From spec to plan: what comes out of a sound spec, and what is said about every other."""

import dataclasses
import json
from pathlib import Path

import pytest

from generator.catalog import Catalog
from generator.errors import CatalogError, SpecError
from generator.plan import load_plan
from stages.contract import Region
from tests.generator.fakes import (
    RING,
    RINGED,
    SPEC,
    WIDE,
    edited,
    entry,
    plan_of,
    with_stages,
)
from variants.kernels.cluster import ClusterKernel

ROOT = Path(__file__).resolve().parents[2]
VARIANT = "modules.attn2.variants.cluster"
SLOTS = "pages, scores, softmax, values, warp_merge, push, cluster_merge, epilogue"


def test_the_plan_of_a_sound_spec(catalog):
    """Every fact is there; regions follow each other; the kernel's fields are filled."""
    (module,) = plan_of(SPEC, catalog).modules
    (variant,) = module.variants
    problem = {"head_dim": 64, "heads_per_kv": 8, "tokens": 8, "page_size": 16, "dtype": "bf16"}
    assert (module.name, module.problem) == ("attn2", problem)
    assert (variant.name, variant.skeleton, variant.max_seq_len, variant.windows) == (
        "cluster",
        "cluster",
        2048,
        False,
    )
    assert (variant.kernel_module, variant.kernel_class) == ("variants.kernels.cluster", "ClusterKernel")
    assert variant.launch == {"cluster": 16, "warps": 4, "pages_per_step": 2}
    derived = {"max_seq_len": 2048, "steps": 1, "exchange_rows": 16}
    assert variant.facts == {**problem, **variant.launch, **derived}
    assert list(variant.stages) == SLOTS.split(", ")
    push = variant.stages["push"]
    assert (push.name, push.module, push.class_name) == ("dsmem", "stages.push.dsmem", "DsmemPush")
    assert (push.facts, push.parameters) == ({"head_dim": 64, "cluster": 16, "exchange_rows": 16}, {})
    assert [(r.name, r.slot, r.offset, r.bytes) for r in variant.regions] == [
        ("warp_partials", "warp_merge", 0, 17408),
        ("rank_partials", "push", 17408, 4352),
        ("arrived", "push", 21760, 8),
    ]
    assert (variant.shared_bytes, variant.threads, variant.min_arch) == (21768, 128, 90)
    assert [(b.name, b.transaction_bytes) for b in variant.barriers] == [("arrived", 4224)]
    assert list(variant.kernel_fields.items()) == [
        ("name", "attn2_cluster"), ("head_dim", 64), ("heads_per_kv", 8), ("tokens", 8), ("page_size", 16),
        ("cluster", 16), ("warps", 4), ("pages_per_step", 2), ("steps", 1), ("warp_partials", 0),
        ("rank_partials", 17408), ("arrived", 21760), ("shared_bytes", 21768),
    ]  # fmt: skip
    stages = {slot: stage.stage for slot, stage in variant.stages.items()}
    kernel = ClusterKernel(**variant.kernel_fields, **stages)
    assert (kernel.row_groups, kernel.push.transaction_bytes(16)) == (4, 4224)


def test_the_facts_of_a_module_are_json(catalog):
    """And nothing that changes a kernel is missing from them."""
    before = json.dumps(plan_of(SPEC, catalog).modules[0].facts())
    for edit in (
        ("2048", "2047"),
        ("norm_gate", "plain"),
        ("16, warps", "8, warps"),
        ("      cluster:", "      c:"),
    ):
        assert json.dumps(plan_of(edited(edit), catalog).modules[0].facts()) != before


def test_a_file_of_the_project_resolves():
    """The spec that is checked in, with the project's own catalog."""
    assert "attn2" in {module.name for module in load_plan(ROOT / "spec.yaml").modules}


@pytest.mark.parametrize(
    ("max_seq_len", "launch", "steps"),
    [
        (1, "cluster: 16, warps: 4, pages_per_step: 2", 1),
        (2049, "cluster: 16, warps: 4, pages_per_step: 2", 2),
        (2048, "cluster: 16, warps: 4", 2),
        (32768, "cluster: 16, warps: 4, pages_per_step: 2", 16),
        (17, "cluster: 1, warps: 1, pages_per_step: 1", 2),
    ],
)
def test_steps(catalog, max_seq_len, launch, steps):
    """ceil(pages / pages of one step); `pages_per_step` is 1 where it is not given."""
    text = edited(("2048", str(max_seq_len)), ("cluster: 16, warps: 4, pages_per_step: 2", launch))
    assert plan_of(text, catalog).modules[0].variants[0].kernel_fields["steps"] == steps


def test_parameters_and_alignment(ring_catalog):
    """A parameter that is not given has its default; an offset is aligned as its region asks."""
    text = edited(("register_prefetch", "ring"))
    (variant,) = plan_of(text, ring_catalog).modules[0].variants
    assert variant.stages["pages"].parameters == {"depth": 4}
    assert variant.kernel_fields["ring"] == 0
    assert variant.kernel_fields["warp_partials"] == 4 * 4096 * 4
    (variant,) = plan_of(text.replace("ring", "{stage: ring, depth: 2}"), ring_catalog).modules[0].variants
    assert variant.stages["pages"].facts == {"page_size": 16, "warps": 4, "depth": 2}
    assert variant.kernel_fields["warp_partials"] == 2 * 4096 * 4

    odd = dataclasses.replace(RING, shared=lambda stage: (Region("ring", 9, align=1),))
    catalog = with_stages(Catalog.load(), entry("pages", "odd", odd), skeletons={"cluster": RINGED})
    (variant,) = plan_of(edited(("register_prefetch", "odd")), catalog).modules[0].variants
    assert variant.kernel_fields["warp_partials"] == 16


def test_variants_that_serve_the_same(catalog):
    """The first of the file wins, so the order of the plan is that of the file."""
    second = SPEC[SPEC.index("      cluster:\n") :].replace("      cluster:\n", "      another:\n")
    (module,) = plan_of(SPEC + second, catalog).modules
    assert [variant.name for variant in module.variants] == ["cluster", "another"]


@pytest.mark.parametrize(
    ("contract", "skeleton", "wrong"),
    [
        (
            RING,
            None,
            "variants/kernels/cluster.py: ClusterKernel has no field for the shared-memory region ring of "
            "stage ring",
        ),
        (
            dataclasses.replace(RING, shared=lambda stage: ()),
            RINGED,
            "tests/generator/fakes.py: RingKernel has a field ring, which is neither a fact, nor derived, "
            "nor a "
            "region of a stage (ring, mma_qk",
        ),
        (
            dataclasses.replace(RING, shared=lambda stage: (Region("ring", 16, align=256),)),
            RINGED,
            "tests/generator/fakes.py: region ring of 16 bytes aligned to 256: a region is not empty, and "
            "its "
            "alignment is a power of two, at most 128",
        ),
        (
            dataclasses.replace(RING, barriers=WIDE.barriers),
            RINGED,
            "tests/generator/fakes.py: the barrier done has no region of 8 aligned bytes",
        ),
        (
            dataclasses.replace(RING, shared=lambda stage: 1 // 0),
            RINGED,
            "tests/generator/fakes.py: stage ring (pages) cannot be built for {",
        ),
    ],
)
def test_faults_of_developers(catalog, contract, skeleton, wrong):
    """No edit of a spec would help, so the message names the file of the stage or the kernel."""
    if contract.barriers is WIDE.barriers:
        contract = dataclasses.replace(contract, barriers=lambda stage: WIDE.barriers(WIDE.stage(64, 1)))
    skeletons = {"cluster": skeleton} if skeleton else None
    catalog = with_stages(catalog, entry("pages", "ring", contract), skeletons=skeletons)
    with pytest.raises(CatalogError) as caught:
        plan_of(edited(("register_prefetch", "ring")), catalog)
    assert str(caught.value).startswith(wrong)


def test_messages_name_the_file_as_the_user_did(tmp_path, monkeypatch, catalog):
    """Relative stays relative, so that a terminal finds it."""
    monkeypatch.chdir(tmp_path)
    Path("my spec.yaml").write_text(edited(("cluster: 16", "cluster: 17")))
    with pytest.raises(SpecError, match=r"^my spec\.yaml:8:27: ") as caught:
        load_plan("my spec.yaml", catalog)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.key) == (8, 27, f"{VARIANT}.launch.cluster")
    assert problem.allowed == ("1", "2", "4", "8", "16")
