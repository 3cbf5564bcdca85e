"""The decode benchmark: `python -m benchmarks.decode --help`.

Exit status: 0 if ours was right and timed at every row, and so was each peer that was asked for by
--contenders, FlashAttention 3 also by --fa3; 1 if not; 2 for a wrong call or no GPU.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any


def main(words: Sequence[str] | None = None) -> int:
    """Measure all loads, print the report; the exit status."""
    try:
        import torch
    except ImportError as error:
        return _refuse(f"PyTorch is needed: {error}")
    from benchmarks import options as command_line

    options = command_line.parse(words)
    if not torch.cuda.is_available():
        return _refuse("a CUDA GPU is needed, and PyTorch finds none; nothing was measured")
    if options.plots:
        from benchmarks.plots import available

        if reason := available():
            return _refuse(f"--plots: {reason}; plots can be made later, from the file that --json writes")
    return _run(options, current_device())


def current_device() -> Any:
    """Return the current CUDA device."""
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def _run(options: argparse.Namespace, device: Any) -> int:
    from benchmarks import report
    from benchmarks.compare import CALLS, Budget, DeviceFault, clean_up, compare
    from benchmarks.contenders import DEFAULT, ERROR_LIMIT, Library, make_contenders, variant_names
    from benchmarks.loads import deployments
    from benchmarks.problem import EPS, SCALE
    from benchmarks.results import NAMED, OURS, TIMED, Row

    contenders = make_contenders(
        options.contenders or DEFAULT,
        library=Library(options.fa3),
        variants=variant_names() if options.variants == [] else options.variants or [],
        num_splits=options.num_splits,
        pdl=options.pdl,
        build=options.build,
    )
    plan = [(load, deployments(load, options.deployment)) for load in options.chosen]
    for load, fitting in plan:
        if not fitting:
            _say(f"{load}: left out, its longest length {load.longest} fits no deployment")
    heading = report.heading(device)
    method: dict[str, Any] = {
        "calls_per_graph": CALLS,
        "error_limit": ERROR_LIMIT,
        "replays_asked": options.replays,
        "budget_seconds": options.budget,
        "contenders": [contender.key for contender in contenders],
        "num_splits": options.num_splits,
        "pdl": options.pdl,
        "scale": SCALE,
        "eps": EPS,
    }
    budget = Budget(options.budget, sum(len(fitting) for _, fitting in plan))
    rows: list[Row] = []
    broken = ""
    for number, (load, fitting) in enumerate(plan, 1):

        def say(text: str, place: str = f"[{number}/{len(plan)}] {load}") -> None:
            _say(f"{budget.elapsed():6.1f} s  {place}: {text}")

        try:
            for row in compare(
                load, fitting, contenders, device=device, rounds=options.replays, budget=budget, say=say
            ):
                rows.append(row)
                say(" ".join(report.cells(row)[1:]))
                if options.json:
                    # After every row, so that a run that is stopped leaves what it has.
                    report.write_json(options.json, report.document(rows, heading, method))
            clean_up()
        except (DeviceFault, RuntimeError, ValueError) as error:
            # A fault of the device spoils everything after it: report what there is.
            broken = f"load {load}: {error}"
            break

    method |= {"seconds": budget.elapsed(), "broken": broken}
    content = report.document(rows, heading, method)
    gpu, pdl = heading["machine"]["gpu"], "on" if options.pdl else "off"
    report.print_report(rows, f"{gpu}, PDL {pdl}, {method['seconds']:.0f} s")
    if options.json:
        report.write_json(options.json, content)
    if options.plots:
        from benchmarks.plots import draw

        for path in draw(content, options.plots):
            print(path)
    if broken:
        print(f"error: {broken}", file=sys.stderr)
        return 1
    wanted = {OURS, NAMED, *(["fa3"] if options.fa3 else [])} & {contender.key for contender in contenders}
    wanted |= set(options.contenders or [])
    entries = [row.entry(key) for row in rows for key in wanted]
    return 0 if rows and all(entry and entry.status == TIMED for entry in entries) else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
