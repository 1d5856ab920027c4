"""Which connection is dropped for a new one."""

import pytest

from launcher.apps.web.limits import UnprovedConnections


def added(table, name, address, may_go=lambda _: True):
    """Add it, and return the one that is dropped for it, if any."""
    table.add(name, address)
    return table.oldest(address, may_go) if table.are_too_many(address) else None


def test_the_oldest_of_an_address_that_has_too_many_is_dropped():
    table = UnprovedConnections(most=10, per_address=2)
    assert [added(table, name, "here") for name in "ab"] == [None, None]
    assert added(table, "x", "there") is None
    assert added(table, "c", "here") == "a"


def test_where_all_are_too_many_the_address_with_the_most_pays():
    """Whoever comes from an address of their own keeps their place."""
    table = UnprovedConnections(most=3, per_address=3)
    for name, address in [("mine", "home"), ("a", "there"), ("b", "there")]:
        assert added(table, name, address) is None
    assert added(table, "c", "other") == "a"


def test_one_that_may_not_go_yet_is_passed_over():
    table = UnprovedConnections(most=2, per_address=2)
    assert [added(table, name, "here") for name in "ab"] == [None, None]
    assert added(table, "c", "here", lambda one: one != "a") == "b"
    assert table.oldest("here", lambda _: False) is None


@pytest.mark.parametrize("taken", ["a", "never there"])
def test_what_has_proved_itself_does_not_count(taken):
    table = UnprovedConnections(most=2, per_address=2)
    table.add("a", "here")
    table.discard(taken)
    assert len(table) == (0 if taken == "a" else 1)
    assert added(table, "b", "here") is None
    assert added(table, "c", "here") == (None if taken == "a" else "a")


def test_one_that_is_added_again_is_the_newest():
    table = UnprovedConnections(most=2, per_address=2)
    assert [added(table, name, "here") for name in "aba"] == [None, None, None]
    assert added(table, "c", "here") == "b"
    assert UnprovedConnections(1, 1).oldest("here") is None
