"""Start and watch the agent processes of an attempt on this machine, and restart those that die. An agent is the
launcher's process on a node. It must leave when its lease has expired: when it has not reached the coordinator for a
while. Its zygote is the child that forks its ranks; the zygote's standby is a fork of it with all imports done, which
outlives the agent and can become the next one.
"""

import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from launcher.clock import ENDING_S, boottime
from launcher.coordinator.history_copies import HistoryCopies
from launcher.errors import Exit
from launcher.node.environment import job_environment
from launcher.node.ranks.lease import FAREWELL_S, AfterSuspend, Lease, LeaseWatch, after_suspend, shared_memory
from launcher.node.standing_by import COORDINATOR, GATE, send_arguments, standby_argument
from launcher.plan.model import Plan
from launcher.run.durable import make_dir, readable
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import patiently, say
from launcher.run.processes import (
    TAG,
    become_subreaper,
    core_dumps_as_before,
    descendants,
    end_all,
    is_stopped_by_signal,
    open_process,
    orphans,
    parent_of,
    runs,
    signal_process,
    tagged_of_run,
)
from launcher.run.records import AgentRecord, ProcessId
from launcher.run.shared_event import SHARED_EVENT, SharedEvent
from launcher.supervisor.wakeup import Wakeup

Socket = socket.socket
_NO_LOG = Path(os.devnull)  # of one that boots before its run has a folder
_LOG = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
_RETURN_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # how long one is away after its first, second, ... death in a row
_STEADY_S = 30.0  # a life of that length makes up for the deaths before it: one start in that time harms nothing
_AFTER_WATCHDOG_S = ENDING_S / 2  # it ends what the watchdog did not, and before others take the places of those ranks
_LEASE_LOOK_S = 1.0  # more often than a `WakingClock` takes for sleep
_FROZEN_S, _FROZEN_LOOK_S = 1.0, 0.5  # until an agent that a signal has stopped is ended, and between looks at it


class FrozenWatch:
    """The time for which an agent has been frozen (stopped by a signal), for a caller that checks the agent often."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock, self._looked_at, self._since = clock, 0.0, 0.0

    def look(self, is_frozen: bool) -> float | None:
        """Return the seconds for which the agent has been frozen, or None unless `is_frozen` says that it is now.

        An interval in which `look` was not called does not count, because the caller was then stopped or suspended too.
        """
        now, before = self._clock(), self._looked_at
        self._looked_at = now if is_frozen else 0.0
        if not is_frozen:
            return None
        if now - before > 2 * _FROZEN_LOOK_S:
            self._since = now
        return now - self._since


@dataclass(slots=True)
class AgentProcess:
    """A child process to keep running: an agent, or the program that starts agents on other machines."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    keep: Sequence[int] = ()  # descriptors that it inherits and that hold the run's slots and locks
    place: "AgentPlace | None" = None  # a prepared child process that becomes the agent at the first start
    pid: int | None = None
    deaths: int = 0  # in a row, each after a short life
    last: int | None = None  # the wait status of its last exit
    killed_under_lease: float | None = None  # when the lease ends, by boottime, under which SIGKILL ended its process
    started_at: float = 0.0  # by time.monotonic
    returns_at: float | None = None  # when it is started again, by time.monotonic; None: not at all
    slept: AfterSuspend | None = None  # what a lease that expired in a suspend means; None: it has no lease
    lease: "SupervisedLease | None" = None  # the lease of the running process
    frozen: FrozenWatch = field(default_factory=FrozenWatch)  # for how long a signal has stopped it
    leads: bool = False  # its exit ends the attempt, so it is not restarted
    stops_by: int = signal.SIGTERM  # the signal at which it ends its ranks and exits
    gate: socket.socket | None = None  # the channel by which its zygote's standby is asked to become the next agent

    def start(self) -> int:
        """Start the process and return its pid; raise OSError if its log cannot be opened or the process cannot be
        started.
        """
        make_dir(self.log.parent)
        log = patiently(lambda: os.open(self.log, _LOG, 0o600))
        fds, environment = [*self.keep], dict(self.environment)
        if self.slept is not None:
            memory, variable = shared_memory()
            self.lease = SupervisedLease(Lease(memory), self.slept)
            self.gate, standbys_end = socket.socketpair()
            self.gate.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            gate = standbys_end.detach()
            fds, environment = [*fds, memory, gate], environment | variable | {GATE: str(gate)}
        try:
            self.pid = self._started(environment, log, fds)
        finally:
            for fd in (log, *fds[len(self.keep) :]):
                os.close(fd)
        self.started_at, self.returns_at = time.monotonic(), None
        return self.pid

    def _started(self, environment: Mapping[str, str], log: int, fds: Sequence[int]) -> int:
        """Start the process and return its pid. If the field `place` has a child process that was prepared for this and
        still lives, that child becomes the process instead of a new one; `place` is None afterwards.

        `log` is the descriptor for its output, `fds` are further descriptors that it inherits.
        """
        place, self.place = self.place, None
        if place is not None and place.take(self.argv, environment, log, fds):
            return place.pid
        with core_dumps_as_before():
            child = subprocess.Popen(
                self.argv,
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=tuple(fds),
                start_new_session=True,
            )
        child.returncode = 0  # reaped by pid, like the orphans
        return child.pid

    def died(self, status: int) -> None:
        """Record that the process has ended with this wait status.

        If its zygote has left a standby that can become the next agent, the field `place` is set to that standby. Else
        a standby is told to exit, as always if the agent's end is the attempt's (`leads`). An agent that exits because
        its work is done ends its standby itself, unless another attempt follows.
        """
        self.pid, self.last, self.killed_under_lease = None, status, None
        is_killed = os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        if is_killed and self.lease is not None and self.lease.until > boottime():
            self.killed_under_lease = self.lease.until
        if self.gate is not None and not self.leads:
            self.place = AgentPlace.standby_at(self.gate)
        if self.place is not None:
            self.gate = None
        self.dismiss_standby()

    def dismiss_standby(self) -> None:
        """Close the channel by which a standby could become the next agent, so that it exits."""
        if self.gate is not None:
            self.gate.close()
        self.gate = None

    def ended(self) -> int | None:
        """Return None always, because the caller learns of a child's end by reaping it (waitpid). The subclass
        AdoptedAgent, whose process is no child of this one, returns the wait status once its process has ended.
        """
        return None

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.pid is not None:
            os.kill(self.pid, number)  # our own child, not reaped yet: the pid cannot be another's

    def tree(self) -> list[int]:
        """Return the pids of the agent and of all processes below it; an empty list if it does not run."""
        return [self.pid, *descendants(self.pid)] if self.pid is not None else []

    @property
    def pids(self) -> set[int]:
        """Return the pids of the process and of the prepared child that is to replace it, as far as they exist."""
        return {one for one in (self.pid, self.place and self.place.pid) if one}

    def copies(self) -> HistoryCopies | None:
        """Return the counter of the bytes of events.jsonl that the supervisor has copied to other hosts. It is in
        memory that is shared with the coordinator in this agent; None before the agent's start.
        """
        return self.lease.copies if self.lease is not None else None

    def enforce_lease(self) -> float | None:
        """Kill the ranks of this agent once its lease has expired, and then the agent if it does not exit. Kill the
        agent also if a signal has stopped it for a second and processes that it started still run.

        Return the seconds to the next check, or None if there is no lease or the agent does not run.
        """
        if not self.pid or self.lease is None or self.ended() is not None:
            return None
        agent, due = self.pid, self.lease.due()
        frozen_s = self.frozen.look(is_stopped_by_signal(agent) and any(map(runs, descendants(agent))))
        is_frozen = frozen_s is not None and frozen_s >= _FROZEN_S
        if is_frozen:
            say(f"ended agent {agent}: a signal has stopped it for {frozen_s:.1f} s, and what it started runs on")
        if due.end:
            self.lease.end(agent)
        if due.kill or is_frozen:
            self.signal(signal.SIGKILL)
        return due.look_s if frozen_s is None or due.look_s is None else min(due.look_s, _FROZEN_LOOK_S)

    def schedule_restart(self, now: float) -> None:
        """Set when the dead process is started again, after a delay from `now` that grows with each death in a row. A
        life of 30 seconds resets the delay.
        """
        if now - self.started_at >= _STEADY_S:
            self.deaths = 0
        self.returns_at = now + _RETURN_S[min(self.deaths, len(_RETURN_S) - 1)]
        self.deaths += 1

    def may_have_lost_coordinator(self) -> bool:
        """Return True, once per exit, if the agent may have exited because it had lost the coordinator for a whole
        lease.

        An agent that was frozen, or exited too slowly, was killed by its watchdog for that; so SIGKILL counts too,
        unless the lease was still valid (`killed_under_lease`).
        """
        exit_code = None if self.last is None else os.waitstatus_to_exitcode(self.last)
        lost = exit_code == Exit.LOST or (exit_code == -signal.SIGKILL and self.killed_under_lease is None)
        if lost:
            self.last = None
        return lost


@dataclass(slots=True)
class AdoptedAgent(AgentProcess):
    """An agent whose supervisor was killed, and which this supervisor, the next one on the machine, watches without
    being its parent.
    """

    run: RunDir = field(kw_only=True)
    process: ProcessId = field(kw_only=True)
    handle: int = field(kw_only=True)  # the process's pidfd

    @classmethod
    def found(cls, run: RunDir, attempt: AttemptDir, plan: Plan, node: int) -> "AdoptedAgent | None":
        """Return the node's agent if it lives on this machine and its lease can be opened, else None."""
        record = readable(attempt.agent(node), AgentRecord)
        handle = open_process(record.process.pid) if record is not None else None
        if record is None or handle is None:
            return None
        lease = Lease.of_agent(record.process.pid) if alive(record.process) else None
        if lease is None:
            os.close(handle)
            return None
        slept = after_suspend(plan, node)
        return cls(
            (), {}, attempt.agent_log(node), pid=record.process.pid, slept=slept, lease=SupervisedLease(lease, slept),
            run=run, process=record.process, handle=handle,
        )  # fmt: skip

    def start(self) -> int:
        """Return the pid of the process, which runs already."""
        return self.process.pid

    def ended(self) -> int | None:
        """Return the wait status of the process if it has ended, else None.

        Only a parent gets the true status, so this is made from the exit code that the agent wrote into its lease
        (shared memory) at its end; without one the agent counts as killed.
        """
        if self.pid is None or not select.select([self.handle], [], [], 0.0)[0]:
            return None
        code = self.lease.exit_code if self.lease is not None else None
        return signal.SIGKILL if code is None else code << 8

    def died(self, status: int) -> None:
        """Record that the agent has ended with the wait status that `ended` returned, and kill the run's processes that
        it left behind. They did not become children of this supervisor, so nothing else ends them.
        """
        super(AdoptedAgent, self).died(status)
        if self.handle != -1:
            os.close(self.handle)
            self.handle = -1
            end_all(self._left)

    def schedule_restart(self, now: float) -> None:
        """Do nothing: the caller starts the next agent itself, once it has taken over this one's GPUs and cores."""

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        signal_process(self.process, number)

    def tree(self) -> list[int]:
        """Return the pids of the agent and of all processes below it; an empty list if it does not run."""
        return super(AdoptedAgent, self).tree() if self.ended() is None else []

    def _left(self) -> list[int]:
        """Return the pids of the run's processes that the dead agent left behind: those on this machine that are
        neither this supervisor nor below it.
        """
        own = {os.getpid(), *descendants(os.getpid())}
        return [pid for pid in tagged_of_run(self.run.path, os.getuid()) if pid not in own]


class Due(NamedTuple):
    """The supervisor's next step for an agent's lease: what to end now, and when to check again."""

    end: bool  # end all processes below the agent
    kill: bool  # kill the agent, too
    look_s: float | None  # seconds to the next check; None: nothing is left to do


class SupervisedLease:
    """The lease of an agent, with which its supervisor checks on the watchdog, as that process may be frozen or dead,
    too: if ranks still run some seconds after the lease expired, they are due to be ended, and then the agent.
    """

    def __init__(self, lease: Lease, slept: AfterSuspend, clock: Callable[[], float] = boottime) -> None:
        self._lease, self._watch, self.copies = lease, LeaseWatch(slept, clock), lease.copies

    @property
    def until(self) -> float:
        """Return when the lease expires, by boottime."""
        return self._lease.until

    def due(self) -> Due:
        """Return what to do about the lease now: nothing until some seconds after its expiry, in which the watchdog
        should act first; then end the processes below the agent; and FAREWELL_S (two) seconds later kill the agent,
        too, which had that time to exit by itself.
        """
        left_s = _AFTER_WATCHDOG_S + self._watch.left_s(self._lease.until)
        if left_s > 0:
            return Due(end=False, kill=False, look_s=min(left_s, _LEASE_LOOK_S))
        if left_s > -FAREWELL_S:
            return Due(end=True, kill=False, look_s=FAREWELL_S + left_s)
        return Due(end=True, kill=True, look_s=None)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code that the agent has written into its lease (memory shared with the supervisor) before it
        exits, or None if it has written none. It is for a supervisor that is not the agent's parent, and so cannot wait
        for it.
        """
        return self._lease.exit_code

    def end(self, agent: int) -> None:
        """Kill all processes below the agent with the pid `agent`, except its zygote's standby, but not the agent. Log
        that, unless the watchdog had ended them first.
        """
        self._lease.break_off()
        ended, _ = end_all(lambda: descendants(agent, keep=(self._lease.standby,)))
        if ended:
            pids = ", ".join(str(one.pid) for one in ended)
            say(f"ended process {pids}: the lease had run out, and the watchdog did nothing")


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """A prepared child process, which becomes an agent when it gets the arguments of one (`take`).

    `warm` is set if it then has a zygote with finished imports (`become_agent` in zygote.py).
    """

    socket: socket.socket
    pid: int
    warm: bool = False

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> "AgentPlace | None":
        """Return the prepared agent process whose socket and pid are in LAUNCH_AGENT_PLACE, or None if it is not set;
        remove the variable.
        """
        words = environ.pop("LAUNCH_AGENT_PLACE", "").split()
        if len(words) != 2:
            return None
        os.set_inheritable(int(words[0]), False)
        return cls(socket.socket(fileno=int(words[0])), int(words[1]), warm=True)

    @classmethod
    def booting(cls, run_dir: Path, environ: Mapping[str, str], before: "AgentPlace | None") -> "AgentPlace":
        """Start a process for node 0 of the run in `run_dir` that imports the agent's modules, then waits to become the
        agent; return its place.

        Its environment is `environ`, with the variable that marks processes of the run. If `before` is a child prepared
        earlier, no process is started: that child gets the arguments and waits to become the agent.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            argv = _argv(str(run_dir), standby_argument(theirs.fileno()), 0)
            agent = AgentProcess(argv, _environment(environ, str(run_dir)), _NO_LOG, [theirs.fileno()], before)
            return cls(ours, agent.start(), warm=before is not None)

    @classmethod
    def standby_at(cls, gate: "Socket") -> "AgentPlace | None":
        """Return the standby that a dead agent's zygote has left; `gate` is this process's end of the socket on which
        the standby waits for the message that makes it the next agent.

        Return None if there is none, or it has died, is not a child of this process, or cannot be given this process's
        resource limits.
        """
        pid = _last_sender(gate)
        if pid is None or parent_of(pid) != os.getpid() or not runs(pid):
            return None
        try:
            with core_dumps_as_before():  # an agent that we start has our limits, and this one had another's
                for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
                    resource.prlimit(pid, kind, resource.getrlimit(kind))
        except PermissionError:  # a module of the user's has lowered a hard limit
            return None
        return cls(gate, pid, warm=True)

    def leave(self) -> None:
        """Close the socket, upon which the waiting process exits."""
        self.socket.close()

    def take(self, argv: Sequence[str], environment: Mapping[str, str], log: int, keep: Sequence[int]) -> bool:
        """Make the waiting process the agent with these arguments; return False if the process is gone.

        `log` is the descriptor for its output, `keep` are further descriptors that it gets.
        """
        null = os.open(os.devnull, os.O_RDONLY)
        words = {"argv": list(argv), "env": dict(environment), "fds": [0, 1, 2, *keep]}
        try:
            send_arguments(self.socket, words, [null, log, log, *keep])
        except OSError:
            return False
        finally:
            os.close(null)
            self.socket.close()
        return True


def _last_sender(gate: socket.socket) -> int | None:
    """Return the pid of the process that sent the last message on the socket, as the kernel reports it, or None if
    nothing was sent.
    """
    pid, room = None, struct.calcsize("3i")
    while True:
        try:
            data, told, _, _ = gate.recvmsg(4096, socket.CMSG_SPACE(room), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return pid
        if not data:
            return None  # no process has the other end any more
        for _, kind, words in told:
            if kind == socket.SCM_CREDENTIALS:
                pid = int(struct.unpack("3i", words[:room])[0])


def agent_process(
    plan: Plan,
    attempt: AttemptDir,
    node: int,
    *,
    keep: Sequence[int] = (),
    gpus: Sequence[str] | None = None,
    records_due: SharedEvent | None = None,
) -> AgentProcess:
    """Return an object for a node's agent process on this machine; it is not running yet.

    `keep` are descriptors that it inherits. `gpus` lists the GPUs that it may use; with None the plan and
    CUDA_VISIBLE_DEVICES decide. The coordinator, if it runs in this agent, sets `records_due` when there are new
    records.
    """
    argv = _argv(plan.run_dir, str(attempt.number), node)
    environment = _environment(os.environ, plan.run_dir)
    if gpus is not None:
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as we count them
    keep, environment = _with_event(keep, environment, records_due)
    return AgentProcess(argv, environment, attempt.agent_log(node), keep, slept=after_suspend(plan, node))


def coordinator_process(
    plan: Plan, attempt: AttemptDir, *, keep: Sequence[int] = (), records_due: SharedEvent | None = None
) -> AgentProcess:
    """Return an object for a process that runs only the coordinator, for a plan whose agents are on other machines.

    The process is not running yet. It inherits the descriptors `keep`, and sets the event `records_due`, if given, when
    it has written new records, which are to be copied to other hosts.
    """
    argv = _argv(plan.run_dir, str(attempt.number), COORDINATOR)
    keep, environment = _with_event(keep, _environment(os.environ, plan.run_dir), records_due)
    return AgentProcess(argv, environment, attempt.coordinator_log, keep, slept=AfterSuspend.COUNTS)


def _with_event(
    keep: Sequence[int], environment: dict[str, str], records_due: SharedEvent | None
) -> tuple[Sequence[int], dict[str, str]]:
    """Return (descriptors that a process inherits, its environment): `keep` and `environment`, to which the descriptor
    of the event `records_due` and the variable with its number are added unless it is None.
    """
    return (
        (keep, environment)
        if records_due is None
        else ((*keep, records_due.fd), environment | {SHARED_EVENT: str(records_due.fd)})
    )


def _argv(run_dir: str, attempt: str, node: int | str) -> Sequence[str]:
    """Return the command line of a node's agent, or of the coordinator alone if `node` is `coordinator`. `attempt` is
    the attempt's number as text, or an argument that tells the process to wait for it.
    """
    return (sys.executable, "-P", "-m", "launcher.node", run_dir, attempt, str(node))


def _environment(environ: Mapping[str, str], run_dir: str) -> dict[str, str]:
    """Return an agent's environment: the variables in `environ` that ranks may inherit, and the one that marks
    processes of this run, whose value is `run_dir`.
    """
    return {**job_environment(environ), TAG: run_dir}


def starter_process(argv: Sequence[str], plan: Plan, attempt: AttemptDir) -> AgentProcess:
    """Return an object for the process that starts the agents on other machines by the command `argv`; it is not
    running yet.
    """
    return AgentProcess(argv, {**os.environ, TAG: plan.run_dir}, attempt.others_log)


class AgentProcesses:
    """The agent processes on this machine. With `leads`, the attempt ends when the first agent in the list ends; else
    that agent is restarted like the others.

    Orphans become children of this process, so that all that agents leave behind is ended too, except the children
    with the pids in `spared` and all below them.
    """

    def __init__(
        self,
        agents: Sequence[AgentProcess],
        wakeup: Wakeup,
        *,
        leads: bool = True,
        spared: Sequence[int] = (),
    ) -> None:
        become_subreaper()
        self._agents = [*agents]
        self._leads = leads  # the end of the first agent is the end of all; else it is started again like the others
        self._wakeup = wakeup
        self._spared = set(spared)  # children with all below them that outlive us

    def start(self) -> None:
        """Start all agent processes."""
        for agent in self._agents:
            agent.start()

    def add(self, agents: Sequence[AgentProcess]) -> None:
        """Watch these agents as well, after those given at the start; the caller starts their processes."""
        self._agents += agents

    def drop(self, agents: Sequence[AgentProcess]) -> None:
        """Stop watching these agents, which have ended, and let their zygotes' standbys exit."""
        for agent in agents:
            agent.dismiss_standby()
            self._agents.remove(agent)

    def watch(self, until: float | None, *, bring_back: bool = True) -> int | None:
        """Restart the dead agents whose delay is over, then wait once: until a child ends, a signal comes, another
        restart is due, a lease has to be checked, or the time `until` (by `time.monotonic`; None: no limit). Enforce
        leases and record which agents have ended. Return the first agent's wait status if it has ended and the attempt
        ends with it (`leads`), else None.

        Without `bring_back`, no agent is restarted. An agent that exited because all is done, or because a newer
        attempt took over, is never restarted.
        """
        for agent in self._agents if bring_back else ():
            if agent.returns_at is not None and time.monotonic() >= agent.returns_at:
                agent.start()
        moments = [agent.returns_at for agent in self._agents if agent.returns_at is not None] if bring_back else []
        moments += [] if until is None else [until]
        looks = [look_s for agent in self._agents if (look_s := agent.enforce_lease()) is not None]
        moments += [time.monotonic() + look_s for look_s in looks]
        handles = [agent.handle for agent in self._agents if isinstance(agent, AdoptedAgent) and agent.pid is not None]
        self._wakeup.sleep(min(moments) - time.monotonic() if moments else None, handles)
        dead = dict(self._dead())
        ended = dead.pop(self._agents[0].pid or 0, None) if self._leads else None
        if ended is not None:
            self._agents[0].died(ended)
        for pid, status in dead.items():
            self._lost(pid, status)
        if ended is not None:
            return ended
        return None

    def all_gone(self, for_good: bool) -> bool:
        """Return True if no agent runs and none waits to be restarted. With `for_good` agents are not restarted any
        more, so those that wait count as gone.
        """
        return all(agent.pid is None and (for_good or agent.returns_at is None) for agent in self._agents)

    def signal_first(self) -> None:
        """Send SIGTERM to the first agent in the list, if it runs."""
        self._agents[0].signal(signal.SIGTERM)

    def wait_for_others(self, agents: Sequence[AgentProcess], timeout_s: float) -> None:
        """Wait until all of `agents` but the first have exited, as the caller has asked them to; return after
        `timeout_s` seconds even if some have not.
        """
        waiting = {agent.pid for agent in agents[1:] if agent.pid is not None}
        of_other_roles = [agent for agent in self._agents if all(agent is not one for one in agents)]
        deadline = time.monotonic() + timeout_s
        while waiting and time.monotonic() < deadline:
            self._wakeup.sleep(deadline - time.monotonic())
            dead = dict(self._dead())
            waiting -= dead.keys()
            for agent in of_other_roles:
                if agent.pid in dead:
                    agent.died(dead[agent.pid])

    def end_now(self, agents: Sequence[AgentProcess]) -> None:
        """Kill the agents and all processes below them, and wait until they are gone; return after ten seconds even if
        some are not.
        """
        end_all(lambda: [pid for agent in agents for pid in agent.tree()])

    def end(self, standbys_of: Sequence[AgentProcess] = ()) -> None:
        """Kill every process below this one, and wait for half a minute at most until all are gone.

        Processes that were given to the constructor as `spared` live on, with all below them. So do usable standbys of
        the agents in `standbys_of`: each becomes its agent's `place`, the process to continue as the next agent.
        """
        theirs = {agent.pid for agent in standbys_of}
        self.end_now([agent for agent in self._agents if isinstance(agent, AdoptedAgent)])
        end_all(lambda: [pid for pid in orphans(os.getpid(), self._spared) if pid in theirs])
        self._dead()
        for agent in standbys_of:
            if agent.last is not None:
                agent.died(agent.last)
        standbys = {agent.place.pid for agent in standbys_of if agent.place is not None}
        end_all(lambda: orphans(os.getpid(), self._spared | standbys))
        self._dead()
        for agent in self._agents:
            agent.dismiss_standby()

    def _dead(self) -> list[tuple[int, int]]:
        """Reap the children that have ended since the last call, agents and inherited orphans alike, and return (pid,
        wait status) of each. Adopted agents, which an earlier supervisor had started and so are no children of this
        one, are included. The status of each agent is also kept as its `last`.
        """
        dead = _reaped()
        dead += [(agent.pid, status) for agent in self._agents if agent.pid and (status := agent.ended()) is not None]
        for agent in self._agents:
            agent.last = dict(dead).get(agent.pid or 0, agent.last)
        return dead

    def _lost(self, pid: int, status: int) -> None:
        """End the processes that the dead agent `pid` left behind, and plan its restart after a delay. `status` is its
        wait status: an agent that exited because all is done, or because a newer attempt took over, is not restarted.

        Nor is the one whose end is the attempt's. A pid that is no agent's is ignored.
        """
        agent = next((agent for agent in self._agents if agent.pid == pid), None)
        if agent is None:
            return  # an orphan that we inherited
        agent.died(status)
        others = {pid for other in self._agents for pid in other.pids}
        end_all(lambda: orphans(os.getpid(), self._spared | others))
        if comes_back(status) and not agent.leads:
            agent.schedule_restart(time.monotonic())


def comes_back(status: int) -> bool:
    """Return whether an agent that ended with this wait status should be started again: always, unless it exited
    because all is done or because a newer attempt took over.
    """
    return os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (Exit.OK, Exit.FENCED)


def _reaped() -> list[tuple[int, int]]:
    """Reap all children that have ended, and return the pid and wait status of each."""
    dead: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        dead.append((pid, status))
