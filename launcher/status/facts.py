"""Read a run's records, and which of its processes live, in an order that never takes an end for a loss.

A finished run costs one file and one check for a newer attempt: attempts are numbered without gaps, so if `state.json`
records an end and the next attempt's folder does not exist, it is final.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.clock import boottime
from launcher.errors import said_by_the_system
from launcher.ids import is_run_id
from launcher.run import registry
from launcher.run.attempts import newest
from launcher.run.durable import Damaged, read_record
from launcher.run.identity import alive, boot_id
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import (
    AgentRecord,
    AttemptEnd,
    ClusterAnswer,
    Endpoint,
    Exclusion,
    Handle,
    Intent,
    ProcessId,
    RunState,
    StopRequest,
)
from launcher.states import State

T = TypeVar("T")
_LEAST_BYTES = 64 << 10  # records are smaller


class PlanHead(msgspec.Struct, frozen=True):
    """The part of plan.json that names the run, for a run whose state cannot be read."""

    name: str
    cluster: str
    submitted_at: float


@dataclass(frozen=True, slots=True)
class Living:
    """Which processes of the newest attempt are alive: True, False, or None if this machine cannot tell."""

    supervisor: bool | None = False  # it watches the agents and starts the attempt that follows
    coordinator: bool | None = False
    agents: bool | None = False  # any of them
    others: tuple[int, ...] = ()  # whatever else carries the run's tag; looked for only where all the above are dead

    @property
    def anything(self) -> bool | None:
        """Whether any process is alive, or None if this machine cannot tell."""
        return any_of((self.supervisor, self.coordinator, self.agents, bool(self.others)))


@dataclass(frozen=True, slots=True)
class Moment:
    """The time, and the id of this machine's boot, when the facts were read."""

    now: float  # wall clock, for people
    monotonic_s: float  # with the boot id, for ages
    boot_id: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything read about a run, from which its status is derived."""

    run_dir: Path
    moment: Moment
    state: RunState | None = None
    head: PlanHead | None = None  # only where there is no state
    attempt: int = 0  # the newest; 0: none
    intent: Intent | None = None
    handle: Handle | None = None
    stop: StopRequest | None = None
    end: AttemptEnd | None = None
    living: Living = Living()
    submitter: bool | None = False  # the process that opened the attempt; looked for only where no supervisor is known
    trouble: tuple[str, ...] = ()  # what is there but could not be read
    word: ClusterAnswer | None = None  # what the cluster says, where one was asked
    avoided: tuple[Exclusion, ...] = ()
    roles: tuple["RunFacts", ...] = ()  # of a run of several programs: those beside the main one
    no_room: str = ""  # why the disk of the run's folder takes nothing now

    @property
    def asks(self) -> str:
        """The kind of cluster to query about the run, or "" if the run has ended or has no job.

        A run may have been resumed on the machine that submitted it.
        """
        kind = self.intent.cluster_kind if self.intent is not None else ""
        own = self.state if self.state is not None and self.state.attempt == self.attempt else None
        ended = (self.end is not None and self.end.state.ended) or (own is not None and own.state.ended)
        return "" if ended and not registry.is_adopted(self.run_dir) else kind

    @property
    def may_have_resumed(self) -> bool:
        """Whether an ended run may have been resumed by the machine that submitted it, which does not answer.

        A succeeded run is final.
        """
        done = self.end is not None and self.end.state is State.SUCCEEDED
        return not done and self.word is not None and bool(self.word.silent) and registry.is_adopted(self.run_dir)

    @property
    def settling(self) -> bool:
        """Whether the end is recorded and the live supervisor is still writing the events and state that follow from
        it.
        """
        if self.end is None or self.state is None or self.state.attempt != self.attempt:
            return False
        return self.end.state.ended and not self.state.state.ended and self.living.supervisor is True

    @property
    def attempt_dir(self) -> tuple[RunDir, AttemptDir]:
        """The run directory and its newest attempt's."""
        run = RunDir(self.run_dir)
        return run, run.attempt(self.attempt)


def any_of(answers: Iterable[bool | None]) -> bool | None:
    """Return True if any answer is True, False if all are False, else None."""
    seen = list(answers)
    if True in seen:
        return True
    return None if None in seen else False


def read_facts(path: Path) -> RunFacts:
    """Return everything from which a run's status is derived; nothing is written and no cluster is queried."""
    roles = role_dirs(RunDir(path))
    facts = _facts_of(path)
    return replace(facts, roles=tuple(map(_facts_of, roles))) if roles else facts


def role_dirs(run: RunDir) -> list[Path]:
    """Return the run directories of a run's roles beside the main one, or of their ranks that restart alone."""
    try:
        return sorted(one for one in run.roles.iterdir() if is_run_id(one.name))
    except OSError:
        return []


def _facts_of(path: Path) -> RunFacts:
    """Return the facts about one run, without its roles."""
    look = _Look(RunDir(path))
    state = look.read(look.run.state, RunState)
    ended = state is not None and state.state.ended and not registry.is_adopted(path)
    if ended and state is not None and not look.run.attempt(state.attempt + 1).path.exists():
        return RunFacts(path, _moment(), state=state, attempt=state.attempt)
    attempt = newest(look.run)
    while True:
        facts = look.at_attempt(attempt) if attempt is not None else look.without_attempt()
        before, attempt = attempt, newest(look.run)
        if attempt == before:
            return facts


def _moment() -> Moment:
    """Return the present time and the id of this boot."""
    return Moment(time.time(), boottime(), boot_id())


def _no_room(path: Path) -> str:
    """Return why the file system takes no data, or "" if it does; a quota is not seen."""
    try:
        disk = os.statvfs(path)
    except OSError as error:
        return said_by_the_system(error)
    if disk.f_flag & os.ST_RDONLY:
        return f"{path}: its disk is read-only now"
    full = disk.f_bavail * disk.f_frsize < _LEAST_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
    return f"{path}: no space is left on its disk" if full else ""


class _Look:
    """A reader of one run's records, which notes those that cannot be read and goes on."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._trouble: dict[str, None] = {}

    def read(self, path: Path, kind: type[T]) -> T | None:
        """Return a record, or None if it is missing or damaged; note a damaged one."""
        try:
            return read_record(path, kind)
        except Damaged as damaged:
            self._trouble[str(damaged)] = None
        except OSError as error:
            self._trouble[f"{path}: {error.strerror}"] = None
        return None

    def at_attempt(self, attempt: AttemptDir) -> RunFacts:
        """Return the facts about the run when `attempt` is its newest."""
        intent = self.read(attempt.intent, Intent)
        handle = self.read(attempt.handle, Handle)
        supervisor = handle.supervisor if handle is not None else self.read(attempt.started, ProcessId)
        # First who lives, then what was written: a process that is seen dead has written all that it ever will.
        living, submitter = self._living(attempt, handle, supervisor, intent)
        stop = self.read(attempt.stop, StopRequest)
        end = self.read(attempt.end, AttemptEnd)
        state = self.read(self.run.state, RunState)
        head = self.read(self.run.plan, PlanHead) if state is None else None
        return RunFacts(
            self.run.path,
            _moment(),
            state=state,
            head=head,
            attempt=attempt.number,
            intent=intent,
            handle=handle,
            stop=stop,
            end=end,
            living=living,
            submitter=submitter,
            trouble=tuple(self._trouble),
            avoided=self._avoided(),
            no_room=_no_room(self.run.path),
        )

    def _avoided(self) -> tuple[Exclusion, ...]:
        """Return the exclusions that have not expired."""
        now = time.time()
        return tuple(
            exclusion for exclusion in self.read(self.run.avoided, list[Exclusion]) or () if exclusion.until > now
        )

    def without_attempt(self) -> RunFacts:
        """Return the facts about a run without an attempt."""
        state = self.read(self.run.state, RunState)
        head = self.read(self.run.plan, PlanHead)
        return RunFacts(self.run.path, _moment(), state=state, head=head, trouble=tuple(self._trouble))

    def _living(
        self, attempt: AttemptDir, handle: Handle | None, supervisor: ProcessId | None, intent: Intent | None
    ) -> tuple[Living, bool | None]:
        """Return (which processes of an attempt live, whether its supervisor does or None if this machine cannot
        tell).
        """
        if supervisor is None and handle is not None:
            return Living(supervisor=None, coordinator=None, agents=None), False
        submitter = alive(intent.created_by) if supervisor is None and intent is not None else False
        kept = alive(supervisor) if supervisor is not None else False
        if kept is not False or submitter:
            return Living(supervisor=kept, coordinator=kept, agents=kept), submitter
        endpoint = self.read(attempt.endpoint, Endpoint)
        coordinator = alive(endpoint.process) if endpoint is not None else False
        agents = any_of(alive(agent) for agent in self._agents(attempt))
        owner = supervisor or (intent.created_by if intent is not None else None)
        last = () if coordinator or agents else self._tagged(owner)
        return Living(kept, coordinator, agents, last), submitter

    def _agents(self, attempt: AttemptDir) -> list[ProcessId]:
        """Return the processes of the agents that have registered."""
        name = attempt.agent(0).name
        records = (self.read(path, AgentRecord) for path in attempt.path.glob(f"*/{name}"))
        return [record.process for record in records if record is not None]

    def _tagged(self, owner: ProcessId | None) -> tuple[int, ...]:
        """Return the processes of the run that are left on this machine, including a supervisor that has not
        registered yet.
        """
        if owner is None or owner.boot_id != boot_id():
            return ()  # another machine's, or nothing of it survived the reboot
        from launcher.run.processes import tagged  # late: ctypes and select, needed only before a run is called lost

        return tuple(tagged(str(self.run.path), os.getuid()))
