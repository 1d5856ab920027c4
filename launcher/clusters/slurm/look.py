"""What Slurm says of runs: one squeue for all, one sacct for those that squeue has forgotten. Tidies up on the way.

An attempt that has an intent and no job was left lying by a submitter that was killed: it is handed over now, unless
squeue shows that it was. A second job with the same ticket, which can only come from a sbatch that was given up and yet
went through, is ended: it would find nothing to do.
"""

import time
from collections.abc import Sequence

import msgspec

from launcher.clusters.last_word import write_end
from launcher.clusters.slurm.parcels import hand_over, parcel_of
from launcher.clusters.slurm.queries.jobs import Job, cancel, read_jobs, read_sacct, sacct_jobs, squeue_jobs
from launcher.clusters.slurm.reach import ask
from launcher.clusters.slurm.reasons import plain
from launcher.clusters.slurm.states import Phase, end_of
from launcher.errors import Exit, NotStarted, Unreachable
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.durable import read_record, write_record
from launcher.rundir.identity import alive
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, ClusterWord, Handle, Intent
from launcher.words import Cause, State

LIMIT_S = 10.0
_GIVEN_UP_S = 60.0  # a submitter on another machine, of which nobody here can tell whether it lives, is done by then
_SEEN_AGAIN_S = 60.0
_SKEW_S = 3600.0  # between this machine's clock and Slurm's
_GONE = "gone"


def look(attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
    """The word on each attempt; None where it is still being submitted."""
    now = time.time()
    since = min((read_intent(attempt).created_at for _, attempt in attempts), default=now) - _SKEW_S
    try:
        handles = [_handle(run, attempt, now) for run, attempt in attempts]
        jobs = read_jobs(ask(squeue_jobs(), limit_s=LIMIT_S).out)  # after the handles: a job that has one is in it
        _end_doubles([read_intent(attempt) for _, attempt in attempts], handles, jobs)
        words = _words(handles, jobs, since, now)
    except Unreachable as error:
        return [_last_seen(attempt, str(error.lines[0])) for _, attempt in attempts]
    return [
        _being_submitted(attempt, now) if word is None else _remember(attempt, word)
        for (_, attempt), word in zip(attempts, words, strict=True)
    ]


def _being_submitted(attempt: AttemptDir, now: float) -> ClusterWord | None:
    """A word for an attempt whose submitter is dead, and whose sbatch is not: nobody has lost it."""
    if attempt.end.exists() or not _is_left_lying(read_intent(attempt), now):
        return None
    return ClusterWord(Phase.QUEUED, "", now, text="it is being handed to Slurm")


def _handle(run: RunDir, attempt: AttemptDir, now: float) -> Handle | None:
    """Which job the attempt is; handed over now where its submitter could not."""
    handle = read_record(attempt.handle, Handle)
    if handle is None and _is_left_lying(read_intent(attempt), now):
        try:
            hand_over(parcel_of(run, attempt), again=True)
        except NotStarted as refusal:
            end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, now, str(refusal))
            write_end(run, attempt, end, read_plan(run, attempt.number))
        handle = read_record(attempt.handle, Handle)
    return handle


def _is_left_lying(intent: Intent, now: float) -> bool:
    lives = alive(intent.created_by)
    return lives is False or (lives is None and now - intent.created_at > _GIVEN_UP_S)


def _end_doubles(intents: Sequence[Intent], handles: Sequence[Handle | None], jobs: Sequence[Job]) -> None:
    """Of an array every element is left to find out for itself: any of them may be some run's."""
    wanted = {
        f"launch:{intent.ticket}": handle.job_id
        for intent, handle in zip(intents, handles, strict=True)
        if handle is not None and intent.ticket and not intent.batch
    }
    for job in jobs:
        ours = next((wanted[word] for word in job.comment.split() if word in wanted), None)
        if ours is not None and job.id != ours and job.state.phase is Phase.QUEUED:
            ask(cancel(job.id), limit_s=LIMIT_S)


def _words(handles: Sequence[Handle | None], jobs: Sequence[Job], since: float, now: float) -> list[ClusterWord | None]:
    ids = [handle.job_id if handle is not None else None for handle in handles]
    tickets = {handle.job_id: handle.ticket for handle in handles if handle is not None}
    known = {job.id: word_of(job, now) for job in jobs if job.id in tickets and _has(job, tickets[job.id])}
    forgotten = [one for one in ids if one is not None and one not in known]
    if forgotten:
        answer = ask(sacct_jobs(forgotten, since), limit_s=LIMIT_S)
        known |= {job.id: word_of(job, now) for job in read_sacct(answer.code, answer.out, answer.err) or ()}
    return [None if one is None else known.get(one) or ClusterWord(_GONE, "", now, one) for one in ids]


def _has(job: Job, ticket: str) -> bool:
    """Whether it is that job, and no later one that a forgetful controller gave the same id."""
    return not ticket or f"launch:{ticket}" in job.comment.split()


def word_of(job: Job, now: float) -> ClusterWord:
    """A row of Slurm's as a word for people."""
    text = ""
    match job.state.phase:
        case Phase.QUEUED:
            text = plain(job.reason)
        case Phase.RUNNING | Phase.ENDING:
            text = f"on {job.hosts}" if job.hosts else ""
        case Phase.ENDED | Phase.UNKNOWN:
            text = f"by user {job.state.by}" if job.state.by else ""
    starts_at = job.starts_at if job.state.phase is Phase.QUEUED else None
    ended_as, cause = end_of(job.state.word) if job.state.phase is Phase.ENDED else (None, None)
    return ClusterWord(job.state.phase, job.state.word, now, job.id, text, starts_at, ended_as, cause)


def _remember(attempt: AttemptDir, word: ClusterWord) -> ClusterWord:
    """Keep the word for the day on which Slurm is silent, or has forgotten how the job ended."""
    before = read_record(attempt.seen, ClusterWord)
    if word.phase == _GONE and before is not None and before.phase == Phase.ENDED:
        return before
    if before is None or before.phase != word.phase or before.word != word.word or word.at - before.at > _SEEN_AGAIN_S:
        write_record(attempt.seen, word)
    return word


def _last_seen(attempt: AttemptDir, why: str) -> ClusterWord:
    before = read_record(attempt.seen, ClusterWord) or ClusterWord(Phase.UNKNOWN, "", 0.0)
    return msgspec.structs.replace(before, silent=why)
