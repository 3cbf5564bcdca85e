"""Tables at 80 columns with ten variants: no line is longer, no number is broken, every kernel has a row."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from generator import compiled, console, tables
from generator.catalog import Catalog
from generator.compiled import Report
from generator.listing import listing
from generator.plan import load_plan
from tests.generator.command import ROOT, call, copy_checkout, first_variant

REPORT = Report(
    module="attn2",
    variant="split",
    form="split",
    arch="sm_90a",
    threads=128,
    registers=168,
    spill_bytes=0,
    stack_bytes=0,
    shared_bytes=50184,
    resident_ctas=3,
    resident_limit="registers",
    wanted_ctas=3,
    instructions={"all": 12345, **dict.fromkeys(compiled.COUNTED, 128)},
    seconds=12.3,
    digest="0" * 64,
    cute_dsl="4.8.1",
    black="26.1",
    ptx="",
)
VARIANTS = ("cluster", "split", "batch", *(f"variant_{n}" for n in range(6)), "a" * 40)
FORMS = ("", "-windowed", "-pdl", "-pdl-windowed")
LONGEST_FORM = "split-pdl-windowed"
"""Of the shipped spec."""


def printed(found, width=80) -> list[str]:
    """The lines that a console of the command line makes of tables."""
    out = console.literal_console()
    out.width = width
    with out.capture() as capture:
        for one in found:
            out.print(one)
    return capture.get().splitlines()


@pytest.fixture(scope="module")
def reports():
    """Each form of ten variants, for both architectures."""
    return [
        replace(REPORT, variant=variant, form=variant + form, arch=arch)
        for arch in ("sm_90a", "sm_100a")
        for variant in VARIANTS
        for form in FORMS
    ]


def test_compiled_kernels_are_rows(reports):
    """A row a form in each table; a name as long as the shipped ones takes one line."""
    lines = printed(tables.compiled(reports))
    assert max(map(len, lines)) <= 80
    for form in (f for f in (report.form for report in reports) if len(f) <= len(LONGEST_FORM)):
        rows = [line.split() for line in lines if line.split()[:1] == [form]]
        assert [len(row) for row in rows] == [8, 11, 8, 11], form
        assert rows[0][1:] == ["registers", "168", "0", "50,184", "128", "3", "12.3"]
        assert rows[1][1:3] == ["12,345", "128"]
    assert len(lines) < 300


def test_spills_and_missing_residency_are_flagged():
    """By a word as well as a colour, in the row and in a line of its own."""
    spilled = replace(REPORT, spill_bytes=1008)
    crowded = replace(REPORT, form="batch", registers=195, resident_ctas=2)
    unknown = replace(REPORT, form="other", resident_ctas=None, resident_limit=None)
    lines = printed(tables.compiled([spilled, crowded, unknown]))
    assert max(map(len, lines)) <= 80
    assert any("1,008 SPILLS" in line for line in lines)
    assert any("2 NOT 3" in line for line in lines)
    assert spilled.faults == ["attn2.split for sm_90a spills 1,008 B of registers"]
    assert crowded.faults == [
        "attn2.batch for sm_90a asks for 3 resident CTAs, and 2 fit, limited by registers (195 registers a "
        "thread, 128 threads and 50,184 B of shared memory a CTA)"
    ]
    assert REPORT.faults == unknown.faults == []


@pytest.mark.parametrize("stats", [False, True])
def test_verified_problems_are_rows(stats):
    """Ten variants of three problems, with what was counted."""
    counts = {"instructions": 1234567, "mma": 8256, "bytes loaded": 12345678, "bytes stored": 131072}
    counts |= {"sectors": 524288, "bank conflicts": 0}
    outcomes = [
        SimpleNamespace(
            **{"module": "attn2", "variant": variant, "problem": f"L {n}, 0, 8, 129, 5; H 2; W 100"},
            **{"verdict": "ok", "ulps": 0.5, "seconds": 1.0, "counts": counts if stats else None},
        )
        for variant in VARIANTS
        for n in range(3)
    ]
    lines = printed(tables.verified(outcomes))
    assert max(map(len, lines)) <= 80
    for number in map("{:,}".format, counts.values()) if stats else ():
        assert sum(number in line.split() for line in lines) >= 30
    assert sum("ok" in line.split() for line in lines) == 30


@pytest.fixture(scope="module")
def found():
    """What `list` shows of ten variants."""
    found = listing(load_plan(ROOT / "spec.yaml"), Catalog.load())
    first, second, *_ = found["variants"]
    found["variants"] = [{**(second if n % 2 else first), "variant": name} for n, name in enumerate(VARIANTS)]
    return found


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_matrix_of_variants_and_slots(found, width):
    """Each variant has a column in one piece of the matrix, and each slot a row in all of them."""
    lines = printed(tables.listed(found, width), width)
    assert max(map(len, lines)) <= width
    headings = [word for line in lines for word in line.split() if word in VARIANTS]
    assert all(name in headings for name in VARIANTS)
    pieces = sum(line.split()[:1] == ["scores"] for line in lines if "mma_qk" in line and "Q K" not in line)
    assert 1 < pieces <= -(-len(VARIANTS) // (width // 30))
    assert sum(line.count("register_prefetch") for line in lines) == len(VARIANTS) + 1
    assert sum(line.count("depth 8") for line in lines) == len(VARIANTS) // 2


def test_skeletons_and_requirements_are_listed(found):
    """Launch fields with their values and defaults, and what was built and tested."""
    text = " ".join(" ".join(printed(tables.listed(found, 200), 200)).split())
    for words in (
        "skeleton split: long contexts",
        "cluster 1 to 16 CTAs of a cluster",
        "ring_pages_per_step 1, 2, 4, 8 4 pages of a long request",
        "built and tested for tokens 8; heads_per_kv 8",
        "built and tested for head_dim 64; cluster 1, 2, 4, 8, 16",
    ):
        assert words in text


def test_list_as_json_has_it_all(tmp_path):
    """Variants, skeletons and stages, with every field that a spec may set."""
    data = json.loads(call(copy_checkout(tmp_path), "list", "--json").stdout)
    assert data["variants"][0]["serves"] == {"max_seq_len": 2048, "window": False}
    split = next(s for s in data["skeletons"] if s["skeleton"] == "split")
    assert split["launch"]["resident_ctas"]["allowed"] == list(range(1, 9))
    assert split["launch"]["resident_ctas"]["default"] == 3
    assert split["launch"]["cluster"]["limit"] == "a cluster has at most 16 CTAs"
    assert split["requires"] == {"tokens": [8], "heads_per_kv": [8]} and "ring" in split["slots"]
    dsmem = next(s for s in data["stages"] if s["stage"] == "dsmem")
    assert dsmem["requires"]["cluster"] == [1, 2, 4, 8, 16] and dsmem["min_arch"] == 90


@pytest.fixture(scope="module")
def spilling(tmp_path_factory):
    """A copy whose only variant is the split one, with more resident CTAs than its registers allow."""
    checkout = copy_checkout(tmp_path_factory.mktemp("spilling"))
    spec = checkout / "spec.yaml"
    text = spec.read_text()
    split = text[text.index("      split:\n") : text.index("      # Many requests")]
    head = first_variant(text)
    head = head[: head.index("      # Short contexts")]
    split = split.replace("resident_ctas: 3", "resident_ctas: 4").replace("window: true", "window: false")
    spec.write_text(head + split)
    return checkout


def test_compile_says_what_it_made_of_every_form(spilling):
    """Forms, threads, residency, versions and digest, as JSON; spills are told, and fail where asked to."""
    result = call(spilling, "compile", "--json", "--ptx", "ptx")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [row["form"] for row in rows] == ["split", "split-pdl"]
    assert sorted(path.name for path in (spilling / "ptx").iterdir()) == [
        "attn2_split-pdl.sm_90a.ptx",
        "attn2_split.sm_90a.ptx",
    ]
    for row in rows:
        assert (row["threads"], row["shared_bytes"], row["wanted_ctas"]) == (128, 50184, 4)
        assert row["resident_ctas"] == 4 and row["registers"] <= 128 and row["spill_bytes"] > 0
        assert len(row["digest"]) == 64 and row["cute_dsl"] and row["black"] and "ptx" not in row
    assert "griddepcontrol" in (spilling / "ptx" / "attn2_split-pdl.sm_90a.ptx").read_text()
    assert result.stderr.count("spills") == 2
    strict = call(spilling, "compile", "--strict")
    assert strict.returncode == 1 and strict.stdout.count("SPILLS") == 2
