"""The command line in a copy of the checkout.

Of each exit status, and of each command that writes, one test runs it as a user does; the others call it.
"""

import json
import shutil

import pytest

from generator.catalog import Catalog
from tests.generator.command import as_attention, call, copy_checkout, first_variant, run

ONE_MORE = """\
      half_cluster:
        skeleton: cluster
        serves: {max_seq_len: 2048, window: false}
        launch: {cluster: 8, warps: 4, pages_per_step: 2}
        stages: {pages: register_prefetch, scores: mma_qk, softmax: online, values: mma_pv,
                 warp_merge: shared, push: dsmem, cluster_merge: rank_order, epilogue: norm_gate}
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the generator reads and writes, with the tests' spec."""
    return copy_checkout(tmp_path)


def snapshot(folder):
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in (folder / "generated").iterdir()}


def test_what_is_checked_in_is_fresh_and_regenerating_writes_nothing(tmp_path):
    """The checked-in output is the spec's, and a second run leaves every file alone."""
    checkout = copy_checkout(tmp_path, shipped=True)
    assert run(checkout, "generate", "--check").returncode == 0
    before = snapshot(checkout)
    again = call(checkout, "generate")
    assert again.returncode == 0
    assert "nothing to do" in again.stderr
    assert snapshot(checkout) == before


EDITS = {
    "stage, host side and template": [
        ("stages/softmax/online.py", "for lanes in (1, 2):", "for lanes in (1, 3):"),
        ("variants/host/api.py", "eps: float = 1e-5", "eps: float = 1e-6"),
        ("variants/module.py.j2", "do not edit", "do not change"),
    ],
    "contract": [("stages/push/dsmem.py", "st.async, counted", "st.async; counted")],
    "spec": [("spec.yaml", "warps: 4", "warps: 8")],
}


@pytest.mark.parametrize("what", EDITS)
def test_check_notices_every_change(checkout, what):
    """The output is stale; the diff shows each change of what is copied word for word."""
    for file, old, new in EDITS[what]:
        text = (checkout / file).read_text()
        assert old in text
        (checkout / file).write_text(text.replace(old, new, 1))
    before = snapshot(checkout)
    result = (call if what == "spec" else run)(checkout, "generate", "--check")
    assert result.returncode == 1
    assert "generated/attn2.py is not as the spec makes it" in result.stderr
    assert "(as the spec makes it)" in result.stdout, "a diff is shown"
    added = [line for line in result.stdout.splitlines() if line.startswith("+")]
    for _, _, new in EDITS[what] if what.startswith("stage") else ():
        assert any(new in line for line in added), new
    assert snapshot(checkout) == before, "--check writes nothing"


def test_check_notices_orphans_and_edits(checkout):
    """Modules that no spec accounts for, whatever their names, and one edited by hand fail the check."""
    for name in ("old.py", "OLD.PY", ".old.py", "notes.txt"):
        (checkout / "generated" / name).write_text("")
    with open(checkout / "generated" / "attn2.py", "a") as file:
        file.write("# by hand\n")
    result = call(checkout, "generate", "--check")
    assert result.returncode == 1
    for name in ("old.py", "OLD.PY", ".old.py"):
        assert f"generated/{name} is an orphan" in result.stderr
    assert "notes.txt" not in result.stderr
    assert "-# by hand" in result.stdout


def test_a_wrong_spec_is_refused_and_nothing_is_written(checkout):
    """Exit 2, every mistake with its place, and the output folder as it was."""
    spec = checkout / "spec.yaml"
    spec.write_text(spec.read_text().replace("norm_gate", "norm_gat").replace("cluster: 16", "cluster: 17"))
    before = snapshot(checkout)
    epilogues = ", ".join(Catalog.load().by_slot["epilogue"])
    for way, command in ((run, "generate"), (call, "generate"), (call, "list"), (call, "compile")):
        result = way(checkout, command)
        assert result.returncode == 2, result.stderr
        assert "spec.yaml:11:27: modules.attn2.variants.cluster.launch.cluster: cluster 17" in result.stderr
        assert f"stages.epilogue: unknown stage 'norm_gat'; allowed: {epilogues}" in result.stderr
        assert "Traceback" not in result.stderr
    assert snapshot(checkout) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "--spec", "nowhere.yaml"), "nowhere.yaml"),
        (("compile", "--arch", "hopper"), "--arch: 'hopper' is no architecture"),
        (("genrate",), "No such command"),
        (("list", "--bogus"), "No such option"),
    ],
)
def test_a_wrong_call_is_refused(checkout, arguments, message):
    """Exit 2 and a message, never a traceback."""
    result = call(checkout, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


WRONG_SOURCES = {
    "a constant of two names": (
        "stages/partial.py",
        'NEGATIVE_INFINITY = float("-inf")',
        'NEGATIVE_INFINITY, MORE = float("-inf"), 0.0',
        "stages.partial, line ",
    ),
    "a method of another shape": (
        "stages/epilogue/norm_gate.py",
        "def load_gate(self, row: Int64)",
        "def load_gate(self, line: Int64)",
        "stages/epilogue/norm_gate.py: stage norm_gate (epilogue): ",
    ),
}


@pytest.mark.parametrize("fault", WRONG_SOURCES)
def test_a_wrong_source_is_named_and_nothing_is_written(checkout, fault):
    """What no edit of a spec can mend is said in a line too: where it is, and what is wrong."""
    name, old, new, said = WRONG_SOURCES[fault]
    source, before = checkout / name, snapshot(checkout)
    text = source.read_text()
    assert text.count(old) == 1
    source.write_text(text.replace(old, new))
    result = run(checkout, "generate")
    assert result.returncode == 1
    assert result.stderr.startswith(said) and "Traceback" not in result.stderr
    assert snapshot(checkout) == before


def test_output_does_not_depend_on_the_environment(checkout, tmp_path_factory):
    """Hash seed, locale, time zone and place on disk change no byte of the output."""
    texts = []
    for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo")):
        folder = tmp_path_factory.mktemp("out")
        spec = shutil.copy(checkout / "spec.yaml", folder)
        result = run(
            checkout,
            *("generate", "--spec", str(spec), "--out", str(folder / "made")),
            PYTHONHASHSEED=seed,
            TZ=zone,
            LC_ALL="C",
        )
        assert result.returncode == 0, result.stderr
        texts.append({p.name: p.read_bytes() for p in (folder / "made").iterdir()})
    assert texts[0] == texts[1]
    assert texts[0]["attn2.py"] == (checkout / "generated" / "attn2.py").read_bytes()


def test_list_shows_what_a_spec_resolves_to(checkout):
    """Modules, variants and stages, as a table and as JSON."""
    table = call(checkout, "list")
    assert table.returncode == 0
    for word in ("attn2", "cluster", "register_prefetch", "21,768"):
        assert word in table.stdout
    data = json.loads(call(checkout, "list", "--json").stdout)
    assert data["variants"][0]["variant"] == "cluster"
    assert data["variants"][0]["launch"] == {"cluster": 16, "warps": 4, "pages_per_step": 2}
    listed = [s["stage"] for s in data["stages"] if s["slot"] == "epilogue"]
    assert listed == list(Catalog.load().by_slot["epilogue"])


def test_variants_are_added_by_yaml_alone(checkout):
    """One more variant and one more module generate and compile, without spills.

    Without the split variant: test_compiled.py compiles what the shipped spec has.
    """
    spec = checkout / "spec.yaml"
    first = first_variant(spec.read_text())
    spec.write_text(first + ONE_MORE + as_attention(first))
    assert call(checkout, "generate").returncode == 0
    assert {path.name for path in (checkout / "generated").iterdir()} == {
        *("__init__.py", "attention.py", "attn2.py", "py.typed")
    }
    result = call(checkout, "compile", "--json")
    assert result.returncode == 0, result.stderr
    reports = json.loads(result.stdout)
    variants = ("attn2", "cluster"), ("attn2", "half_cluster"), ("attention", "cluster")
    assert [(r["module"], r["form"]) for r in reports] == [
        (module, form) for module, variant in variants for form in (variant, f"{variant}-pdl")
    ]
    assert all(r["spill_bytes"] == 0 and r["stack_bytes"] == 0 for r in reports)
