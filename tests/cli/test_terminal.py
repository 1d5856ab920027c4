"""Tables on terminals of any width."""

import pytest

from launcher.cli.terminal import columns, fitting

TABLE = [("HOST", "STATE", "CPUS", "CLOCK"), ("gpu01", "ok", "4 of 8", "ok"), ("gpu02", "unreachable", "-", "-")]
WHOLE = columns(TABLE, "  ")


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (None, ["HOST", "STATE", "CPUS", "CLOCK"]),
        (80, ["HOST", "STATE", "CPUS", "CLOCK"]),
        (35, ["HOST", "STATE", "CPUS", "CLOCK"]),
        (34, ["HOST", "STATE", "CPUS"]),
        (26, ["HOST", "STATE"]),
    ],
)
def test_columns_go_in_their_order_until_the_rest_fits(width, head):
    lines = fitting(TABLE, ("CLOCK", "CPUS"), width, "  ")
    assert lines[0].split() == head
    assert width is None or max(map(len, lines)) <= width


def test_what_is_too_wide_even_so_is_cut():
    assert fitting(TABLE, ("CLOCK", "CPUS"), 12, "  ") == ["  HOST   ST…", "  gpu01  ok", "  gpu02  un…"]


def test_nothing_goes_where_all_fits():
    assert fitting(TABLE, ("CLOCK",), max(map(len, WHOLE)), "  ") == WHOLE
