"""Test the status of runs whose hosts report different things, and which records are copied."""

import json
import threading
from types import SimpleNamespace

import msgspec
import pytest

from launcher.api import Run
from launcher.clock import boottime
from launcher.errors import NotStarted, Refused, Unreachable
from launcher.places.ssh import run_hosts
from launcher.places.ssh.host import server
from launcher.places.ssh.messages import RunReport
from launcher.places.ssh.results import fetch
from launcher.places.ssh.submit import cancel, discovery, look, report
from launcher.places.ssh.submit.handover import PoolHandover, mend
from launcher.run.avoided import avoided
from launcher.run.durable import read_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import ClusterAnswer, Event, Exclusion, Handle
from launcher.spec.model import Ssh, SshHost
from launcher.states import Cause, State, exit_of
from launcher.status.derive import exit_code_of
from launcher.supervisor.handover import Handover
from tests.places.ssh.near_hosts import RUN, NearHosts, on_hosts
from tests.run_folder import dead_process, plan_of
from trainer.errors import CheckpointDamaged


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    return NearHosts(tmp_path, monkeypatch)


def needs(hosts, nodes):
    """A run that cannot go on with less, on hosts with a disk each."""
    plan = msgspec.structs.replace(plan_of(hosts.run.path, len(hosts.lines)), nodes_min=nodes, disks_apart=True)
    hosts.mirror.write(hosts.run.plan, plan)


def rebooted(folder, attempt=1):
    return folder.attempt(attempt, supervisor=dead_process()).state(State.RUNNING, attempt)


def cut_off(folder, attempt=1):
    folder.attempt(attempt, supervisor=dead_process()).end(State.FAILED, Cause.NODE_LOST, 15, attempt)
    return folder.state(State.FAILED, attempt, cause=Cause.NODE_LOST, exit_code=15)


def deposed(folder, attempt=1):
    """Return a host that waits for hosts that have continued without it."""
    folder.attempt(attempt).end(State.QUEUED, Cause.NODE_LOST, 15, attempt)
    return folder.state(State.QUEUED, attempt)


def status(hosts):
    return Run(RUN, hosts.run.path).status()


def test_a_host_that_runs_it_is_asked_alone(hosts):
    hosts.on("node0").attempt().state(State.RUNNING, step=7)
    hosts.on("node1").attempt().state(State.RUNNING, step=7)
    assert (status(hosts).state, status(hosts).step) == (State.RUNNING, 7)
    assert (hosts.dialled, hosts.asked()) == ({"node0"}, {"node0"})


def test_how_long_the_coordinator_has_been_silent_is_told(hosts):
    """By its own host, which reads that on its own clock; the others are asked whether they know better."""
    hosts.on("node0").attempt().state(State.RUNNING, step=7, monotonic_s=boottime() - 60)
    hosts.on("node1").attempt().state(State.RUNNING, step=7, boot_id="node0's")
    shown = status(hosts)
    assert (shown.state, shown.message) == (State.RUNNING, "the coordinator's last report is 60 s old")
    assert hosts.asked() == {"node0", "node1"}
    hosts.on("node1").attempt(2).state(State.RUNNING, 2, step=50)
    hosts.look()
    assert (status(hosts).attempt, status(hosts).message) == (2, "")


@pytest.mark.parametrize("first", [rebooted, cut_off, deposed])
def test_the_host_that_took_over_is_believed_and_not_the_one_that_led(hosts, first):
    first(hosts.on("node0"))
    hosts.on("node1").attempt(1, supervisor=dead_process()).attempt(2).state(State.RUNNING, 2, step=50)
    hosts.look()  # the first word of a new attempt
    assert (status(hosts).state, status(hosts).attempt) == (State.RUNNING, 2)
    assert not hosts.run.attempt(1).end.exists()


def failed(folder, attempt=1):
    """Whatever its ranks died of: that may have been the cut."""
    folder.attempt(attempt, supervisor=dead_process()).end(State.FAILED, Cause.USER_ERROR, 10, attempt)
    return folder.state(State.FAILED, attempt, cause=Cause.USER_ERROR, exit_code=10)


def was_cancelled(folder, attempt=1, **more):
    folder.attempt(attempt, supervisor=dead_process()).end(State.CANCELLED, Cause.CANCELLED, 20, attempt, **more)
    return folder.state(State.CANCELLED, attempt, cause=Cause.CANCELLED, exit_code=20)


def gave_up(folder, attempt=1):
    """Return a host that lost its leader and was too few to take over."""
    cut_off(folder, attempt).end(State.FAILED, Cause.NODE_LOST, 15, attempt, alone=True)
    return folder


@pytest.mark.parametrize("first", [rebooted, cut_off, failed, was_cancelled, deposed])
def test_where_the_hosts_that_may_have_taken_over_are_silent_nothing_is_known(tmp_path, monkeypatch, first):
    hosts = NearHosts(tmp_path, monkeypatch, ("node0", "node1", "node2"))
    needs(hosts, 1)
    first(hosts.on("node0"))
    hosts.cut |= {"node1", "node2"}
    shown = status(hosts)
    assert shown.state is State.UNKNOWN and "node1 does not answer; node2 does not answer" in shown.message
    assert not hosts.run.attempt(1).end.exists() and not hosts.run.state.exists()
    with pytest.raises(Refused):
        Run(RUN, hosts.run.path).resume()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("first", [cut_off, failed, deposed])
def test_of_two_hosts_the_one_that_led_is_believed(hosts, first, nodes):
    """The other one never goes on alone."""
    needs(hosts, nodes)
    first(hosts.on("node0"))
    hosts.cut.add("node1")
    assert status(hosts).state == json.loads(hosts.on("node0").run.state.read_text())["state"]


@pytest.mark.parametrize("last", [rebooted, gave_up, lambda folder: was_cancelled(folder, alone=True)])
def test_of_two_hosts_the_silent_one_that_led_is_somebody(hosts, last):
    """The run was lost, then running, then failed."""
    needs(hosts, 2)
    hosts.on("node0").attempt().state(State.RUNNING)
    last(hosts.on("node1"))
    assert status(hosts).state is State.RUNNING
    hosts.cut.add("node0")
    shown = status(hosts)
    assert shown.state is State.UNKNOWN and "node0 does not answer" in shown.message
    assert not hosts.run.attempt(1).end.exists()
    hosts.let_back()
    assert status(hosts).state is State.RUNNING


def test_a_host_that_lost_what_it_led_may_be_lost_to_us_alone(hosts):
    needs(hosts, 2)
    rebooted(hosts.on("node0"))
    hosts.cut.add("node1")
    shown = status(hosts)
    assert shown.state is State.UNKNOWN and "node1 does not answer" in shown.message


def test_half_of_the_hosts_with_the_leader_are_enough_to_believe(tmp_path, monkeypatch):
    hosts = NearHosts(tmp_path, monkeypatch, ("node0", "node1", "node2", "node3"))
    needs(hosts, 2)
    for name in ("node0", "node1"):
        failed(hosts.on(name))
    hosts.cut |= {"node2", "node3"}
    assert status(hosts).state is State.FAILED


def test_what_was_done_stays_done(tmp_path, monkeypatch):
    hosts = NearHosts(tmp_path, monkeypatch, ("node0", "node1", "node2"))
    needs(hosts, 1)
    hosts.on("node0").attempt(supervisor=dead_process()).end(State.SUCCEEDED)
    hosts.cut |= {"node1", "node2"}
    assert status(hosts).state is State.SUCCEEDED


def test_a_cancelled_run_names_the_host_that_has_not_confirmed_it(hosts):
    was_cancelled(hosts.on("node0"))
    there = hosts.on("node1").attempt().state(State.RUNNING)
    hosts.cut.add("node1")
    shown = status(hosts)
    assert shown.state is State.UNKNOWN
    assert "node1 does not answer; the others say CANCELLED, without a word of those" in shown.message
    hosts.let_back()
    was_cancelled(there)
    assert status(hosts).state is State.CANCELLED
    hosts.dialled.clear()
    assert (status(hosts).state, hosts.dialled) == (State.CANCELLED, set()), "nothing is asked any more"


@pytest.fixture
def found(tmp_path, monkeypatch):
    """A run of three hosts, as another machine of its user finds it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hosts = NearHosts(tmp_path, monkeypatch, ("node0", "node1", "node2"))
    ssh = Ssh(hosts=tuple(SshHost(name, workdir=str(tmp_path / name)) for name in hosts.lines))

    def find(*names):
        for name in names:
            hosts.on(name).run.spec.write_text("name: job\nrun: {script: train.py}\nresources: {nodes: 2}\n")
        places = {name: hosts.place(name) for name in names}
        return Run(RUN, discovery._mirrored(discovery.FoundRun(RUN, "pool", ssh, places)))

    return SimpleNamespace(hosts=hosts, find=find)


def test_another_machine_that_reaches_only_the_smaller_part_knows_nothing(found):
    """It said failed, and said so for ever after."""
    failed(found.hosts.on("node0"))
    found.hosts.cut |= {"node1", "node2"}
    run = found.find("node0")
    assert run.status().state is State.UNKNOWN
    for name in ("node1", "node2"):
        found.hosts.on(name).attempt(1, supervisor=dead_process()).attempt(2).state(State.RUNNING, 2, step=50)
    found.hosts.let_back()
    assert (run.status().state, run.status().attempt) == (State.RUNNING, 2)


def test_another_machine_sees_that_a_cancelled_run_was_resumed(found):
    for name in found.hosts.lines:
        was_cancelled(found.hosts.on(name))
    run = found.find(*found.hosts.lines)
    assert run.status().state is State.CANCELLED
    for name in found.hosts.lines:
        found.hosts.on(name).attempt(2).state(State.RUNNING, 2, step=50)
    assert (run.status().state, run.status().attempt) == (State.RUNNING, 2)
    found.hosts.cut |= {*found.hosts.lines}
    assert run.status().state is State.UNKNOWN


def test_another_machine_finds_what_was_resumed_on_other_hosts_of_the_pool(found, monkeypatch):
    """It went on saying cancelled: those that it asked knew nothing else."""
    for name in ("node0", "node1"):
        there = was_cancelled(found.hosts.on(name))
        there.write(there.run.plan, on_hosts(plan_of(there.run.path, 2), "node0", "node1"))
    run = found.find("node0", "node1")
    rest = {"node2": found.hosts.place("node2")}
    monkeypatch.setattr(discovery, "rest_of_pool", lambda *_: rest)
    assert run.status().state is State.CANCELLED, "node2 knows nothing of it"
    monkeypatch.setitem(rest, "node2", Unreachable("node2 does not answer"))
    silent = run.status()
    assert (silent.state, "node2 does not answer" in silent.message) == (State.UNKNOWN, True)
    monkeypatch.setitem(rest, "node2", found.hosts.place("node2"))
    there = found.hosts.on("node2")
    there.write(there.run.plan, on_hosts(plan_of(there.run.path), "node2"))
    there.attempt(2).state(State.RUNNING, 2, step=50)
    assert (run.status().state, run.status().attempt) == (State.RUNNING, 2)
    assert [one.host.name for one in run_hosts.places_of(RunDir(run.path))] == ["node2"]
    there.attempt(2, supervisor=dead_process()).end(State.SUCCEEDED, None, 0, 2).state(State.SUCCEEDED, 2, exit_code=0)
    monkeypatch.setitem(rest, "node2", Unreachable("node2 does not answer"))
    assert run.status().state is State.SUCCEEDED, "what was done stays done"


def test_an_end_that_was_believed_and_is_none_is_taken_back(found):
    hosts = found.hosts
    for name in hosts.lines:
        was_cancelled(hosts.on(name))
    run = found.find(*hosts.lines)
    assert run.status().state is State.CANCELLED
    for name in hosts.lines:
        hosts.on(name).attempt().state(State.RUNNING).run.attempt(1).end.unlink()
    assert run.status().state is State.RUNNING


def test_an_end_that_has_nothing_to_do_with_hosts_is_believed_at_once(hosts):
    hosts.on("node0").attempt(supervisor=dead_process()).end(State.FAILED, Cause.USER_ERROR, 10)
    hosts.cut.add("node1")
    assert status(hosts).state is State.FAILED


def test_on_a_common_disk_only_the_leader_s_host_knows_its_supervisor(hosts):
    """The second is asked as well, and cannot tell."""
    rebooted(hosts.on("node0"))
    hosts.on("node1").attempt().write(hosts.on("node1").run.attempt(1).handle, Handle("local"))
    for apart, phase in ((False, "ended"), (True, "unknown")):
        hosts.mirror.write(hosts.run.plan, msgspec.structs.replace(plan_of(hosts.run.path, 2), disks_apart=apart))
        assert hosts.look().phase == phase


def test_an_older_attempt_is_not_copied_over_a_newer_one(hosts):
    rebooted(hosts.on("node0")).write(hosts.on("node0").run.fence, 1)
    hosts.on("node1").attempt(2).state(State.RUNNING, 2).write(hosts.on("node1").run.fence, 2)
    assert status(hosts).attempt == 2
    needs(hosts, 2)
    hosts.cut.add("node1")
    assert status(hosts).state is State.UNKNOWN
    exclusion = Exclusion("node1", "lost", 1, 1.0, 1e12)
    report.keep(hosts.run, report.HostReport("node0", RunReport(State.LOST, attempt=1, avoided=(exclusion,)), []))
    assert (json.loads(hosts.run.state.read_text())["attempt"], avoided(hosts.run)) == (2, [])


def test_events_of_another_host_replace_those_that_they_do_not_continue(hosts):
    first, second = hosts.on("node0").attempt(), hosts.on("node1").attempt(2)
    for text in ("begun", "only the first has heard of this"):
        first.event(text)
    hosts.look()
    assert hosts.run.events.read_bytes() == first.run.events.read_bytes()
    first.event("more")
    hosts.look()
    assert hosts.run.events.read_bytes() == first.run.events.read_bytes()
    second.event("begun").event("taken over, and longer than all that the first has ever said of it " * 3)
    hosts.cut.add("node0")
    hosts.look()
    assert hosts.run.events.read_bytes() == second.run.events.read_bytes()
    assert [*msgspec.json.Decoder(Event).decode_lines(hosts.run.events.read_bytes())]


def test_long_events_are_asked_for_from_their_end(hosts):
    first = hosts.on("node0").attempt()
    for number in range(200):
        first.event(f"number {number}")
    hosts.look()
    first.event("one more")
    hosts.look()
    assert hosts.run.events.read_bytes() == first.run.events.read_bytes()
    assert hosts.lines["node0"].asked == 2


def test_a_host_that_hangs_is_not_asked_again_at_once(hosts):
    needs(hosts, 2)
    hosts.lines["node0"].hangs = True
    hosts.on("node1").attempt().state(State.RUNNING)
    for _ in range(3):
        assert status(hosts).state is State.RUNNING
    assert hosts.lines["node0"].asked == 1


def test_one_run_that_cannot_be_read_ends_no_other_s_look(hosts, tmp_path, monkeypatch):
    hosts.on("node0").attempt().state(State.RUNNING)
    other = NearHosts(tmp_path / "other", monkeypatch)
    (other.run.plan).write_text("{")
    monkeypatch.setattr("launcher.places.ssh.pool.lines_to", hosts._lines_to)
    pairs = [(one.run, one.run.attempt(1)) for one in (other, hosts)]
    damaged, fine = look.look(pairs)
    assert "not a record" in damaged.silent and fine.phase == "running"
    monkeypatch.setattr(look, "keep", full_disk)
    assert "No space left" in look.look(pairs)[1].silent
    monkeypatch.setattr(look, "keep", in_no_case_foreseen)
    assert "CheckpointDamaged: torn" in look.look(pairs)[1].silent


def in_no_case_foreseen(*_):
    raise CheckpointDamaged("torn")


def full_disk(*_):
    raise OSError(28, "No space left on device")


def test_whoever_looks_is_not_held_by_a_host_when_they_leave(hosts, monkeypatch):
    """Its threads end with the program."""
    daemons = []
    monkeypatch.setattr(look, "judge", lambda *_: daemons.append(threading.current_thread().daemon))
    hosts.look()
    assert daemons == [True]


def test_logs_and_a_cancel_reach_the_hosts_of_all_attempts(hosts):
    hosts.on("node0").attempt(supervisor=dead_process()).log(0, "before\n")
    hosts.on("node1").attempt(2, supervisor=dead_process()).log(0, "after\n", attempt=2).end(State.CANCELLED, attempt=2)
    hosts.hand_over(1, "node0")
    hosts.hand_over(2, "node1")
    hosts.cut.add("node0")
    with pytest.raises(Unreachable, match="could not ask node0"):
        cancel.cancel(hosts.run, hosts.run.attempt(2))
    fetch.bring_logs(hosts.run)
    hosts.cut.clear()
    cancel.cancel(hosts.run, hosts.run.attempt(2))
    fetch.bring_logs(hosts.run)
    assert hosts.run.rank_log(1, 1, 0).read_text() + hosts.run.rank_log(2, 1, 0).read_text() == "before\nafter\n"
    assert hosts.run.attempt(1).fetched.exists() and hosts.run.attempt(2).fetched.exists()


def test_a_pardon_is_not_kept_by_a_dead_host_whose_blame_is_over(hosts):
    hosts.on("node0").attempt()
    exclusions = [Exclusion("node1", "lost", 1, 1.0, 2.0), Exclusion("node2", "lost", 1, 1.0, 1e12)]
    for one in (hosts.mirror, hosts.on("node0")):
        one.write(one.run.avoided, exclusions)
    hosts.cut.add("node1")
    cancel.include_hosts(hosts.run, ())
    assert avoided(hosts.on("node0").run) == []
    hosts.mirror.write(hosts.run.avoided, exclusions[1:])
    with pytest.raises(Unreachable, match="could not tell node1"):
        cancel.include_hosts(hosts.run, ())
    assert avoided(hosts.run) == []


def test_nobody_waits_longer_for_logs_or_a_pardon_than_for_a_look(hosts):
    hosts.on("node0").attempt().state(State.RUNNING).log(0, "a line\n")
    hosts.look()
    (limit_s,) = hosts.lines["node0"].limits
    hosts.on("node1").attempt()
    fetch.bring_logs(hosts.run)
    cancel.include_hosts(hosts.run, ())
    assert hosts.lines["node0"].limits == {limit_s}


def unhanded(hosts, by):
    """An attempt whose submitter has not brought it to its hosts."""
    hosts.mirror.intent(1, by=by, kind="ssh")
    hosts.run.attempt(1).handle.unlink()
    return hosts.run.attempt(1)


def test_a_submitter_that_lives_and_has_given_up_is_not_waited_for(hosts):
    attempt = unhanded(hosts, this_process())
    assert hosts.look() is None
    with pytest.raises(Refused, match="is being handed"):
        cancel.cancel(hosts.run, attempt)
    with Handover.of(hosts.run, attempt).held():
        with pytest.raises(Refused, match="is being handed"):
            cancel.cancel(hosts.run, attempt)
        assert hosts.look() is None
    cancel.cancel(hosts.run, attempt)
    assert status(hosts).state is State.CANCELLED


def test_who_comes_late_hands_nothing_over_and_who_cannot_lets_go(hosts):
    """Somebody has withdrawn it meanwhile; or its submitter found no host, and lives."""
    late = PoolHandover(hosts.run.path, {}, agent=False)
    late.start(1)
    attempt = unhanded(hosts, this_process())
    with pytest.raises(NotStarted):
        late.start(1)
    assert not Handover.of(hosts.run, attempt).is_in_hand()


def test_who_looks_changes_nothing_and_who_mends_writes_what_has_begun(hosts):
    """Its submitter was killed after the word to go, and before it could write that down."""
    attempt = unhanded(hosts, dead_process())
    hosts.on("node0").attempt().state(State.RUNNING)
    assert hosts.look().phase == "running" and not attempt.handle.exists()
    assert mend([(hosts.run, attempt)]) == {}
    assert attempt.handle.exists()


def test_why_an_attempt_could_not_be_handed_over_is_said(hosts):
    attempt = unhanded(hosts, dead_process())
    assert "it was never handed over" in hosts.look().silent
    shown = status(hosts)
    assert shown.state is State.UNKNOWN and "it was never handed over: 0 of at least 1 hosts" in shown.message
    hosts.cut.add("node1")
    assert "node1 does not answer" in status(hosts).message
    assert not attempt.handle.exists()


@pytest.mark.parametrize("state", [State.RUNNING, State.SUCCEEDED])
def test_a_leader_without_supervisor_is_known_while_the_run_lives(hosts, state):
    """Of a run that was lost with its hosts, a supervisor that came back kept a user from resuming it."""
    there = hosts.on("node0").attempt()
    if state is State.SUCCEEDED:
        there.end(state)
    there.state(state)
    hosts.look()
    seen = read_record(hosts.run.attempt(1).seen, ClusterAnswer)
    assert seen.unsupervised == ("node0" if state is State.RUNNING else "")


def test_no_end_is_kept_before_all_events_are_here(hosts):
    """An ended run is not asked again: what did not fit into that answer never came."""
    there = hosts.on("node0").attempt(supervisor=dead_process()).state(State.SUCCEEDED).end(State.SUCCEEDED)
    events = (b'{"x": "%s"}\n' % (b"x" * (server.MOST_OF_EVENTS // 4))) * 5
    there.run.events.write_bytes(events)
    assert hosts.look().phase == "running"
    assert not hosts.run.attempt(1).end.exists()
    hosts.look()
    assert hosts.run.events.read_bytes() == events
    assert hosts.run.attempt(1).end.exists()


def test_logs_for_which_there_is_no_room_are_not_told_of(hosts):
    """They came as empty ones, in the place of what was here of them."""
    attempt = hosts.on("node0").attempt(supervisor=dead_process()).run.attempt(1)
    attempt.supervisor_log.write_text("kept\n")
    attempt.path.joinpath("node-00").mkdir(exist_ok=True)
    attempt.path.joinpath("node-00", "agent.log").write_text("begun\n")
    assert [one.content for one in server._logs(attempt, most_bytes=4)] == [b"kept"]


@pytest.mark.parametrize("code", [0, 3, 4242])
def test_a_failed_run_has_no_exit_code_of_anything_else(hosts, code):
    """`launch wait` would have ended as if the run had succeeded."""
    there = hosts.on("node0").attempt(supervisor=dead_process())
    there.end(State.FAILED, Cause.USER_ERROR, code).state(State.FAILED, cause=Cause.USER_ERROR, exit_code=code)
    hosts.look()
    assert exit_code_of(status(hosts)) == exit_of(Cause.USER_ERROR)
