"""What others left undone is done: a run that was never handed over is, and of two jobs of one ticket one is ended.

An attempt that has an intent and no job was left lying by a submitter that was killed. A second job with the ticket
can only come from a client that was given up and yet went through: it would find nothing to do.
"""

import time
from collections.abc import Sequence

from launcher.clusters.batch.hand_over import ThisCluster, batch_job_of, hand_over
from launcher.clusters.batch.look import Asked, is_left_lying, silence, words_on
from launcher.clusters.batch.queue import Phase, Queue, QueuedJob
from launcher.clusters.keeping.attempt_end import write_end
from launcher.errors import Exit, NotStarted, Unreachable
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.durable import read_record, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, ClusterWord, Handle, Intent
from launcher.words import Cause, State

_SEEN_AGAIN_S = 60.0


def mend(queue: Queue, attempts: Asked) -> list[ClusterWord | None]:
    """Gives what `look` would say afterwards, so that the scheduler is asked once for both."""
    here = ThisCluster(queue)
    try:
        for run, attempt in attempts:
            _hand_over_what_lies(queue, run, attempt, here)
        handles = [read_record(attempt.handle, Handle) for _, attempt in attempts]
        jobs = queue.jobs()  # after the handles: a job that has one is in it
        _end_doubles(queue, [read_intent(attempt) for _, attempt in attempts], handles, jobs)
    except Unreachable as error:
        return silence(attempts, error)
    words = words_on(queue, attempts, handles, jobs)
    for (_, attempt), word, handle in zip(attempts, words, handles, strict=True):
        if word is not None and handle is not None and not word.silent:
            _remember(attempt, word)
    return words


def _hand_over_what_lies(queue: Queue, run: RunDir, attempt: AttemptDir, here: ThisCluster) -> None:
    now = time.time()
    if attempt.handle.exists() or not is_left_lying(read_intent(attempt), now) or here.elsewhere(run, attempt):
        return
    try:
        hand_over(queue, batch_job_of(run, attempt), again=True)
    except NotStarted as refusal:
        end = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, now, str(refusal))
        write_end(run, attempt, end, read_plan(run, attempt.number))


def _end_doubles(
    queue: Queue, intents: Sequence[Intent], handles: Sequence[Handle | None], jobs: Sequence[QueuedJob]
) -> None:
    """Of an array every element is left to find out for itself: any of them may be some run's."""
    wanted = {
        intent.ticket: handle.job_id
        for intent, handle in zip(intents, handles, strict=True)
        if handle is not None and intent.ticket and not intent.batch
    }
    for job in jobs:
        ours = next((wanted[ticket] for ticket in job.tickets if ticket in wanted), None)
        if ours is not None and job.id != ours and job.phase is Phase.QUEUED:
            queue.cancel(job.id)


def _remember(attempt: AttemptDir, word: ClusterWord) -> None:
    """Keep the word for the day on which the scheduler is silent, or has forgotten how the job ended."""
    before = read_record(attempt.seen, ClusterWord)
    if before is None or before.phase != word.phase or before.word != word.word or word.at - before.at > _SEEN_AGAIN_S:
        write_record(attempt.seen, word)
