"""Test what a batch system gets from its base class: signals, reasons, hosts, and the end of a job."""

import signal

import pytest

from launcher.errors import BadInput
from launcher.places.batch import environment
from launcher.places.batch.batch import (
    BatchSystem,
    ExecHost,
    Fate,
    Phase,
    QueuedJob,
    fate_by,
    in_plain_words,
    meanings,
)
from launcher.places.batch.cluster import BatchCluster
from launcher.spec.model import JobSpec, Resources, RunOptions


class Small(BatchSystem):
    """A batch system with as little as a kind must define, and with hosts."""

    kind, called = "small", "Small"
    known = ()

    def script(self, plan, submit_token, where, avoid):
        raise NotImplementedError

    def jobs(self, ids=(), *, called="", limit_s=0.0):
        return [QueuedJob("7", Phase.RUNNING, "R", hosts="b,c")]

    def exec_hosts(self, queue, gpu, *, limit_s=0.0):
        return list(self.known)


def spec(**resources):
    return JobSpec("job", RunOptions(script="train.py"), resources=Resources(**resources))


def cluster(*known):
    system = Small()
    system.known = known
    return BatchCluster(system)


def test_the_batch_process_alone_acts_on_warnings_and_the_clock_of_its_script_is_one(monkeypatch):
    monkeypatch.delenv(environment.HOST, raising=False)
    assert signal.SIGALRM in Small().warnings
    monkeypatch.setenv(environment.HOST, "node1")
    assert Small().warnings == ()


def test_a_host_is_the_same_with_its_domain_and_without():
    runs = QueuedJob("7", Phase.RUNNING, "R", hosts="gpu1,gpu2")
    assert fate_by(runs, ["gpu1.example.org", "gpu2.example.org"]) is Fate.RUNS
    assert fate_by(runs, ["gpu11.example.org"]) is Fate.QUEUED_AGAIN


def test_reasons_by_a_table():
    table = meanings({r"too few (\w+)": r"hosts have too few \1 free", "^nothing$": ""})
    assert in_plain_words("Not Running: too few gpus\n", table, "Small") == "hosts have too few gpus free"
    assert in_plain_words("no idea", table, "Small") == "Small says: no idea"
    assert (in_plain_words("nothing", table, "Small"), in_plain_words(" ", table, "Small")) == ("", "")


def test_a_node_offers_the_most_gpus_and_the_cores_beside_them():
    place = cluster(ExecHost("a", 64, 0), ExecHost("b", 16, 4), ExecHost("c", 8, 4), ExecHost("d", 2, 8, up=False))
    machine = place.machine(spec())
    assert (machine.cpus, machine.gpus, machine.apart, machine.limit_per_job) == (8, ("0", "1", "2", "3"), True, True)


def test_where_only_free_gpus_are_known_a_spec_may_ask_for_more():
    place = cluster(ExecHost("a", 8, free_gpus=1), ExecHost("b", 8))
    assert len(place.machine(spec()).gpus) == 1
    assert len(place.machine(spec(gpus_per_node=4)).gpus) == 4


def test_without_a_host_nothing_is_offered():
    with pytest.raises(BadInput, match=r"small\.queue: no host of any queue answers Small"):
        cluster(ExecHost("a", 8, up=False)).machine(spec())


def test_hosts_as_they_are_now():
    place = cluster(
        ExecHost("a", 8, 2, 2), ExecHost("b", 8, 2, 0, used=True, text="busy"), ExecHost("c", 8, 2, 2, up=False)
    )
    assert [(one.host, one.state, one.free_gpus, one.jobs) for one in place.hosts_now(spec())] == [
        ("a", "free", 2, ()), ("b", "taken", 0, ("7",)), ("c", "unknown", None, ("7",)),
    ]  # fmt: skip
    drained = cluster(ExecHost("a", 8, drains=True, text="offline"))
    word = drained.queue.nodes(["a", "z"])
    assert {host: (one.down, one.drains, one.text) for host, one in word.items()} == {"a": (False, True, "offline")}
