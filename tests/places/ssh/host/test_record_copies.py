"""Test the records that a leader copies to every host, which then has the leader's history and no mixture."""

import errno
import os
from math import inf
from pathlib import Path

import msgspec
import pytest
from run_folder import state_of

from launcher.coordinator.effects import Finish, Record, Send
from launcher.coordinator.history_copies import HistoryCopies
from launcher.coordinator.server import CopyHold
from launcher.errors import LaunchError
from launcher.ids import new_token, role_secret
from launcher.places.ssh.host.follower import TakeOver
from launcher.places.ssh.host.record_copies import (
    EVENTS,
    RecordReplicator,
    held_by_half,
    history_of,
    opens,
    put,
    replicated,
)
from launcher.places.ssh.host.supervisor_messages import Replica
from launcher.run.attempts import new_attempt
from launcher.run.durable import append_line, make_dir, read_lines, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd, Endpoint, Event, RunState
from launcher.states import Cause, State
from launcher.supervisor.attempt_end import cancelled
from launcher.wire.messages import Start
from tests.places.ssh.host.test_supervisors import Table
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


# -- records that are damaged on one of the disks


@pytest.fixture
def replicas(tmp_path):
    return make_replicas(tmp_path)


def make_replicas(tmp_path, **how):
    """The runs of a leader and of a host that has all its records, and how the leader tells it what is new."""
    table = Table(tmp_path, size=2, nodes_min=1)
    leader, other = table.supervisors
    replicator = RecordReplicator(leader.run, leader.attempt, leader.rpc, **how)
    replicator.close()
    for text in "ab":
        append_line(leader.run.events, Event(1.0, 1, "failure", text))
    write_record(leader.run.state, state_of(leader.run.id, message="well"))
    replicator.send()
    assert texts(other.run) == ["a", "b"]

    def tell():
        replicator._quiet_until.clear()
        replicator.send()

    return leader.run, other.run, tell


DAMAGES = {"no text": b"\xff\xfe{}", "zeros": b"\0" * 100, "cut": b'{"run": ', "another type": b'[{"run": 7}, null]'}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_record_that_is_damaged_on_the_leaders_disk_is_not_sent_and_holds_up_no_other(replicas, damage):
    """What is no text ended the thread that sends, and then the supervisor."""
    ours, theirs, tell = replicas
    ours.state.write_bytes(damage)
    append_line(ours.events, Event(1.0, 1, "failure", "c"))
    tell()
    assert read_record(theirs.state, RunState).message == "well"
    assert texts(theirs) == ["a", "b", "c"]
    write_record(ours.state, state_of(ours.id, message="again"))
    tell()
    assert read_record(theirs.state, RunState).message == "again"


@pytest.mark.parametrize("when", ["the state is lost", "both are written while the state is sent"])
def test_a_host_with_an_event_has_the_state_that_was_written_before_it(tmp_path, when):
    """A host that took over wrote the announced end, and showed it with the state before the last steps."""
    table = Table(tmp_path, size=2, nodes_min=1)
    leader, other = table.supervisors
    replicator = RecordReplicator(leader.run, leader.attempt, leader.rpc)
    replicator.close()

    def write(text):
        write_record(leader.run.state, state_of(leader.run.id, message=text))
        append_line(leader.run.events, Event(1.0, 1, "ending", text))

    def lose_or_write(question):
        if question.name == "state":
            table.listen = lambda _: None
            if when == "the state is lost":
                table.deafen(1, Replica)
            else:
                write("newer")

    def shown():
        return read_record(other.run.state, RunState).message, texts(other.run)[-1]

    write("old")
    replicator.send()
    assert shown() == ("old", "old")
    write("new")
    table.listen = lose_or_write
    replicator.send()
    lost = when == "the state is lost"
    assert shown() == (("old", "old") if lost else ("new", "new"))
    table.deaf_to = {}
    replicator._quiet_until.clear()
    replicator.send()
    assert shown() == (("new", "new") if lost else ("newer", "newer"))


def test_no_host_is_left_alone_for_a_record_that_is_damaged_on_the_leader_s_disk(tmp_path):
    """It would be refused, and a host that refuses hears nothing for a while."""
    table = Table(tmp_path, size=2, nodes_min=1)
    leader, other = table.supervisors
    replicator = RecordReplicator(leader.run, leader.attempt, leader.rpc, quiet_s=1000.0)
    replicator.close()
    leader.run.state.write_text("{")
    replicator.send()
    append_line(leader.run.events, Event(1.0, 1, "failure", "a"))
    replicator.send()
    assert texts(other.run) == ["a"]


def test_lines_of_a_history_that_are_damaged_before_they_are_sent_do_not_hold_up_the_next(replicas):
    ours, theirs, tell = replicas
    with ours.events.open("ab") as file:
        file.write(b'{"at": \xff\x80\n')
    append_line(ours.events, Event(1.0, 1, "failure", "c"))
    tell()
    assert texts(theirs) == ["a", "b", "c"]
    assert theirs.events.stat().st_size == ours.events.stat().st_size


@pytest.mark.parametrize("on", ["the leader's disk", "another disk"])
def test_a_history_that_was_cut_short_is_told_again(replicas, on):
    """A host of which the end was missing refused all that came after it, and did not hear of the state any more."""
    ours, theirs, tell = replicas
    cut = (ours if on == "the leader's disk" else theirs).events
    cut.write_bytes(cut.read_bytes()[:-20])
    append_line(ours.events, Event(1.0, 1, "failure", "c"))
    write_record(ours.state, state_of(ours.id, message="news"))
    tell()
    tell()
    assert texts(theirs) == texts(ours)
    assert texts(theirs)[-1] == "c"
    assert read_record(theirs.state, RunState).message == "news"


def test_an_end_that_is_damaged_on_the_leader_s_disk_counts_as_untold(tmp_path):
    """Else whoever got it would not have heard how the run ended, and nobody would tell it again."""
    table = Table(tmp_path, size=2, nodes_min=1)
    leader, other = table.supervisors
    leader.attempt.end.write_text("[]")
    assert RecordReplicator(leader.run, leader.attempt, leader.rpc).close() == [1]
    assert not other.attempt.end.exists()
    write_record(leader.attempt.end, cancelled())
    assert RecordReplicator(leader.run, leader.attempt, leader.rpc).close() == []
    assert read_record(other.attempt.end, AttemptEnd) == read_record(leader.attempt.end, AttemptEnd)


def test_where_the_coordinator_is_they_are_told_again_though_nothing_has_changed(tmp_path):
    """A host whose copy was damaged has an agent that may need it later."""
    ours, theirs, tell = make_replicas(tmp_path, renew_s=1e-9)
    here = Endpoint("127.0.0.1", 1, this_process())
    write_record(ours.attempt(1).endpoint, here)
    tell()
    theirs.attempt(1).endpoint.write_bytes(b"\0" * 40)
    tell()
    assert read_record(theirs.attempt(1).endpoint, Endpoint) == here


@pytest.mark.parametrize("name", ["state", "end", "avoided", "stop", "endpoint"])
@pytest.mark.parametrize("data", ["[7]", "{}", "", "\0\0", '{"state": "running"}'])
def test_what_is_not_such_a_record_takes_the_place_of_none(run, name, data):
    copied = replicated(run, run.attempt(1))[name]
    make_dir(copied.path.parent)
    copied.path.write_text("as it was")
    with pytest.raises(LaunchError, match=f"{name}: what the leader sent is not such a record"):
        put(run, Replica(0, 1, name, -1, data))
    assert copied.path.read_text() == "as it was"


@pytest.mark.parametrize(("name", "at"), [("state", 0), ("end", 5), (EVENTS, -1)])
def test_a_record_comes_whole_and_a_history_in_pieces(run, name, at):
    with pytest.raises(LaunchError, match=f"{name}: expected"):
        put(run, Replica(0, 1, name, at, "{}"))


def test_a_piece_whose_fsync_has_failed_is_written_again(run, monkeypatch):
    """It was in memory, and the next try found it there: the leader took it for safe."""
    fsync, written, line = os.fsync, [], msgspec.json.encode(Event(1.0, 1, "failure", "a")).decode() + "\n"

    def fails(_):
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(os, "fsync", fails)
    piece = Replica(0, 1, EVENTS, 0, line)
    with pytest.raises(OSError, match="gone"):
        put(run, piece)
    monkeypatch.setattr(os, "fsync", lambda fd: (written.append(Path(os.readlink(f"/proc/self/fd/{fd}"))), fsync(fd)))
    monkeypatch.setattr(os, "pwrite", lambda *words, write=os.pwrite: (written.append(words[1]), write(*words))[1])
    put(run, piece)
    assert written[:2] == [line.encode(), run.events]


# -- what half of the voters have


def test_what_half_of_the_voters_have_is_told_as_they_confirm_it(tmp_path):
    table, copies, accepted = Table(tmp_path, size=5, nodes_min=1), HistoryCopies(), {1, 2, 3}
    leader = table.supervisors[0]
    replicator = RecordReplicator(
        leader.run, leader.attempt, leader.rpc,
        voters=range(1, 5), accepted=lambda: accepted, copies=lambda: {EVENTS: copies},
    )  # fmt: skip
    replicator.close()
    assert copies.copied == 0.0
    append_line(leader.run.events, Event(1.0, 1, "failure", "a"))
    table.silent = {2, 3, 4}
    replicator.send()
    assert copies.copied == 0.0, "two of five have it"
    table.silent = {2, 3}
    replicator._quiet_until.clear()
    replicator.send()
    assert copies.copied == 0.0, (
        "host 4 may vote for a host of this attempt that lacks it, as long as it has not accepted"
    )
    accepted.add(4)
    replicator.send()
    assert copies.copied == leader.run.events.stat().st_size


@pytest.mark.parametrize(("others", "size"), [((), inf), ((0,), inf), ((5, 3), 5), ((5, 4, 3), 5), ((5, 4, 3, 2), 4)])
def test_half_of_the_voters_have_so_much(others, size):
    assert held_by_half(others) == size


@pytest.mark.parametrize("copied", [True, False])
def test_a_leader_that_is_lost_between_a_failure_and_its_copy_has_begun_no_restart(tmp_path, copied):
    """Whoever takes over counts each restart that was begun; nobody knew of one that was begun before its copy."""
    table, copies = Table(tmp_path, size=3, nodes_min=1), HistoryCopies()
    leader, taking_over = table.supervisors[0], table.supervisors[1]
    replicator = RecordReplicator(
        leader.run, leader.attempt, leader.rpc, voters=[1, 2], accepted=lambda: (1, 2), copies=lambda: {EVENTS: copies}
    )
    replicator.close()
    hold, failure = CopyHold(copies), Event(1.0, 1, "failure", "a rank was killed", cause=Cause.KILLED)
    start = Send(1, Start(2, 0, 1, 3, 0, 3, "127.0.0.1", 20_000, 1))
    assert hold.pass_on([Record(failure), start]) == [Record(failure)]
    append_line(leader.run.events, failure)
    table.silent = {2}
    if copied:
        replicator.send()
    begun = hold.is_copied(1, leader.run.events.stat().st_size)
    assert begun == copied
    table.lose(0)
    took = [number for number in (2, 1) if TakeOver(table.supervisors[number]).look() == 2]
    assert took == [1]
    assert (failure in read_lines(taking_over.run.events, Event)) == begun


@pytest.mark.parametrize("copied", [True, False])
def test_a_leader_that_is_lost_as_the_run_ends_has_shown_no_end_that_the_others_lack(tmp_path, copied):
    """The others went on with a run that had been shown as succeeded."""
    table, copies = Table(tmp_path, size=3, nodes_min=1), HistoryCopies()
    leader = table.supervisors[0]
    replicator = RecordReplicator(
        leader.run, leader.attempt, leader.rpc, voters=[1, 2], accepted=lambda: (1, 2), copies=lambda: {EVENTS: copies}
    )
    replicator.close()
    succeeded = AttemptEnd(State.SUCCEEDED, None, 0, 1.0, "all ranks have finished")
    hold, finish = CopyHold(copies), Finish(succeeded, Event(1.0, 1, "ended", "all ranks have finished"))
    [announced] = hold.pass_on([finish])
    append_line(leader.run.events, announced.event)
    table.silent = {2}
    if copied:
        replicator.send()
    assert hold.is_copied(1, leader.run.events.stat().st_size) == copied
    table.lose(0)
    assert TakeOver(table.supervisors[2]).look() is None
    assert (table.end_by(1) if copied else TakeOver(table.supervisors[1]).look()) == 2
    assert [table.end(number) == succeeded for number in (1, 2)] == [copied] * 2


def role_of(run, name="actors"):
    role = RunDir(run.roles / name)
    make_dir(role.path)
    return role


def test_a_failure_of_a_role_is_with_half_of_the_voters_before_its_restart_begins(tmp_path):
    """Those of a lost leader's last half second were forgotten, and its role had so many restarts more."""
    table, copies = Table(tmp_path, size=3, nodes_min=1), HistoryCopies()
    leader, taking_over = table.supervisors[0], table.supervisors[1]
    history, role = history_of("actors", 1), role_of(leader.run)
    for one in table.supervisors:
        of_role = msgspec.structs.replace(one.plan, run_dir=str(role.path))
        one.here.plan = msgspec.structs.replace(one.plan, roles=(of_role,))
    make_dir(role.attempt(1).path)
    where = leader.run, leader.attempt, leader.rpc, ["actors"]
    replicator = RecordReplicator(*where, voters=[1, 2], accepted=lambda: (1, 2), copies=lambda: {history: copies})
    replicator.close()
    hold, failure = CopyHold(copies), Event(1.0, 1, "failure", "an actor was killed", cause=Cause.KILLED)
    start = Send(1, Start(2, 0, 1, 3, 0, 3, "127.0.0.1", 20_000, 1))
    assert hold.pass_on([Record(failure), start]) == [Record(failure)]
    append_line(role.events, failure)
    size = role.events.stat().st_size
    table.silent = {1, 2}
    replicator.send()
    assert not hold.is_copied(1, size)
    table.silent = {2}
    replicator._quiet_until.clear()
    replicator.send()
    assert hold.is_copied(1, size)
    assert failure in read_lines(RunDir(taking_over.run.roles / "actors").events, Event)
    assert copies.await_half(size, 30.0) and not copies.await_half(size + 1, 0.0)


def test_records_of_a_role_are_kept_in_its_own_folder_and_those_of_no_role_nowhere(run):
    role = role_of(run)
    put(run, Replica(0, 1, "actors 3 events", 0, "".join(lines("a rank was killed"))), ["actors"])
    assert texts(role) == ["a rank was killed"]
    where = msgspec.json.encode(Endpoint("10.0.0.1", 7, this_process())).decode()
    put(run, Replica(0, 1, "actors 3 endpoint", -1, where), ["actors"])
    assert read_record(role.attempt(3).endpoint, Endpoint) is not None
    for name in ("learner 3 endpoint", "../x 3 endpoint", "actors 3 voter", "actors 3 stop", "actors ../1 endpoint"):
        with pytest.raises(LaunchError, match="no record is called"):
            put(run, Replica(0, 1, name, -1, where), ["actors"])
    assert opens("actors 3 endpoint") == ("actors", 3)
    assert opens("actors 3 events") is opens("endpoint") is None


def test_where_a_roles_coordinator_was_in_an_earlier_attempt_of_the_run_is_not_told(run):
    """Another host would take it for an attempt that goes on, and start agents of it."""
    role = role_of(run)
    whole, intent = new_attempt(run, "pool", "submit", None, secret=new_token())
    new_attempt(role, "pool", "submit", None, secret=role_secret(intent.token, "actors"))
    assert "actors 1 endpoint" in replicated(run, whole, ["actors"])
    following, _ = new_attempt(run, "pool", "requeue", None, secret=new_token())
    left = replicated(run, following, ["actors"])
    assert "actors 1 endpoint" not in left and "actors 1 events" in left
