"""Names that were meant: the nearest of several, the first of equals, none of those that are far off."""

import pytest

from generator.errors import nearest_name


@pytest.mark.parametrize(
    ("name", "names", "nearest"),
    [
        # Several are near: the nearest, wherever it stands.
        ("clustr", ("cluster", "clusters", "cluster_8"), "cluster"),
        ("clustr", ("cluster_8", "clusters", "cluster"), "cluster"),
        ("page_per_step", ("ring_pages_per_step", "pages_per_step", "page_size"), "pages_per_step"),
        ("warp_mrege", ("cluster_merge", "grid_merge", "warp_merge"), "warp_merge"),
        ("ab", ("abcd", "abc", "ab"), "ab"),
        # Equally near: the first.
        ("ring_", ("ringa", "ringb"), "ringa"),
        ("ring_", ("ringb", "ringa"), "ringb"),
        ("ring_", ("rings_", "ringb", "ringa"), "rings_"),
        # Just near enough, and not.
        ("abcxy", ("abcde",), "abcde"),
        ("abxyz", ("abcde",), None),
        ("", ("abcde",), None),
        ("abcde", (), None),
        ("a" * 61, ("a" * 60,), None),
    ],
)
def test_the_nearest_name(name, names, nearest):
    """By difflib's ratio, which has to be 0.6 at least: five letters of which three stand in order."""
    assert nearest_name(name, names) == nearest
