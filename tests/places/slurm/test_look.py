"""Test the status of runs from squeue, from the accounts, and if neither can be queried."""

import time
from dataclasses import replace

import msgspec
import pytest
from run_folder import dead_process, of_another_machine

from launcher import api
from launcher.places.batch.cluster import mend
from launcher.places.batch.hand_over import hand_over
from launcher.places.batch.look import look
from launcher.places.slurm.queries.values import FIELD, ROW
from launcher.places.slurm.queue import SlurmSystem
from launcher.run.attempts import new_attempt, read_intent
from launcher.run.avoided import avoided, has_expired
from launcher.run.durable import create_record, make_dir, read_record, write_record
from launcher.run.layout import BatchDir
from launcher.run.records import AttemptEnd, ClusterAnswer, Exclusion, Handle, RunState, Site
from launcher.states import Cause, State
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.supervisor.handover import Handover

DATABASE_DOWN = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"


def phases(*attempts):
    """The phase of each; why there is none where nobody can tell."""
    words = mend(SlurmSystem(), [(run, attempt) for run, attempt, _ in attempts])
    return [None if word is None else word.silent or word.phase for word in words]


def test_of_a_job_on_another_cluster_nobody_here_can_tell(clients, submitted):
    one = submitted("train-aaaa", "7", "mine")
    write_record(one[1].site, Site("far"))
    said = "its job is on the Slurm cluster far, and this is here: ask on a login node of far"
    assert phases(one) == [said]
    clients.rows(("7", "RUNNING", "site:x"))  # the same id on this cluster, and no submit token
    assert phases(one) == [said]
    clients.rows(("7", "RUNNING", "launch:another"))
    assert phases(one) == [said]
    assert not one[1].seen.exists()
    clients.cluster("far")
    clients.rows(("7", "RUNNING", "launch:mine"))
    assert phases(one) == ["running"]
    clients.cluster("here")
    assert phases(one) == ["running"]  # it is shown, whatever the cluster is called by now


def test_of_a_job_that_is_suspended_it_is_said(clients, submitted):
    run, attempt, _ = submitted("train-aaaa", "7", "mine")
    for word, said in (("SUSPENDED", True), ("RUNNING", False)):
        clients.rows(("7", word, "launch:mine"))
        (seen,) = look(SlurmSystem(), [(run, attempt)])
        assert (seen.phase, "suspended" in seen.text, bool(seen.text)) == ("running", said, said)


def test_of_two_clusters_each_has_a_job_of_that_id(clients, submitted):
    there, here = submitted("train-aaaa", "7", "one"), submitted("train-bbbb", "7", "two")
    write_record(there[1].site, Site("far"))
    write_record(here[1].site, Site("here"))
    clients.rows(("7", "PENDING", "launch:two"))
    silent, phase = phases(there, here)
    assert "on the Slurm cluster far" in silent and phase == "queued"


def test_what_nobody_took_there_is_not_submitted_here(clients, submitted):
    one = submitted("train-aaaa", None, "mine")
    write_record(one[1].site, Site("far"))
    clients.program("sbatch", "echo 9")
    assert "on the Slurm cluster far" in phases(one)[0]
    assert not one[1].handle.exists()


@pytest.mark.parametrize("where", ["here", ""])
def test_on_its_own_cluster_a_job_that_is_not_shown_is_gone(clients, submitted, where):
    one = submitted("train-aaaa", "7", "mine")
    if where:
        write_record(one[1].site, Site(where))
    assert phases(one) == ["gone"]


def test_the_attempt_after_a_requeue_is_on_the_cluster_of_the_one_before(clients, submitted):
    run, first, plan = submitted("train-aaaa", "7", "mine")
    write_record(first.site, Site("far"))
    second, _ = new_attempt(run, "slurm", "requeue", None, kind="slurm")
    create_record(second.handle, Handle("slurm", job_id="7", submit_token="mine"))
    assert "on the Slurm cluster far" in phases((run, second, plan))[0]


def test_where_a_job_is_handed_to_is_noted_before_it_is(clients, submitted, tmp_path):
    run, attempt, plan = submitted("train-aaaa", None, "mine")
    clients.program("sbatch", f"cat '{attempt.site}' > '{tmp_path}/noted'; echo 9")
    write_record(attempt.plan, plan)
    hand_over(SlurmSystem(), Handover.of(run, attempt))
    assert read_record(tmp_path / "noted", Site) == read_record(attempt.site, Site) == Site("here")


def test_an_array_notes_it_once_for_all(clients, submitted, tmp_path):
    batch = tmp_path / ".batch-tick"
    make_dir(batch)
    write_record(BatchDir(batch).runs, [str(tmp_path / "train-aaaa"), str(tmp_path / "train-bbbb")])
    made = [submitted(f"train-{name}", None, "tick", batch=batch) for name in ("aaaa", "bbbb")]
    clients.program("sbatch", "echo 9")
    hand_over(SlurmSystem(), Handover.of(*made[0][:2]))
    clients.cluster("far")
    assert all("on the Slurm cluster here" in silent for silent in phases(*made))


@pytest.mark.parametrize(
    ("comment", "phase"),
    [("launch:mine", "running"), ("site:billing=x", "running"), ("(null)", "running"), ("launch:another", "gone")],
)
def test_a_rewritten_comment_makes_no_job_a_strangers(clients, submitted, comment, phase):
    one = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "RUNNING", comment))
    assert phases(one) == [phase]


def test_silent_accounts_make_only_those_silent_that_squeue_does_not_show(clients, submitted):
    lost, well = submitted("train-aaaa", "7", "one"), submitted("train-bbbb", "8", "two")
    clients.rows(("8", "RUNNING", "launch:two"))
    clients.program("sacct", DATABASE_DOWN)
    write_record(lost[1].seen, ClusterAnswer("running", "RUNNING", 5.0, "7"))
    words = mend(SlurmSystem(), [lost[:2], well[:2]])
    assert "accounting database does not answer" in words[0].silent and words[0].word == "RUNNING"
    assert (words[1].phase, words[1].silent) == ("running", "")


def test_a_controller_that_says_no_name_leaves_all_others_their_word(clients, submitted):
    lost, well = submitted("train-aaaa", "7", "one"), submitted("train-bbbb", "8", "two")
    write_record(lost[1].site, Site("here"))
    clients.rows(("8", "RUNNING", "launch:two"))
    clients.silent("scontrol")
    silent, phase = phases(lost, well)
    assert "scontrol: Connection refused" in silent.replace("error: ", "") and phase == "running"


def test_a_run_says_itself_what_it_is_at_once_its_job_runs(clients, submitted):
    run, attempt, _ = submitted("train-aaaa", "7", "mine")
    state = read_record(run.state, RunState)
    write_record(run.state, msgspec.structs.replace(state, state=State.REGROUPING, message="rank 3 was killed"))
    clients.rows(("7", "RUNNING", "launch:mine"))
    [word] = mend(SlurmSystem(), [(run, attempt)])
    assert (word.phase, word.text) == ("running", "")
    facts = replace(read_facts(run.path), answer=word)
    assert derive(facts).message == "rank 3 was killed"
    clients.rows(("7", "PENDING", "launch:mine"))
    assert mend(SlurmSystem(), [(run, attempt)])[0].text


# Until it has a job


def test_what_is_being_handed_over_on_another_machine_is_not_unknown(clients, submitted):
    run, attempt, _ = submitted("train-aaaa", None, "mine")
    intent = read_intent(attempt)
    write_record(attempt.intent, msgspec.structs.replace(intent, created_by=of_another_machine()))
    [word] = look(SlurmSystem(), [(run, attempt)])
    status = derive(replace(read_facts(run.path), answer=word))
    assert (status.state, status.message) == (State.QUEUED, "it is being handed to Slurm")


def followed(submitted, *, by=None):
    """A run whose second attempt has an intent and no job; its first one was job 7's."""
    run, first, plan = submitted("train-aaaa", "7", "mine")
    write_record(first.end, AttemptEnd(State.QUEUED, Cause.PREEMPTED, 16, 5.0))
    second, intent = new_attempt(run, "slurm", "requeue", Cause.PREEMPTED, kind="slurm", submit_token="later")
    write_record(second.intent, msgspec.structs.replace(intent, created_by=by or dead_process()))
    return run, second, plan


def test_a_job_that_was_put_back_late_is_the_attempts_that_was_to_get_another(clients, submitted):
    one = followed(submitted)
    clients.program("sbatch", "echo 9")
    for state, phase in (("RUNNING", "queued"), ("COMPLETING", "queued"), ("PENDING", "queued")):
        assert not one[1].handle.exists()  # it is not known yet what becomes of the older job
        clients.rows(("7", state, "launch:mine"))
        assert phases(one) == [phase]
    handle = read_record(one[1].handle, Handle)
    assert (handle.job_id, handle.submit_token) == ("7", "mine")
    assert clients.ended == []


def test_without_an_older_job_it_gets_one(clients, submitted):
    one = followed(submitted)
    clients.program("sbatch", "echo 9")
    clients.rows(("7", "COMPLETED", "launch:mine"))
    phases(one)
    assert read_record(one[1].handle, Handle).job_id == "9"


def test_an_older_job_that_was_put_back_beside_a_new_one_is_ended(clients, submitted):
    one = followed(submitted)
    create_record(one[1].handle, Handle("slurm", job_id="9", submit_token="later"))
    clients.rows(("7", "RUNNING", "launch:mine"), ("9", "RUNNING", "launch:later"))
    assert phases(one) == ["running"] and clients.ended == []  # it may be about to end by itself
    clients.rows(("7", "PENDING", "launch:mine"), ("9", "RUNNING", "launch:later"))
    assert phases(one) == ["running"] and clients.ended == ["7"]


# What it waits for


def blamed(run, **until):
    write_record(run.avoided, [Exclusion(host, "not heard", 1, 5.0, at) for host, at in until.items()])


@pytest.fixture
def scontrol_updates(clients, tmp_path):
    """Return the changes of jobs."""
    rows = "".join(FIELD.join((f"node{i}", "main*", "idle", "8", "8000", "", "none")) + ROW for i in range(4))
    clients.program("sinfo", f"printf '%s' '{rows}'")
    clients.program("scontrol", f"case $1 in update) echo $* >> {tmp_path}/told ;; *) cat '{tmp_path}/config' ;; esac")
    return lambda: (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []


def test_a_job_that_waits_may_have_a_node_again_when_its_hour_is_over(clients, submitted, scontrol_updates):
    one = submitted("train-aaaa", "7", "mine")
    write_record(one[1].plan, one[2])
    blamed(one[0], node1=time.time() + 60, node2=time.time() + 3600)
    clients.rows(("7", "PENDING", "launch:mine"))
    assert phases(one) == ["queued"] and scontrol_updates() == []
    blamed(one[0], node1=time.time() - 1, node2=time.time() + 3600)
    for _ in range(2):
        assert phases(one) == ["queued"]
        assert scontrol_updates() == ["update JobId=7 ExcNodeList=node2"]  # once
    assert [exclusion.host for exclusion in avoided(one[0])] == ["node2"]


def test_where_slurm_is_silent_it_is_told_the_next_time(clients, submitted, scontrol_updates):
    one = submitted("train-aaaa", "7", "mine")
    write_record(one[1].plan, one[2])
    blamed(one[0], node1=time.time() - 1)
    clients.rows(("7", "PENDING", "launch:mine"))
    clients.silent("scontrol")
    phases(one)
    assert has_expired(one[0], time.time())


@pytest.mark.parametrize(("hosts", "left"), [((), ""), (("node1",), "node2")])
def test_a_pardon_reaches_the_job_that_waits(clients, submitted, scontrol_updates, hosts, left):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    write_record(attempt.plan, plan)
    blamed(run, node1=time.time() + 3600, node2=time.time() + 3600)
    clients.rows(("7", "PENDING", "launch:mine"))
    assert len(api.Run("train-aaaa", run.path).include_nodes(hosts)) == (len(hosts) or 2)
    assert scontrol_updates() == [f"update JobId=7 ExcNodeList={left}"]


def test_who_waits_says_whom_it_avoids_and_until_when(submitted):
    run, _, _ = submitted("train-aaaa", "7", "mine")
    until = time.time() + 3600
    blamed(run, node1=until, node2=until - 60)
    word = ClusterAnswer("queued", "PENDING", time.time(), "7", "will never start: no node has what it asks for")
    message = derive(replace(read_facts(run.path), answer=word)).message
    clock = [time.strftime("%H:%M", time.localtime(at)) for at in (until, until - 60)]
    assert f"it avoids node1 until {clock[0]}, node2 until {clock[1]}" in message
