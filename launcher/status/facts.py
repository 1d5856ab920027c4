"""Read a run's records and check which of its processes are alive. The order of reading makes sure that a run that has
just ended is not taken for a lost one. For a finished run one file is read, and one check made that no newer attempt
exists. An attempt is one batch job, or one start on a pool's hosts. The supervisor opens a run's attempts; on each node
an agent starts ranks, and the coordinator, in the first node's agent, decides restarts. A run of several programs has a
role for each; a side role is one beside its main role, with records of its own.

Attempts are numbered without gaps: if `state.json` records an end and the next attempt's folder does not exist, the end
is final.
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
from launcher.run.layout import AttemptDir, RunDir, attempt_name
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
    """The run's name, cluster and time of submit from plan.json, for a run whose state file cannot be read."""

    name: str
    cluster: str
    submitted_at: float  # Unix time


@dataclass(frozen=True, slots=True)
class Living:
    """Which processes of the newest attempt are alive: True, False, or None if this machine cannot check. `others` are
    the pids that have the run's directory as LAUNCH_RUN_DIR in their environment, searched for only if all other fields
    are False.
    """

    supervisor: bool | None = False  # the process that starts the next attempt
    coordinator: bool | None = False
    agents: bool | None = False  # any of them
    others: tuple[int, ...] = ()  # pids; searched for only if all above are dead

    @property
    def anything(self) -> bool | None:
        """Whether any process is alive, or None if this machine cannot tell."""
        return any_of((self.supervisor, self.coordinator, self.agents, bool(self.others)))


@dataclass(frozen=True, slots=True)
class Moment:
    """When the facts were read: `now` by the wall clock, and `monotonic_s` since the boot `boot_id`, from which ages
    are computed.
    """

    now: float  # wall clock, for people
    monotonic_s: float  # with the boot id, for ages
    boot_id: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything that was read about a run, from which its status is derived. The records are those of the newest
    attempt, except that `state` may be of an earlier one; None means that a record does not exist. `submitter` tells
    whether the process that opened the attempt is alive, `trouble` which records could not be read, and `answer` what
    the cluster said about the job. `roles` are the facts of the side roles, and `no_room` says why the run's disk takes
    no data.
    """

    run_dir: Path
    moment: Moment  # when the facts were read
    state: RunState | None = None  # as the coordinator recorded it last
    head: PlanHead | None = None  # read only if there is no state
    attempt: int = 0  # the newest one; 0: none
    intent: Intent | None = None  # why and by which process the attempt was opened
    handle: Handle | None = None  # the supervisor's process, or the job in the batch system
    stop: StopRequest | None = None  # a request to end the run
    end: AttemptEnd | None = None  # how the attempt ended; None: its end is not recorded
    living: Living = Living()  # which of the attempt's processes live
    submitter: bool | None = False  # the process that opened the attempt lives; checked if no supervisor is known
    trouble: tuple[str, ...] = ()  # records that could not be read
    answer: ClusterAnswer | None = None  # what the cluster said about the job, if it was queried
    avoided: tuple[Exclusion, ...] = ()  # hosts that were lost, and that the run does not use for a while yet
    roles: tuple["RunFacts", ...] = ()  # facts about the side roles of a run of several programs
    no_room: str = ""  # why the disk of the run's folder takes no data, or ""

    @property
    def kind_to_query(self) -> str:
        """The kind of cluster to query about the run, or "" if the run has ended or has no job.

        An ended run that another machine submitted is queried, because it may have been resumed there.
        """
        kind = self.intent.cluster_kind if self.intent is not None else ""
        own = self.state if self.state is not None and self.state.attempt == self.attempt else None
        ended = (self.end is not None and self.end.state.ended) or (own is not None and own.state.ended)
        return "" if ended and not registry.is_adopted(self.run_dir) else kind

    @property
    def may_have_resumed(self) -> bool:
        """Whether the run may have been resumed by the machine that submitted it to this one and that does not answer,
        so that an end recorded here may be out of date.

        A run that has succeeded here is final.
        """
        done = self.end is not None and self.end.state is State.SUCCEEDED
        return not done and self.answer is not None and bool(self.answer.silent) and registry.is_adopted(self.run_dir)

    @property
    def settling(self) -> bool:
        """Whether the run's end is recorded while its supervisor is still writing the last events and the last
        state.
        """
        if self.end is None or self.state is None or self.state.attempt != self.attempt:
            return False
        return self.end.state.ended and not self.state.state.ended and self.living.supervisor is True

    @property
    def attempt_dir(self) -> tuple[RunDir, AttemptDir]:
        """(the run directory, the directory of its newest attempt); to be used only if the run has one."""
        run = RunDir(self.run_dir)
        return run, run.attempt(self.attempt)


def any_of(answers: Iterable[bool | None]) -> bool | None:
    """Return the logical "or" of three values: True if any is True, False if all are False, else None (unknown)."""
    seen = list(answers)
    if True in seen:
        return True
    return None if None in seen else False


def read_facts(path: Path) -> RunFacts:
    """Return the facts from which the status of the run in the folder `path` is derived, with those of its side roles;
    nothing is written, and no cluster is queried.
    """
    roles = role_dirs(RunDir(path))
    facts = _facts_of(path)
    return replace(facts, roles=tuple(map(_facts_of, roles))) if roles else facts


def role_dirs(run: RunDir) -> list[Path]:
    """Return the run directories of a run's side roles; a role with `restart: alone` has one for each of its ranks. The
    list is empty for a run of one program.
    """
    folder = os.path.join(run.path, RunDir.roles.name)  # a tenth of the time that a `Path` takes, for each run there is
    try:
        return [run.roles / name for name in sorted(os.listdir(folder)) if is_run_id(name)]
    except OSError:
        return []


def _facts_of(path: Path) -> RunFacts:
    """Return what the records of the run in the folder `path` and a check of its processes show; `roles`, the facts
    about its side roles, is left empty.
    """
    look = _Look(RunDir(path))
    state = look.read(look.run.state, RunState)
    ended = state is not None and state.state.ended and not registry.is_adopted(path)
    if ended and state is not None and not _has_attempt(path, state.attempt + 1):
        return RunFacts(path, _moment(), state=state, attempt=state.attempt)
    attempt = newest(look.run)
    while True:
        facts = look.at_attempt(attempt) if attempt is not None else look.without_attempt()
        before, attempt = attempt, newest(look.run)
        if attempt == before:
            return facts


def _has_attempt(path: Path, number: int) -> bool:
    """Return whether the run in the folder has an attempt with this number."""
    return os.path.exists(os.path.join(path, RunDir.attempts.name, attempt_name(number)))


def _moment() -> Moment:
    """Return the present Unix time, the seconds since this machine's boot, and the boot's id."""
    return Moment(time.time(), boottime(), boot_id())


def _no_room(path: Path) -> str:
    """Return why the disk at `path` takes no data, or "" if it does; a used-up quota is not detected."""
    try:
        disk = os.statvfs(path)
    except OSError as error:
        return said_by_the_system(error)
    if disk.f_flag & os.ST_RDONLY:
        return f"{path}: its disk is read-only now"
    full = disk.f_bavail * disk.f_frsize < _LEAST_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
    return f"{path}: no space is left on its disk" if full else ""


class _Look:
    """A reader of one run's records; it collects which of them cannot be read, and continues."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._trouble: dict[str, None] = {}

    def read(self, path: Path, kind: type[T]) -> T | None:
        """Return a record, or None if it is missing or cannot be read; a damaged or unreadable one is named in the
        `trouble` of the facts.
        """
        try:
            return read_record(path, kind)
        except Damaged as damaged:
            self._trouble[str(damaged)] = None
        except OSError as error:
            self._trouble[f"{path}: {error.strerror}"] = None
        return None

    def at_attempt(self, attempt: AttemptDir) -> RunFacts:
        """Return the facts about the run whose newest attempt is `attempt`."""
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
        """Return the hosts that were lost and that the run does not use yet: the entries of avoided.json whose time
        `until` has not come. The tuple is empty if the file is missing or cannot be read.
        """
        now = time.time()
        return tuple(
            exclusion for exclusion in self.read(self.run.avoided, list[Exclusion]) or () if exclusion.until > now
        )

    def without_attempt(self) -> RunFacts:
        """Return the facts about a run that has no attempt."""
        state = self.read(self.run.state, RunState)
        head = self.read(self.run.plan, PlanHead)
        return RunFacts(self.run.path, _moment(), state=state, head=head, trouble=tuple(self._trouble))

    def _living(
        self, attempt: AttemptDir, handle: Handle | None, supervisor: ProcessId | None, intent: Intent | None
    ) -> tuple[Living, bool | None]:
        """Return (which processes of the attempt are alive, whether the process that opened it is), judging by its
        records: its `handle`, its `supervisor` and its `intent`, of which each is None if it does not exist.

        Each value is None if this machine cannot check. Coordinator and agents are checked only if the supervisor and
        the process that opened the attempt are dead; otherwise they have the value of the supervisor.
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
        """Return the process id of each agent of the attempt, as the agent recorded it, whether or not it is alive."""
        name = attempt.agent(0).name
        records = (self.read(path, AgentRecord) for path in attempt.path.glob(f"*/{name}"))
        return [record.process for record in records if record is not None]

    def _tagged(self, owner: ProcessId | None) -> tuple[int, ...]:
        """Return the pids on this machine that have the run's directory as LAUNCH_RUN_DIR in their environment.

        They may include a supervisor that has not registered yet. `owner` is the supervisor or, if none is recorded,
        the process that opened the attempt; the result is empty if that was on another machine, before a reboot, or is
        not known.
        """
        if owner is None or owner.boot_id != boot_id():
            return ()  # another machine's, or nothing of it survived the reboot
        from launcher.run.processes import tagged  # late: ctypes and select, needed only before a run is called lost

        return tuple(tagged(str(self.run.path), os.getuid()))
