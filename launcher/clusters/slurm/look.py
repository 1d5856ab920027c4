"""What Slurm says of runs: one squeue for all, one sacct for those that squeue has forgotten. Tidies up on the way.

An attempt that has an intent and no job was left lying by a submitter that was killed: it is handed over now, unless
squeue shows that it was. A second job with the same ticket, which can only come from a sbatch that was given up and yet
went through, is ended: it would find nothing to do.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from launcher.clusters.keeping.attempt_end import write_end
from launcher.clusters.slurm.parcels import hand_over, parcel_of
from launcher.clusters.slurm.queries.jobs import Job, cancel, read_jobs, read_sacct, sacct_jobs, squeue_jobs
from launcher.clusters.slurm.reach import ask
from launcher.clusters.slurm.reasons import plain
from launcher.clusters.slurm.states import Phase, end_of
from launcher.clusters.slurm.which_cluster import ThisCluster
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
    now, here = time.time(), ThisCluster()
    try:
        handles = [_handle(run, attempt, now, here) for run, attempt in attempts]
        jobs = read_jobs(ask(squeue_jobs(), limit_s=LIMIT_S).out)  # after the handles: a job that has one is in it
        _end_doubles([read_intent(attempt) for _, attempt in attempts], handles, jobs)
    except Unreachable as error:
        return [_last_seen(attempt, str(error.lines[0])) for _, attempt in attempts]
    shown = {job.id: job for job in jobs}
    asked = [
        _Asked(run, attempt, handle, shown.get(handle.job_id or "") if handle is not None else None)
        for (run, attempt), handle in zip(attempts, handles, strict=True)
    ]
    words = {one.attempt: word_of(one.job, now) for one in asked if one.job is not None and one.is_ours}
    words |= _words_on_doubtful([one for one in asked if one.attempt not in words], now, here)
    return [_answer(attempt, words.get(attempt), now) for _, attempt in attempts]


@dataclass(frozen=True, slots=True)
class _Asked:
    """An attempt, and the job of its id that squeue shows."""

    run: RunDir
    attempt: AttemptDir
    handle: Handle | None
    job: Job | None

    @property
    def is_ours(self) -> bool:
        """Surely: it has the attempt's ticket."""
        ticket = self.handle.ticket if self.handle is not None else ""
        return self.job is not None and (not ticket or ticket in self.job.tickets)

    @property
    def forgotten(self) -> str:
        """The id of a job that squeue does not show; "" where there is none. A controller may give ids again."""
        if self.handle is None or self.handle.job_id is None:
            return ""
        return "" if self.job is not None and self.job.may_have(self.handle.ticket) else self.handle.job_id


def _words_on_doubtful(asked: Sequence[_Asked], now: float, here: ThisCluster) -> dict[AttemptDir, ClusterWord]:
    """Of jobs that squeue does not show, or not as ours: on another cluster, known to the accounts, or gone."""
    try:
        away = {one.attempt: why for one in asked if (why := here.elsewhere(one.run, one.attempt))}
    except Unreachable as error:
        return {one.attempt: _last_seen(one.attempt, str(error.lines[0])) for one in asked}
    words = {attempt: _last_seen(attempt, why) for attempt, why in away.items()}
    for one in asked:
        if one.job is not None and one.attempt not in away and not one.forgotten:
            words[one.attempt] = word_of(one.job, now)
    return words | _words_on_forgotten([one for one in asked if one.forgotten and one.attempt not in away], now)


def _words_on_forgotten(asked: Sequence[_Asked], now: float) -> dict[AttemptDir, ClusterWord]:
    """What the accounts say; silent accounts make nobody else silent."""
    if not asked:
        return {}
    since = min(read_intent(one.attempt).created_at for one in asked) - _SKEW_S
    try:
        answer = ask(sacct_jobs([one.forgotten for one in asked], since), limit_s=LIMIT_S)
    except Unreachable as error:
        return {one.attempt: _last_seen(one.attempt, str(error.lines[0])) for one in asked}
    known = {job.id: word_of(job, now) for job in read_sacct(answer.code, answer.out, answer.err) or ()}
    return {one.attempt: known.get(one.forgotten) or ClusterWord(_GONE, "", now, one.forgotten) for one in asked}


def _answer(attempt: AttemptDir, word: ClusterWord | None, now: float) -> ClusterWord | None:
    if word is None:
        return _being_submitted(attempt, now)
    return word if word.silent else _remember(attempt, word)


def _being_submitted(attempt: AttemptDir, now: float) -> ClusterWord | None:
    """A word for an attempt whose submitter is dead, and whose sbatch is not: nobody has lost it."""
    if attempt.end.exists() or not _is_left_lying(read_intent(attempt), now):
        return None
    return ClusterWord(Phase.QUEUED, "", now, text="it is being handed to Slurm")


def _handle(run: RunDir, attempt: AttemptDir, now: float, here: ThisCluster) -> Handle | None:
    """Which job the attempt is; handed over now where its submitter could not."""
    handle = read_record(attempt.handle, Handle)
    if handle is None and _is_left_lying(read_intent(attempt), now) and not here.elsewhere(run, attempt):
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
        intent.ticket: handle.job_id
        for intent, handle in zip(intents, handles, strict=True)
        if handle is not None and intent.ticket and not intent.batch
    }
    for job in jobs:
        ours = next((wanted[ticket] for ticket in job.tickets if ticket in wanted), None)
        if ours is not None and job.id != ours and job.state.phase is Phase.QUEUED:
            ask(cancel(job.id), limit_s=LIMIT_S)


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
