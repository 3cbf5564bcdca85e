"""The emulator against an H200, bit for bit: instructions, mma tiles, every stage, and the whole kernel.

What is recorded, and how to record it again on a GPU: `tests.golden.record`. Only functions that no stage
uses, and that the emulator does not model, have a tolerance instead.
"""

import functools

import numpy as np
import pytest

from emulator.numerics import summation
from generated import attn2
from tests import device
from tests.golden import attention, instructions, store
from tests.golden.instruction_cases import instruction_cases
from tests.golden.stage_cases import stage_cases
from tests.golden.wgmma_cases import wgmma_cases
from tests.numerics import from_bits
from verification.runner import run_emulated

CASES = {case.name: case for case in [*instruction_cases(), *stage_cases(), *wgmma_cases()]}

TOLERANCES = {
    # instruction: (absolute, relative): what was seen, rounded up
    "lg2.approx.ftz.f32": (2.0**-20, 2.0**-23),
    "lg2.approx.f32": (2.0**-20, 2.0**-23),
    "sqrt.approx.ftz.f32": (0, 2.0**-23),
    "sqrt.approx.f32": (0, 2.0**-23),
    "sin.approx.ftz.f32": (3 * 2.0**-23, 0),
    "sin.approx.f32": (3 * 2.0**-23, 0),
    "cos.approx.ftz.f32": (3 * 2.0**-23, 0),
    "cos.approx.f32": (3 * 2.0**-23, 0),
    "tanh.approx.f32": (0, 2.0**-16),
    "tanh.approx.bf16x2": (0, 2.0**-7),
}
"""How far unmodelled functions may be from the H200."""


@functools.cache
def recorded(group: str) -> dict[str, np.ndarray]:
    with store.load(group) as arrays:
        return dict(arrays)


@functools.cache
def facts() -> dict:
    return store.facts()["cases"]


def emulate(case) -> list[np.ndarray]:
    """The case's outputs from the emulator, on whatever machine."""
    return device._run_on_emulator(case.kernel, case.arguments, 0xFF)


def since(name: str, sources: str) -> str:
    """For a failure's message: whether what was recorded is what is there."""
    return "" if facts()[name]["sources"] == sources else " (the code has changed since: record again?)"


@pytest.mark.parametrize("name", [*CASES, *(batch.name for batch in attention.BATCHES)])
def test_inputs_are_those_recorded(name):
    """The inputs, which are made and not stored, have the digest that was recorded."""
    batches = {batch.name: batch for batch in attention.BATCHES}
    assert (CASES | batches)[name].inputs_digest() == facts()[name]["inputs"]


def test_every_recording_has_a_case():
    """Nothing is stored that no case reads."""
    names = {name.rpartition(".")[0] for name in recorded("micro")}
    assert names == set(CASES)
    assert {f"{batch.name}.0" for batch in attention.BATCHES} == set(recorded("attention"))
    assert set(facts()) == set(CASES) | {batch.name for batch in attention.BATCHES}


WITH_TOLERANCES = {"instructions_functions": "functions", "instructions_bf16_pairs": "bf16_pairs"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITH_TOLERANCES])
def test_same_bits(name):
    """Every output of the case has the bits of the H200, NaN included."""
    compare(CASES[name])


def compare(case) -> None:
    """Assert that the emulator gives the recorded bits."""
    name = case.name
    for i, (got, expected) in enumerate(
        zip(emulate(case), store.unpack(case, recorded("micro")), strict=True)
    ):
        wrong = np.argwhere(got != expected)
        assert not len(wrong), (
            f"output {i}: {len(wrong)} of {got.size} differ, first {wrong[0]}: {got[tuple(wrong[0])]:#x}, "
            f"recorded {expected[tuple(wrong[0])]:#x}{since(name, case.source_digest())}"
        )


@pytest.mark.parametrize("name", WITH_TOLERANCES)
def test_functions(name):
    """The modelled functions have the H200's bits; the others are close, and agree on NaN and infinity."""
    case = CASES[name]
    (got,), (expected,) = emulate(case), store.unpack(case, recorded("micro"))
    _, texts = instructions.FAMILIES[WITH_TOLERANCES[name]]
    for text, ours, theirs in zip(texts, got, expected, strict=True):
        opcode = text.split()[0]
        if opcode not in TOLERANCES:
            assert np.array_equal(ours, theirs), opcode
            continue
        absolute, relative = TOLERANCES[opcode]
        if opcode.endswith("bf16x2"):
            ours, theirs = (np.concatenate([x << 16, x & 0xFFFF0000]) for x in (ours, theirs))
        ours, theirs = (from_bits(x).astype(np.float64) for x in (ours, theirs))
        close = np.isclose(ours, theirs, atol=absolute, rtol=relative, equal_nan=True)
        assert close.all(), f"{opcode}: {ours[~close][:4]}, recorded {theirs[~close][:4]}"
        assert np.array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[ours == 0])), opcode


@pytest.mark.parametrize("batch", attention.BATCHES, ids=lambda batch: batch.name)
def test_whole_kernel(batch):
    """The generated kernel, from queries and pages to gated rows: the H200's bits, in all of the batch."""
    problem = batch.problem("cpu")
    variant = attn2.VARIANTS[0].name
    out, _ = run_emulated(attn2, variant, problem.arguments(), out=problem.poisoned_out())
    expected = recorded("attention")[f"{batch.name}.0"]
    wrong = attention.bits(out) != expected
    assert (
        not wrong.any()
    ), f"{wrong.sum()} of {wrong.size} differ{since(batch.name, attention.source_digest())}"


def test_a_wrong_sum_would_show(monkeypatch):
    """The recordings tell models of the tensor cores apart: one bit more or less kept gives other bits."""
    case = CASES["mma_normal_k16"]
    (expected,) = store.unpack(case, recorded("micro"))
    for kept in (24, 26):
        monkeypatch.setattr(summation, "KEPT", kept)
        (got,) = emulate(case)
        assert 0 < (got != expected).mean() < 0.1, kept
