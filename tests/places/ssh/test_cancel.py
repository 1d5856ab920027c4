"""Test cancelling and resuming runs of which some hosts are gone for good."""

import msgspec
import pytest
from msgspec.structs import replace

from launcher.api import Run
from launcher.copies import news
from launcher.copies.mirror.fetch import report_if_older
from launcher.errors import LaunchError, NotStarted, Refused, Unreachable
from launcher.places.place import CancelReport
from launcher.places.ssh import host_clients, run_hosts
from launcher.places.ssh.host import late_messages
from launcher.places.ssh.host_client import HostClient
from launcher.places.ssh.results import fetch
from launcher.places.ssh.results.checkpoints import holders_of
from launcher.places.ssh.run_hosts import places_ever, places_of
from launcher.places.ssh.submit import cancel
from launcher.places.ssh.submit.handover import PoolHandover
from launcher.plan.model import NodePlan
from launcher.remote.rpc.client import GREETING_S
from launcher.run.attempts import attempts, read_plan
from launcher.run.durable import append_line, read_lines
from launcher.run.identity import this_process
from launcher.run.records import ANEW, ClusterAnswer, Event
from launcher.spec.model import Recovery
from launcher.states import State
from launcher.submission import reopening
from launcher.supervisor.attempt_end import CANCEL_SURE_S
from tests.places.ssh.near_hosts import RUN, NearHosts, on_hosts
from tests.run_folder import RunFolder, dead_process, plan_of
from tests.saved_checkpoints import save_part
from trainer.checkpoint_files import partial


@pytest.fixture
def messages(monkeypatch):
    lines = []
    monkeypatch.setattr(news, "_listeners", [lines.append])
    return lines


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    return NearHosts(tmp_path, monkeypatch)


@pytest.fixture
def run(hosts):
    plan = msgspec.structs.replace(plan_of(hosts.run.path, 2), cluster="pool", cluster_kind="ssh")
    hosts.mirror.write(hosts.run.plan, plan)
    return Run(RUN, hosts.run.path)


def test_a_run_whose_hosts_are_all_gone_ends_by_a_person_s_word(hosts, run):
    hosts.mirror.state(State.RUNNING)
    hosts.cut |= {"node0", "node1"}
    assert run.status().state is State.UNKNOWN
    with pytest.raises(Refused) as refused:
        run.resume()
    assert f"launch resume {RUN} --without HOST" in refused.value.lines[1]
    with pytest.raises(Unreachable, match="could not ask node1"):
        run.cancel(gone=["node0"])
    assert run.status().state is State.UNKNOWN
    report = run.cancel(gone=["node1"])
    assert (report.ended, report.already) == ((), False)
    status = run.status()
    assert (status.state, status.message) == (State.CANCELLED, "cancelled, without node0, node1")
    assert run.cancel().already


def test_a_host_may_take_as_long_as_its_ranks_have(hosts, run):
    plan = plan_of(hosts.run.path, 2)
    spec = replace(plan.spec, recovery=Recovery(grace_s=300.0))
    hosts.mirror.write(hosts.run.plan, msgspec.structs.replace(plan, cluster_kind="ssh", spec=spec))
    hosts.on("node1").attempt(supervisor=dead_process())
    run.cancel()
    assert min(max(line.limits) for line in hosts.lines.values()) > 300.0 + CANCEL_SURE_S


def test_who_cannot_be_reached_is_told_from_who_says_nothing(hosts, run):
    hosts.lines["node0"].hangs = True
    with pytest.raises(Unreachable, match=r"^asked node0 in vain") as raised:
        run.cancel()
    hint = f"hint: launch cancel {RUN} again; of a host that is gone for good: launch cancel {RUN} --gone HOST"
    assert raised.value.lines[1:] == ("node0: no answer in time", hint)
    hosts.cut.add("node1")
    with pytest.raises(Unreachable, match=r"^could not ask node1; asked node0 in vain: ") as raised:
        run.cancel()
    assert "once node1 can be reached" in raised.value.lines[-1]
    assert f"launch cancel {RUN} --gone HOST" in raised.value.lines[-1]


@pytest.mark.parametrize("silent", ["node0", "node1"])
def test_one_host_that_has_ended_it_does_not_speak_for_another_that_has_not(hosts, run, silent):
    """The run was noted as cancelled by a cancel that said itself that something may be left of it."""
    answers = {"node0": "node1", "node1": "node0"}[silent]
    hosts.on(answers).attempt(supervisor=dead_process())
    hosts.lines[silent].hangs = True
    with pytest.raises(Unreachable, match=f"^asked {silent} in vain"):
        run.cancel()
    assert not hosts.run.attempt(1).end.exists()
    assert run.status().state is State.UNKNOWN
    hosts.lines[silent].hangs = False
    hosts.on(silent).attempt(supervisor=dead_process())
    host_clients._silent._found.clear()
    run.cancel()
    assert run.status().state is State.CANCELLED


def test_hosts_that_were_reached_tell_those_that_were_not(hosts, run, monkeypatch):
    """A host that was cut off held its slots until it gave the run up by itself."""
    told = []
    monkeypatch.setattr(late_messages, "send", lambda there, _, names: told.append((there.path, [*names])))
    hosts.on("node1").attempt(supervisor=dead_process())
    hosts.cut.add("node0")
    with pytest.raises(Unreachable):
        run.cancel()
    assert told == [(hosts.on("node1").path, ["node0"])]


def test_hosts_of_a_found_run_that_no_pool_here_has_are_named(hosts, run):
    """Its word that it was cancelled was good for the hosts that could be asked."""
    plan = read_plan(hosts.run, 1)
    hosts.mirror.write(hosts.run.plan, msgspec.structs.replace(plan, project=""))
    for name in ("node0", "node1"):
        there = hosts.on(name).attempt(supervisor=dead_process()).run
        there.spec.write_text("name: job\nrun: {command: 'true'}\n")
        hosts.mirror.write(there.plan, on_hosts(plan_of(there.path, 3), "node0", "node1", "gpu9"))
    with pytest.raises(Unreachable, match=r"is also on hosts that pool has not here, and may be left there: gpu9\n"):
        run.cancel()
    assert not hosts.run.attempt(1).end.exists()
    for name in ("node0", "node1"):
        there = hosts.on(name).run
        hosts.mirror.write(there.plan, on_hosts(plan_of(there.path, 2), "node0", "node1"))
    run.cancel()
    assert run.status().state is State.CANCELLED


def test_one_that_lets_us_in_and_says_nothing_is_given_up_at_a_person_s_word_alone(hosts, run, messages):
    """Its disk hangs, say, and with it all that starts there: the run could never be ended, nor resumed."""
    hosts.on("node1").attempt(supervisor=dead_process())
    hosts.lines["node0"].hangs = True
    with pytest.raises(Unreachable, match=r"^asked node0 in vain"):
        run.cancel()
    assert run_hosts.gone(hosts.run) == set()
    run.cancel(gone=["node0"])
    assert run_hosts.gone(hosts.run) == {"node0"}
    assert run.status().state is State.CANCELLED
    assert messages[-1].startswith("node0 accepts the login and then does not answer: it counts as gone")
    hosts.dialled.clear()
    assert run.cancel().already


def test_one_that_is_said_to_be_gone_has_its_time_to_end_ranks_where_it_says_anything(hosts, run):
    for name in ("node0", "node1"):
        hosts.on(name).attempt(supervisor=dead_process())
    run.cancel(gone=["node0"])
    assert run_hosts.gone(hosts.run) == set()
    assert GREETING_S in hosts.lines["node0"].limits
    assert GREETING_S not in hosts.lines["node1"].limits
    assert max(hosts.lines["node0"].limits) == max(hosts.lines["node1"].limits) > GREETING_S


def test_what_the_others_say_counts(hosts, run):
    hosts.on("node1").attempt(supervisor=dead_process()).end(State.SUCCEEDED)
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    assert run.status().state is State.SUCCEEDED


def test_how_it_ended_is_asked_before_anybody_decides(hosts, run, monkeypatch):
    hosts.on("node1").attempt(supervisor=dead_process())
    hosts.cut.add("node0")
    fell_silent = ClusterAnswer("unknown", "", 0.0, silent="node1 does not answer")
    monkeypatch.setattr(cancel, "judge", lambda *_: fell_silent)
    with pytest.raises(Unreachable, match="how it ended could not be asked"):
        run.cancel(gone=["node0"])
    assert not hosts.run.attempt(1).end.exists()


def test_nobody_waits_for_it_any_more(hosts, run):
    hosts.on("node1").attempt(supervisor=dead_process()).log(0, "a line\n")
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    assert set(places_ever(hosts.run)) == {"node1"} == {place.host.name for place in places_of(hosts.run)}
    hosts.dialled.clear()
    run.fetch("none")
    assert hosts.dialled == {"node1"}


def test_a_word_holds_for_the_attempts_that_there_were(hosts, run):
    """It has a new disk, and the next attempt: of that nobody has said that it is gone."""
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    hosts.hand_over(2, "node0", "node1")
    hosts.mirror.write(hosts.run.attempt(2).plan, read_plan(hosts.run, 1))
    assert [place.host.name for place in places_of(hosts.run)] == ["node0", "node1"]
    with pytest.raises(Unreachable, match="could not ask node0"):
        run.cancel()
    assert not hosts.run.attempt(2).end.exists()


def test_one_that_answers_is_not_gone(hosts, run):
    for name in ("node0", "node1"):
        hosts.on(name).attempt(supervisor=dead_process())
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    hosts.run.attempt(1).fetched.touch()
    assert run_hosts.gone(hosts.run) == {"node0"}
    hosts.cut.clear()
    run.cancel()
    assert set(places_ever(hosts.run)) == {"node0", "node1"}
    assert not hosts.run.attempt(1).fetched.exists(), "it may have more to tell"


def test_one_that_answers_that_something_is_left_is_believed(hosts, run, monkeypatch):
    stubborn = LaunchError("node0: process 17 does not end")
    monkeypatch.setattr(
        cancel, "ask_all", lambda *_, **__: {"node0": stubborn, "node1": CancelReport((), already=True)}
    )
    with pytest.raises(Unreachable) as raised:
        run.cancel(gone=["node0"])
    assert raised.value.lines[1] == "node0: process 17 does not end"
    assert run_hosts.gone(hosts.run) == set()


def test_a_host_that_it_was_never_on_is_named(hosts, run):
    with pytest.raises(Refused) as refused:
        run.cancel(gone=["node0", "nodo1"])
    assert refused.value.lines == (f"{RUN} was never on nodo1", "hint: it was on node0, node1")
    assert not hosts.run.gone.exists()


def test_where_nothing_is_ended_nothing_is_noted(hosts, run):
    hosts.mirror.intent(1, by=this_process(), kind="ssh")
    hosts.run.attempt(1).handle.unlink()
    hosts.cut.add("node0")
    with pytest.raises(Refused, match="is being handed"):
        run.cancel(gone=["node0"])
    assert not hosts.run.gone.exists()


def test_one_that_was_never_handed_over_ends_once(hosts, run):
    hosts.run.attempt(1).handle.unlink()
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    assert [event.kind for event in read_lines(hosts.run.events, Event)].count("ended") == 1
    assert run.status().state is State.CANCELLED


def test_a_run_is_resumed_without_hosts_that_are_gone(hosts, run, monkeypatch):
    """What is left of it elsewhere is ended first, and whoever comes back is told that it went on."""
    hosts.mirror.state(State.RUNNING)
    hosts.cut |= {"node0", "node1"}
    opened = []
    monkeypatch.setattr(reopening, "reopen", lambda _, *, after, **how: opened.append(after))
    with pytest.raises(Unreachable, match="could not ask node1"):
        run.resume(without=["node0"])
    assert opened == []
    run.resume(without=["node0", "node1"])
    assert opened == [1]
    assert run_hosts.gone(hosts.run) == {"node0", "node1"}


def test_only_a_pool_has_hosts_that_nobody_else_watches(tmp_path):
    folder = RunFolder(tmp_path / "here" / RUN).plan(1)
    folder.attempt()
    with pytest.raises(Refused, match="giving up hosts: not supported on local"):
        Run(RUN, folder.run.path).cancel(gone=["node0"])


def test_that_it_goes_on_from_less_is_said(hosts, run, messages, tmp_path):
    hosts.mirror.state(State.RUNNING, checkpoint=40)
    report_if_older(hosts.run, None, holders_of(hosts.run))
    assert messages == [], "such checkpoints as only the program knows"
    hosts.cut.add("node0")
    run.cancel(gone=["node0"])
    report_if_older(hosts.run, None, holders_of(hosts.run))
    (held,) = partial.inventory(save_part(tmp_path / "made", 5, range(2)).parent)
    report_if_older(hosts.run, held, holders_of(hosts.run))
    before = "the checkpoint of step 40 is not whole on the hosts that answer: "
    assert messages == [f"{before}it begins anew", f"{before}it continues from step 5"]


def test_nothing_begins_anew_while_a_silent_host_may_have_a_checkpoint(hosts, run, messages):
    hosts.on("node1")
    hosts.cut.add("node0")
    fetch.bring_newest(hosts.run)  # it never had one
    hosts.mirror.state(State.FAILED, checkpoint=40)
    with pytest.raises(Unreachable, match="node0 may have that of step 40") as raised:
        fetch.bring_newest(hosts.run)
    assert f"launch cancel {RUN} --gone HOST" in raised.value.lines[-1]
    handover = PoolHandover.__new__(PoolHandover)
    handover._run = hosts.run
    clients = {"node1": HostClient(hosts.lines["node1"], hosts.place("node1"))}
    node = NodePlan(0, "node1", spare=False, gpus=None, host="node1")
    plan = msgspec.structs.replace(plan_of(hosts.run.path, 1), nodes=(node,))
    with pytest.raises(NotStarted, match="node0 may have that of step 40"):
        handover._supply(plan, clients)


def test_a_person_who_says_so_lets_it_begin_anew_without_a_silent_host(hosts, run, messages):
    hosts.on("node1")
    hosts.mirror.state(State.FAILED, checkpoint=40)
    hosts.cut.add("node0")
    with pytest.raises(Unreachable, match="--anew"):
        report_if_older(hosts.run, None, holders_of(hosts.run))
    append_line(hosts.run.events, Event(1.0, attempts(hosts.run)[-1].number, ANEW, ""))
    report_if_older(hosts.run, None, holders_of(hosts.run))
    assert messages[-1] == "the checkpoint of step 40 is not whole on the hosts that answer: it begins anew"
