"""`python -m generator verify`: what is right passes, and a fault of one line fails and is named."""

import json
import shutil

import pytest
import torch

from tests.generator.command import call, copy_checkout, first_variant, run

PROBLEMS = ["L 40, 0, 8, 129, 5; H 2", "L 1033; H 2", "L 2048; H 1"]


@pytest.fixture
def whole(tmp_path):
    """A copy of what `verify` needs, with the shipped spec."""
    return copy_checkout(tmp_path, "emulator", "verification")


@pytest.fixture
def checkout(whole):
    """The same with the first variant alone, so that it is clear what a fault reaches."""
    spec = whole / "spec.yaml"
    spec.write_text(first_variant(spec.read_text()))
    return whole


def edit(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_the_shipped_spec_passes(whole):
    """Every problem is within 2 ulps; --stats adds what the emulator counted."""
    result = run(whole, "verify", "--stats")
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if "attn2.cluster" in line and " ok " in line]
    assert [problem for row in rows for problem in PROBLEMS if problem in row] == PROBLEMS
    for words in ("worst error, ulps", "instructions", "8,256", "sectors", "conflicts"):
        assert words in result.stdout
    assert "verifying" not in result.stdout


def test_json_has_every_variant(checkout):
    """Another spec, with each epilogue and a smaller cluster, other contents and another order."""
    edit(checkout / "spec.yaml", "launch: {cluster: 16,", "launch: {cluster: 8,")
    text = (checkout / "spec.yaml").read_text()
    cluster = text[text.index("      cluster:\n") :]
    plain = cluster.replace("cluster:\n", "plain:\n", 1).replace("norm_gate", "plain")
    (checkout / "other.yaml").write_text(text + plain)
    result = call(checkout, "verify", "--spec", "other.yaml", "--seed", "5", "--stats", "--json")
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    found = [(outcome["variant"], outcome["problem"]) for outcome in outcomes]
    assert found == [(variant, problem) for variant in ("cluster", "plain") for problem in PROBLEMS]
    for outcome in outcomes:
        assert outcome["module"] == "attn2" and outcome["verdict"] == "ok" and outcome["message"] == ""
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


def test_an_epilogue_without_a_reference_says_so(checkout):
    """A new epilogue stage runs when it has a reference, and until then fails by name."""
    shutil.copy(checkout / "stages/epilogue/plain.py", checkout / "stages/epilogue/bold.py")
    edit(checkout / "spec.yaml", "epilogue: norm_gate", "epilogue: bold")
    result = run(checkout, "verify")
    assert result.returncode == 1
    assert result.stdout.count("no reference") == 3
    assert "epilogue 'bold' has no reference; those that have one: norm_gate, plain" in result.stderr


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
