"""Test the bytes that a strategy moves in a step by its formula."""

import pytest

from launcher.apps.scaling.configurations import Configuration
from launcher.apps.scaling.findings import STRONG
from launcher.apps.scaling.model import volume_of

MB = 1e6


@pytest.mark.parametrize(
    ("strategy", "nodes", "per_node", "who", "moved"),
    [
        ("dp", 1, 2, "the first GPU", 12.0), ("dp", 1, 4, "the first GPU", 36.0),
        ("master", 1, 2, "the first rank", 12.0), ("master", 2, 4, "the first rank", 84.0),
        ("ddp", 1, 2, "each rank", 12.0), ("ddp", 1, 4, "each rank", 18.0), ("ddp", 2, 4, "each rank", 21.0),
        ("zero1", 1, 4, "each rank", 27.0), ("zero2", 1, 4, "each rank", 18.0), ("fsdp", 1, 4, "each rank", 27.0),
        ("hsdp", 1, 4, "each rank", 27.0), ("hsdp", 2, 4, "each rank", 30.0),
    ],
)  # fmt: skip
def test_bytes_that_the_busiest_rank_sends(strategy, nodes, per_node, who, moved):
    found = volume_of(strategy, Configuration(strategy, STRONG, nodes, per_node), 12 * MB)
    assert (found.who, found.bytes) == (who, pytest.approx(moved * MB))


def test_where_nothing_moves_or_nobody_knows():
    assert volume_of("ddp", Configuration("ddp", STRONG, 1, 1), 12 * MB) is None
    assert volume_of("ddp", Configuration("ddp", STRONG, 1, 2), 0.0) is None
    assert volume_of("as it is", Configuration("", STRONG, 1, 2), 12 * MB) is None
