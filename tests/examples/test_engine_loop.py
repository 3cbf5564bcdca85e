"""The engine loop of `examples/`: right in every step, on a GPU from one graph, elsewhere on the emulator."""

import pytest
import torch

from examples import engine_loop
from generated import attn2
from verification.runner import run_emulated

LIMIT = 2.0**-4
"""Two BF16 ulps of numbers from 4 to 8; the norm of 64 values has none above 8."""


def emulated(engine: engine_loop.Engine):
    """A launch of the engine's batch on the emulator."""
    deployment = {"max_seq_len": engine_loop.MAX_SEQ_LEN, "window": None}
    workspace, counters = attn2.allocate_scratch(
        engine_loop.MAX_REQUESTS, kv_heads=engine_loop.KV_HEADS, device="cpu", **deployment
    )
    arguments = {
        **{"q": engine.q, "gate": engine.gate, "kv_cache": engine.cache, "block_table": engine.table},
        **{"seq_lens": engine.lengths, "scale": engine_loop.SCALE, "eps": engine_loop.EPS},
        **{"workspace": workspace, "counters": counters, **deployment},
    }
    variant = attn2.deploy(**deployment).variant.name
    return lambda: run_emulated(attn2, variant, arguments, out=engine.out)


def test_every_step_is_right_on_the_emulator():
    """Requests join, grow, end and leave their pages to others; the batch has padded places at the end."""
    engine = engine_loop.Engine(pages=256, device=torch.device("cpu"))
    assert engine_loop.serve(engine, emulated(engine), steps=8) < LIMIT
    assert engine.ended >= 3 and None in engine.places


def test_a_wrong_length_would_show():
    """The comparison notices a key that is missing, and one that is too many."""
    engine = engine_loop.Engine(pages=256, device=torch.device("cpu"))
    launch = emulated(engine)

    def short() -> None:
        engine.lengths[0] -= 1
        launch()

    assert engine_loop.serve(engine, short, steps=1) > LIMIT


@pytest.mark.cuda("captures a graph")
def test_one_graph_serves_all_steps():
    """The example as it is run."""
    assert engine_loop.main(steps=40) < LIMIT
