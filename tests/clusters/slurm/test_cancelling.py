"""`launch cancel` on Slurm: whose job is ended, and what stays written down where nobody can be asked."""

import time

import pytest

from launcher.clusters.batch import cancelling
from launcher.clusters.batch.cancelling import Cancelling
from launcher.clusters.keeping.attempt_end import ask_to_stop, is_cancelled
from launcher.clusters.slurm.queue import SlurmQueue
from launcher.errors import Exit, Unreachable
from launcher.rundir.durable import make_dir, read_record, write_record
from launcher.rundir.layout import BatchDir
from launcher.rundir.records import AttemptEnd, Site
from launcher.words import Cause, State


def end_of(attempt):
    return read_record(attempt.end, AttemptEnd)


def test_its_own_job_is_ended(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "PENDING", "launch:mine nightly"), ("8", "PENDING", "launch:other"))
    report = Cancelling(SlurmQueue(), run, attempt, plan).carry_out()
    assert (report.ended, clients.ended) == (("job 7 (pending on n0)",), ["7"])
    assert end_of(attempt).state is State.CANCELLED


@pytest.mark.parametrize("comment", ["launch:mine", "launch:another", "(null)"])
def test_the_job_of_a_run_that_has_ended_is_left_alone_and_so_is_its_folder(clients, submitted, comment):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    write_record(attempt.end, AttemptEnd(State.SUCCEEDED, None, Exit.OK, time.time()))
    clients.rows(("7", "PENDING", comment))
    assert Cancelling(SlurmQueue(), run, attempt, plan).carry_out().already
    assert clients.ended == []
    assert not attempt.stop.exists()


def test_a_job_with_the_ticket_of_another_run_is_not_ended(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "PENDING", "launch:another"))
    assert Cancelling(SlurmQueue(), run, attempt, plan).carry_out().ended == ()
    assert clients.ended == []
    assert end_of(attempt).state is State.CANCELLED


def test_a_job_that_may_be_anybodys_is_not_ended_and_the_wish_stays(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "PENDING", "site:billing=x"))
    with pytest.raises(Unreachable, match="does not have this run's ticket") as caught:
        Cancelling(SlurmQueue(), run, attempt, plan).carry_out()
    assert any("scancel 7" in line for line in caught.value.lines)
    assert clients.ended == []
    assert is_cancelled(attempt) and end_of(attempt) is None


def test_a_run_whose_job_has_lost_its_comment_ends_by_its_folder(clients, submitted, monkeypatch):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "RUNNING", "site:billing=x"))

    def its_keeper_reads_the_wish(_seconds):
        assert is_cancelled(attempt)
        write_record(attempt.end, AttemptEnd(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, time.time()))

    monkeypatch.setattr(cancelling.time, "sleep", its_keeper_reads_the_wish)
    assert Cancelling(SlurmQueue(), run, attempt, plan).carry_out().ended == ("job 7 (running on n0)",)
    assert clients.ended == []


@pytest.mark.parametrize("rows", [(), [("7", "PENDING", "(null)")], [("7", "PENDING", "launch:another")]])
def test_on_another_cluster_the_wish_is_noted_and_nobody_says_that_it_is_over(clients, submitted, rows):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    write_record(attempt.site, Site("far"))
    clients.rows(*rows)
    with pytest.raises(Unreachable, match="ask on a login node of far"):
        Cancelling(SlurmQueue(), run, attempt, plan).carry_out()
    assert is_cancelled(attempt) and end_of(attempt) is None
    assert clients.ended == []


def test_of_an_array_without_its_id_the_runs_own_element_is_ended(clients, submitted, tmp_path):
    batch = tmp_path / ".batch-tick"
    make_dir(batch)
    write_record(BatchDir(batch).runs, [str(tmp_path / f"train-{name}") for name in ("aaaa", "bbbb", "cccc")])
    made = {name: submitted(f"train-{name}", None, "tick", batch=batch) for name in ("aaaa", "bbbb", "cccc")}
    clients.rows(("4_1", "PENDING", "launch:other"), *((f"5_{index}", "PENDING", "launch:tick") for index in range(3)))
    run, attempt, plan = made["bbbb"]
    assert Cancelling(SlurmQueue(), run, attempt, plan).carry_out().ended == ("job 5_1 (pending on n0)",)
    assert clients.ended == ["5_1"]


def test_without_its_id_a_job_is_found_by_its_ticket(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", None, "mine")
    clients.rows(("7", "PENDING", "launch:other"), ("8", "PENDING", "launch:mine"))
    Cancelling(SlurmQueue(), run, attempt, plan).carry_out()
    assert clients.ended == ["8"]


@pytest.mark.parametrize("before", ["limit", "preempt"])
def test_a_cancel_is_on_disk_where_slurm_is_silent_whatever_was_asked_before(clients, submitted, before):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    ask_to_stop(attempt, before)
    clients.silent("squeue")
    with pytest.raises(Unreachable, match="in its folder"):
        Cancelling(SlurmQueue(), run, attempt, plan).carry_out()
    assert is_cancelled(attempt)


def test_nothing_takes_a_cancel_back(submitted):
    _, attempt, _ = submitted("train-aaaa", "7", "mine")
    ask_to_stop(attempt, "cancel")
    said = attempt.stop.read_bytes()
    for kind in ("limit", "preempt", "cancel"):
        ask_to_stop(attempt, kind)
    assert attempt.stop.read_bytes() == said
