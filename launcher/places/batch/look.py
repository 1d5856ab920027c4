"""Ask a scheduler about runs: one query for all, and one to its accounting for jobs that it no longer shows. Nothing is
changed. In every function `now` is the current Unix time, and an attempt's handle is the record of its job: the job's
id and submit token.

Work that a killed submitter left undone is completed by `mend`.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from launcher.errors import LaunchError, Unreachable
from launcher.places.batch.batch import BatchSystem, Phase, QueuedJob
from launcher.places.batch.hand_over import ThisCluster
from launcher.run.attempts import last_seen, read_intent, read_plan
from launcher.run.durable import read_record, readable
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterAnswer, Handle
from launcher.supervisor.handover import Handover

_SKEW_S = 3600.0  # between this machine's clock and the scheduler's
_GONE = "gone"

Asked = Sequence[tuple[RunDir, AttemptDir]]
Answers = list[ClusterAnswer | None]


def look(queue: BatchSystem, attempts: Asked) -> Answers:
    """Return the scheduler's answer about each of `attempts`, pairs of a run and its attempt, in their order; None for
    one that is still being submitted.

    If the scheduler does not answer, the last recorded answers are returned, each with the reason why none is newer.
    """
    handles = [read_record(attempt.handle, Handle) for _, attempt in attempts]
    try:
        jobs = queue.jobs()  # after the handles: a job that has one is in it
    except Unreachable as error:
        return last_answers(attempts, error)
    return answers_of(queue, attempts, handles, jobs)


def of_each(attempts: Asked, say: Callable[[Asked], Answers]) -> Answers:
    """Return an answer about each attempt, in their order. `say` is called once with all attempts whose records can be
    read, and returns the answers about these; any other gets its last recorded answer, with the error.
    """
    words: dict[AttemptDir, ClusterAnswer | None] = {}
    for run, attempt in attempts:
        try:
            read_intent(attempt)
            handle = read_record(attempt.handle, Handle)
            if handle is None and not attempt.end.exists() and not Handover.of(run, attempt).is_in_hand():
                read_plan(run, attempt.number)  # it is yet to be handed over
        except (LaunchError, OSError) as error:
            words[attempt] = last_seen(attempt, str(error))
    if whole := [one for one in attempts if one[1] not in words]:
        words |= zip((attempt for _, attempt in whole), say(whole), strict=True)
    return [words[attempt] for _, attempt in attempts]


def last_answers(attempts: Asked, error: Unreachable) -> Answers:
    """Return the last recorded answer about each attempt, with `error` as the reason why there is no newer one."""
    return [last_seen(attempt, str(error.lines[0])) for _, attempt in attempts]


def answers_of(
    queue: BatchSystem, attempts: Asked, handles: Sequence[Handle | None], jobs: Sequence[QueuedJob]
) -> Answers:
    """Return the answer about each attempt, given its handle (None: not submitted) and the jobs that the scheduler
    shows. For a job that is not shown, the accounting is asked.

    An attempt without a job gets the answer that it is being submitted, or None if its submitter is alive on this
    machine and reports that itself.
    """
    now, shown = time.time(), {job.id: job for job in jobs}
    asked = [
        _Asked(run, attempt, handle, shown.get(handle.job_id or "") if handle is not None else None)
        for (run, attempt), handle in zip(attempts, handles, strict=True)
    ]
    words = {one.attempt: _answer_of(queue, one.job, now) for one in asked if one.job is not None and one.is_ours}
    words |= _answers_about_doubtful(queue, [one for one in asked if one.attempt not in words], now)
    return [_answer(queue, attempt, words.get(attempt), now) for _, attempt in attempts]


class _Asked(msgspec.Struct, frozen=True):
    """An attempt to answer about, its handle, and the job with the handle's id that the scheduler shows, or None."""

    run: RunDir
    attempt: AttemptDir
    handle: Handle | None  # None: no job was submitted for it yet
    job: QueuedJob | None

    @property
    def is_ours(self) -> bool:
        """Return whether there is a job and it shows the attempt's submit token, and so certainly belongs to it. If no
        token is recorded, any job with the handle's id counts.
        """
        submit_token = self.handle.submit_token if self.handle is not None else ""
        return self.job is not None and (not submit_token or submit_token in self.job.submit_tokens)

    @property
    def forgotten(self) -> str:
        """Return the id of the attempt's job if the scheduler does not show the job, or shows another run's under this
        id, which may be reused.

        Return "" otherwise, or if the attempt has no job.
        """
        if self.handle is None or self.handle.job_id is None:
            return ""
        return "" if self.job is not None and self.job.may_have(self.handle.submit_token) else self.handle.job_id


def _answers_about_doubtful(queue: BatchSystem, asked: Sequence[_Asked], now: float) -> dict[AttemptDir, ClusterAnswer]:
    """Return by attempt the answers about the attempts in `asked`, for which the scheduler shows no job that certainly
    is theirs.

    An attempt whose job is on another cluster keeps its last answer, with that as the reason, and so do all if it
    cannot be found out which cluster this is. Otherwise a job that is shown without its submit token is taken for the
    attempt's; for one that is not shown the accounting is queried, and if that does not know it either, it is gone. An
    attempt for which no job was submitted gets no answer.
    """
    here = ThisCluster(queue)
    try:
        away = {one.attempt: why for one in asked if (why := here.elsewhere(one.run, one.attempt))}
    except Unreachable as error:
        return {one.attempt: last_seen(one.attempt, str(error.lines[0])) for one in asked}
    words = {attempt: last_seen(attempt, why) for attempt, why in away.items()}
    for one in asked:
        if one.job is not None and one.attempt not in away and not one.forgotten:
            words[one.attempt] = _answer_of(queue, one.job, now)
    return words | _answers_about_forgotten(
        queue, [one for one in asked if one.forgotten and one.attempt not in away], now
    )


def _answers_about_forgotten(
    queue: BatchSystem, asked: Sequence[_Asked], now: float
) -> dict[AttemptDir, ClusterAnswer]:
    """Return an answer for each attempt in `asked`, whose jobs the scheduler no longer shows: what the accounting says
    about its job, or that the job is gone if the accounting does not know it.

    If the accounting cannot be queried, each attempt keeps its last answer.
    """
    if not asked:
        return {}
    since = min(read_intent(one.attempt).created_at for one in asked) - _SKEW_S
    try:
        accounts = queue.accounts([one.forgotten for one in asked], since)
    except Unreachable as error:
        return {one.attempt: last_seen(one.attempt, str(error.lines[0])) for one in asked}
    known = {job.id: _answer_of(queue, job, now) for job in accounts}
    return {one.attempt: known.get(one.forgotten) or ClusterAnswer(_GONE, "", now, one.forgotten) for one in asked}


def _answer(queue: BatchSystem, attempt: AttemptDir, answer: ClusterAnswer | None, now: float) -> ClusterAnswer | None:
    """Return `answer`, the scheduler's answer about an attempt. But if it is that the job is gone, and an earlier
    answer in the attempt's folder says how the job ended, return the earlier one.

    If `answer` is None, because the attempt has no job yet, return an answer that it is being submitted, or None if its
    submitter is alive on this machine and reports that itself.
    """
    if answer is None:
        return _being_submitted(queue, attempt, now)
    before = readable(attempt.seen, ClusterAnswer) if answer.phase == _GONE else None
    return before if before is not None and before.phase == Phase.ENDED else answer


def _being_submitted(queue: BatchSystem, attempt: AttemptDir, now: float) -> ClusterAnswer | None:
    """Return the answer that the attempt, which has no job yet, is being submitted. Return None if it has ended, has a
    job by now, or was opened by a process that is alive on this machine and itself reports that it submits.

    If no such process lives here, the attempt still does not count as lost: the process may be on another machine, or
    dead while the command that it started still submits the job.
    """
    if attempt.end.exists() or attempt.handle.exists() or alive(read_intent(attempt).created_by):
        return None
    return ClusterAnswer(Phase.QUEUED, "", now, text=f"it is being handed to {queue.called}")


def _answer_of(queue: BatchSystem, job: QueuedJob, now: float) -> ClusterAnswer:
    """Return the answer about one job. Its text is the scheduler's about the job, or that the job is suspended. It is
    empty for any other running job, because it would hide what the run itself reports.
    """
    text = "" if job.phase is Phase.RUNNING else job.text
    if job.suspended:
        text = f"its job is suspended: all its processes are stopped until {queue.called} continues it"
    return ClusterAnswer(
        job.phase, job.word, now, job.id, text, job.starts_at, job.ended_as, job.cause, said_by=queue.called
    )
