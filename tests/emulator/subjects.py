"""The generated cluster kernel as a subject of the emulator's tests: its PTX, and a launch."""

import functools
import re
from pathlib import Path

import torch

import emulator
from emulator.errors import EmulatorError
from generator.compiled import load_module
from tests.references import epilogue_of
from verification.partition import Partition, partition_of
from verification.problems import Problem
from verification.runner import kernel_ptx

GENERATED = Path(__file__).resolve().parents[2] / "generated" / "attn2.py"


@functools.cache
def module():
    """The checked-in module."""
    return load_module(GENERATED)


def cluster_ptx() -> str:
    """PTX of its cluster variant, each instruction with its line in the generated file."""
    return kernel_ptx(module(), "cluster")


def partition() -> Partition:
    """Which warp attends which page."""
    return partition_of(module().VARIANTS[0].kernel)


def expected(problem: Problem) -> torch.Tensor:
    """The reference of the variant's output."""
    return problem.expected(partition(), epilogue_of(module(), module().VARIANTS[0].name))


def run_cluster(problem: Problem, ptx: str | None = None, **more) -> torch.Tensor:
    """Run the variant, or an edit of its PTX, on a problem; returns the output."""
    kernel, out = module().VARIANTS[0].kernel, problem.poisoned_out()
    given = problem.arguments()
    call = module().bind(
        module().deploy(problem.max_seq_len, variant=module().VARIANTS[0].name),
        *(given[name] for name in ("q", "gate", "kv_cache", "block_table", "seq_lens")),
        *(out, None, None, problem.scale, problem.eps),
    )
    emulator.launch(
        ptx or cluster_ptx(),
        grid=call.layout.grid,
        cluster=kernel.cluster,
        block=32 * kernel.warps,
        shared_bytes=kernel.shared_bytes,
        arguments=[*call.tensors, *call.scalars],
        **more,
    )
    return out


def edited(old: str, new: str, ptx: str | None = None, count: int | None = 1) -> str:
    """The PTX with a regular expression replaced, line by line the same; it has to occur `count` times."""
    text, found = re.subn(old, new, ptx or cluster_ptx())
    assert found == count if count is not None else found, f"{old} occurs {found} times"
    return text


def stage_of(error: EmulatorError) -> str:
    """The stage or skeleton in which a fault lies: the generated file's section that holds its line."""
    file, _, line = error.source.rpartition(":")
    assert Path(file).name == GENERATED.name, error.source
    above = GENERATED.read_text(encoding="utf-8").splitlines()[: int(line)]
    sections = [text[2:] for text in above if re.fullmatch(r"# (stages|variants)/\S+\.py", text)]
    return sections[-1]


def line_of(ptx: str, pattern: str, number: int = 0) -> int:
    """The line, from 1, of the `number`-th line that holds a regular expression."""
    lines = [i for i, line in enumerate(ptx.splitlines(), 1) if re.search(pattern, line)]
    return lines[number]
