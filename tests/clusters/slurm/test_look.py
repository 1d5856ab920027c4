"""What is said of runs by squeue, by the accounts, and by whoever may not be asked at all."""

from dataclasses import replace

import msgspec
import pytest

from launcher.clusters.batch.hand_over import batch_job_of, hand_over
from launcher.clusters.batch.mend import mend
from launcher.clusters.slurm.queue import SlurmQueue
from launcher.rundir.attempts import new_attempt
from launcher.rundir.durable import create_record, make_dir, read_record, write_record
from launcher.rundir.layout import BatchDir
from launcher.rundir.records import ClusterWord, Handle, RunState, Site
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.words import State

DATABASE_DOWN = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"


def phases(*attempts):
    """The phase of each; why there is none where nobody can tell."""
    words = mend(SlurmQueue(), [(run, attempt) for run, attempt, _ in attempts])
    return [None if word is None else word.silent or word.phase for word in words]


def test_of_a_job_on_another_cluster_nobody_here_can_tell(clients, submitted):
    one = submitted("train-aaaa", "7", "mine")
    write_record(one[1].site, Site("far"))
    said = "its job is on the Slurm cluster far, and this is here: ask on a login node of far"
    assert phases(one) == [said]
    clients.rows(("7", "RUNNING", "site:x"))  # the same id on this cluster, and no ticket
    assert phases(one) == [said]
    clients.rows(("7", "RUNNING", "launch:another"))
    assert phases(one) == [said]
    assert not one[1].seen.exists()
    clients.cluster("far")
    clients.rows(("7", "RUNNING", "launch:mine"))
    assert phases(one) == ["running"]
    clients.cluster("here")
    assert phases(one) == ["running"]  # it is shown, whatever the cluster is called by now


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
    create_record(second.handle, Handle("slurm", job_id="7", ticket="mine"))
    assert "on the Slurm cluster far" in phases((run, second, plan))[0]


def test_where_a_job_is_handed_to_is_noted_before_it_is(clients, submitted, tmp_path):
    run, attempt, plan = submitted("train-aaaa", None, "mine")
    clients.program("sbatch", f"cat '{attempt.site}' > '{tmp_path}/noted'; echo 9")
    write_record(attempt.plan, plan)
    hand_over(SlurmQueue(), batch_job_of(run, attempt))
    assert read_record(tmp_path / "noted", Site) == read_record(attempt.site, Site) == Site("here")


def test_an_array_notes_it_once_for_all(clients, submitted, tmp_path):
    batch = tmp_path / ".batch-tick"
    make_dir(batch)
    write_record(BatchDir(batch).runs, [str(tmp_path / "train-aaaa"), str(tmp_path / "train-bbbb")])
    made = [submitted(f"train-{name}", None, "tick", batch=batch) for name in ("aaaa", "bbbb")]
    clients.program("sbatch", "echo 9")
    hand_over(SlurmQueue(), batch_job_of(*made[0][:2]))
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
    write_record(lost[1].seen, ClusterWord("running", "RUNNING", 5.0, "7"))
    words = mend(SlurmQueue(), [lost[:2], well[:2]])
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
    [word] = mend(SlurmQueue(), [(run, attempt)])
    assert (word.phase, word.text) == ("running", "")
    facts = replace(read_facts(run.path), word=word)
    assert derive(facts).message == "rank 3 was killed"
    clients.rows(("7", "PENDING", "launch:mine"))
    assert mend(SlurmQueue(), [(run, attempt)])[0].text
