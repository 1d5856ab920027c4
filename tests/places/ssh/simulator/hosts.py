"""Simulated hosts of a pool: the launcher's own supervisors and coordinator, and agents that speak its messages."""

import asyncio
import os
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import msgspec
from run_folder import plan_of

from launcher.coordinator import server
from launcher.coordinator.server import CopyHold
from launcher.errors import Exit, Fenced, LaunchError
from launcher.node import __main__ as node_main
from launcher.node import lifeline
from launcher.node.lifeline import Lifeline
from launcher.node.ranks.group import Home
from launcher.node.ranks.lease import Lease, LeaseWatch, Watchdog, after_suspend
from launcher.places.ssh.comeback import returning_supervisor
from launcher.places.ssh.host import (
    attempt_on_host,
    follower,
    host_supervisor,
    late_messages,
    leader,
    record_copies,
    supervisor_rpc,
    supervisor_state,
)
from launcher.places.ssh.host.supervisor_rpc import ASK_S, SupervisorRpc
from launcher.places.ssh.host.supervisor_state import SupervisorState
from launcher.places.ssh.messages import Peer
from launcher.plan.model import NodePlan
from launcher.run import identity, record_writer
from launcher.run.attempts import new_attempt, read_intent
from launcher.run.durable import readable, write_record
from launcher.run.fence import raise_fence
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd, ProcessId, RankExit, StopRequest
from launcher.run.shared_event import SHARED_EVENT
from launcher.spec.model import Budget, Recovery
from launcher.states import State
from launcher.supervisor import agent_processes, allocation
from launcher.supervisor.agent_processes import AdoptedAgent, AgentProcess, AgentProcesses, SupervisedLease
from launcher.supervisor.attempt_end import write_end
from launcher.wire import messages
from launcher.wire.frames import wire_key
from tests.places.ssh.simulator import machine
from tests.places.ssh.simulator.disk import Disk
from tests.places.ssh.simulator.machine import Killed, Process, Thread, Wakeup
from tests.places.ssh.simulator.network import Server, dial

SECRET, PORT, RUN = "5e" * 32, 700, "job-0001"
LEASE_S, WAIT_S, RETURN_S = 5.0, 12.0, 5.0
STEP_S, STEPS_TO_SAVE = 1.0, 5
WALL = 1_700_000_000.0
MANY = Budget(1_000)
RULES = Recovery(
    lease_s=LEASE_S, wait_s=WAIT_S, avoid_s=60.0, mode="warm", grace_s=2.0, no_progress=None, hang_after_s=None,
    killed=MANY, node_lost=MANY, communication=MANY, launcher_fault=MANY,
)  # fmt: skip


class Host:
    """One machine: its clocks, its disk, its supervisor's process and its agent's."""

    def __init__(self, pool, number, root, starts_at):
        self.pool, self.world, self.number = pool, pool.world, number
        self.name, self.address = f"host{number}", f"10.0.0.{number + 1}"
        self.run, self.boots, self.up, self.wakes_at, self.suspended_s = RunDir(root / RUN), 0, True, 0.0, 0.0
        self.offsets = [pool.chance.uniform(0.0, 1e5) for _ in range(3)]
        self.supervisor = self.process = self.agent = None
        self.fuse = 0  # the fsync at which its power is cut; 0: none
        self.image, self.gone, self.started_at = None, False, 0.0
        self.asleep, self.postponed = False, []  # suspended, and what was due meanwhile
        self.dead: list[tuple[int, int]] = []
        self.crashes, self.boots_later = 0, False
        self.living = {os.getpid()}
        self._lay(starts_at)
        self.disk = Disk(root)

    def boottime(self):
        return self.world.now + self.offsets[0]

    def monotonic(self):
        return self.world.now + self.offsets[1] - self.suspended_s

    def wall(self):
        return WALL + self.world.now + self.offsets[2] % 20.0

    @property
    def supervises(self):
        return self.up and self.process is not None and self.process.alive

    @property
    def takes_part(self):
        return self.supervises and not self.supervisor.returning

    def _lay(self, starts_at):
        """Write what the submitter has sent here."""
        self.world.process = Process(self.world, self, "submitter")
        self.run.path.mkdir(parents=True)
        self.slots_at = starts_at
        hosts = range(self.pool.size)
        nodes = tuple(NodePlan(one, f"10.0.0.{one + 1}", False, None, host=f"host{one}") for one in hosts)
        plan = plan_of(self.run.path, ranks=1)
        rules = msgspec.structs.replace(RULES, node_lost=self.pool.budget, killed=self.pool.budget)
        spec = msgspec.structs.replace(plan.spec, recovery=rules)
        more = {"nodes": nodes, "spec": spec, "nodes_max": self.pool.size, "disks_apart": True, "elects": True}
        more["nodes_min"] = self.pool.needs
        attempt, _ = new_attempt(self.run, "pool", "submit", None, msgspec.structs.replace(plan, **more), secret=SECRET)
        raise_fence(self.run, attempt.number)
        write_record(attempt.supervisors, self.peers)
        self.world.process = None

    @property
    def peers(self):
        return tuple(Peer(f"host{one}", f"10.0.0.{one + 1}", PORT) for one in range(self.pool.size))

    def start(self, *, again=False):
        """Start the supervisor's process: for the first time, or as one that comes back."""
        self.started_at = self.world.now
        self.process = Process(self.world, self, "supervisor")
        Thread(lambda: self._supervise(again), process=self.process).start()

    def _supervise(self, again):
        try:
            supervisor = self.supervisor = SupervisorState(self.run, 1, self.number)
        except LaunchError:
            self.supervisor, self.process.alive = None, False  # it cannot read its votes, and stays away
            return
        wakeup, supervisor._alone = Wakeup(self.world), mock.Mock()
        supervisor.returning, supervisor.ready.told = again, not again
        supervisor.accepted_by = frozenset() if again else supervisor.accepted_by
        key = wire_key(supervisor.secret, supervisor_rpc.WIRE, RUN, 1)
        supervisor.rpc = Rpc(self.address, key, supervisor.answering(wakeup), PORT)
        supervisor.rpc.join(self.peers, self.number)
        if again:
            self.pool.reach("a host comes back")

        def work():
            if again:
                return returning_supervisor.come_back(supervisor, wakeup, ())
            return host_supervisor.wait_and_run(supervisor, wakeup, ())

        code = host_supervisor._done(supervisor, work)
        supervisor.rpc.close()
        if code == Exit.FENCED:
            self.pool.reach("a supervisor leaves, as the run goes on without it")
        if self.agent is not None and not supervisor.returning:
            self.agent.kill()
        late = [supervisor.rpc.peer(number).host for number in supervisor.to_be_told]
        if late:
            teller = Process(self.world, self, "late messages")
            Thread(lambda: late_messages.deliver(self.run, "end", late), process=teller).start()
        self.process.alive = False
        self.comes_back()

    def comes_back(self, after_s=RETURN_S):
        """Have the supervisor started again in a while, as a crontab or `launch status` does."""
        self.world.at(self.world.now + after_s, None, self._come_back)

    def _come_back(self):
        end = self.end
        if self.boots_later:
            return  # it is started then
        if self.up and not self.process.alive and not self.gone and (end is None or not end.state.ended):
            self.start(again=True)

    @property
    def end(self):
        return readable(self.supervisor.attempt.end, AttemptEnd) if self.supervisor is not None else None

    # -- what becomes of it

    def crash(self, *, power, back_s):
        """Kill all processes at once; with `power` what was not fsynced may be lost. It is back after a while."""
        if not self.up:
            return
        self.image = self.disk.image(self.pool.chance, power=power)
        self.up, self.fuse, self.gone, self.boots_later = not power, 0, back_s is None, True
        self.pool.lost(self)
        for process in (self.process, self.agent):
            if process is not None:
                process.kill()
        self.agent, self.dead, self.crashes = None, [], self.crashes + 1
        if back_s is not None:
            self.world.at(self.world.now + back_s, None, partial(self._boot, self.crashes))

    def kill_supervisor(self, back_s):
        """Kill only the supervisor, whose agent runs on. It is started again in a while."""
        if self.up and self.process is not None and self.process.alive:
            self.pool.lost(self)
            self.process.kill()
            self.comes_back(back_s)

    def _boot(self, crashes):
        if crashes != self.crashes:
            return  # it has crashed once more meanwhile
        self.disk.restore(self.image)
        self.boots_later = False
        self.up, self.boots, self.suspended_s, self.asleep = True, self.boots + 1, 0.0, False
        self.offsets[:2] = [self.pool.chance.uniform(0.0, 1e5) for _ in range(2)]
        self._come_back()

    def fsynced(self, path):
        if self.fuse and (self.process is None or self.process.alive):
            self.fuse -= 1
            if not self.fuse:
                if self.pool.chance.random() < 0.5:
                    self.disk.fsynced(path)
                if os.path.isfile(path) and b'"voted"' in Path(path).read_bytes():
                    self.pool.reach("power is cut while a vote is written")
                self.crash(power=True, back_s=self.pool.chance.uniform(1.0, 15.0))
                raise Killed
        self.disk.fsynced(path)

    def suspend(self, seconds):
        if self.up and not self.asleep:
            self.asleep, self.wakes_at = True, self.world.now + seconds
            self.suspended_s += seconds
            self.world.at(self.wakes_at, None, partial(self.wake, self.wakes_at))

    def wake(self, due):
        if not self.asleep or due != self.wakes_at:
            return
        self.asleep, postponed, self.postponed = False, self.postponed, []
        for process, act in postponed:
            self.world.at(self.world.now, process, act)
        if self.agent is not None and self.agent.alive:
            self.agent.watchdog()
            self.pool.check_ranks()


class Rpc(SupervisorRpc):
    """The supervisor's connections, in virtual time; what is asked and answered is watched."""

    def __init__(self, address, key, answer, port=0, ask_s=ASK_S):
        self._ask_s, self._address, self._key, self._answer, self._peers = ask_s, address, key, answer, {}
        self._me, self._gone_since, self._late, self._telling = -1, {}, set(), None
        self._process = machine.World.current.process
        self._pool, self._loop = self._process.host.pool, self._process.loop
        self._listener = Server(key, supervisor_rpc._questions, self._serve, 0, process=self._process)
        self._listener.lossy = True
        self.port = self._process.world.net.listen(self._listener, address, port)

    def ask(self, question, whom=None, limit_s=None):
        chosen = [number for number in (self._peers if whom is None else whom) if number in self._peers]
        self._pool.asks(self._process.host, question)
        return self._loop.wait_for(self._ask_all(question, chosen, self._ask_s if limit_s is None else limit_s))

    def _answered(self, question, asker):
        host = self._process.host
        self._pool.is_asked(host, question)
        reply = super()._answered(question, asker)
        self._pool.answers(host, question, reply)
        if self._pool.faulty and self._pool.chance.random() < 0.03:  # it comes once more, late
            late_s = self._pool.chance.uniform(0.0, 4.0)
            again = lambda: self._pool.answers(host, question, SupervisorRpc._answered(self, question, asker))  # noqa: E731
            self._process.world.at(self._process.world.now + late_s, self._process, again)
        return reply

    def close(self):
        self._process.world.net.close_all(self._process)


class Slots:
    """The slots of a host, which are free from some moment on."""

    fds = ()

    def __init__(self, host):
        self._host = host

    def try_take(self):
        agent = self._host.agent
        is_free = agent is None or not agent.alive  # else that holds them
        return () if is_free and self._host.world.now >= self._host.slots_at else None

    def ahead(self):
        return "another run"

    def contested(self):
        return False

    def enqueue(self):
        pass

    release = enqueue


class SupervisedAgent(AgentProcess):
    """An agent as its supervisor sees it."""

    def start(self):
        host = machine.World.current.process.host
        lease = Lease()
        if self.environment[SHARED_EVENT] is not None:
            lease.notify = self.environment[SHARED_EVENT].set
        self.lease = SupervisedLease(lease, self.slept)
        self.agent = Agent(host, int(self.argv[-2]), int(self.argv[-1]), lease, self.slept)
        self.pid, self.started_at, self.returns_at = self.agent.pid, host.monotonic(), None
        return self.pid

    def enforce_lease(self):
        if not self.pid or self.lease is None:
            return None
        due = self.lease.due()
        if due.end and self.agent.ranks:
            self.agent.rank_leaves(signal=9)
        if due.kill:
            self.agent.exit(9)
        return due.look_s


class Adopted(AdoptedAgent):
    """An agent that runs, as the supervisor sees it that comes after its own."""

    @classmethod
    def found(cls, run, attempt, plan, node):
        host = machine.World.current.process.host
        agent = host.agent
        if agent is None or not agent.alive or (agent.attempt, agent.home.node.index) != (attempt.number, node):
            return None
        lease = SupervisedLease(agent.lease, agent.slept)
        words = {"pid": agent.pid, "slept": agent.slept, "lease": lease, "run": run, "process": None, "handle": -1}
        one = cls((), {}, attempt.agent_log(node), **words)
        one.agent, host.dead = agent, []
        host.pool.reach("a supervisor adopts an agent")
        if node == 0:
            host.pool.reach("a supervisor adopts a coordinator")
        return one

    def start(self):
        return self.pid

    def ended(self):
        return None

    enforce_lease = SupervisedAgent.enforce_lease


class SupervisedAgents(AgentProcesses):
    """The one agent of a host, in place of processes."""

    def __init__(self, agents, wakeup, *, leads=True, spared=()):
        with mock.patch.object(agent_processes, "become_subreaper"):
            super().__init__(agents, wakeup, leads=leads, spared=spared)
        self._process = machine.World.current.process
        self._host = self._process.host
        self._host.wakeup = wakeup

    def signal_first(self):
        if self._agents[0].pid is not None:
            self._agents[0].agent.terminate()

    def end(self, standbys_of=()):
        self.end_now(self._agents)
        self._dead()
        for agent in self._agents:
            agent.pid = None

    def end_now(self, agents):
        for agent in agents:
            if agent.pid is not None and self._process.alive:  # else this is a `finally` of one that was killed
                agent.agent.exit(9)

    def _dead(self):
        dead, self._host.dead = self._host.dead, []
        for agent in self._agents:
            agent.last = dict(dead).get(agent.pid or 0, agent.last)
        return dead


class Agent(Process):
    """An agent with one rank, which trains as long as all of its generation do; node 0's has the coordinator."""

    def __init__(self, host, attempt, index, lease, slept):
        super().__init__(host.world, host, "agent")
        self.attempt, self.lease, self.slept, self.goes_on = attempt, lease, slept, False
        self.line = None
        self.ranks = None  # (attempt, generation) of those that run
        self.start, self.opens, self.held, self.step = None, None, False, 0
        if host.agent is not None:
            host.agent.exit(9)
        host.agent = self
        host.living.add(self.pid)
        run, plan = host.run, host.supervisor.plan
        self.home = Home(plan, run, run.attempt(attempt), plan.nodes[index], {})
        self.watch = LeaseWatch(slept, host.boottime)
        token = read_intent(self.home.attempt).token
        world, self._over = host.world, self.loop.create_future()
        world.at(world.now + host.pool.chance.uniform(0.2, 1.0), self, lambda: self._boot(token))
        world.at(world.now, self, self._keep_watch)

    def _boot(self, token):
        watchdog = Watchdog(self.lease, self.pid, self.slept)

        async def live():
            try:
                code, _ = await node_main.work(self.home, token, watchdog, None)
            except Fenced:
                code = Exit.FENCED
            self.exit(int(code) << 8)

        self.loop.create_task(live())

    def exit(self, status):
        """End it, with its ranks; its supervisor learns with which wait status."""
        if self.alive:
            self.end_ranks()
            self.kill()
            self.host.living.discard(self.pid)
            self.host.dead.append((self.pid, status))
            self.host.wakeup.wake()

    # -- its watchdog

    def _keep_watch(self):
        left_s = self.watchdog()
        if self.alive:
            self.world.at(self.world.now + min(max(left_s, 0.01), 0.5), self, self._keep_watch)

    def watchdog(self):
        """End the ranks if their lease has run out, or hold them until somebody says whether it has."""
        left_s = self.watch.left_s(self.lease.until)
        if left_s <= 0:
            self.lease.break_off()
            self.exit(9)
        self.held = left_s > 0 and self.watch.needs_ruling(self.lease.until)
        self.host.pool.check_ranks()
        return left_s

    # -- its part of `launcher/node/node.py`

    async def run(self):
        for work in (self.line.keep(self._introduce, self._obey), self._beat()):
            self.loop.create_task(work)
        return await self._over

    def terminate(self):
        """Take SIGTERM, as `NodeAgent` does once it has started."""
        if self.line is None:
            self.exit(15)
        elif self.line.is_up:
            request = readable(self.home.attempt.stop, StopRequest)
            kind = "preempt" if request is None else request.kind
            self.line.send(messages.StopAsked(self.home.node.index, kind))
        else:
            self.leave(Exit.PREEMPTED)

    def leave(self, code):
        self.end_ranks()
        if not self._over.done():
            self._over.set_result(code)

    def _introduce(self):
        node, me = self.home.node, ProcessId(self.host.name, identity.boot_id(), self.pid, 1)
        runs = self.ranks[1] if self.ranks else 0
        self.line.join(messages.Join(node.index, node.address, me, 20_000, runs))
        self.line.send(messages.Ready(node.index))

    def _obey(self, message):
        match message:
            case messages.Welcome(lease_s=lease_s, brief=brief):
                self.line.welcomed(lease_s, brief=brief)
            case messages.HeartbeatAck(seq=seq):
                self.line.answered(seq)
            case messages.Start():
                self.line.forget()
                self.opens = self.start = message
                if message.group_rank == 0:
                    self.line.send_reliably(messages.Leads(self.home.node.index, message.generation))
                    self.loop.create_task(self._begin())
            case messages.Follow(generation=generation):
                if self.opens is not None and self.opens.generation == generation:
                    self.loop.create_task(self._begin())
            case messages.Stop(generation=generation):
                if self.ranks and self.ranks[1] <= generation:
                    self.end_ranks()
                self.opens = None
                self.line.forget()
                self.line.send_reliably(messages.Stopped(self.home.node.index, generation))
                self.line.send(messages.Ready(self.home.node.index))
            case messages.End(goes_on=goes_on):
                self.goes_on = goes_on
                self.leave(Exit.OK)

    async def _begin(self):
        start = self.opens
        await self.line.wait_until_leased()
        if self.opens is not start:
            return  # it was stopped meanwhile
        self.opens = None
        self.ranks, self.step = (self.attempt, start.generation), self.host.pool.saved
        self.line.send_reliably(messages.Started(self.home.node.index, start.generation, (self.pid,), 20_001))
        self.host.pool.check_ranks()

    def end_ranks(self):
        self.ranks = None

    def rank_leaves(self, **how):
        """Its rank has finished, or is killed by something outside."""
        number, node = self.start.first_rank, self.home.node.index
        told = RankExit(self.ranks[1], number, 0, node, self.pid, **how)
        self.end_ranks()
        self.world.at(self.world.now, self, lambda: self.line.send_reliably(messages.Exited(node, told)))

    async def _beat(self):
        while True:
            runs, ranks = self.ranks[1] if self.ranks else 0, ()
            if self.ranks:
                self.step = self.host.pool.trains(self)
                saved = self.step // STEPS_TO_SAVE * STEPS_TO_SAVE
                ranks = (messages.RankHeartbeat(self.start.first_rank, 0.0, True, False, self.step, None, saved),)
                if self.host.pool.saved >= self.host.pool.steps_in_all:
                    self.line.send_reliably(messages.Settled(self.home.node.index, runs))
                    self.rank_leaves(code=0)
            self.line.heartbeat(messages.Heartbeat(self.home.node.index, 0, runs, ranks))
            await asyncio.sleep(min(STEP_S, self.line.heartbeat_s))


def _agent_of_node(home, token, reaper, watchdog, buried):
    agent = machine.World.current.process
    agent.line = Lifeline(home, token, watchdog.lease)
    return agent


class InlineWriter(record_writer.RecordWriter):
    """The writer of records, which writes each at once."""

    def write(self, entry):
        if machine.World.current.process is not None:
            super().write(entry)
            self.close()
            self._work()
            if isinstance(entry, AttemptEnd):
                _judge_end(entry)


def _judge_end(end):
    """Tell the judge of an end that has just been written, after which no other host may go on."""
    if end.state in (State.SUCCEEDED, State.FAILED):
        host = machine.World.current.process.host
        host.pool.ends(host, end)


def _write_end(run, attempt, end, *words):
    """Write an end as supervisors do."""
    write_end(run, attempt, end, *words)
    _judge_end(end)


class WatchedHold(CopyHold):
    """The restart's hold, which tells the judge what was acknowledged."""

    def is_copied(self, failures, history_bytes):
        copied = super().is_copied(failures, history_bytes)
        if copied and failures:
            machine.World.current.process.host.pool.acknowledge(machine.World.current.process.host, history_bytes)
        return copied


@contextmanager
def machines(pool):
    """Put simulated machines in the place of this one, for all that supervisors, coordinators and agents take of it."""
    world, fsync = pool.world, os.fsync

    def here():
        return world.process.host

    def sync(fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        host = pool.host_of(path)
        if host is not None:
            host.fsynced(path)
        else:
            fsync(fd)

    def wire_server(*words, **more):
        return Server(*words, **more, world=world)

    async def connect(address, port, own, key, decoder, *_, **__):
        return await dial(world, world.process, address, port, key, decoder)

    threads = mock.Mock(Thread=Thread, Event=machine.Event)
    no_threads = mock.Mock()
    with ExitStack() as stack:
        stack.enter_context(world.clocks())
        for module, name, what in (
            (os, "fsync", sync),
            (identity, "host", lambda: here().name),
            (identity, "boot_id", lambda: f"boot-{here().boots}"),
            (identity, "_stat", lambda pid: [b"R"] * 19 + [b"1"] if pid in here().living else None),
            (supervisor_state, "boot_id", lambda: f"boot-{here().boots}"),
            (leader, "threading", threads),
            (record_copies, "threading", threads),
            (record_copies, "SharedEvent", machine.SharedEvent),
            (leader, "SharedEvent", machine.SharedEvent),
            (leader, "write_end", _write_end),
            (follower, "write_end", _write_end),
            (record_writer, "threading", no_threads),
            (attempt_on_host, "log_to", lambda path: None),
            (host_supervisor, "close_tier", lambda *_: None),
            (host_supervisor, "slots_for", lambda *_: Slots(here())),
            (returning_supervisor, "AdoptedAgent", Adopted),
            (returning_supervisor, "slots_for", lambda *_: Slots(here())),
            (late_messages, "SupervisorRpc", Rpc),
            (supervisor_rpc, "dial", connect),
            (attempt_on_host, "agent_process", _agent_process),
            (follower, "AgentProcesses", SupervisedAgents),
            (allocation, "AgentProcesses", SupervisedAgents),
            (agent_processes, "end_all", lambda _: None),
            (node_main, "NodeAgent", _agent_of_node),
            (node_main, "Reaper", lambda loop: None),
            (server, "WireServer", wire_server),
            (server, "RecordWriter", InlineWriter),
            (server, "CopyHold", WatchedHold),
            (lifeline, "dial", connect),
        ):
            stack.enter_context(mock.patch.object(module, name, what))
        yield


def _agent_process(plan, attempt, node, *, keep=(), gpus=None, records_due=None):
    words = ("agent", str(attempt.number), str(node))
    return SupervisedAgent(
        words, {SHARED_EVENT: records_due}, attempt.agent_log(node), keep, slept=after_suspend(plan, node)
    )
