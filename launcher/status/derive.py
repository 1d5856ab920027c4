"""Derive a run's status from the facts that were read about it: one pure, total function without clock or disk. No
failure is inferred from a file's age. An attempt is one batch job, or one start on a pool's hosts; the supervisor is
the process that opens a run's attempts one after the other. On each node an agent starts ranks; the coordinator, in the
first node's agent, decides restarts. In the functions below, `own` is the state that the run's coordinator recorded
last, or None if it recorded none in the newest attempt. A run of several programs has a role for each; a side role is
one beside its main role, with records of its own.
"""

import dataclasses
import re
import time
from typing import assert_never

import msgspec
from msgspec.structs import replace

from launcher.errors import Exit
from launcher.run.hangs import LastRank
from launcher.run.records import (
    AttemptEnd,
    ClusterAnswer,
    Exclusion,
    Failure,
    NodeLoad,
    NodeState,
    NotFinite,
    RankState,
    RunState,
)
from launcher.states import Cause, State, exit_of
from launcher.status.facts import RunFacts

_PLAIN = re.compile(r"[\w./-]+")
_HERE = frozenset({"up", "spare", "drained", "waiting", "unknown"})  # what is said of nodes while a run goes on
_OLD_S = 10.0  # a coordinator writes once a second


class Restarts(msgspec.Struct, frozen=True):
    """The number of a run's restarts, in total and by cause."""

    total: int
    by_cause: dict[str, int]


class RunStatus(msgspec.Struct, frozen=True):
    """The status of a run, as `launch status --json` prints it. `as_of` is set if the status may be out of date: when
    it was last known to hold. `next` is the command to go on with, `avoided` are lost nodes not used for a while,
    `safe_checkpoint` survives the loss of any one disk, `memory_copy` is the newest step whose snapshot survives the
    loss of any one node, and `malformed` counts invalid reports of ranks.
    """

    run: str
    name: str  # of the job, in its spec
    cluster: str
    state: State
    cause: Cause | None
    exit_code: int | None  # None: it has not ended
    attempt: int
    generation: int  # the newest start of the ranks in this attempt
    step: int | None
    total_steps: int | None
    rate: float | None  # steps per second
    eta_s: float | None  # seconds until the last step
    metrics: dict[str, float]  # the newest value of each
    not_finite: dict[str, NotFinite]  # metrics that are NaN or infinite now
    malformed: int  # invalid lines among the ranks' reports
    world_size: int | None
    restarts: Restarts
    checkpoint: int | None  # step of the newest one
    fingerprint: str | None  # of the final state, as the trainer reported it
    nodes: tuple[NodeState, ...]
    ranks: tuple[RankState, ...]
    failure: Failure | None  # the last one in this attempt; None: none, or the run has succeeded
    message: str  # why it is in its state
    submitted_at: float  # Unix time
    started_at: float | None  # Unix time
    ended_at: float | None  # Unix time
    as_of: float | None  # Unix time when it was last known to hold, if it may be out of date; else None
    run_dir: str
    next: str  # the command to use next, or ""
    job: str | None = None  # its id in the batch system
    avoided: tuple[Exclusion, ...] = ()  # nodes that were lost, and are not used for a while
    second_copies: bool = False  # nodes have separate disks, and checkpoints get copies on a second one
    safe_checkpoint: int | None = None  # step of the newest one that survives the loss of any one disk
    memory_copy: int | None = None  # the newest step whose snapshot in memory survives the loss of any one node
    roles: dict[str, "RunStatus"] = {}  # the side roles of a run of several programs, by name
    loads: tuple[NodeLoad, ...] = ()  # what each node's machine and ranks use, as last sampled; empty after the end
    last_rank: LastRank | None = None  # the rank for which the others wait in collectives

    @property
    def last_word(self) -> str:
        """The summary of the run's last failure, or the message of its state if it had none."""
        return self.failure.summary if self.failure is not None else self.message


class _Verdict(msgspec.Struct, frozen=True):
    """The conclusion about a run's state from the facts about its newest attempt. `stale`: the recorded state may not
    hold now; `next` is the command to suggest (None: the usual one for the state).
    """

    state: State
    message: str = ""
    cause: Cause | None = None
    exit_code: int | None = None
    ended_at: float | None = None
    stale: bool = False  # the recorded state may not hold now
    next: str | None = None  # None: the usual command for the state


def derive(facts: RunFacts) -> RunStatus:
    """Return the status of the run that these facts describe."""
    verdict = _with_disk(facts, _with_stop(facts, _verdict(facts)))
    own = _own_state(facts)
    last = facts.state or _state_without_record(facts)
    age_s = _age_s(facts) if verdict.state is State.RUNNING else 0.0
    silent = f"the coordinator's last report is {age_s:.0f} s old" if age_s > _OLD_S else ""
    shown = own if own is not None and verdict.state is not State.LOST else None
    rate = own.rate if own is not None and verdict.state is State.RUNNING else None
    step, total = (own if own is not None else last).step, last.total_steps
    return RunStatus(
        run=last.run,
        name=last.name,
        cluster=facts.intent.cluster if facts.intent is not None else last.cluster,
        state=verdict.state,
        cause=verdict.cause,
        exit_code=verdict.exit_code,
        attempt=facts.attempt,
        generation=own.generation if own is not None else 0,
        step=step,
        total_steps=total,
        rate=rate,
        eta_s=(total - step) / rate if step is not None and total is not None and rate and total > step else None,
        metrics=own.metrics if own is not None else {},
        not_finite=own.not_finite if own is not None else {},
        malformed=own.malformed if own is not None else 0,
        world_size=own.world_size if own is not None else None,
        restarts=Restarts(sum(last.restarts.values()), last.restarts),
        checkpoint=last.checkpoint,
        fingerprint=own.fingerprint if own is not None else None,
        nodes=_nodes(shown, ended=verdict.state.ended),
        ranks=shown.ranks if shown is not None else (),
        failure=own.failure if own is not None and verdict.state is not State.SUCCEEDED else None,
        message=_joined(verdict.message, silent),
        submitted_at=last.submitted_at,
        started_at=last.started_at,
        ended_at=verdict.ended_at,
        as_of=(last.updated_at or None) if verdict.stale or silent else None,
        run_dir=str(facts.run_dir),
        next=verdict.next if verdict.next is not None else next_command(last.run, verdict.state, verdict.cause, own),
        job=facts.handle.job_id if facts.handle is not None else last.job,
        avoided=facts.avoided,
        second_copies=own.second_copies if own is not None else False,
        safe_checkpoint=own.safe_checkpoint if own is not None else None,
        memory_copy=own.memory_copy if own is not None and not verdict.state.ended else None,
        roles={one.run_dir.name: derive(_with_answer(one, facts.answer, verdict)) for one in facts.roles},
        loads=shown.loads if shown is not None and not verdict.state.ended else (),
        last_rank=shown.last_rank if shown is not None and not verdict.state.ended else None,
    )


def _with_answer(role: RunFacts, answer: ClusterAnswer | None, whole: _Verdict) -> RunFacts:
    """Return the facts about a side role, where `whole` is the conclusion about the whole run.

    They are `role` unchanged if its supervisor can be checked from here. Otherwise `answer`, the cluster's answer about
    the whole run, is added or, once the whole run has ended, the answer that the role was cancelled with it.
    """
    if role.living.supervisor is not None:
        return role
    if whole.state.ended:
        cause = Cause.CANCELLED
        answer = ClusterAnswer("ended", "", 0.0, text="it ended with the run", ended_as=State.CANCELLED, cause=cause)
    return dataclasses.replace(role, answer=answer)


def _nodes(own: RunState | None, *, ended: bool) -> tuple[NodeState, ...]:
    """Return the nodes in the recorded state. With `ended`, when the run has ended, each is shown as `left`, except one
    that was lost or unfit before, which stays as it is.
    """
    nodes = own.nodes if own is not None else ()
    return tuple(replace(node, state="left") if ended and node.state in _HERE else node for node in nodes)


def next_command(run: str, state: State, cause: Cause | None = None, own: RunState | None = None) -> str:
    """Return the command that a user most likely needs now, for a run with the id `run` in this state, and with this
    cause of failure; "" if it has succeeded or its state is not known.

    After a failure in the user's code, which `own` describes, the text has what to correct as well: the line at which
    it failed, or the file that was left out of the run's code.
    """
    match state:
        case State.QUEUED | State.STARTING | State.RUNNING | State.REGROUPING:
            return f"launch logs {run} -f"
        case State.FAILED if cause is Cause.USER_ERROR and (name := _left_out(own)):
            return f"launch resume {run} --code --set 'code.include+=[{name}]'"
        case State.FAILED if cause is Cause.USER_ERROR or (cause is Cause.KILLED and _failed_line(own)):
            return f"mend {_failed_line(own) or 'the code'}, then launch resume {run} --code"
        case State.FAILED | State.INTERRUPTED | State.CANCELLED | State.LOST:
            return f"launch resume {run}"
        case State.SUCCEEDED | State.UNKNOWN:
            return ""
        case _:
            assert_never(state)


def _left_out(own: RunState | None) -> str:
    """Return the path of the file that the run failed to find because it was left out when the run's code was frozen.

    Return "" if that was not the reason, or if a shell would need quotes around the name.
    """
    name = own.failure.left_out if own is not None and own.failure is not None else ""
    return name if _PLAIN.fullmatch(name) else ""


def _failed_line(own: RunState | None) -> str:
    """Return the line of code at which the run failed, such as `train.py:41`, or "" if it is not known."""
    where = own.failure.where if own is not None and own.failure is not None else None
    return (where or "").partition(" in ")[0]


def state_text(status: RunStatus) -> str:
    """Return the state and its cause, such as `failed (user_error)`; a cause that is called like the state is left
    out.
    """
    if status.cause is None or status.cause.value == status.state.value:
        return str(status.state)
    return f"{status.state} ({status.cause})"


def duration_s(status: RunStatus, now: float) -> float | None:
    """Return the seconds from the run's first start to its end, or to the Unix time `now` while it is active.

    Return None if it has not started, or if its end was not recorded.
    """
    if status.started_at is None:
        return None
    if status.ended_at is None and (status.state.ended or status.state is State.UNKNOWN):
        return None  # its end was not observed
    end = status.ended_at if status.ended_at is not None else now
    return end - status.started_at


def exit_code_of(status: RunStatus) -> int:
    """Return the exit code of the run, with which `launch wait` exits; for a run without one, 0 if it has succeeded,
    else that of an error of the launcher.
    """
    if status.exit_code is not None:
        return status.exit_code
    return Exit.OK if status.state is State.SUCCEEDED else Exit.LAUNCHER_FAULT


def _verdict(facts: RunFacts) -> _Verdict:
    """Return the conclusion about the run's state: from the recorded end of its newest attempt, else from the cluster's
    answer, else from which of its processes are alive. The cluster's answer comes first if the run may have been
    resumed since that end.
    """
    own = _own_state(facts)
    if facts.settling:
        return _recorded_verdict(own)
    if facts.may_have_resumed and facts.answer is not None:
        return _cluster_verdict(facts, facts.answer)
    if facts.end is not None:
        return _after_end(facts, facts.end)
    if own is not None and own.state.ended:
        return _Verdict(own.state, own.message, own.cause, own.exit_code, own.ended_at)
    if facts.answer is not None:
        return _cluster_verdict(facts, facts.answer)
    if facts.attempt == 0:
        return _unknown(_joined(*facts.trouble) or f"there is no attempt in {facts.run_dir}")
    if facts.living.supervisor:
        return _recorded_verdict(own)
    if facts.submitter:
        reason = facts.intent.reason if facts.intent is not None else ""
        return _Verdict(State.STARTING, f"about to start ({reason})")
    if facts.living.anything:
        return _without_supervisor(facts, own)
    if facts.trouble:
        return _unknown(_joined(*facts.trouble))
    if facts.living.anything is None or facts.submitter is None:
        return _unknown_elsewhere(facts, own)
    return _lost("the run's processes are gone and left no record of its end")


def _after_end(facts: RunFacts, end: AttemptEnd) -> _Verdict:
    """Return the run's state from `end`, the recorded end of its newest attempt.

    Either the run has ended with it, or another attempt is to follow. In that case the cluster's answer decides or,
    without one, whether the process that would start the attempt is alive: the run is queued or lost, or its state is
    unknown if that process is on another machine.
    """
    if end.state.ended:
        return _Verdict(end.state, end.message, end.cause, end.exit_code, end.ended_at)
    if end.state is not State.QUEUED:
        return _unknown(f"attempt {facts.attempt} ended in a state that is none: {end.state}")
    wait = f"the next attempt starts after {end.delay_s:g} s" if end.delay_s else "the next attempt is about to start"
    if facts.answer is not None:
        return _cluster_verdict(facts, facts.answer)
    match facts.living.supervisor:
        case True:
            return _Verdict(State.QUEUED, _joined(end.message, wait), end.cause)
        case False:
            return _lost("another attempt was to follow, but the process that would start it is gone")
        case None:
            return _unknown_elsewhere(facts, _own_state(facts))


def _cluster_verdict(facts: RunFacts, answer: ClusterAnswer) -> _Verdict:
    """Return the state of a run and a message from what the cluster answered about its job; no record of the run tells
    how it ended.

    While the job runs or is ending, the state that the coordinator recorded last counts. If the job has ended or is not
    known any more, the run is lost, unless the answer has another state.
    """
    own, end = _own_state(facts), facts.end
    cause = end.cause if end is not None else None
    if answer.silent:
        return _unknown(_joined(answer.silent, _last_seen(answer, own)))
    match answer.phase:
        case "queued":
            estimate = f"may start at {local_time(answer.starts_at)}" if answer.starts_at is not None else ""
            waits = answer.text or f"job {answer.job_id} waits"
            return _Verdict(State.QUEUED, _joined(waits, estimate, _avoids(facts)), cause)
        case "running":
            said = _recorded_verdict(own)
            said = msgspec.structs.replace(said, message=answer.text) if answer.text else said
            return said if end is None else _Verdict(State.STARTING, "the next attempt is about to start", cause)
        case "ending":
            if end is not None:
                return _Verdict(State.QUEUED, "its job is being put back into the queue", cause)
            said = _recorded_verdict(own)
            return msgspec.structs.replace(said, message=_joined(said.message, f"job {answer.job_id} is ending"))
        case "ended":
            code = exit_of(answer.cause) if answer.cause is not None else Exit.LOST
            ended = f"{_source_name(answer)} says {_joined(answer.word, answer.text)} of job {answer.job_id}"
            of_job = f"{ended}, which left no record of its end"
            message = of_job if answer.job_id else answer.text
            return _Verdict(answer.ended_as or State.LOST, message, answer.cause, code)
        case "gone":
            return _lost(f"job {answer.job_id} is not known to the cluster any more, and left no record of its end")
        case _:
            of_job = f"{_source_name(answer)} says {answer.word!r} of job {answer.job_id}"
            return _unknown(_joined(of_job if answer.job_id else answer.text, _last_seen(answer, own)))


def _avoids(facts: RunFacts) -> str:
    """Return text that names the nodes that a job in the queue excludes, because they were lost, and until when; "" if
    there are none.
    """
    times = [f"{one.host} until {time.strftime('%H:%M', time.localtime(one.until))}" for one in facts.avoided]
    return f"it avoids {', '.join(times)}" if times else ""


def _source_name(answer: ClusterAnswer) -> str:
    """Return the name of the program that gave the answer, such as squeue, or "the cluster"."""
    return answer.said_by or "the cluster"


def _last_seen(answer: ClusterAnswer, own: RunState | None) -> str:
    """Return text that says when, and in which state, the job was last seen: by the coordinator's last record or by the
    cluster's last answer, whichever is newer.
    """
    if own is not None and own.updated_at >= answer.at:
        return f"last seen {own.state.upper()} at {local_time(own.updated_at)}"
    return f"last seen {answer.word or answer.phase.upper()} at {local_time(answer.at)}" if answer.at else "never seen"


def local_time(at: float) -> str:
    """Return a Unix time as date and time in this machine's time zone, such as `2026-01-31 12:00:00`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _recorded_verdict(own: RunState | None) -> _Verdict:
    """Return the conclusion that the coordinator's newest recorded state holds.

    Without such a record the run is starting.
    """
    if own is None:
        return _Verdict(State.STARTING, "starting agents")
    return _Verdict(own.state, own.message, own.cause, own.exit_code)


def _without_supervisor(facts: RunFacts, own: RunState | None) -> _Verdict:
    """Return the conclusion about a run whose supervisor is dead while other processes of the run are alive."""
    if facts.living.coordinator:
        said = _recorded_verdict(own)
        warning = "its supervisor is gone: the run goes on, but no further attempt would follow"
        return msgspec.structs.replace(said, message=_joined(said.message, warning))
    if facts.living.agents:
        return _unknown("its coordinator is gone; the agents that are left will leave when their lease runs out")
    if facts.handle is None:
        return _Verdict(State.STARTING, "starting agents")  # a supervisor that has not made itself known yet
    pids = ", ".join(map(str, facts.living.others))
    return _unknown(f"its agents are gone, but these processes of it are left: {pids}", next_=_cancel_command(facts))


def _unknown_elsewhere(facts: RunFacts, own: RunState | None) -> _Verdict:
    """Return the conclusion that the state is unknown, because the run's processes are on a machine that cannot be
    checked from here.
    """
    supervisor = facts.handle.supervisor if facts.handle is not None else None
    host = (
        supervisor.host if supervisor is not None else facts.intent.created_by.host if facts.intent is not None else "?"
    )
    if own is None:
        return _unknown(f"opened on {host}; whether it lives can only be told there")
    seen = f"last seen {own.state.upper()} at {local_time(own.updated_at)}"
    return _unknown(f"{seen} on {host}; whether it lives can only be told there")


def _lost(message: str) -> _Verdict:
    """Return the conclusion that the run is lost, with this message: none of its processes exists any more, and no
    record tells how it ended.
    """
    return _Verdict(State.LOST, message, exit_code=Exit.LOST)


def _unknown(message: str, next_: str | None = None) -> _Verdict:
    """Return the conclusion that the state is unknown, with a message; `next_` is a command to suggest (None: the usual
    one for the state).
    """
    return _Verdict(State.UNKNOWN, message, stale=True, next=next_)


def _with_stop(facts: RunFacts, verdict: _Verdict) -> _Verdict:
    """Return the conclusion. If the run was asked to end, as by `launch cancel`, and has not ended yet, the message
    says so; an unknown state is left as it is.
    """
    if facts.stop is None or verdict.state.ended or verdict.state is State.UNKNOWN:
        return verdict
    note = "it was asked to end (cancel)" if facts.stop.kind == "cancel" else f"it was asked to end ({facts.stop.kind})"
    return msgspec.structs.replace(verdict, message=_joined(verdict.message, note))


def _with_disk(facts: RunFacts, verdict: _Verdict) -> _Verdict:
    """Return the conclusion `verdict`; while the run has not ended and its disk takes no data, so that its records are
    out of date, its message says this as well.
    """
    if not facts.no_room or verdict.state.ended:
        return verdict
    return msgspec.structs.replace(verdict, message=_joined(verdict.message, f"records wait: {facts.no_room}"))


def _own_state(facts: RunFacts) -> RunState | None:
    """Return the recorded state if it is of the newest attempt, else None."""
    return facts.state if facts.state is not None and facts.state.attempt == facts.attempt else None


def _state_without_record(facts: RunFacts) -> RunState:
    """Return the state UNKNOWN for a run that has not recorded one, with the name and cluster from its plan."""
    head = facts.head
    return RunState(
        run=facts.run_dir.name,
        name=head.name if head is not None else facts.run_dir.name,
        cluster=head.cluster if head is not None else "?",
        state=State.UNKNOWN,
        attempt=facts.attempt,
        generation=0,
        submitted_at=head.submitted_at if head is not None else 0.0,
    )


def _age_s(facts: RunFacts) -> float:
    """Return the age in seconds of the coordinator's newest record, or 0 if it was written before this boot or
    elsewhere.
    """
    own = _own_state(facts)
    if own is None or own.boot_id != facts.moment.boot_id:
        return 0.0
    return max(0.0, facts.moment.monotonic_s - own.monotonic_s)


def _joined(*parts: str) -> str:
    """Return the texts that are not empty, joined by "; "."""
    return "; ".join(filter(None, parts))


def _cancel_command(facts: RunFacts) -> str:
    """Return the command line that cancels the run."""
    return f"launch cancel {facts.run_dir.name}"
