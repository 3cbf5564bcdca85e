"""Launches: shapes that do not fit, entries, waves and the report."""

import numpy as np
import pytest

import emulator
from emulator.errors import LaunchError
from emulator.ptx.build import build
from tests.emulator.written import kernel, launch, store


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            {"grid": 3, "cluster": 2, "block": 32},
            r"grid \(3, 1, 1\) does not divide by cluster \(2, 1, 1\) in x",
        ),
        ({"grid": 32, "cluster": 32, "block": 32}, "more than 16 CTAs"),
        ({"grid": 1, "block": 2048}, "more than 1024 threads"),
        ({"grid": 0, "block": 32}, "grid has to be one to three positive numbers"),
        ({"grid": 1, "block": (1, 2, 3, 4)}, "block has to be"),
        ({"grid": 1, "block": 32, "shared_bytes": 1 << 20}, "bytes of shared memory"),
        ({"grid": 1, "block": 64, "text": ".reqntid 128, 1, 1"}, "requires .reqntid"),
        ({"grid": 2, "block": 64, "text": ".reqnctapercluster 2"}, "requires .reqnctapercluster"),
        ({"grid": 2, "block": 64, "text": ".maxntid 32"}, "more threads than .maxntid"),
    ],
)
def test_launches_that_do_not_fit(where, said):
    text = kernel("ret;", "").replace("\n)\n{", f"\n)\n{where.pop('text', '')}\n{{")
    with pytest.raises(LaunchError, match=said):
        emulator.launch(text, arguments=[], **where)


def test_entries():
    text = kernel("ret;", "", name="a") + kernel("ret;", "", name="b").partition("64\n")[2]
    assert emulator.launch(text, "b", grid=1, block=1, arguments=[]).kernel == "b"
    with pytest.raises(LaunchError, match="one of the kernels: a, b"):
        emulator.launch(text, grid=1, block=1, arguments=[])
    with pytest.raises(LaunchError, match="no kernel c"):
        emulator.launch(text, "c", grid=1, block=1, arguments=[])


def test_waves_and_the_report():
    out = np.zeros(4096, np.uint32)
    body = "mov.u32 %r9, %ctaid.x;" + store("%r9") + "ret;"
    report = launch(body, out, grid=64, threads=64, resident=10)
    np.testing.assert_array_equal(out, np.repeat(np.arange(64), 64))
    assert (report.kernel, report.threads, report.waves, report.blocks) == ("k", 4096, 7, 7)
    count = len(next(iter(build(kernel(body)).blocks)).instructions)
    assert report.instructions == 4096 * count and report.seconds > 0
