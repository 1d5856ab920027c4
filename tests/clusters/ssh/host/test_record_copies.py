"""What a leader tells every host to keep: afterwards a host has the leader's history, not a mixture of two."""

import msgspec
import pytest

from launcher.clusters.ssh.host.keeper_messages import Replica
from launcher.clusters.ssh.host.record_copies import EVENTS, put
from launcher.errors import LaunchError
from launcher.rundir.durable import read_lines
from launcher.rundir.records import Event
from tests.run_folder import RunFolder


def lines(*texts):
    return [msgspec.json.encode(Event(1.0, 1, "failure", text)).decode() + "\n" for text in texts]


def texts(run):
    return [event.text for event in read_lines(run.events, Event)]


def tell(run, at, *told):
    put(run, Replica(0, 1, EVENTS, at, "".join(told)))


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "run").run
    run.events.unlink(missing_ok=True)
    return run


def test_the_longer_history_of_a_leader_that_lost_its_place_is_forgotten(run):
    """It noted failures that nobody else has heard of; the one that took over tells another history, and a shorter."""
    shared, ghosts, after = lines("shared"), lines("host 1 is lost", "host 2 is lost"), lines("the leader is lost")
    run.events.write_text("".join(shared + ghosts))
    tell(run, 0, *shared, *after)
    assert run.events.read_text() == "".join(shared + after), "no line is damaged"
    assert texts(run) == ["shared", "the leader is lost"]


def test_it_is_forgotten_too_where_the_histories_part_between_two_pieces(run):
    shared, ghosts, after = lines("shared"), lines("host 1 is lost", "host 2 is lost"), lines("x")
    run.events.write_text("".join(shared + ghosts))
    tell(run, 0, *shared)
    tell(run, len(shared[0]), *after)
    assert texts(run) == ["shared", "x"]


def test_what_is_known_already_is_not_given_up_while_it_is_told_again(run):
    """A new leader begins at the first byte: were it lost then, the rest would be gone here as well."""
    history = lines("a", "b", "c")
    run.events.write_text("".join(history))
    tell(run, 0, *history[:2])
    assert texts(run) == ["a", "b", "c"]


def test_a_history_grows_and_a_torn_end_is_mended(run):
    history = lines("a", "b", "c")
    tell(run, 0, history[0])
    run.events.write_text(history[0] + history[1][:-5])
    tell(run, len(history[0]), *history[1:])
    assert texts(run) == ["a", "b", "c"]
    with pytest.raises(LaunchError, match="is not here"):
        tell(run, 10_000, "x\n")
