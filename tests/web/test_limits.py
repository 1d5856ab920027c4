"""Which connection is dropped for a new one."""

import pytest

from launcher.web.limits import UnprovedConnections


def test_the_oldest_of_an_address_that_has_too_many_is_dropped():
    table = UnprovedConnections(most=10, per_address=2)
    assert [table.add(name, "here") for name in "ab"] == [None, None]
    assert table.add("x", "there") is None
    assert table.add("c", "here") == "a"


def test_where_all_are_too_many_the_address_with_the_most_pays():
    """Whoever comes from an address of their own keeps their place."""
    table = UnprovedConnections(most=3, per_address=3)
    for name, address in [("mine", "home"), ("a", "there"), ("b", "there")]:
        assert table.add(name, address) is None
    assert table.add("c", "other") == "a"


@pytest.mark.parametrize("taken", ["a", "never there"])
def test_what_has_proved_itself_does_not_count(taken):
    table = UnprovedConnections(most=2, per_address=2)
    table.add("a", "here")
    table.discard(taken)
    assert len(table) == (0 if taken == "a" else 1)
    assert table.add("b", "here") is None
    assert table.add("c", "here") == (None if taken == "a" else "a")


def test_one_that_is_added_again_is_the_newest():
    table = UnprovedConnections(most=2, per_address=2)
    assert [table.add(name, "here") for name in "aba"] == [None, None, None]
    assert table.add("c", "here") == "b"
    table.discard("c")
    assert UnprovedConnections(1, 1).oldest() is None
