"""Command line of `python -m benchmarks.decode`: what is measured, with what, and for how long."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.loads import GROUPS, LONG_DEPLOYMENT, Load, choose

#: The name of the deployment whose longest context is the load's own.
FIT = "fit"


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the checked command line; exit with 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode",
        description="Fused decode attention beside what one would run instead, on one GPU.",
        epilog="How it measures, and what is included: the docstring of benchmarks/__init__.py.",
    )
    _add_loads(parser)
    _add_contenders(parser)
    parser.add_argument("--replays", type=_count, default=200, metavar="N", help="most rounds (default: 200)")
    parser.add_argument(
        "--budget",
        type=_count,
        default=330,
        metavar="S",
        help="seconds of the whole run, shared by its rows (default: 330); a row takes 20 rounds at least",
    )
    parser.add_argument("--json", type=_new_file, metavar="FILE", help="write the result there as well")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the result there, as PNG files")
    options = parser.parse_args(words)
    names = options.loads or ([] if options.shapes else list(GROUPS))
    try:
        chosen = choose(names, options.seeds)
    except ValueError as error:
        parser.error(f"--loads: {error}")
    options.chosen = list({load.name: load for load in (*options.shapes, *chosen)}.values())
    return options


def _add_loads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loads",
        nargs="+",
        default=[],
        metavar="NAME",
        help="loads of benchmarks/loads.py, or groups of them: points, uneven (default: both)",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=_checked(Load.parse),
        default=[],
        metavar='"R H L [W]"',
        help="other loads: requests, KV heads, length, window",
    )
    parser.add_argument(
        "--seeds", type=_count, default=0, metavar="N", help="further seeds of each random load (default: 0)"
    )
    parser.add_argument(
        "--deployment",
        nargs="+",
        type=_deployment,
        default=[None, LONG_DEPLOYMENT],
        metavar="N",
        help=f"longest contexts that kernels are deployed for, {FIT!r} for each load's own longest length "
        f"(default: {FIT} {LONG_DEPLOYMENT}, which is one where they are equal)",
    )


def _add_contenders(parser: argparse.ArgumentParser) -> None:
    from benchmarks.contenders import ALONE, DEFAULT

    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=(*DEFAULT, *ALONE),
        metavar="KEY",
        help=f"what is measured, of {', '.join(DEFAULT)} (default: these), {', '.join(ALONE)}",
    )
    parser.add_argument(
        "--variants",
        nargs="*",
        metavar="NAME",
        help="variants of our module to measure as well; all of them where none is named",
    )
    parser.add_argument(
        "--num-splits",
        type=_count,
        metavar="N",
        help="splits of --variants (default: the module's)",
    )
    parser.add_argument("--fa3", type=_file, metavar="PATH", help="FlashAttention 3 library of a vLLM wheel")
    parser.add_argument(
        "--build", action="store_true", help="let FlashInfer compile modules that are not prebuilt: minutes"
    )
    parser.add_argument(
        "--pdl", action="store_true", help="programmatic dependent launch in ours and the norm-gate kernel"
    )


def _checked(function: Callable[[str], Load]) -> Callable[[str], Load]:
    """Return the function with a ValueError made into argparse's, which shows its text."""

    def checked(text: str) -> Load:
        try:
            return function(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, not {text!r}")
    return int(text)


def _deployment(text: str) -> int | None:
    return None if text == FIT else _count(text)


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"no such file: {text}")
    return text


def _new_file(text: str) -> Path:
    # Found out now, not after the measurement.
    if not Path(text).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no such folder: {Path(text).parent}")
    return Path(text)
