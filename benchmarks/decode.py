"""Command line of the decode benchmark: `python -m benchmarks.decode --help`.

Exit status: 0 if ours, and a FlashAttention 3 that was asked for with --fa3, were right and timed at every
shape; 1 if not; 2 for a wrong call or no GPU.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

#: Requests, KV heads, context length.
DEFAULT_SHAPES = ("1 1 512", "1 2 512", "1 2 1024", "1 1 2048", "1 2 2048", "8 2 2048", "32 2 2048")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the checked command line; exit with 2 where it is wrong."""
    from benchmarks.problem import Shape

    def shape(text: str) -> Shape:
        try:
            return Shape.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, not {text!r}")
        return int(text)

    def file(text: str) -> str:
        if not Path(text).is_file():
            raise argparse.ArgumentTypeError(f"no such file: {text}")
        return text

    def new_file(text: str) -> Path:
        # Found out now, not after the measurement.
        if not Path(text).absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"no such folder: {Path(text).parent}")
        return Path(text)

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode",
        description="Our fused decode attention beside FlashAttention 3 with a norm-gate kernel, on one GPU.",
        epilog="How it measures, and what is included: the docstring of benchmarks/__init__.py.",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=shape,
        metavar='"R H L"',
        default=[Shape.parse(text) for text in DEFAULT_SHAPES],
        help=f"requests, KV heads, context length of each shape (default: {', '.join(DEFAULT_SHAPES)})",
    )
    parser.add_argument(
        "--max-seq-len", type=count, metavar="N", help="deployment's longest context (default: each shape's)"
    )
    parser.add_argument("--fa3", type=file, metavar="PATH", help="FlashAttention 3 library of a vLLM wheel")
    parser.add_argument(
        "--variant", metavar="NAME", help="variant of our module (default: what suits the load)"
    )
    parser.add_argument(
        "--num-splits",
        type=count,
        metavar="N",
        help="clusters of ours that share a long request (default: its rule)",
    )
    parser.add_argument(
        "--pdl", action="store_true", help="programmatic dependent launch in ours and the norm-gate kernel"
    )
    parser.add_argument("--replays", type=count, default=200, metavar="N", help="rounds (default: 200)")
    parser.add_argument(
        "--budget", type=count, default=8, metavar="S", help="most seconds a shape is timed for (default: 8)"
    )
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the result there as well")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measure all shapes, print the table; the exit status."""
    try:
        import torch
    except ImportError as error:
        return _refuse(f"PyTorch is needed: {error}")
    options = arguments(words)
    if not torch.cuda.is_available():
        return _refuse("a CUDA GPU is needed, and PyTorch finds none; nothing was measured")

    from benchmarks import report
    from benchmarks.compare import CALLS, ERROR_LIMIT, TIMED, compare
    from benchmarks.contenders import all_contenders
    from benchmarks.flash_attention import Library
    from benchmarks.problem import EPS, SCALE

    device = torch.device("cuda", torch.cuda.current_device())
    contenders = all_contenders(Library(options.fa3), options.variant, options.pdl, options.num_splits)
    started = time.perf_counter()
    rows, broken = [], ""
    for number, shape in enumerate(options.shapes, 1):

        def say(text: str, place: str = f"[{number}/{len(options.shapes)}] {shape}") -> None:
            print(f"{time.perf_counter() - started:6.1f} s  {place}: {text}", file=sys.stderr, flush=True)

        try:
            row = compare(
                shape,
                contenders,
                device=device,
                rounds=options.replays,
                budget_seconds=options.budget,
                max_seq_len=options.max_seq_len,
                say=say,
            )
            torch.cuda.empty_cache()
        except (RuntimeError, ValueError) as error:
            # A fault of the device spoils everything after it: report what there is.
            broken = f"shape {shape}: {error}"
            break
        rows.append(row)

    method = {
        "calls_per_graph": CALLS,
        "error_limit": ERROR_LIMIT,
        "replays_asked": options.replays,
        "budget_seconds": options.budget,
        "variant": options.variant,
        "pdl": options.pdl,
        "scale": SCALE,
        "eps": EPS,
        "seconds": time.perf_counter() - started,
    }
    name = torch.cuda.get_device_properties(device).name
    report.print_table(rows, f"{name}, PDL {'on' if options.pdl else 'off'}, {method['seconds']:.0f} s")
    if options.json:
        report.write_json(options.json, report.document(rows, device, method))
    if broken:
        print(f"error: {broken}", file=sys.stderr)
        return 1
    wanted = ("ours", "pair", "fa3") if options.fa3 else ("ours",)
    entries = [row.entry(key) for row in rows for key in wanted]
    return 0 if all(entry and entry.status == TIMED for entry in entries) else 1


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
