"""`python -m generator verify`: what is right passes, and a fault of one line fails and is named.

The shipped spec is verified by README.md's first example, a new epilogue by the one of docs/stages.md.
"""

import dataclasses
import json
import re
import shutil

import pytest
import torch

from generator.verify import missing_references
from tests.generator.command import as_attention, call, copy_checkout, first_variant, run
from tests.generator.fakes import SPEC, plan_of

PROBLEMS = ["L 40, 0, 8, 129, 5; H 2", "L 1033; H 2", "L 2048; H 1"]


@pytest.fixture
def checkout(tmp_path):
    """A copy of what `verify` needs, with the first variant alone: it is clear what a fault reaches."""
    folder = copy_checkout(tmp_path, "emulator", "verification")
    spec = folder / "spec.yaml"
    spec.write_text(first_variant(spec.read_text()))
    return folder


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.pin
def test_a_table_shows_every_problem(checkout):
    """A row for each; --stats adds what the emulator counted."""
    result = call(checkout, "verify", "--stats")
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if "attn2.cluster" in line and " ok " in line]
    assert [problem for row in rows for problem in PROBLEMS if problem in row] == PROBLEMS
    for words in ("worst error, ulps", "instructions", "8,256", "sectors", "conflicts"):
        assert words in result.stdout
    assert "verifying" not in result.stdout


def test_json_has_every_variant(checkout):
    """Another spec, with a module for each epilogue, smaller clusters, other contents and another order."""
    edit(checkout / "spec.yaml", "launch: {cluster: 16,", "launch: {cluster: 8,")
    text = (checkout / "spec.yaml").read_text()
    (checkout / "other.yaml").write_text(text + as_attention(text))
    result = call(checkout, "verify", "--spec", "other.yaml", "--seed", "5", "--stats", "--json")
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    found = [(outcome["module"], outcome["problem"]) for outcome in outcomes]
    assert found == [(module, problem) for module in ("attn2", "attention") for problem in PROBLEMS]
    for outcome in outcomes:
        assert outcome["variant"] == "cluster" and outcome["verdict"] == "ok" and outcome["message"] == ""
        assert 0 <= outcome["ulps"] <= 2 and outcome["seconds"] > 0
        assert outcome["counts"]["mma"] > 0 and outcome["counts"]["bank conflicts"] == 0


def test_a_fault_in_the_mask_is_wrong_and_the_row_is_named(checkout):
    """A row loses its own key: one character."""
    edit(checkout / "stages/mask.py", "return key <= self.last", "return key < self.last")
    result = run(checkout, "verify", "--json")
    assert result.returncode == 1
    outcomes = json.loads(result.stdout)
    assert [outcome["verdict"] for outcome in outcomes] == ["WRONG"] * 3
    assert all(outcome["ulps"] is None or outcome["ulps"] > 2 for outcome in outcomes)
    for part in ("attn2.cluster, L 2048; H 1: WRONG", "request 0, token", "ulps where 2 are allowed"):
        assert part in result.stderr
    assert outcomes[2]["message"] in result.stderr


def test_a_fault_that_gives_right_numbers_fails_and_its_line_is_named(checkout):
    """Without the barrier between the warps' partials and their merge the emulator finds a race.

    The whole error is shown, with both lines of the stage's own file.
    """
    stage = checkout / "stages/warp_merge/shared.py"
    edit(stage, "        cta_sync()\n", "        pass\n")
    lines = stage.read_text().splitlines()
    read = 1 + next(i for i, line in enumerate(lines) if "stats = [load_shared_f32x2" in line)
    result = run(checkout, "verify", "--seed", "1")
    assert result.returncode == 1
    assert result.stdout.count("FAILED") == 3
    for part in (
        "a race: ",
        f"source: stages/warp_merge/shared.py:{read}",
        "address: ",
        "thread: ",
        "PTX line",
    ):
        assert part in result.stderr
    assert "Traceback" not in result.stderr and str(checkout) not in result.stderr


def test_a_wrong_reference_is_wrong(checkout):
    """The kernel is right and the reference is not: they are compared, so it shows."""
    edit(checkout / "stages/epilogue/norm_gate.py", "gate.sigmoid()", "(gate - 1).sigmoid()")
    result = run(checkout, "verify", "--json")
    assert result.returncode == 1
    outcomes = json.loads(result.stdout)
    assert [outcome["verdict"] for outcome in outcomes] == ["WRONG"] * 3
    assert all(outcome["ulps"] > 2 for outcome in outcomes)


@pytest.mark.parametrize(
    ("slot", "stage", "declared", "remedy"),
    [
        (
            "epilogue",
            "plain",
            "reference=reference",
            "a function reference(attended, gate, eps), see EpilogueReference in stages/slots.py",
        ),
        (
            "scores",
            "mma_qk",
            "reference=SLOT_REFERENCE",
            "SLOT_REFERENCE if the stage computes what Scores in stages/slots.py defines; "
            "anything else cannot be verified",
        ),
    ],
)
def test_a_stage_without_a_reference_is_not_judged(checkout, slot, stage, declared, remedy):
    """A new stage of a slot that decides the result: neither right nor WRONG, and it is said what to do."""
    new = checkout / f"stages/{slot}/bold.py"
    shutil.copy(checkout / f"stages/{slot}/{stage}.py", new)
    edit(new, f"    {declared},\n", "")
    spec = (checkout / "spec.yaml").read_text()
    (checkout / "spec.yaml").write_text(re.sub(rf"{slot}: \w+", f"{slot}: bold", spec))
    result = run(checkout, "verify", "--json")
    assert result.returncode == 1
    outcomes = json.loads(result.stdout)
    assert [outcome["verdict"] for outcome in outcomes] == ["no reference"] * 3
    message = (
        f"stage 'bold' of the slot '{slot}' declares no reference; "
        f"in stages/{slot}/bold.py, set Contract.reference to {remedy}"
    )
    assert all(outcome["message"] == message and outcome["ulps"] is None for outcome in outcomes)
    assert message in result.stderr


def test_a_skeleton_without_a_slot_that_decides_the_result_has_no_reference(catalog):
    """Such a kernel computes something else than attention and an epilogue."""
    (variant,) = plan_of(SPEC, catalog).modules[0].variants
    assert missing_references(variant) == ""
    stages = {slot: stage for slot, stage in variant.stages.items() if slot not in ("push", "values")}
    without = dataclasses.replace(variant, stages=stages)
    message = "skeleton 'cluster' has no slot 'values', which decides the result"
    assert missing_references(without) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "gpu"), "--device: 'gpu' is no device; allowed: emulator, cuda"),
        (("--device", "cuda", "--stats"), "--stats: only --device emulator counts"),
        (("--spec", "nowhere.yaml"), "nowhere.yaml"),
        (("--seed", "-1"), "--seed"),
        pytest.param(
            ("--device", "cuda"),
            "--device: cuda needs a CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_is_refused(checkout, arguments, message):
    """Exit 2 and a message."""
    result = call(checkout, "verify", *arguments)
    assert result.returncode == 2
    assert message in result.stderr and not result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.cuda("verifies on it")
def test_on_a_gpu(checkout):
    """The same problems, with a kernel that really runs."""
    result = run(checkout, "verify", "--device", "cuda", "--json")
    assert result.returncode == 0, result.stderr
    assert [outcome["verdict"] for outcome in json.loads(result.stdout)] == ["ok"] * 3
