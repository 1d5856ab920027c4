"""Test the parsing of answers that Grid Engine's clients (8.1.9) gave in the lab."""

import calendar
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.errors import Unreachable
from launcher.places.batch.answers import read_settings
from launcher.places.batch.batch import Phase, QueuedJob
from launcher.places.batch.client import Answer
from launcher.places.gridengine import gridengine
from launcher.places.gridengine.gridengine import (
    GridEngineCluster,
    ask,
    phase_of,
    read_account,
    read_hosts,
    read_jobs,
)
from launcher.spec.model import GridEngine, JobSpec, RunOptions
from launcher.states import Cause, State

SPEC = JobSpec("job", RunOptions(script="train.py"))
RECORDED = Path(__file__).parent / "recorded"
NOTHING = "<?xml version='1.0'?><job_info><queue_info></queue_info><job_info></job_info></job_info>"


def recorded(name):
    return (RECORDED / name).read_text()


def test_a_running_job_has_its_hosts_and_the_first_is_the_batch_process_own():
    """And not only those where programs of it run at the moment, which is all that `qstat -j` tells."""
    [job] = read_jobs(recorded("qstat-running.xml"), recorded("qstat-j-running.xml"))
    hosts = "node1,node0,node2"
    assert (job.id, job.phase, job.word, job.hosts, job.text) == ("34", Phase.RUNNING, "r", hosts, f"on {hosts}")
    assert job.ends_at is None and job.submit_tokens == frozenset()


def test_jobs_that_wait_have_their_submit_tokens_and_reasons():
    jobs = {job.id: job for job in read_jobs(recorded("qstat-waiting.xml"), recorded("qstat-j-waiting.xml"))}
    assert (
        jobs["4"].submit_tokens == {"aaaa"} and jobs["8"].submit_tokens == {"eeee"} and jobs["5"].submit_tokens == set()
    )
    assert {name: (job.word, job.phase.value) for name, job in jobs.items()} == {
        "4": ("qw", "queued"), "5": ("qw", "queued"), "6": ("hqw", "queued"), "7": ("Eqw", "queued"),
        "8": ("r", "running"), "9": ("qw", "queued"), "10": ("qw", "queued"), "11": ("hqw", "queued"),
    }  # fmt: skip
    assert jobs["4"].text == "the parallel environment launch has only 3 slots free for it"
    assert jobs["9"].text.startswith("hosts have too little gpu free (it asks for gpu=2)")
    assert jobs["6"].text == "it is held, by its owner or an administrator: qrls lets it go"
    assert "can't open output file" in jobs["7"].text and "qmod -cj" in jobs["7"].text
    assert jobs["10"].text == "it asked not to start before a later time"
    assert jobs["11"].text == "another job that it depends on has not ended"


def test_a_job_that_ended_between_the_questions_is_not_shown():
    listed, unknown = recorded("qstat-running.xml"), "<?xml version='1.0'?><unknown_jobs>{}</unknown_jobs>"
    assert read_jobs(listed, unknown.format("<ST_name>34</ST_name>")) == []
    assert read_jobs(listed, recorded("qstat-j-waiting.xml")) == []
    [job] = read_jobs(listed, unknown.format("<ST_name>33</ST_name>"))  # the others are not said to be unknown
    assert job.hosts == "node1,node0,node2"
    assert read_jobs(NOTHING, "") == []


@pytest.mark.parametrize("damaged", ["", "<job_info>", "error: commlib error"])
def test_a_damaged_answer_is_no_answer(damaged):
    with pytest.raises(Unreachable, match="damaged"):
        read_jobs(damaged, "")


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("qw", Phase.QUEUED), ("hqw", Phase.QUEUED), ("Eqw", Phase.QUEUED), ("Rq", Phase.QUEUED),
        ("t", Phase.RUNNING), ("r", Phase.RUNNING), ("Rr", Phase.RUNNING), ("Rt", Phase.RUNNING), ("S", Phase.RUNNING),
        ("s", Phase.RUNNING), ("T", Phase.RUNNING), ("dr", Phase.ENDING), ("dRr", Phase.ENDING), ("dt", Phase.ENDING),
        ("", Phase.UNKNOWN), ("zombie", Phase.UNKNOWN),
    ],
)  # fmt: skip
def test_letters(state, phase):
    assert phase_of(state) is phase


def test_hosts_with_what_is_free_on_them():
    hosts = read_hosts(recorded("qhost.xml"))
    assert [host.name for host in hosts] == ["node0", "node1", "node2"]
    assert {(host.cpus, host.up, host.queues, host.free_gpus) for host in hosts} == {(2, True, frozenset({"all.q"}), 2)}


def test_hosts_as_they_are_now(monkeypatch):
    """One has a job of ours, one somebody else's, one does not answer."""
    text = recorded("qhost.xml").replace("<resourcevalue name='gpu' dominance='hc'>2", "<resourcevalue name='gpu'>0", 1)
    first, second, third = text.split("<host name='node")[1:]
    second = second.replace("'slots_used'>0", "'slots_used'>3")
    third = third.replace("'load_avg'>7.65", "'load_avg'>-")
    told = "<host name='node".join((text.split("<host name='node")[0], first, second, third))
    monkeypatch.setattr(gridengine, "ask", lambda _, **_more: Answer(0, told, ""))
    cluster = GridEngineCluster()
    monkeypatch.setattr(cluster.queue, "jobs", lambda: [QueuedJob("7", Phase.RUNNING, "r", hosts="node0,node9")])
    assert [(one.host, one.state, one.free_gpus, one.jobs) for one in cluster.hosts_now(SPEC)] == [
        ("node0", "taken", 0, ("7",)), ("node1", "taken", 2, ()), ("node2", "unknown", None, ()),
    ]  # fmt: skip
    assert cluster.hosts_now(replace(SPEC, gridengine=GridEngine(queue="other.q"))) == []


def test_settings():
    assert read_settings(recorded("pe-launch.txt"))["allocation_rule"] == "1"
    assert read_settings(recorded("pe-packed.txt"))["allocation_rule"] == "$fill_up"
    assert read_settings(recorded("queue.txt"))["notify"] == "00:00:05"
    assert "accounting_flush_time" in read_settings(recorded("sconf.txt"))["reporting_params"]  # on a second line


def test_accounts():
    text = recorded("qacct.txt")
    job = read_account(text)
    assert (job.id, job.phase, job.word, job.ended_as) == ("34", Phase.ENDED, "assumedly after job", State.LOST)
    limited = text.replace("failed       100 : assumedly after job", "failed       37  : qmaster enforced h_rt")
    job = read_account(text + limited)  # the newest record is the last one
    assert (job.ended_as, job.cause) == (State.FAILED, Cause.TIME_LIMIT)
    assert read_account("") is None


def test_an_account_from_before_is_another_jobs():
    text, day_s = recorded("qacct.txt"), 86400.0
    ended = calendar.timegm((2026, 11, 22, 15, 24, 9))
    assert read_account(text, ended + day_s) is not None  # the times have no zone
    assert read_account(text, ended + 2 * day_s) is None
    assert read_account(text.replace("Sun Nov 22 15:24:09 2026", "-/-"), ended + 2 * day_s) is not None


@pytest.mark.parametrize(
    "said",
    [
        "error: commlib error: got select error (Connection refused)",
        'Unable to run job: unable to send message to qmaster using port 1 on host "control": got send error',
        'denied: host "node0" is neither submit nor admin host',
        "error: failed receiving gdi request response for mid=1 (got syncron message receive timeout error).",
        "error: cannot connect to qmaster",
        'error: SGE_ROOT directory "/nonexist" doesn\'t exist',
    ],
)
def test_no_answer_is_no_refusal(tmp_path, said):
    program = tmp_path / "qstat"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(Unreachable, match="the Grid Engine qmaster does not answer"):
        ask([str(program)])
