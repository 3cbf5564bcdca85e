"""The model of a launch's time at any length: numbers worked out by hand, and what a deployment asks it.

At powers of two a share has whole pages, so what is rounded there, and how, shows at other lengths alone.
"""

import types

import pytest

from tests.modules import PINNED, module_of
from verification.attention import PAGE_SIZE, TOKENS, first_page

LARGE = types.SimpleNamespace(cluster=16, warps=4, rows=64, row_groups=4, resident_ctas=3, splits=True)
SMALL = types.SimpleNamespace(cluster=2, warps=4, rows=64, row_groups=4, resident_ctas=3, splits=True)
ALONE = types.SimpleNamespace(cluster=16, warps=4, rows=64, row_groups=4, splits=False)
"""A cluster kernel, which does not say how many CTAs a multiprocessor holds."""

LENGTHS = (2049, 2064, 2065, 4096, 4097, 5000, 8192, 8193, 12345, 65537, 100001, 1048561)
"""Powers of two, just above them, the last of a page, and others."""


@pytest.fixture
def pinned():
    """The module of a variant of each skeleton."""
    return module_of(PINNED, "attn2")


@pytest.mark.parametrize(
    ("kernel", "requests", "splits", "pages", "multiprocessors", "time"),
    [
        # 48 shares: 11 pages until each has 11, then 12. A share takes 27 + 2.7 + 0.3 splits besides.
        (LARGE, 1, 3, 512, 132, 11 + 30.6),
        (LARGE, 1, 3, 513, 132, 11 + 30.6),
        (LARGE, 1, 3, 528, 132, 11 + 30.6),
        (LARGE, 1, 3, 529, 132, 12 + 30.6),
        (LARGE, 1, 1, 64, 132, 4 + 30.0),
        (LARGE, 1, 1, 65, 132, 5 + 30.0),
        (LARGE, 1, 5, 1, 132, 1 + 31.2),
        # Clusters of 2 have 8 rows a warp. 66 clusters are a layer; a page takes 0.55 more, the rest 0.2.
        (SMALL, 66, 1, 100, 132, 50 + 51.0),
        (SMALL, 66, 1, 101, 132, 51 + 51.0),
        (SMALL, 67, 1, 101, 132, 51 * 1.55 + 51 * 1.2),
        (SMALL, 131, 1, 101, 132, 51 * 1.55 + 51 * 1.2),
        # A second layer that is full is as slow as a third; three are a wave.
        (SMALL, 132, 1, 101, 132, 51 * 2.1 + 51 * 1.4),
        (SMALL, 133, 1, 101, 132, 51 * 2.1 + 51 * 1.4),
        (SMALL, 198, 1, 101, 132, 51 * 2.1 + 51 * 1.4),
        (SMALL, 199, 1, 101, 132, 51 * 2.1 + 51 * 1.4 + 102),
        (SMALL, 264, 1, 101, 132, 51 * 2.1 + 51 * 1.4 + 102),
        (SMALL, 67, 3, 100, 132, 17 * 2.1 + 55.8 * 1.4 + 17 + 55.8),
        # 77 multiprocessors have 38 pairs, and 4 whole GPCs.
        (SMALL, 39, 1, 101, 77, 51 * (1 + 0.55 * 76 / 77) + 51 * 1.2),
        (LARGE, 5, 1, 65, 77, 5 * (1 + 0.55 * 64 / 77) + 30 * 1.2),
        (LARGE, 1, 1, 65, 7, 5 + 30.0),
    ],
)
def test_the_time_of_a_shared_launch(pinned, kernel, requests, splits, pages, multiprocessors, time):
    """The share with the most pages decides; one page more than fits costs every launch a page."""
    found = pinned.shared_time(kernel, requests, 1, splits, pages, multiprocessors)
    assert found == pytest.approx(time, rel=1e-12)
    if requests % 3 == 0:
        assert pinned.shared_time(kernel, requests // 3, 3, splits, pages, multiprocessors) == found


@pytest.mark.parametrize(
    ("kernel", "requests", "kv_heads", "pages", "multiprocessors", "time"),
    [
        # 4 row groups a request: 7 clusters of 16 a layer, 4 layers, or as many as fit on a multiprocessor.
        (ALONE, 1, 1, 128, 132, 20 + 4 / 28 * (17 + 4)),
        (ALONE, 1, 1, 129, 132, 20 + 4 / 28 * (17 + 2 * 129 / 64)),
        (ALONE, 5, 3, 37, 132, 20 + 60 / 28 * (17 + 2 * 37 / 64)),
        (LARGE, 1, 1, 129, 132, 20 + 4 / 21 * (17 + 2 * 129 / 64)),
        (ALONE, 1, 1, 129, 77, 20 + 4 / 16 * (17 + 2 * 129 / 64)),
    ],
)
def test_the_time_of_requests_alone(pinned, kernel, requests, kv_heads, pages, multiprocessors, time):
    """It grows with each page and each cluster: neither waves nor rounds are whole."""
    found = pinned.alone_time(kernel, requests, kv_heads, pages, multiprocessors)
    assert found == pytest.approx(time, rel=1e-12)


@pytest.mark.parametrize(
    ("cluster", "multiprocessors", "clusters"),
    [
        *((1, 7, 7), (2, 7, 3), (2, 1, 1), (4, 132, 28), (8, 132, 14), (16, 132, 7), (16, 144, 8)),
        *((16, 143, 7), (8, 35, 2), (8, 36, 4), (9, 36, 4), (10, 36, 2), (3, 36, 12), (16, 7, 1)),
    ],
)
def test_clusters_of_a_layer(pinned, cluster, multiprocessors, clusters):
    """Pairs fit everywhere, larger clusters into whole GPCs of 18 multiprocessors; there is always one."""
    assert pinned.layer_clusters(cluster, multiprocessors) == clusters


@pytest.mark.parametrize("pages", [65, 129, 513, 600, 1000, 4097, 65536])
@pytest.mark.parametrize(("kernel", "requests"), [(LARGE, 1), (LARGE, 3), (SMALL, 1), (SMALL, 9)])
def test_the_splits_that_take_least_time(pinned, kernel, requests, pages):
    """The fewest of those, of all that are allowed; only then do later bits cost no time."""
    times = [pinned.shared_time(kernel, requests, 2, splits, pages, 132) for splits in range(1, 129)]
    assert pinned.cheapest_splits(kernel, requests, 2, pages, 132) == 1 + times.index(min(times))


def test_the_most_splits_are_those_that_are_allowed(pinned):
    """Where more of them always pay, it is 128, which a call takes."""
    assert pinned.cheapest_splits(LARGE, 1, 1, 2**20, 100000) == 128
    assert pinned.deploy(1048576, num_splits=128).num_splits == 128


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["split", "batch"])
def test_a_deployment_asks_for_its_longest_request(pinned, name, length):
    """Its pages are counted up, and both the splits and the time are those of the load it is asked for."""
    kernel = next(v.kernel for v in pinned.VARIANTS if v.name == name)
    pages = (length + PAGE_SIZE - 1) // PAGE_SIZE
    for requests, kv_heads, multiprocessors in ((1, 2, 132), (8, 1, 132), (3, 4, 77)):
        load = {"multiprocessors": multiprocessors, "requests": requests}
        found = pinned.default_splits(kv_heads, length, variant=name, **load)
        time = pinned.deploy(length, variant=name).launch_time(requests, kv_heads, multiprocessors)
        if pages <= kernel.short_pages:
            assert found == 1
            assert time == pinned.alone_time(kernel, requests, kv_heads, pages, multiprocessors)
            continue
        assert found == pinned.cheapest_splits(kernel, requests, kv_heads, pages, multiprocessors)
        assert time == pinned.shared_time(kernel, requests, kv_heads, found, pages, multiprocessors)


@pytest.mark.parametrize("window", [1, 2, 8, 9, 10, 25, 100, 121, 127, 300, 2041, 2048])
def test_the_most_pages_of_a_window(pinned, window):
    """Of all lengths up to the longest, counted one by one; just above the window as well as far beyond."""
    for longest in (8, 9, 17, window + 7, window + 8, window + 24, window + 100):
        most = (
            max(-(-length // PAGE_SIZE) - first_page(length, window) for length in range(TOKENS, longest + 1))
            if longest >= TOKENS
            else 1
        )
        for variant in pinned.VARIANTS:
            pages = variant.most_pages(longest, window)
            assert most <= pages <= min(-(-longest // PAGE_SIZE), pinned.window_pages(window))
            if longest >= window + 24:
                assert pages == most
