"""Runs of this machine whose supervisor and agents were all killed: whoever asks next finishes their records, or has
them go on.

    the run is lost ─┬─ all ranks had finished, by their exits on disk ─► its end is written: succeeded
                     ├─ it was asked to end ────────────────────────────► its end is written: cancelled
                     ├─ nobody had taken the attempt up ────────────────► a supervisor for this attempt
                     └─ else: a failure, and what the policy says ──────► a supervisor for the next one, or an end
"""

import time

from launcher.agent.memory.tier import close_tier
from launcher.clusters.local.shared_zygote import keeper_of
from launcher.errors import BadInput, Exit, Refused
from launcher.plan.model import Plan
from launcher.recovery.classify import finished
from launcher.rundir.attempts import new_attempt, read_intent, read_plan
from launcher.rundir.durable import read_lines, read_record, readable
from launcher.rundir.identity import boot_id, host
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.locks import locked
from launcher.rundir.ownership import is_ours_alone
from launcher.rundir.records import AttemptEnd, Event, Handle, ProcessId, RankExit, RunState
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.supervisor.attempt_end import cancelled, is_cancelled, settle, write_end, write_failure
from launcher.words import LOCAL, Cause, State

_BOOT_S = 30.0


def carry_on(run: RunDir, attempt: AttemptDir) -> None:
    """Finish the records of a lost attempt, or start a supervisor that goes on with the run.

    Do nothing where the machine was started anew since: a person decides then. Raises LaunchError, or OSError, where a
    record that is needed cannot be read or written.
    """
    if not _was_kept_here(attempt):
        return
    with locked(attempt.job_lock) as alone:
        if alone is None or not _is_lost(run, attempt):
            return  # somebody else was quicker
        if not is_ours_alone(run.path.resolve()):
            raise BadInput(f"{run.path}: other users own it or can write to it: the code in it may be theirs")
        plan = read_plan(run, attempt.number)
        if plan.cluster_kind != LOCAL:
            return  # a host's part of a run that others lead
        if not attempt.started.exists():
            _start(run, attempt)
            return
        end = _end_of(run, attempt, plan)
        if end.state is not State.QUEUED:
            close_tier(run.path, attempt.number)
            return
        try:
            following, _ = new_attempt(run, plan.cluster, "requeue", end.cause, after=attempt.number)
        except Refused:
            return  # a person has resumed it meanwhile
        _start(run, following)


def _was_kept_here(attempt: AttemptDir) -> bool:
    """Whether this boot of this machine had its supervisor, or its submitter where none had begun."""
    handle = readable(attempt.handle, Handle)
    keeper = handle.keeper if handle is not None else readable(attempt.started, ProcessId)
    process = keeper or read_intent(attempt).created_by
    return (process.host, process.boot_id) == (host(), boot_id())


def _is_lost(run: RunDir, attempt: AttemptDir) -> bool:
    facts = read_facts(run.path)
    return facts.attempt == attempt.number and derive(facts).state is State.LOST


def _start(run: RunDir, attempt: AttemptDir) -> None:
    supervisor = keeper_of(run.path)
    supervisor.report(_BOOT_S)
    supervisor.tell(f"{attempt.number}\n".encode())
    supervisor.close()


def _end_of(run: RunDir, attempt: AttemptDir, plan: Plan) -> AttemptEnd:
    """The end of the attempt with all that follows from it, on disk."""
    end = read_record(attempt.end, AttemptEnd)
    if end is not None:
        settle(run, attempt, end, plan)
        return end
    if is_cancelled(attempt):
        end = cancelled()
    elif has_finished(run, attempt, plan):
        end = AttemptEnd(State.SUCCEEDED, None, Exit.OK, time.time(), "all ranks have finished")
    else:
        text = "the supervisor and the agents were killed"
        return write_failure(run, attempt, plan, Cause.NODE_LOST, text)
    write_end(run, attempt, end, plan)
    return end


def has_finished(run: RunDir, attempt: AttemptDir, plan: Plan) -> bool:
    """Whether the exits of all ranks of the newest generation are on disk, and each had done all its work."""
    history = read_lines(run.events, Event)
    opened = [one.generation for one in history if one.attempt == attempt.number and one.kind == "generation_opened"]
    newest = max(opened, default=0)
    last = read_record(run.state, RunState)
    size = plan.nodes_max * plan.ranks_per_node if plan.nodes_min == plan.nodes_max else None
    if last is not None and (last.attempt, last.generation) == (attempt.number, newest):
        size = last.world_size
    exits = {one.rank: one for one in read_lines(attempt.exits, RankExit) if one.generation == newest}
    return bool(opened) and len(exits) == size and all(map(finished, exits.values()))
