"""Loads: what they are named, that seeds fix their lengths, and what of their pages is live."""

import pytest

from benchmarks.loads import (
    POINTS,
    UNEVEN,
    Exponential,
    Load,
    OneLong,
    Uniform,
    choose,
    deployments,
    first_key,
    live_pages,
)


def seen_by_some_row(length: int, window: int | None) -> set[int]:
    """Keys, by the definition: token t of the last 8 sees its own key and those before, W of them."""
    keys = set()
    for token in range(8):
        own = length - 8 + token
        keys |= {key for key in range(own + 1) if window is None or key > own - window}
    return keys


@pytest.mark.parametrize("text", ["1 2 2048", "1,2,2048", " 1  2 2048 "])
def test_shape_is_read(text):
    load = Load.parse(text)
    assert (load.name, load.requests, load.kv_heads, load.lengths) == ("1 2 2048", 1, 2, (2048,))
    assert load.read_bytes == load.cache_bytes == load.live_page_bytes == 2 * 2048 * 256


@pytest.mark.parametrize(
    "text", ["", "1 2", "1 2 3 4", "1 x 512", "0 1 512", "1 0 512", "1 1 7", "-1 1 512", "1 1 512 0"]
)
def test_wrong_shape_is_refused(text):
    with pytest.raises(ValueError, match="shape"):
        Load.parse(text)


@pytest.mark.parametrize("window", [None, 1, 8, 9, 16, 17, 40, 1000])
@pytest.mark.parametrize("length", [8, 15, 16, 17, 40, 63, 64, 65])
def test_live_pages_are_those_that_some_row_sees(length, window):
    keys = seen_by_some_row(length, window)
    assert first_key(length, window) == min(keys)
    assert list(live_pages(length, window)) == sorted({key // 16 for key in keys})
    load = Load.even(3, 2, length, window)
    assert load.live_pages == 3 * len({key // 16 for key in keys})
    assert load.read_bytes == 3 * 2 * len(keys) * 256


def test_live_pages_of_a_batch_are_the_sum():
    load = Load("three", 3, 2, OneLong(100, 20), window=16)
    # 77..99 lies on pages 4 to 6, 0..19 on two.
    assert (load.lengths, load.live_pages, load.pages) == ((100, 20, 20), 3 + 2 + 2, 7 + 2 + 2)
    assert load.live_page_bytes == 7 * 2 * 4096
    assert load.cache_bytes == 11 * 2 * 4096


def test_seeds_give_the_same_lengths_everywhere():
    """A recorded draw: lengths must not change between machines and versions of Python."""
    by_name = {load.name: load for load in UNEVEN}
    assert by_name["uniform-32k"].lengths[:4] == (27672, 24839, 13786, 8490)
    assert by_name["uniform-8k"].lengths[:4] == (6919, 6211, 3450, 2127)
    assert by_name["exponential-2k"].lengths[:4] == (3721, 2837, 1091, 599)
    assert by_name["exponential-2k"].seeded(1).lengths[:4] == (289, 3760, 2886, 589)
    assert by_name["uniform-32k-w2048"].lengths == by_name["uniform-32k"].lengths


def test_draws_keep_to_their_distribution():
    uniform = Uniform(8, 15).draw(4000, 1)
    assert set(uniform) == set(range(8, 16))
    exponential = Exponential(2000, 8).draw(4000, 1)
    assert min(exponential) == 8
    assert sum(exponential) / 4000 == pytest.approx(2000, rel=0.05)
    for load in UNEVEN:
        assert len(load.lengths) == load.requests
        assert min(load.lengths) >= 8
        assert load.longest <= 131072


def test_there_are_eighteen_points_and_six_uneven_batches():
    assert (len(POINTS), len(UNEVEN)) == (18, 6)
    names = [load.name for load in (*POINTS, *UNEVEN)]
    assert len(set(names)) == 24
    assert {"1 1 512", "64 4 32768 2048", "8 4 131072"} <= set(names)


def test_loads_are_chosen_by_name_and_group():
    assert choose(["points"]) == list(POINTS)
    assert [load.name for load in choose(["one-131k", "8 2 2048", "one-131k"])] == ["one-131k", "8 2 2048"]
    with pytest.raises(ValueError, match=r"no load 'nothing'.*uneven.*'one-131k'"):
        choose(["nothing"])


def test_further_seeds_are_of_random_loads_only():
    names = [load.name for load in choose(["uneven"], seeds=3)]
    assert len(names) == 6 + 4 * 3
    assert names[:5] == ["uniform-32k", "uniform-32k/1", "uniform-32k/2", "uniform-32k/3", "uniform-8k"]
    drawn = choose(["uniform-8k"], seeds=3)
    assert len({load.lengths for load in drawn}) == 4


def test_a_load_is_run_once_in_each_deployment_that_holds_it():
    short, long = Load.even(1, 1, 512), Load.even(1, 1, 131072)
    assert deployments(short, [None, 131072]) == [512, 131072]
    assert deployments(long, [None, 131072]) == [131072]
    assert deployments(long, [None, 4096]) == [131072]
    assert deployments(long, [4096]) == []
