"""Host time of one eager call: what an engine's thread pays for a launch outside of a CUDA graph.

    python -m benchmarks.host_overhead                     # the table
    python -m benchmarks.host_overhead --json host.json    # for programs as well

Ways
    call        the module's entry point with everything prepared and given: checks, look-up, launch
    call, split the same for a deployment that splits requests, with its workspace and counters
    call, alloc the entry point without `out`, which it allocates
    operator    the same call through PyTorch's dispatcher, as a compiled graph makes it
    check       what of a call comes before the launch: arguments to kernel parameters
    launch      the rest: packing and `cuLaunchKernelEx`
    executor    the launch by CuTe DSL's own executor, pointers made new in each call, without any checks
    add         `torch.add(a, b, out=c)` of one element each, for comparison

Method
    A round makes BATCH calls of each way, in alternating order, and takes the wall time of each batch, from
    before its first call to after its last. The device is idle when a batch begins and the batch is
    shorter than the driver's queue, so no call waits for the device. Python's garbage collector is off, as
    engines have it in their loops. The table gives the median over the rounds, the 10th and 90th percentile
    and the least, in microseconds a call. Nothing is timed before its output was compared with that of the
    entry point.

Exit status: 0 if the entry point's median is under --limit microseconds (15 if not given), 1 if it is not or
an output is wrong, 2 for a wrong call or no GPU.
"""

import argparse
import gc
import json
import platform
import sys
import time
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import OUR_MODULES, import_first
from benchmarks.loads import Load
from benchmarks.problem import EPS, SCALE, Problem
from benchmarks.timing import Summary, summarize

#: Calls of one sample: far fewer than the launches that the driver queues.
BATCH = 50

#: Rounds that are not counted.
WARM_UP_ROUNDS = 20

#: Longest contexts, in cache entries: of the cluster kernel, and of one that splits requests.
SHORT, LONG = 2048, 32768

Way = Callable[[], object]


def ways(module: Any, device: torch.device) -> dict[str, tuple[Way, torch.Tensor | None]]:
    """Return what is timed, by name, each with the output that it writes."""
    problem = Problem(Load.even(1, 1, 512), calls=4, copies=1, max_seq_len=LONG, device=device)
    call_out, split_out, operator_out, executor_out = problem.outputs()
    tensors = (problem.q, problem.gate, problem.cache(0), problem.block_table, problem.seq_lens)
    given = {"max_seq_len": SHORT, "scale": SCALE, "eps": EPS}
    module.prepare(kv_heads=1, max_seq_len=SHORT)
    module.prepare(kv_heads=1, max_seq_len=LONG)
    workspace, counters = module.allocate_scratch(1, kv_heads=1, max_seq_len=LONG)
    split = given | {"max_seq_len": LONG, "workspace": workspace, "counters": counters, "out": split_out}
    rest = (None, None, SHORT, SCALE, EPS, None, None, False, None, False)

    def check() -> Any:
        return module.bind(module.deploy(SHORT), *tensors, call_out, None, None, SCALE, EPS)

    bound, kernel = check(), module.loaded_kernel(module.deploy(SHORT).form, device.index)
    stream = torch.cuda.current_stream(device).cuda_stream
    one = torch.ones(1, device=device)
    total = torch.empty_like(one)
    return {
        "call": (lambda: module.attn2(*tensors, **given, out=call_out), call_out),
        "call, split": (lambda: module.attn2(*tensors, **split), split_out),
        "call, alloc": (lambda: module.attn2(*tensors, **given), None),
        "operator": (lambda: module.OPERATOR(*tensors, operator_out, *rest), operator_out),
        "check": (check, None),
        "launch": (lambda: kernel.launch(bound.values, bound.layout.grid, stream), None),
        "executor": (executor(module, bound, executor_out), executor_out),
        "add": (lambda: torch.add(one, one, out=total), None),
    }


def executor(module: Any, bound: Any, out: torch.Tensor) -> Way:
    """Return a launch of the same kernel by what `cute.compile` returns."""
    import cuda.bindings.driver as cuda
    from cutlass import Int32, Int64

    kernel = module.deploy(SHORT).variant.kernel
    compiled = module.compile_attn2(module.deploy(SHORT).variant.name)
    tensors = (*bound.tensors[:5], out)
    addresses, *others = module.groups(type(kernel))
    scalars = iter(bound.scalars)
    numbers = [
        group(*(kind(next(scalars)) for kind in typing.get_type_hints(group).values())) for group in others
    ]
    grid = [Int32(extent) for extent in bound.layout.grid]

    def launch() -> None:
        given = [Int64(t.data_ptr()) for t in tensors]
        compiled(addresses(*given), *numbers, *grid, cuda.CUstream(torch.cuda.current_stream().cuda_stream))

    return launch


def check_outputs(timed: dict[str, tuple[Way, torch.Tensor | None]]) -> list[str]:
    """Return the names of the ways whose output is not that of the entry point."""
    for way, _ in timed.values():
        way()
    torch.cuda.synchronize()
    reference = timed["call"][1]
    assert reference is not None and bool(torch.isfinite(reference).all())
    # The kernel that splits adds in another order.
    return [
        name
        for name, (_, out) in timed.items()
        if out is not None and not torch.allclose(out.float(), reference.float(), rtol=2**-6, atol=2**-8)
    ]


def measure(timed: dict[str, tuple[Way, torch.Tensor | None]], rounds: int) -> dict[str, Summary]:
    """Return microseconds a call of each way."""
    samples: dict[str, list[float]] = {name: [] for name in timed}
    gc.collect()
    gc.disable()
    try:
        for number in range(WARM_UP_ROUNDS + rounds):
            for name in list(timed)[:: 1 if number % 2 == 0 else -1]:
                way = timed[name][0]
                torch.cuda.synchronize()
                began = time.perf_counter_ns()
                for _ in range(BATCH):
                    way()
                took = time.perf_counter_ns() - began
                if number >= WARM_UP_ROUNDS:
                    samples[name].append(took / BATCH / 1e3)
    finally:
        gc.enable()
    return {name: summarize(of_one) for name, of_one in samples.items()}


def processor() -> str:
    """Return the host processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the table; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_overhead", description="Host time of one eager call."
    )
    parser.add_argument("--rounds", type=int, default=300, metavar="N", help="rounds (default: 300)")
    parser.add_argument(
        "--limit",
        type=float,
        default=15.0,
        metavar="US",
        help="microseconds that a call may take (default: 15)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    options = parser.parse_args(words)
    if options.rounds < 1:
        parser.error(f"--rounds: at least 1 is needed, not {options.rounds}")
    module, reason = import_first(OUR_MODULES)
    if module is None or not torch.cuda.is_available():
        print(f"error: {reason or 'a CUDA GPU is needed; nothing was measured'}", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    timed = ways(module, device)
    wrong = check_outputs(timed)
    if wrong:
        print(f"error: another output than the entry point's: {', '.join(wrong)}", file=sys.stderr)
        return 1
    times = measure(timed, options.rounds)
    print(f"{processor()}, {torch.cuda.get_device_name(device)}, Python {platform.python_version()}")
    print(f"{'µs a call':12} {'median':>8} {'p10':>8} {'p90':>8} {'least':>8}")
    for name, of_one in times.items():
        numbers = (of_one.median, of_one.p10, of_one.p90, of_one.least)
        print(f"{name:12} " + " ".join(f"{number:8.2f}" for number in numbers))
    if options.json:
        content = {"host": processor(), "batch": BATCH, "rounds": options.rounds}
        content |= {"microseconds": {name: vars(of_one) for name, of_one in times.items()}}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if times["call"].median < options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
