"""Run the roles of a run beside its main one: open them, watch until they are ready, end them with the run. A role is
one of several programs of a run, with ranks of its own.

A part is a role, or one rank of a role whose ranks restart alone. Each has a run directory of its own below the run's,
with attempts, records, logs and a coordinator as any run has.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from launcher.coordinator.roles import Roles
from launcher.coordinator.verdict import RESTART
from launcher.ids import new_token, role_secret
from launcher.node.ranks.ports import HeldPort, address_drawer
from launcher.plan.model import Plan
from launcher.plan.on_hosts import hosts_asked, with_addresses
from launcher.run.attempts import attempts, new_attempt, read_intent
from launcher.run.durable import append_line, create_record, make_dir, read_lines, readable, write_record
from launcher.run.fence import raise_fence
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Event, Failure, Handle, RunState
from launcher.spec.model import Readiness
from launcher.states import Cause, State
from launcher.supervisor.agent_processes import AgentProcess, AgentProcesses
from launcher.supervisor.attempt_end import ask_to_stop, first_state, settle_end

_ANSWER_S = 0.5  # for a role's port to accept, and its path to answer
_MOST_READS = 256  # of such an answer
_MOST_LOG_BYTES = 16 << 20  # searched in a role's log
_READY_S = 0.1  # how often those that others wait for or follow are looked at
AgentsOf = Callable[[Plan, AttemptDir], Sequence[AgentProcess]]  # of a role: node 0's, which coordinates, comes first


@dataclass(slots=True)
class _Part:
    """A role, or one rank of a role whose ranks restart alone: its run directory, its attempt and its agents."""

    run: RunDir
    plan: Plan  # the role's plan, with the frozen code and the addresses of all roles filled in
    attempt: AttemptDir | None = None  # the present attempt
    agents: list[AgentProcess] = field(default_factory=list)  # the agents of that attempt
    is_asked: bool = False  # a stop was requested
    lost: AttemptEnd | None = None  # how it ended because a host was lost, if the run has spare hosts

    @property
    def name(self) -> str:
        """Return the name of the part's run directory."""
        return self.run.path.name

    @property
    def has_ended(self) -> bool:
        """Return whether the part was started and its first agent has ended."""
        return self.attempt is not None and self.agents[0].pid is None


class RolesOfRun:
    """The roles of a run other than its main one, which this object starts, watches and ends.

    The supervisor's loop calls `update` each time before it waits for a change in the agents, until the attempt is
    stopped, and `main_ended` once the main role has ended.
    """

    def __init__(
        self,
        run: RunDir,
        attempt: AttemptDir,
        plan: Plan,
        agents: AgentProcesses,
        mains: Sequence[AgentProcess],
        agents_of: AgentsOf,
    ) -> None:
        """Take the agents that are watched, with the main role's in `mains`; `agents_of` makes the agents of another
        role.
        """
        self._run, self._attempt, self._agents, self._mains, self._agents_of = run, attempt, agents, mains, agents_of
        self._ports: list[HeldPort] = []
        if plan.role and not plan.addresses:
            plan = with_addresses(plan, self._hold if plan.one_machine else address_drawer(new_token()))
        self._parts = [_Part(RunDir(Path(one.run_dir)), structs.replace(one, code=plan.code)) for one in plan.roles]
        self._main, self._own = plan.role, _Part(run, plan)
        parts = {self._main: plan.role} | {one.name: one.plan.role for one in self._parts}
        self._roles = Roles(plan.spec.roles, parts)
        self._ready = {name: role.ready for name, role in plan.spec.roles.items()}
        self._holds_ranks, self._has_begun = bool(plan.role) and plan.elects, False
        self._has_spares = plan.elects and len(plan.nodes) - len(plan.away) > hosts_asked(plan)
        self._generations: dict[str, int] = {}  # the newest of those that others follow, as it was last seen

    def next_update(self) -> float | None:
        """Return the time, by time.monotonic, at which to call `update` again if nothing wakes the supervisor earlier,
        or None if only a wake-up matters.
        """
        is_watched = self._roles.awaited() or self._roles.followed() or any(part.lost for part in self._parts)
        moments = [self._roles.next_start(), time.monotonic() + _READY_S if is_watched else None]
        return min((one for one in moments if one is not None), default=None)

    def update(self) -> AttemptEnd | None:
        """Start the roles that may start, and end the processes of those that have ended; return how the run ends if a
        role's end decides that, else None.

        Roles that restart together with one that restarts are asked to stop and start again. Raise OSError if a record
        cannot be written, and Damaged if one cannot be read.
        """
        now, awaited = time.monotonic(), self._roles.awaited()
        for part in self._parts:
            if part.attempt is not None and part.has_ended:
                end = self._close(part, part.attempt)
                self._note(f"role {part.name}: {end.message or end.state}")
                part.lost = end if self._has_spares and _is_queued_for_a_host(end) else None
                if (whole := self._roles.ended(part.name, end, now)) is not None:
                    return whole
                if end.state is State.QUEUED and end.cause is not None:
                    self._restart_followers(part.name)
            elif part.attempt is not None and part.name in awaited and self._is_ready(part, part.attempt):
                self._roles.ready(part.name)
                self._note(f"role {part.name} is ready")
        if self._main in awaited and self._is_ready(self._own, self._attempt):
            self._roles.ready(self._main)
            self._note(f"role {self._main} is ready")
        for part in self._parts:
            if (lost := self._cannot_return(part)) is not None:
                return structs.replace(lost, message=f"all roles start again on other hosts: {lost.message}")
        for name in filter(self._has_restarted, self._roles.followed()):
            self._restart_followers(name)
        due = self._roles.due(now)
        self._begin_main(is_due=self._main in due)
        for part in self._parts:
            if part.name in due:
                self._open(part)
        return None

    def _begin_main(self, *, is_due: bool) -> None:
        """Start the agents of the run's own role at the first call with `is_due`, that is once the roles for which it
        waits are ready.

        Where hosts elect a leader, the agents start at the first call in any case, because the coordinator has to count
        the voters; only the ranks wait until `is_due`. Raise OSError if a record cannot be written.
        """
        has_begun, self._has_begun = self._has_begun, self._has_begun or is_due or self._holds_ranks
        if self._has_begun and not has_begun:
            if self._main and not self._holds_ranks:
                write_record(self._attempt.plan, self._own.plan)
            self._start(self._mains)
        if is_due and self._holds_ranks:
            with contextlib.suppress(FileExistsError):
                create_record(self._attempt.due, this_process())

    def _cannot_return(self, part: _Part) -> AttemptEnd | None:
        """Return how the attempt of `part`, a role or a rank of one, ended by the loss of a host (`part.lost`), if the
        part cannot start again: if the state of the whole run shows one of the part's hosts as lost.

        Return None if the part has lost no host, as long as the run's state does not show the loss, because the host
        may come back, and once the part runs again.
        """
        if part.lost is None:
            return None
        attempt, own, whole = part.attempt, readable(part.run.state, RunState), readable(self._run.state, RunState)
        if own is not None and attempt is not None and own.attempt == attempt.number and own.state is State.RUNNING:
            part.lost = None
        lost = {node.host for node in (whole.nodes if whole is not None else ()) if node.state == "lost"}
        return None if lost.isdisjoint(node.host for node in part.plan.nodes) else part.lost

    def main_ended(self, end: AttemptEnd) -> AttemptEnd | None:
        """Record how the main role ended; return how the run, or this attempt of it, ends if that is decided now, else
        None.

        It is decided if all roles have to start again because of this one, if any role has failed and the spec marks
        one as main, or, if the spec marks none, once all roles have ended.
        """
        return self._roles.ended(self._main, end, time.monotonic())

    def failure(self, end: AttemptEnd) -> Failure | None:
        """Return the failure to show for the run when it ends by its roles: the rank, node and log of the role that
        ended it (the main one, if no other did), and cause and message from `end`. Return None if `end` has no cause.
        """
        if end.cause is None:
            return None
        part = next((one for one in self._parts if one.name == self._roles.culprit), self._own)
        state = readable(part.run.state, RunState)
        found = state.failure if state is not None else None
        known = found if found is not None else Failure(end.cause, end.message, 0, 0)
        folder = part.run.path.relative_to(self._run.path)
        log = None if known.log is None else str(folder / known.log)
        return structs.replace(
            known, cause=end.cause, summary=end.message, attempt=self._attempt.number, log=log, at=end.ended_at
        )

    def _has_restarted(self, name: str) -> bool:
        """Return whether the role's ranks were started again in its attempt (a newer generation was opened) since the
        last call.
        """
        pairs = {self._main: (self._run, self._attempt)} | {one.name: (one.run, one.attempt) for one in self._parts}
        run, attempt = pairs[name]
        state, before = readable(run.state, RunState), self._generations.get(name, 0)
        if state is None or attempt is None or state.attempt != attempt.number:
            return False
        self._generations[name] = state.generation
        return 0 < before < state.generation

    def _restart_followers(self, name: str) -> None:
        """Ask the roles to restart whose spec says that they restart together with the role `name`."""
        followers = self._roles.restarted(name)
        for part in self._parts:
            if part.name in followers and not part.is_asked:
                _ask(part, RESTART)
                self._note(f"role {part.name} starts again, as {name} has")

    def stop(self, within_s: float, *, goes_on: bool, at_once: bool = False) -> None:
        """Ask all roles to end, and wait for that at most `within_s` beyond their grace period; the caller ends what is
        left.

        The roles are told the reason: a restart if they will start again (`goes_on`), else a cancel. With `at_once`,
        return without waiting, because other hosts may go on without this one.
        """
        asked = [part for part in self._parts if part.attempt is not None]
        for part in asked:
            _ask(part, RESTART if goes_on else "cancel")
        if at_once:
            return
        grace_s = max((part.plan.spec.recovery.grace_s for part in asked), default=0.0)
        deadline = time.monotonic() + grace_s + within_s
        while not all(part.has_ended for part in asked) and time.monotonic() < deadline:
            self._agents.watch(deadline, bring_back=False)

    def close(self) -> None:
        """Kill what is left of the roles' agents, write an end for each role whose coordinator has written none, and
        release the ports of the roles.
        """
        for part in self._parts:
            if part.attempt is not None:
                self._close(part, part.attempt)
        for port in self._ports:
            port.release()

    def _hold(self, address: str) -> str:
        """Reserve a free port of this machine at the host address `address` until `close`, and return both as
        HOST:PORT.
        """
        self._ports.append(HeldPort(address))
        return f"{address}:{self._ports[-1].number}"

    def _open(self, part: _Part) -> None:
        """Open an attempt of the role, write its first records and start its agents.

        Raise OSError if a record cannot be written, Damaged if one cannot be read, and Fenced if a newer attempt of the
        role exists.
        """
        run, plan = part.run, part.plan
        is_first = not attempts(run)
        make_role_dir(self._run, run, plan)
        reason, whole = "submit" if is_first else "requeue", readable(self._attempt.handle, Handle)
        intent = read_intent(self._attempt)
        kind, secret = intent.cluster_kind, role_secret(intent.token, part.name)
        handle = Handle(kind, supervisor=this_process(), job_id=whole.job_id if whole is not None else None)
        first = plan.first_attempt
        attempt, _ = new_attempt(run, plan.cluster, reason, None, kind=kind, handle=handle, secret=secret, first=first)
        raise_fence(run, attempt.number)
        if (resumed := _resumed_since(self._run, run)) is not None:
            append_line(run.events, structs.replace(resumed, attempt=attempt.number))
        create_record(attempt.started, this_process())
        if is_first:
            write_record(run.state, first_state(plan, attempt.number))
        part.attempt, part.is_asked = attempt, False
        self._generations.pop(part.name, None)
        part.agents = [*self._agents_of(plan, attempt)]
        part.agents[0].leads = True
        self._agents.add(part.agents)
        self._start(part.agents)
        self._note(f"role {part.name} starts")

    def _start(self, agents: Sequence[AgentProcess]) -> None:
        """Start these agents, which the supervisor watches from then on."""
        for agent in agents:
            agent.start()

    def _close(self, part: _Part, attempt: AttemptDir) -> AttemptEnd:
        """Kill what is left of the role's agents, and return how its attempt ended; write that if its coordinator did
        not.
        """
        self._agents.end_now(part.agents)
        self._agents.drop(part.agents)
        part.attempt = None
        is_here = part.plan.one_machine or part.plan.coordinator  # else it is of what had started the agent
        status = part.agents[0].last if is_here else None
        return settle_end(part.run, attempt, part.plan, status)

    def _is_ready(self, part: _Part, attempt: AttemptDir) -> bool:
        """Return whether the role, or the one rank of it that is this `part`, is ready in its attempt, by the condition
        that the role's spec names, such as an open port or a text in the log.
        """
        way = self._ready.get(part.plan.role) or Readiness()
        first, count = part.plan.role_rank, part.plan.nodes_max * part.plan.ranks_per_node
        key = part.plan.address_keys[way.port if isinstance(way.port, str) else ""]
        mine = self._own.plan.addresses[key][first : first + count]
        return is_ready(way, part.run, attempt, part.plan, mine)

    def _note(self, text: str) -> None:
        """Append `text` as an event about roles to the run's events.jsonl; without effect if the disk refuses it."""
        with contextlib.suppress(OSError):  # a disk that takes nothing now: no program waits for it
            append_line(self._run.events, Event(time.time(), self._attempt.number, "role", text))


def _is_queued_for_a_host(end: AttemptEnd) -> bool:
    """Return whether a role's attempt ended because a host was lost, and the role is queued to start again."""
    return end.state is State.QUEUED and end.cause is Cause.NODE_LOST


def _ask(part: _Part, kind: str) -> None:
    """Ask the processes of `part` to stop, for the reason `kind`, such as "cancel": write the request into its
    attempt's folder, and send its first agent the signal to stop. The part is a role, or one rank of a role whose ranks
    restart alone.
    """
    part.is_asked = True
    if part.attempt is not None:
        ask_to_stop(part.attempt, kind)
    if (pid := part.agents[0].pid) is not None:
        os.kill(pid, part.agents[0].stops_by)  # our own child, not reaped yet


def _resumed_since(whole: RunDir, role: RunDir) -> Event | None:
    """Return the event of a user's last resume if it is newer than all events of the role, else None; a resume resets
    the budgets of all roles.
    """
    resumed = [event for event in read_lines(whole.events, Event) if event.kind == "resumed"]
    history = read_lines(role.events, Event)
    return resumed[-1] if resumed and history and resumed[-1].at > history[-1].at else None


def make_role_dir(whole: RunDir, run: RunDir, plan: Plan) -> None:
    """Create `run`, the run directory of a role, with the plan `plan` and with the code and the secrets of the run
    `whole`; raise OSError if that fails.
    """
    make_dir(whole.roles)
    make_dir(run.path)
    for ours, theirs in ((run.code, whole.code), (run.secrets, whole.secrets)):
        with contextlib.suppress(FileExistsError):
            ours.symlink_to(theirs)
    write_record(run.plan, plan)


def is_ready(way: Readiness, run: RunDir, attempt: AttemptDir, plan: Plan, addresses: Collection[str]) -> bool:
    """Return whether every rank of a role is ready, as the spec defines it in `way`; `run`, `attempt` and `plan` are
    the role's own, and `addresses` has one address for each of its ranks.

    If `way` names a file, that is once it exists; if it names a text, once each rank's log has it; else once a server
    answers at each of the addresses, which may take half a second for each.
    """
    if way.file is not None:
        return Path(plan.run_dir, plan.workdir, way.file).exists()
    if way.log is not None:
        return _have_logged(run, attempt, way.log, len(addresses))
    return all(_answers(address, way.path) for address in addresses)


def _have_logged(run: RunDir, attempt: AttemptDir, text: str, ranks: int) -> bool:
    """Return whether the log of every rank of the newest generation contains the text, in its first 16 MiB. `ranks` is
    how many ranks a generation has; a log that cannot be read counts as one without the text.
    """
    folders = sorted(run.logs.glob(f"a{attempt.number:04d}.g*"))
    found = 0
    for log in folders[-1].glob("rank-*.log") if folders else ():
        with contextlib.suppress(OSError), open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as lines:
            found += text.encode() in lines.read(_MOST_LOG_BYTES)
    return found == ranks


def _answers(address: str, path: str | None) -> bool:
    """Return whether a server accepts a connection at the address, written HOST:PORT, within half a second and, with
    `path`, answers a GET request with success.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _ANSWER_S) as line:
            if path is None:
                return True
            line.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            head = line.recv(64)
            for _ in range(_MOST_READS):  # read all that the server sends
                if not line.recv(4096):
                    break
    except OSError:
        return False
    return head.startswith(b"HTTP/1.") and head[8:12] == b" 200"
