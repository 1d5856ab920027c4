"""What the scheduler says of runs: one question for all, and one to its accounts for jobs that it shows no more.

Nothing is changed by it; what a killed submitter left to be done is done in `mend`.
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
from launcher.run.records import ClusterWord, Handle
from launcher.supervisor.handover import Handover

_SKEW_S = 3600.0  # between this machine's clock and the scheduler's
_GONE = "gone"

Asked = Sequence[tuple[RunDir, AttemptDir]]
Words = list[ClusterWord | None]


def look(queue: BatchSystem, attempts: Asked) -> Words:
    """The word on each attempt; None where it is still being submitted."""
    handles = [read_record(attempt.handle, Handle) for _, attempt in attempts]
    try:
        jobs = queue.jobs()  # after the handles: a job that has one is in it
    except Unreachable as error:
        return silence(attempts, error)
    return words_on(queue, attempts, handles, jobs)


def of_each(attempts: Asked, say: Callable[[Asked], Words]) -> Words:
    """A word on each: of those whose records are damaged that they are, so that nobody else's run waits for theirs."""
    words: dict[AttemptDir, ClusterWord | None] = {}
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


def silence(attempts: Asked, error: Unreachable) -> Words:
    """What was last seen of each, where nobody answers."""
    return [last_seen(attempt, str(error.lines[0])) for _, attempt in attempts]


def words_on(queue: BatchSystem, attempts: Asked, handles: Sequence[Handle | None], jobs: Sequence[QueuedJob]) -> Words:
    """The word on each, by the jobs that the scheduler shows."""
    now, shown = time.time(), {job.id: job for job in jobs}
    asked = [
        _Asked(run, attempt, handle, shown.get(handle.job_id or "") if handle is not None else None)
        for (run, attempt), handle in zip(attempts, handles, strict=True)
    ]
    words = {one.attempt: _word_of(queue, one.job, now) for one in asked if one.job is not None and one.is_ours}
    words |= _words_on_doubtful(queue, [one for one in asked if one.attempt not in words], now)
    return [_answer(queue, attempt, words.get(attempt), now) for _, attempt in attempts]


class _Asked(msgspec.Struct, frozen=True):
    """An attempt, and the job of its id that the scheduler shows."""

    run: RunDir
    attempt: AttemptDir
    handle: Handle | None
    job: QueuedJob | None

    @property
    def is_ours(self) -> bool:
        """Surely: it has the attempt's ticket."""
        ticket = self.handle.ticket if self.handle is not None else ""
        return self.job is not None and (not ticket or ticket in self.job.tickets)

    @property
    def forgotten(self) -> str:
        """The id of a job that is not shown; "" where there is none. A controller may give ids again."""
        if self.handle is None or self.handle.job_id is None:
            return ""
        return "" if self.job is not None and self.job.may_have(self.handle.ticket) else self.handle.job_id


def _words_on_doubtful(queue: BatchSystem, asked: Sequence[_Asked], now: float) -> dict[AttemptDir, ClusterWord]:
    """Of jobs that are not shown, or not as ours: on another cluster, known to the accounts, or gone."""
    here = ThisCluster(queue)
    try:
        away = {one.attempt: why for one in asked if (why := here.elsewhere(one.run, one.attempt))}
    except Unreachable as error:
        return {one.attempt: last_seen(one.attempt, str(error.lines[0])) for one in asked}
    words = {attempt: last_seen(attempt, why) for attempt, why in away.items()}
    for one in asked:
        if one.job is not None and one.attempt not in away and not one.forgotten:
            words[one.attempt] = _word_of(queue, one.job, now)
    return words | _words_on_forgotten(queue, [one for one in asked if one.forgotten and one.attempt not in away], now)


def _words_on_forgotten(queue: BatchSystem, asked: Sequence[_Asked], now: float) -> dict[AttemptDir, ClusterWord]:
    """What the accounts say; silent accounts make nobody else silent."""
    if not asked:
        return {}
    since = min(read_intent(one.attempt).created_at for one in asked) - _SKEW_S
    try:
        accounts = queue.accounts([one.forgotten for one in asked], since)
    except Unreachable as error:
        return {one.attempt: last_seen(one.attempt, str(error.lines[0])) for one in asked}
    known = {job.id: _word_of(queue, job, now) for job in accounts}
    return {one.attempt: known.get(one.forgotten) or ClusterWord(_GONE, "", now, one.forgotten) for one in asked}


def _answer(queue: BatchSystem, attempt: AttemptDir, word: ClusterWord | None, now: float) -> ClusterWord | None:
    if word is None:
        return _being_submitted(queue, attempt, now)
    before = readable(attempt.seen, ClusterWord) if word.phase == _GONE else None
    return before if before is not None and before.phase == Phase.ENDED else word


def _being_submitted(queue: BatchSystem, attempt: AttemptDir, now: float) -> ClusterWord | None:
    """A word for an attempt that has no job yet, unless its submitter lives here and speaks for itself: it may be on
    another machine, or be dead while its client is not. Nobody has lost it."""
    if attempt.end.exists() or attempt.handle.exists() or alive(read_intent(attempt).created_by):
        return None
    return ClusterWord(Phase.QUEUED, "", now, text=f"it is being handed to {queue.called}")


def _word_of(queue: BatchSystem, job: QueuedJob, now: float) -> ClusterWord:
    """Of a job that runs it has no text: that would stand in place of what the run itself says."""
    text = "" if job.phase is Phase.RUNNING else job.text
    if job.suspended:
        text = f"its job is suspended: all of it stands still until {queue.called} lets it go on"
    return ClusterWord(
        job.phase, job.word, now, job.id, text, job.starts_at, job.ended_as, job.cause, said_by=queue.called
    )
