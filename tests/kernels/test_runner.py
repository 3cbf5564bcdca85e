"""`run_emulated` runs with the emulator's checks on: what they find alone, it raises.

The kernels here are PTX by hand with the parameters of a real one, so that nothing is compiled.
"""

import pytest
import torch

from emulator.errors import Race, UninitialisedRead
from tests.kernels.driver import PTX_TYPES
from tests.modules import PINNED, module_of
from verification import runner
from verification.problems import make_problem

RACE = """
    mov.u32 %r0, %tid.x;
    st.shared.b32 [memory], %r0;
    ld.shared.b32 %r1, [memory];
"""
"""Every thread writes the same word, and nothing is between that and its reading."""

READ = """
    ld.param.b64 %d0, [by_hand_param_{number}];
    ld.global.b32 %r0, [%d0];
"""
"""Reads the first word of an argument."""


LAST = """
    mov.u32 %r0, %tid.x;
    ld.param.b64 %d0, [by_hand_param_{number}];
    st.global.b32 [%d0], %r0;
"""
"""Every thread writes the same word, and the last one to do so stays."""


@pytest.fixture
def module():
    """A variant of each skeleton."""
    return module_of(PINNED, "attn2")


def by_hand(module, variant: str, body: str) -> str:
    """PTX with the parameters of a variant's kernel."""
    kernel = next(v.kernel for v in module.VARIANTS if v.name == variant)
    types = [PTX_TYPES[code] for code in module.parameters(type(kernel)).values()]
    parameters = ", ".join(f".param {kind} by_hand_param_{i}" for i, kind in enumerate(types))
    return f"""
.version 8.8
.target sm_90a
.address_size 64
.visible .entry by_hand({parameters})
{{
.shared .align 16 .b8 memory[16];
.reg .b32 %r<2>;
.reg .b64 %d<1>;
{body}
ret;
}}
"""


def run(monkeypatch, module, variant: str, body: str, number: int = 0, **more) -> torch.Tensor:
    """Run a kernel by hand in the place of a variant's; returns the output."""
    ptx = by_hand(module, variant, body.format(number=number))
    monkeypatch.setattr(runner, "kernel_ptx", lambda *_: ptx)
    problem = make_problem([40, 9], max_seq_len=6000 if variant == "split" else 64)
    scratch = module.allocate_scratch(2, kv_heads=1, max_seq_len=6000, num_splits=2, device="cpu")
    names = ("workspace", "counters")
    arguments = {**problem.arguments(), "num_splits": 2, **dict(zip(names, scratch, strict=True))}
    return runner.run_emulated(module, variant, arguments, **more)[0]


OUT, WORKSPACE = 5, 6
"""Their numbers among the parameters."""


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    ("variant", "body", "number", "error"),
    [
        ("cluster", RACE, 0, Race),
        ("split", RACE, 0, Race),
        ("cluster", READ, OUT, UninitialisedRead),
        ("split", READ, OUT, UninitialisedRead),
        ("split", READ, WORKSPACE, UninitialisedRead),
    ],
    ids=["cluster race", "split race", "cluster out", "split out", "split workspace"],
)
def test_what_is_checked_is_raised(monkeypatch, module, variant, body, number, error, seed):
    """Races, and reads of an output and a workspace that nobody has written; nothing where checks are off."""
    with pytest.raises(error):
        run(monkeypatch, module, variant, body, number, seed=seed)
    run(monkeypatch, module, variant, body, number, seed=seed, checks=False)


def test_a_seed_permutes_what_runs_when(monkeypatch, module):
    """Each seed has one order, and not all have the same."""

    def last(seed):
        return run(monkeypatch, module, "cluster", LAST, OUT, seed=seed, checks=False)[0, 0].item()

    assert [last(seed) for seed in range(4)] == [last(seed) for seed in range(4)]
    assert len({last(seed) for seed in (None, *range(8))}) > 1


def test_what_is_right_is_no_fault(monkeypatch, module):
    """Inputs and counters count as written."""
    for variant, numbers in (("cluster", range(5)), ("split", (*range(5), WORKSPACE + 1))):
        for number in numbers:
            run(monkeypatch, module, variant, READ, number)


def test_no_requests_are_no_launch(monkeypatch, module):
    """There is no report, and nothing is compiled."""
    monkeypatch.setattr(runner, "kernel_ptx", None)
    given = make_problem([40]).arguments()
    none = {name: given[name][:0] for name in ("q", "gate", "block_table", "seq_lens")}
    out, report = runner.run_emulated(module, "cluster", given | none)
    assert report is None and out.shape == (0, 512) and out.dtype == torch.bfloat16
