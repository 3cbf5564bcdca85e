"""The host side refuses what it cannot serve, and says which argument, what it got and what it needs.

Wrong calls run on CPU tensors: everything is checked before the question of a device comes up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.conftest import bits
from tests.kernels.scale import GPU
from verification.attention import HEAD_DIM
from verification.problems import make_problem

ROWS, COLUMNS, PAGES = 16, 1024, 4
"""Of the good call: two requests, two KV heads, max_seq_len 64."""


@pytest.fixture
def good() -> dict[str, Any]:
    """Arguments that are right in all but their device."""
    return make_problem([40, 64], kv_heads=2).arguments()


@dataclass(frozen=True)
class Case:
    """A wrong argument. value: what takes its place, or a function of the right one."""

    argument: str
    value: Any
    got: str
    needs: str
    error: type[Exception] = ValueError

    def __str__(self) -> str:
        return f"{self.argument} {self.got}"


def offset(elements: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same tensor, `elements` elements off in its memory."""

    def moved(right: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros(right.numel() + elements, dtype=right.dtype)
        return memory[elements:].view(right.shape)

    return moved


def token_stride(stride: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rows this far apart."""
    return lambda right: torch.zeros(ROWS * 2 * COLUMNS, dtype=right.dtype).as_strided(
        (ROWS, COLUMNS), (stride, 1)
    )


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def unaligned(right: torch.Tensor) -> torch.Tensor:
    """The same tensor one byte off in its memory."""
    memory = np.zeros(right.numel() * right.element_size() + 1, np.uint8)[1:]
    return torch.from_numpy(memory.view(np.int32).reshape(right.shape))


ROW_CASES = [
    case
    for name in ("q", "gate", "out")
    for case in (
        Case(name, torch.Tensor.tolist, "list", "tensor", TypeError),
        Case(name, torch.Tensor.half, "torch.float16", "bfloat16"),
        Case(name, torch.Tensor.float, "torch.float32", "bfloat16"),
        Case(name, bf16(ROWS - 1, COLUMNS), "[15, 1024]", "[16, 1024]"),
        Case(name, bf16(ROWS, COLUMNS // 2), "[16, 512]", "[16, 1024]"),
        Case(name, bf16(ROWS, 8, 128), "[16, 8, 128]", "[16, 16, 64]"),
        Case(name, bf16(2, 8, 16, 64), "[2, 8, 16, 64]", "[16, 16, 64]"),
        Case(name, bf16(COLUMNS, ROWS).T, "strides [1, 16]", "packed"),
        Case(name, bf16(ROWS, 16, 2 * HEAD_DIM)[..., :HEAD_DIM], "strides [2048, 128, 1]", "packed"),
        Case(name, token_stride(COLUMNS + 4), "1028", "multiple of 8"),
        Case(name, offset(4), "address 0x", "16 bytes"),
    )
]

DEVICE_CASES = [
    Case(name, lambda right: right.to("meta"), "on meta", "q's device cpu")
    for name in ("gate", "kv_cache", "block_table", "seq_lens", "out")
]

TENSOR_CASES = [
    Case("q", None, "NoneType", "tensor", TypeError),
    # Rows that overlap are fine to read from and not to write to.
    Case("out", token_stride(0), "0", "1024"),
    Case("out", token_stride(COLUMNS - 8), "1016", "1024"),
    Case("kv_cache", torch.Tensor.float, "torch.float32", "bfloat16"),
    Case("kv_cache", bf16(PAGES, 2, 32, 128), "[4, 2, 32, 128]", "[pages, H, 16, 128]"),
    Case("kv_cache", bf16(PAGES, 2, 16, 64), "[4, 2, 16, 64]", "[pages, H, 16, 128]"),
    Case("kv_cache", bf16(PAGES, 16, 128), "[4, 16, 128]", "[pages, H, 16, 128]"),
    Case("kv_cache", bf16(PAGES, 0, 16, 128), "[4, 0, 16, 128]", "[pages, H, 16, 128]"),
    Case("kv_cache", bf16(PAGES, 16, 2, 128).transpose(1, 2), "strides [4096, 128, 256, 1]", "contiguous"),
    Case("kv_cache", bf16(PAGES, 2, 128, 16).mT, "strides [4096, 2048, 1, 16]", "contiguous"),
    Case(
        "kv_cache",
        bf16(9000 * PAGES).as_strided((PAGES, 2, 16, 128), (4100, 2048, 128, 1)),
        "strides [4100, 2048, 128, 1]",
        "multiples of 8",
    ),
    Case("kv_cache", offset(2), "address 0x", "16 bytes"),
    Case("block_table", torch.Tensor.long, "torch.int64", "int32"),
    Case("block_table", int32(2, 3), "3", "4 columns for max_seq_len=64"),
    Case("block_table", int32(3, 4), "[3, 4]", "[2, >= 4]"),
    Case("block_table", int32(4), "[4]", "[2, >= 4]"),
    Case("block_table", int32(4, 2).T, "strides [1, 2]", "contiguous rows"),
    Case("block_table", unaligned, "address 0x", "4 bytes"),
    Case("seq_lens", unaligned, "address 0x", "4 bytes"),
    Case(
        "kv_cache",
        bf16(16, 128).expand(1, 65536, 16, 128),
        "[1, 65536, 16, 128]",
        "at most 65535",
    ),
    Case("seq_lens", torch.Tensor.long, "torch.int64", "int32 [R]"),
    Case("seq_lens", int32(2, 1), "[2, 1]", "int32 [R]"),
    Case("seq_lens", int32(4)[::2], "strides [2]", "contiguous"),
]

NUMBER_CASES = [
    Case("max_seq_len", 0, "0", "integer >= 1"),
    Case("max_seq_len", -8, "-8", "integer >= 1"),
    Case("max_seq_len", 64.0, "64.0", "integer >= 1"),
    Case("max_seq_len", True, "True", "integer >= 1"),
    Case("max_seq_len", "64", "'64'", "integer >= 1"),
    Case("max_seq_len", 1048577, "max_seq_len=1048577", "cluster: max_seq_len <= 2048, no window"),
    Case("max_seq_len", 2**40, f"max_seq_len={2**40}", "split: max_seq_len <= 1048576, any window"),
    Case("max_seq_len", 65, "4", "5 columns for max_seq_len=65"),
    Case("window", 0, "0", "integer >= 1"),
    Case("window", False, "False", "integer >= 1"),
    Case("scale", math.nan, "nan", "finite"),
    Case("scale", -math.inf, "-inf", "finite"),
    Case("scale", 1e300, "1e+300", "finite"),
    Case("scale", "0.5", "'0.5'", "number"),
    Case("eps", math.nan, "nan", ">= 0"),
    Case("eps", -1e-5, "-1e-05", ">= 0"),
    Case("eps", math.inf, "inf", "finite"),
    Case("max_seq_len", [64], "[64]", "integer >= 1"),
    Case("window", "16", "'16'", "integer >= 1"),
    Case("num_splits", 129, "129", "1..128"),
    Case("pdl", 1, "1", "True or False"),
    Case("pdl", None, "None", "True or False"),
    Case("variant", "clutser", "'clutser'", "cluster, split, batch, cluster8, split_small"),
    Case("variant", 0, "0", "cluster, split"),
    Case("variant", ["cluster"], "['cluster']", "cluster, split"),
]


def refuse(case: Case, call: Callable[[], Any]) -> None:
    """The call raises the case's error, and the message names the argument, what it got and what it needs."""
    with pytest.raises(case.error) as caught:
        call()
    message = str(caught.value)
    for part in (case.argument, case.got, case.needs):
        assert part in message, f"{part!r} is not in {message!r}"


@pytest.mark.parametrize("case", ROW_CASES + DEVICE_CASES + TENSOR_CASES + NUMBER_CASES, ids=str)
def test_wrong_arguments_are_refused(attn2, good, case):
    """One wrong argument in a call that is otherwise right."""
    right = torch.zeros_like(good["q"]) if case.argument == "out" else good.get(case.argument)
    wrong = case.value(right) if callable(case.value) else case.value
    refuse(case, lambda: attn2.attn2(**{**good, case.argument: wrong}))


def test_a_call_that_is_right_needs_a_cuda_device(attn2, good):
    """Which also shows that each case above is wrong in one argument alone."""
    refuse(Case("q", None, "cpu", "CUDA tensor"), lambda: attn2.attn2(**good))


@pytest.mark.parametrize("case", NUMBER_CASES, ids=str)
def test_what_is_wrong_stays_wrong(attn2, good, case):
    """Also right after a call that is equal to it: True, 64.0 and 64 are equal, and not all of them fine."""
    right = {"scale": 1.0, "eps": 1.0, "max_seq_len": 64, "pdl": True, "window": 1}.get(case.argument)
    if right is not None:
        with pytest.raises(ValueError, match="CUDA tensor"):
            attn2.attn2(**{**good, case.argument: right})
    refuse(case, lambda: attn2.attn2(**{**good, case.argument: case.value}))


@pytest.mark.parametrize("name", ["q", "gate", "kv_cache", "out"])
def test_addresses_are_checked_in_every_call(attn2, good, name):
    """What calls share is looked up; where their tensors lie is not a part of it."""
    good["out"] = torch.zeros_like(good["q"])
    with pytest.raises(ValueError, match="CUDA tensor"):
        attn2.attn2(**good)
    case = Case(name, offset(4), "address 0x", "16 bytes")
    refuse(case, lambda: attn2.attn2(**{**good, name: case.value(good[name])}))


@pytest.mark.skipif(GPU, reason="there is a CUDA device")
def test_without_a_gpu_the_errors_say_what_to_do(attn2):
    """`prepare` needs a device; `compile_attn2` needs the name of an architecture."""
    with pytest.raises(ValueError, match="prepare needs a CUDA device"):
        attn2.prepare(kv_heads=2, max_seq_len=2048)
    with pytest.raises(ValueError, match='arch="sm_90a"'):
        attn2.compile_attn2()


def test_split_kernel_says_what_one_cluster_cannot_serve(attn2):
    """Contexts up to the cluster kernel's longest need no split; longer ones and windows do."""
    split_kernel = attn2.split_kernel
    assert not split_kernel(8, None) and not split_kernel(2048, None)
    assert split_kernel(2049, None) and split_kernel(2048, 1024)
    with pytest.raises(ValueError, match=r"max_seq_len .* 0"):
        split_kernel(0, None)


@pytest.mark.cuda("another tensor lies there")
@pytest.mark.parametrize("name", ["gate", "kv_cache", "block_table", "seq_lens", "out"])
def test_tensors_left_on_the_cpu_are_refused(subject, name):
    """With q on a CUDA device."""
    arguments = make_problem([40, 64], kv_heads=2, device=subject.device).arguments()
    arguments["out"] = torch.zeros_like(arguments["q"])
    arguments[name] = arguments[name].cpu()
    case = Case(name, None, "on cpu", "q's device cuda:0")
    refuse(case, lambda: subject.entry(**arguments, variant=subject.name))


@pytest.mark.parametrize("dims", [2, 3])
def test_out_is_allocated_like_q(subject, dims):
    """Without `out`, a new contiguous tensor in the shape of q; for no requests, an empty one."""
    problem = make_problem([40, 64], kv_heads=2, device=subject.device)
    arguments = problem.arguments()
    if dims == 3:
        arguments["q"] = arguments["q"].unflatten(1, (-1, HEAD_DIM))
    out = subject.call(arguments)
    assert out.shape == arguments["q"].shape and out.is_contiguous() and out.dtype == torch.bfloat16
    assert torch.equal(bits(out).view_as(problem.q), bits(subject.run(problem)))
    none = {name: arguments[name][:0] for name in ("q", "gate", "block_table", "seq_lens")}
    assert subject.call({**arguments, **none}).shape[0] == 0


@pytest.mark.cuda("launches on streams")
def test_the_launch_goes_to_the_current_stream(subject):
    """On a side stream that is still to write q, the kernel waits its turn."""
    problem = make_problem([40, 1025], kv_heads=2, device=subject.device)
    subject.prepare(problem)
    late = problem.q.clone()
    problem.q.zero_()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        problem.q.copy_(late)
        out = subject.run(problem)
    side.synchronize()
    subject.compare(out, problem)


@pytest.mark.cuda("there must be two")
def test_another_device_than_the_current_one(subject):
    """The kernel runs where its tensors are, with the same bits, and the current device stays as it was."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    here, there = (make_problem([40, 1025], kv_heads=2, seed=3, device="cpu") for _ in range(2))
    outs = []
    for index, problem in enumerate((here, there)):
        moved = {
            name: value.to(f"cuda:{index}") if isinstance(value, torch.Tensor) else value
            for name, value in problem.arguments().items()
        }
        outs.append(subject.entry(**moved, variant=subject.name).cpu())
        assert torch.cuda.current_device() == 0
    assert torch.equal(bits(outs[0]), bits(outs[1]))


def test_what_is_remembered_of_calls_is_bounded(good, attn2, monkeypatch):
    """A caller whose strides never repeat fills no memory."""
    monkeypatch.setattr(attn2, "MOST_LAYOUTS", 3)
    attn2.LAYOUTS.clear()
    deployment = attn2.deploy(64)
    for stride in range(2 * COLUMNS, 2 * COLUMNS + 80, 8):
        q = torch.zeros(ROWS, stride, dtype=torch.bfloat16)[:, :COLUMNS]
        others = (good[name] for name in ("gate", "kv_cache", "block_table", "seq_lens"))
        call = attn2.bind(deployment, q, *others, torch.empty_like(good["q"]), None, None, 0.125, 1e-5)
        assert 2 * stride in call.scalars and len(attn2.LAYOUTS) <= 3
