"""`resident_ctas` is held to what shared memory allows: place, arithmetic, and what is allowed."""

from pathlib import Path

import pytest

from tests.generator.fakes import edited, problems_of

SHIPPED = (Path(__file__).resolve().parents[2] / "spec.yaml").read_text()
RING = "ring: {stage: cp_async_ring, depth: 8}"
CTAS = "short_rounds: 4, resident_ctas: 3}"


@pytest.fixture(scope="module")
def split() -> str:
    """The shipped spec without its last variant."""
    return SHIPPED.partition("      # Many requests")[0]


def found(catalog, split, depth, ctas):
    edits = (RING, RING.replace("8", str(depth))), (CTAS, CTAS.replace("3", str(ctas)))
    return problems_of(edited(*(edit for edit in edits if edit[0] != edit[1]), text=split), catalog)


@pytest.mark.parametrize(
    ("depth", "most"),
    # 32 KiB, 48 KiB, 64 KiB and 192 KiB of ring; with the rest 50,184 B, 66,568 B, 82,952 B and 214,024 B.
    [(8, 4), (12, 3), (16, 2), (48, 1)],
)
def test_as_many_as_fit(catalog, split, depth, most):
    """All that fit are allowed, and one more is not."""
    assert found(catalog, split, depth, most) == []
    (problem,) = found(catalog, split, depth, most + 1)
    allowed = ", ".join(map(str, range(1, most + 1)))
    assert problem.endswith(f"and a multiprocessor has 233472 B; allowed: {allowed}")


def test_the_message(catalog, split):
    """Where it is, how the bytes come about, and what would do."""
    assert found(catalog, split, 16, 3) == [
        "spec.yaml:29:116: modules.attn2.variants.split.launch.resident_ctas: resident_ctas 3 needs too much "
        "shared memory: page_ring 65536 B or warp_partials 17408 B + rank_partials 17408 B + arrived 8 B = "
        "82952 B a CTA, which takes 84096 B with 1024 B reserved and in units of 128 B; 3 * 84096 B = 252288 "
        "B, and a multiprocessor has 233472 B; allowed: 1, 2"
    ]


def test_the_default_is_held_to_it_too(catalog, split):
    """At the launch, where there is nothing else to point at."""
    text = edited((RING, RING.replace("8", "16")), (", resident_ctas: 3}", "}"), text=split)
    (problem,) = problems_of(text, catalog)
    assert problem.startswith("spec.yaml:29:9: modules.attn2.variants.split.launch.resident_ctas: ")
