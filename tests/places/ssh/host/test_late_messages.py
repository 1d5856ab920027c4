"""Test messages for supervisors that could not receive them, resent over real sockets until they arrive."""

import json
import socket
from dataclasses import replace

import msgspec
import pytest
from run_folder import plan_of

from launcher.errors import Exit
from launcher.places.ssh.host import late_messages
from launcher.places.ssh.host.supervisor_messages import Agreed, Cancelled, Declined
from launcher.places.ssh.host.supervisor_rpc import WIRE, SupervisorRpc
from launcher.places.ssh.messages import Peer
from launcher.plan.model import NodePlan
from launcher.run.attempts import new_attempt
from launcher.run.durable import write_record
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd
from launcher.spec.model import Recovery
from launcher.states import State
from launcher.supervisor.attempt_end import write_end
from launcher.wire.frames import wire_key

SECRET = "5e" * 32
# An answer that comes too late is asked for again.
PATIENT = late_messages.Patience(again_s=0.01, ask_s=150.0, quiet_s=0.0)
NOWHERE = "192.0.2.1"  # an address that this machine has not


@pytest.fixture
def run(tmp_path):
    """Return a run of three hosts: the first is remote, the second is this one, and hosts opened its second attempt."""
    run = RunDir(tmp_path / "job-1a2b")
    run.path.mkdir()
    addresses = (NOWHERE, "127.0.0.2", "127.0.0.3")
    nodes = tuple(NodePlan(index, address, False, None, host=f"host{index}") for index, address in enumerate(addresses))
    plan = msgspec.structs.replace(plan_of(run.path), nodes=nodes)
    new_attempt(run, "pool", "submit", None, plan, secret=SECRET)
    new_attempt(run, "pool", "requeue", None, secret=SECRET)
    return run


@pytest.fixture
def sent(run):
    """Return what the third host's supervisor receives; it understands the message the second time."""
    heard = []

    def answer(question, asker):
        heard.append((question, asker))
        return Agreed() if len(heard) > 1 else Declined("not now")

    intent = late_messages.read_intent(run.attempt(1))
    supervisor = SupervisorRpc("127.0.0.3", wire_key(intent.token, WIRE, run.path.name, 1), answer)
    peers = (
        Peer("host0", NOWHERE, 20_001),
        Peer("host1", "127.0.0.2", 20_002),
        Peer("host2", "127.0.0.3", supervisor.port),
    )
    write_record(run.attempt(1).supervisors, peers)
    yield heard
    supervisor.close()


def test_it_is_said_again_until_it_has_been_understood(run, sent):
    late_messages.deliver(run, "cancel", ["host2", "host9"], PATIENT)
    assert sent == [(Cancelled(1), "127.0.0.2")] * 2


def test_a_host_that_was_cut_off_when_the_run_ended_is_given_all_records_of_that(run, sent):
    end = AttemptEnd(State.SUCCEEDED, None, Exit.OK, 1.0)
    write_end(run, run.attempt(2), end, plan_of(run.path))
    late_messages.deliver(run, "end", ["host2"], PATIENT)
    taken = [question for question, _ in sent if question.name == "end"]
    assert (taken[-1].node, taken[-1].attempt, json.loads(taken[-1].data)["state"]) == (1, 2, "succeeded")
    assert {question.name for question, _ in sent} >= {"end", "events", "state"}


def test_a_host_that_has_no_supervisor_any_more_is_told_nothing(run, sent):
    """It was started anew: it refuses every connection, and nobody waits there."""
    peers = late_messages.presence.begun(run)[1]
    with socket.create_server(("127.0.0.3", 0)) as free:
        gone = Peer("host2", "127.0.0.3", free.getsockname()[1])
    write_record(run.attempt(1).supervisors, (*peers[:2], gone))
    late_messages.deliver(run, "cancel", ["host2"], replace(PATIENT, nobody_s=-Recovery().lease_s))
    assert sent == []


def test_nobody_is_looked_for_longer_than_a_supervisor_waits_by_itself(run, sent, monkeypatch):
    recovery = Recovery()
    assert late_messages.gives_up_s(recovery) > recovery.lease_s + late_messages.GIVE_UP_WAITS * recovery.wait_s
    monkeypatch.setattr(late_messages, "gives_up_s", lambda _: 0.0)
    late_messages.deliver(run, "cancel", ["host2"], PATIENT)
    assert sent == []


def test_where_no_supervisors_were_told_of_each_other_there_is_nobody_to_tell(run, monkeypatch):
    started = []
    monkeypatch.setattr(late_messages.subprocess, "Popen", lambda *words, **_: started.append(words))
    late_messages.send(run, "end", ["host2"])
    assert started == []
