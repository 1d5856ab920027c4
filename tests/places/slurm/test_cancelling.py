"""`launch cancel` on Slurm: whose job is ended, and what stays written down where nobody can be asked."""

import shutil
import time

import pytest
from msgspec.structs import replace

from launcher import api
from launcher.errors import Exit, Unreachable
from launcher.places.batch import cancelling
from launcher.places.batch.cancelling import Cancelling
from launcher.places.batch.hand_over import hand_over
from launcher.places.slurm.queue import SlurmSystem
from launcher.run.attempts import new_attempt
from launcher.run.durable import make_dir, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.layout import BatchDir
from launcher.run.locks import locked
from launcher.run.records import AttemptEnd, Handle, Site, StopRequest
from launcher.states import Cause, State
from launcher.supervisor.attempt_end import ask_to_stop, cancelled, first_state, is_cancelled
from launcher.supervisor.handover import Handover


def end_of(attempt):
    return read_record(attempt.end, AttemptEnd)


def test_its_own_job_is_ended(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "PENDING", "launch:mine nightly"), ("8", "PENDING", "launch:other"))
    report = Cancelling(SlurmSystem(), run, attempt, plan).carry_out()
    assert (report.ended, clients.ended) == (("job 7 (pending on n0)",), ["7"])
    assert end_of(attempt).state is State.CANCELLED


@pytest.mark.parametrize("comment", ["launch:mine", "launch:another", "(null)"])
def test_the_job_of_a_run_that_has_ended_is_left_alone_and_so_is_its_folder(clients, submitted, comment):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    write_record(attempt.end, AttemptEnd(State.SUCCEEDED, None, Exit.OK, time.time()))
    clients.rows(("7", "PENDING", comment))
    assert Cancelling(SlurmSystem(), run, attempt, plan).carry_out().already
    assert clients.ended == []
    assert not attempt.stop.exists()


def test_a_job_with_the_submit_token_of_another_run_is_not_ended(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "PENDING", "launch:another"))
    assert Cancelling(SlurmSystem(), run, attempt, plan).carry_out().ended == ()
    assert clients.ended == []
    assert end_of(attempt).state is State.CANCELLED


def test_a_job_that_may_be_anybodys_is_not_ended_and_the_wish_stays(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "PENDING", "site:billing=x"))
    with pytest.raises(Unreachable, match="does not have this run's submit token") as caught:
        Cancelling(SlurmSystem(), run, attempt, plan).carry_out()
    assert any("scancel 7" in line for line in caught.value.lines)
    assert clients.ended == []
    assert is_cancelled(attempt) and end_of(attempt) is None


def test_a_run_whose_job_has_lost_its_comment_ends_by_its_folder(clients, submitted, monkeypatch):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    clients.rows(("7", "RUNNING", "site:billing=x"))

    def its_supervisor_reads_the_wish(_seconds):
        assert is_cancelled(attempt)
        write_record(attempt.end, AttemptEnd(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, time.time()))

    monkeypatch.setattr(cancelling.time, "sleep", its_supervisor_reads_the_wish)
    assert Cancelling(SlurmSystem(), run, attempt, plan).carry_out().ended == ("job 7 (running on n0)",)
    assert clients.ended == []


@pytest.mark.parametrize("rows", [(), [("7", "PENDING", "(null)")], [("7", "PENDING", "launch:another")]])
def test_on_another_cluster_the_wish_is_noted_and_nobody_says_that_it_is_over(clients, submitted, rows):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    write_record(attempt.site, Site("far"))
    clients.rows(*rows)
    with pytest.raises(Unreachable, match="ask on a login node of far"):
        Cancelling(SlurmSystem(), run, attempt, plan).carry_out()
    assert is_cancelled(attempt) and end_of(attempt) is None
    assert clients.ended == []


def test_of_an_array_without_its_id_the_runs_own_element_is_ended(clients, submitted, tmp_path):
    batch = tmp_path / ".batch-tick"
    make_dir(batch)
    write_record(BatchDir(batch).runs, [str(tmp_path / f"train-{name}") for name in ("aaaa", "bbbb", "cccc")])
    made = {name: submitted(f"train-{name}", None, "tick", batch=batch) for name in ("aaaa", "bbbb", "cccc")}
    clients.rows(("4_1", "PENDING", "launch:other"), *((f"5_{index}", "PENDING", "launch:tick") for index in range(3)))
    run, attempt, plan = made["bbbb"]
    assert Cancelling(SlurmSystem(), run, attempt, plan).carry_out().ended == ("job 5_1 (pending on n0)",)
    assert clients.ended == ["5_1"]


def test_without_its_id_a_job_is_found_by_its_submit_token(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", None, "mine")
    clients.rows(("7", "PENDING", "launch:other"), ("8", "PENDING", "launch:mine"))
    Cancelling(SlurmSystem(), run, attempt, plan).carry_out()
    assert clients.ended == ["8"]


@pytest.mark.parametrize("before", ["limit", "preempt"])
def test_a_cancel_is_on_disk_where_slurm_is_silent_whatever_was_asked_before(clients, submitted, before):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    ask_to_stop(attempt, before)
    clients.silent("squeue")
    with pytest.raises(Unreachable, match="in its folder"):
        Cancelling(SlurmSystem(), run, attempt, plan).carry_out()
    assert is_cancelled(attempt)


def test_nothing_takes_a_cancel_back(submitted):
    _, attempt, _ = submitted("train-aaaa", "7", "mine")
    ask_to_stop(attempt, "cancel")
    said = attempt.stop.read_bytes()
    for kind in ("limit", "preempt", "cancel"):
        ask_to_stop(attempt, kind)
    assert attempt.stop.read_bytes() == said


def damaged(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize(
    "records", [["plan"], ["handle"], ["intent"], ["handle", "plan"], ["stop"], ["end"], ["state"]]
)
def test_damaged_records_keep_nobody_from_ending_its_job(clients, submitted, records):
    run, attempt, _ = submitted("train-aaaa", "8", "mine")
    ask_to_stop(attempt, "preempt")
    for name in records:
        damaged(getattr(run if name in ("plan", "state") else attempt, name))
    clients.rows(("7", "PENDING", "launch:other"), ("8", "PENDING", "launch:mine"))
    assert api.Run("train-aaaa", run.path).cancel().ended == ("job 8 (pending on n0)",)
    assert clients.ended == ["8"]
    assert end_of(attempt).state is State.CANCELLED


def test_an_attempt_after_a_requeue_is_in_the_job_of_the_one_before(clients, submitted):
    run, _, _ = submitted("train-aaaa", "8", "mine")
    again, _ = new_attempt(run, "slurm", "requeue", None, kind="slurm")
    write_record(again.handle, Handle("slurm", job_id="8", submit_token="mine"))
    damaged(again.handle)
    clients.rows(("8", "PENDING", "launch:mine"))
    assert api.Run("train-aaaa", run.path).cancel().ended == ("job 8 (pending on n0)",)


def test_without_any_attempt_its_job_goes_by_its_name(clients, submitted):
    run, attempt, _ = submitted("train-aaaa", "8", "mine")
    damaged(run.attempts)
    clients.rows(("7", "PENDING", "nobody's"), ("8", "PENDING", "launch:mine"))
    live = '[ -s "${0%/bin/*}/ended" ] || cat "${0%/bin/*}/rows"'
    clients.program("squeue", f'case "$*" in *--name=train-aaaa*|*--jobs=8*) {live} ;; esac')
    assert api.Run("train-aaaa", run.path).cancel().ended == ("job 8 (pending on n0)",)
    assert clients.ended == ["8"]
    assert end_of(attempt).state is State.CANCELLED


@pytest.mark.parametrize("live", [["9"], ["8", "9"], []])
def test_by_its_name_a_live_job_is_ended_that_is_alone_and_no_arrays(clients, submitted, live):
    run, attempt, plan = submitted("train-aaaa", None, "mine")
    damaged(run.attempts)
    states = {job: "PENDING" if job in live else "COMPLETED" for job in ("8", "9")}
    clients.rows(("7_0", "PENDING", "launch:array"), *((job, states[job], "launch:mine") for job in states))
    cancelling_ = Cancelling(SlurmSystem(), run, attempt, plan)
    if len(live) > 1:
        with pytest.raises(Unreachable, match="2 jobs are called train-aaaa") as caught:
            cancelling_.carry_out()
        assert all(any(f"scancel {job}" in line for line in caught.value.lines) for job in live)
        assert clients.ended == []
        return
    cancelling_.carry_out()
    assert clients.ended == live


@pytest.mark.parametrize("ended", [State.SUCCEEDED, State.CANCELLED])
def test_a_job_is_ended_though_state_json_alone_says_that_it_is_over(clients, submitted, ended):
    """One flipped record kept a job going that its user had cancelled."""
    run, attempt, plan = submitted("train-aaaa", "8", "mine")
    write_record(run.state, replace(first_state(plan, 1), state=ended))
    clients.rows(("8", "PENDING", "launch:mine"))
    assert Cancelling(SlurmSystem(), run, attempt, plan).carry_out().ended == ("job 8 (pending on n0)",)
    assert clients.ended == ["8"]


@pytest.mark.parametrize("left", ["the attempt", "nothing"])
def test_of_an_array_of_which_no_record_is_left_nobody_says_that_it_was_cancelled(clients, submitted, tmp_path, left):
    """It found no job, and wrote down that the run was cancelled, which then began."""
    run, attempt, _ = submitted("train-bbbb", None, "tick", batch=tmp_path / ".batch-tick")
    if left == "nothing":
        damaged(run.attempts)
    known = tmp_path / ".batch-known"
    make_dir(known)
    write_record(BatchDir(known).runs, [str(tmp_path / "train-cccc")])
    clients.rows(
        ("4", "PENDING", "launch:other"), ("5_0", "COMPLETED", "launch:tick"), ("6_0", "PENDING", "launch:known"),
        ("7_0", "PENDING", "nobody's"), ("5_1", "PENDING", "launch:tick"),
    )  # fmt: skip
    clients.program("squeue", 'case "$*" in *--name=*) ;; *) cat "${0%/bin/*}/rows" ;; esac')
    with pytest.raises(Unreachable, match=r"may be one of these of an array: 5_1\n") as caught:
        api.Run("train-bbbb", run.path).cancel()
    assert any("scancel 5_1" in line for line in caught.value.lines)
    assert clients.ended == [] and end_of(attempt) is None
    clients.rows(("6_0", "PENDING", "launch:known"))
    api.Run("train-bbbb", run.path).cancel()
    assert end_of(attempt).state is State.CANCELLED


def test_without_any_attempt_the_runs_element_of_an_array_is_found(clients, submitted, tmp_path):
    batch = tmp_path / ".batch-tick"
    make_dir(batch)
    write_record(BatchDir(batch).runs, [str(tmp_path / f"train-{name}") for name in ("aaaa", "bbbb")])
    run, _, _ = submitted("train-bbbb", "5_1", "tick", batch=batch)
    damaged(run.attempts)
    clients.rows(*((f"5_{index}", "PENDING", "launch:tick") for index in range(2)))
    api.Run("train-bbbb", run.path).cancel()
    assert clients.ended == ["5_1"]


def test_every_job_of_the_run_is_ended_whichever_attempt_it_was_made_for(clients, submitted):
    """A first copy that was cut off, or a job that was put back late: its submit token is of an older attempt."""
    run, _, plan = submitted("train-aaaa", "7", "mine")
    again, _ = new_attempt(run, "slurm", "requeue", None, kind="slurm", submit_token="later")
    write_record(again.handle, Handle("slurm", job_id="8", submit_token="later"))
    rows = [("6", "PENDING", "launch:other"), ("7", "RUNNING", "launch:mine"), ("8", "PENDING", "launch:later")]
    clients.rows(*rows)
    report = Cancelling(SlurmSystem(), run, again, plan).carry_out()
    assert sorted(report.ended) == ["job 7 (running on n0)", "job 8 (pending on n0)"]
    assert sorted(clients.ended) == ["7", "8"]
    assert end_of(again).state is State.CANCELLED


def test_a_cancel_waits_for_an_sbatch_that_is_under_way_and_ends_its_job(clients, submitted, monkeypatch):
    run, attempt, plan = submitted("train-aaaa", None, "mine")
    sbatch = locked(attempt.job_lock)
    assert sbatch.__enter__() is not None

    def done(_seconds):
        clients.rows(("8", "PENDING", "launch:mine"))
        sbatch.__exit__(None, None, None)

    monkeypatch.setattr(cancelling.time, "sleep", done)
    assert Cancelling(SlurmSystem(), run, attempt, plan).carry_out().ended == ("job 8 (pending on n0)",)
    assert clients.ended == ["8"]


def test_after_a_cancel_nobody_hands_the_attempt_over(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", None, "mine")
    clients.program("sbatch", "echo 9")
    Cancelling(SlurmSystem(), run, attempt, plan).carry_out()
    hand_over(SlurmSystem(), Handover.of(run, attempt))
    assert not attempt.handle.exists()


@pytest.mark.parametrize("by", ["end", "stop"])
def test_what_was_cancelled_during_its_sbatch_has_no_job_afterwards(clients, submitted, tmp_path, by):
    run, attempt, _ = submitted("train-aaaa", None, "mine")
    write_record(tmp_path / "end", cancelled())
    write_record(tmp_path / "stop", StopRequest("cancel", time.time(), this_process()))
    clients.program("sbatch", f"cp '{tmp_path}/{by}' '{getattr(attempt, by)}'; echo 9")
    hand_over(SlurmSystem(), Handover.of(run, attempt))
    assert clients.ended == ["9"]


# Nodes that nobody can ask


def test_a_node_that_slurm_does_not_hear_is_named_with_what_may_live_there(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    nodes = tuple(replace(plan.nodes[0], index=index, host=f"n{index}") for index in range(2))
    write_record(attempt.plan, replace(plan, nodes=nodes))
    clients.rows(("7", "PENDING", "launch:mine"))
    clients.program("scontrol", "echo NodeName=n0 State=IDLE; echo 'NodeName=n1 State=MIXED*'")
    (line,) = Cancelling(SlurmSystem(), run, attempt, plan).carry_out().cut_off
    assert line.startswith("n1 does not answer Slurm: ") and "its lease of 15 s" in line


def test_of_nodes_that_slurm_hears_and_where_it_is_silent_about_them_nothing_is_said(clients, submitted):
    run, attempt, plan = submitted("train-aaaa", "7", "mine")
    write_record(attempt.plan, replace(plan, nodes=(replace(plan.nodes[0], host="n0"),)))
    clients.rows(("7", "PENDING", "launch:mine"))
    clients.silent("scontrol")
    assert Cancelling(SlurmSystem(), run, attempt, plan).carry_out().cut_off == ()
