"""Finish what killed processes left undone: submit runs that never were, and end a second job with the same token.

An attempt with an intent and no job was left by a submitter that was killed. A second job with the token can only come
from a client that was given up and succeeded later; it would find nothing to do.
"""

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence

from launcher.errors import NotStarted, Unreachable
from launcher.places.batch.batch import BatchSystem, Phase, QueuedJob
from launcher.places.batch.hand_over import ThisCluster, hand_over, submit_tokens_of
from launcher.places.batch.look import Asked, answers_of, silence
from launcher.run.attempts import newest, read_plan
from launcher.run.avoided import avoided, forget, is_over
from launcher.run.durable import read_record, readable, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import DISK_ERRORS
from launcher.run.records import ClusterAnswer, Handle
from launcher.supervisor.handover import Handover, is_open

_SEEN_AGAIN_S = 60.0


def mend(queue: BatchSystem, attempts: Asked) -> list[ClusterAnswer | None]:
    """Finish what was left undone and return what `look` would, so that the scheduler is asked once for both."""
    here = ThisCluster(queue)
    try:
        for run, attempt in attempts:
            with _where_there_is_room():
                _hand_over_open(queue, run, attempt, here)
        handles = [read_record(attempt.handle, Handle) for _, attempt in attempts]
        jobs = queue.jobs()  # after the handles: a job that has one is in it
        _end_doubles(queue, attempts, handles, jobs)
        with _where_there_is_room():
            _let_wait_for_fewer(queue, attempts, handles, jobs)
    except Unreachable as error:
        return silence(attempts, error)
    words = answers_of(queue, attempts, handles, jobs)
    for (_, attempt), word, handle in zip(attempts, words, handles, strict=True):
        if word is not None and handle is not None and not word.silent:
            with _where_there_is_room():
                _remember(attempt, word)
    return words


@contextlib.contextmanager
def _where_there_is_room() -> Iterator[None]:
    """Ignore a full or failing disk within this context; a later call finishes the rest."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise


def _hand_over_open(queue: BatchSystem, run: RunDir, attempt: AttemptDir, here: ThisCluster) -> None:
    """Submit the attempt if it is open and its submitter is gone."""
    if not is_open(run, attempt):
        return
    handover = Handover.of(run, attempt)
    if handover.is_in_hand() or here.elsewhere(run, attempt):
        return
    try:
        hand_over(queue, handover, again=True)
    except NotStarted as refusal:
        handover.give_up(str(refusal))


def _end_doubles(
    queue: BatchSystem, attempts: Asked, handles: Sequence[Handle | None], jobs: Sequence[QueuedJob]
) -> None:
    """Cancel waiting jobs that are not the newest attempt's: with its token, or an older attempt's put back late.

    Elements of an array are left alone, as any of them may be some run's.
    """
    wanted = {
        submit_token: handle.job_id
        for (run, _), handle in zip(attempts, handles, strict=True)
        if handle is not None
        for submit_token, element in submit_tokens_of(run)
        if submit_token and element is None
    }
    for job in jobs:
        ours = next((wanted[submit_token] for submit_token in job.submit_tokens if submit_token in wanted), None)
        if ours is not None and job.id != ours and job.phase is Phase.QUEUED:
            queue.cancel(job.id)


def _let_wait_for_fewer(
    queue: BatchSystem, attempts: Asked, handles: Sequence[Handle | None], jobs: Sequence[QueuedJob]
) -> None:
    """Let waiting jobs use nodes again whose time of exclusion has ended."""
    now, waiting = time.time(), {job.id for job in jobs if job.phase is Phase.QUEUED}
    for (run, attempt), handle in zip(attempts, handles, strict=True):
        if handle is not None and handle.job_id in waiting and is_over(run, now):
            left = [exclusion.host for exclusion in avoided(run, now)]
            queue.start_again(read_plan(run, attempt.number), handle.job_id, left)
            forget(run, now)


def include_nodes(queue: BatchSystem, run: RunDir, hosts: Collection[str]) -> None:
    """Let a waiting job of the run use these nodes again, or all."""
    attempt = newest(run)
    handle = readable(attempt.handle, Handle) if attempt is not None else None
    if attempt is None or handle is None or handle.job_id is None:
        return
    left = [exclusion.host for exclusion in avoided(run) if hosts and exclusion.host not in hosts]
    for job in queue.jobs([handle.job_id]):
        if job.phase is Phase.QUEUED and job.may_have(handle.submit_token):
            queue.start_again(read_plan(run, attempt.number), job.id, left)


def _remember(attempt: AttemptDir, word: ClusterAnswer) -> None:
    """Keep the scheduler's answer for a time when it does not answer or has forgotten how the job ended."""
    before = readable(attempt.seen, ClusterAnswer)
    if before is None or before.phase != word.phase or before.word != word.word or word.at - before.at > _SEEN_AGAIN_S:
        write_record(attempt.seen, word)
