"""One run of a simulated pool: what befalls it, drawn from a seed, and what must hold meanwhile and afterwards."""

import random
import shutil
import tempfile
from collections import Counter
from functools import partial
from itertools import permutations
from math import inf
from pathlib import Path

from launcher.places.ssh.host.supervisor_messages import (
    Agreed,
    Commit,
    OpenAttempt,
    Prepare,
    Settled,
    Vote,
)
from launcher.spec.model import Budget
from launcher.states import State
from tests.places.ssh.simulator import machine
from tests.places.ssh.simulator.hosts import LEASE_S, MANY, WAIT_S, Host, machines
from tests.places.ssh.simulator.machine import World
from tests.places.ssh.simulator.network import Network

STORM_S, RETURNED_S = 30.0, 26.0
FAULTS = [*3 * ["cut"], *2 * ["part", "suspend", "rank"], "power", "fsync", "crash", "agent"]
GIVES_UP_S = LEASE_S + 6 * WAIT_S  # from the last fault that heals to `interrupted`, of a run without a quorum
PROGRESS_S = 4 * LEASE_S  # and to the next steps of one that has a quorum


class Broken(AssertionError):
    """What must hold did not."""


class Pool:
    def __init__(self, seed, root):
        self.seed, self.chance, self.world = seed, random.Random(seed), World()
        self.world.net = self.net = Network(self.world, self.chance)
        self.world.host_at = lambda address: self.hosts[int(address.rpartition(".")[2]) - 1]
        self.size, self.root, self.saved = self.chance.choice([2, 3, 3, 4, 5]), root, 0
        self.reached: Counter[str] = Counter()
        self.faulty, self.trace, self.steps, self.stepped_at = False, [], 0, 0.0
        needed = random.Random(f"{seed} needed")
        self.needs = needed.randint((self.size + 1) // 2 + 1, self.size) if needed.random() < 0.25 else 1
        self._aimed = aimed = random.Random(f"{seed} aim")
        self._aim = aimed.choice([*7 * [""], "vote", "end", "lease"]) if self.needs == 1 else ""
        if not self._aim and self.needs == 1 and random.Random(f"{seed} lack").random() < 0.2:
            self._aim = "history"
        if self._aim == "end" and self.size == 2:
            self._aim = ""  # there nobody takes over
        self._is_aimed = bool(self._aim)
        self._lost_at = 0.0
        self._votes, self._leaders, self._kept, self._asked = {}, {}, {}, {}
        self._opening: dict[int, str] = {}
        self.hosts = []
        self._more = more = random.Random(f"{seed} more")  # of its own, so that seeds of before play the same runs
        self.steps_in_all = more.choice([inf, inf, more.randint(5, 40)])
        few = random.Random(f"{seed} few")
        self.budget = Budget(few.randint(0, 2)) if few.random() < 0.25 else MANY
        self._lost_as_it_ends = more.random() < 0.7
        if self._aim == "end":
            self.budget, self._lost_as_it_ends = Budget(1), True
        self.ended, self._ended_as = 0, None  # the first attempt that ended the run

    def host_of(self, path):
        """Return the host that has this file."""
        part = path.removeprefix(f"{self.root}/")
        return self.hosts[int(part[4])] if part != path and len(self.hosts) == self.size else None

    # -- the run

    def play(self):
        with machines(self):
            try:
                self._play()
            finally:
                self.world.end()
        return self

    def _play(self):
        world, chance = self.world, self.chance
        for number in range(self.size):
            self.hosts.append(Host(self, number, Path(self.root, f"host{number}"), chance.uniform(0.0, 1.0)))
        for host in self.hosts:
            world.at(chance.uniform(0.0, 0.3), None, host.start)
        begins = chance.choice([0.0, 4.0])
        world.at(begins, None, self._storm)
        killed = random.Random(f"{self.seed} orphans")  # of its own, like those above
        if killed.random() < 0.3 and not self._aim:
            for _ in range(killed.randint(1, 3)):
                world.at(begins + killed.uniform(0.5, STORM_S), None, partial(self._kill_supervisor, killed))
        for _ in range(chance.randint(2, 7)):
            world.at(begins + chance.uniform(0.5, STORM_S), None, self._fault)
        if self._aim:
            world.at(begins + self._aimed.uniform(2.0, 8.0), None, self._take_aim)
        world.run_until(begins + STORM_S)
        self._calm()
        self._judge()

    def note(self, text):
        self.trace.append(f"{self.world.now:8.3f} {text}")

    def _storm(self):
        self.faulty = True
        self.net.lost, self.net.slow = self.chance.choice([(0.0, 0.0), (0.02, 0.2), (0.1, 0.05), (0.0, 0.5)])
        self.note(f"messages: {self.net.lost} lost, {self.net.slow} slow")

    def _fault(self):
        chance, now = self.chance, self.world.now
        if self._is_aimed:
            return  # it would be another run
        host, lasts_s = chance.choice(self.hosts), chance.uniform(0.5, 3 * LEASE_S)
        kind = chance.choice(FAULTS)
        back_s = None if self._may_go() and chance.random() < 0.3 else chance.uniform(0.5, 15.0)
        if chance.random() < 0.6:  # those that lead have the most to lose
            host = next((one for one in self.hosts if one.takes_part and one.supervisor.ballot.voter.leads), host)
        self.note(f"{kind} {host.name} {lasts_s:.1f} s, back {back_s}")
        match kind:
            case "cut":
                ways = [way for way in permutations(range(self.size), 2) if host.number in way]
                ways = chance.choice([ways, [way for way in ways if way[0] == host.number], chance.sample(ways, 1)])
                self._cut(ways, now + lasts_s)
            case "part":
                side = set(chance.sample(range(self.size), chance.randint(1, self.size - 1)))
                ways = [way for way in permutations(range(self.size), 2) if len(side & {*way}) == 1]
                self._cut(ways, now + lasts_s)
            case "power":
                host.crash(power=True, back_s=back_s)
            case "fsync":
                host.fuse = chance.randint(1, 12)
            case "crash":
                host.crash(power=False, back_s=chance.uniform(0.2, 5.0))
            case "agent":
                if host.agent is not None and host.agent.alive and host.process.alive:
                    host.agent.exit(9)
            case "suspend":
                host.suspend(lasts_s)
            case "rank":
                if host.agent is not None and host.agent.alive and host.agent.ranks and not host.asleep:
                    self._keep_failure_from_one()
                    self.world.at(now, host.agent, partial(host.agent.rank_leaves, signal=9))

    def _take_aim(self):
        """Begin three faults of which each follows from the one before, and which have to hit at a certain moment.

        Each kind lets random seeds find one mistake, which `test_simulator.py` puts into the code.

        - "vote": the leader is cut off; a voter and its candidate lose power right after the vote, and only the voter
          is back when the leader asks it. The mistake: a vote is not fsynced.
        - "end": the leader is lost; a candidate is cut off as it opens an attempt; who ends the run then is lost. The
          mistake: a host that takes over writes the run's end into the attempt before.
        - "history": a rank dies while the leader does not reach the host that is first to take over, and the leader is
          lost once half of the voters have that failure. The mistake: votes do not compare histories.
        - "lease": what the others send to the leader takes longer and longer, and then they receive nothing from it.
          The mistake: a lease counts from the receipt of a heartbeat.
        """
        chance, world, now = self._aimed, self.world, self.world.now
        host = next((one for one in self.hosts if one.takes_part and one.supervisor.ballot.voter.leads), None)
        if not self.faulty:
            return
        if host is None or not self.steps:
            world.at(now + 1.0, None, self._take_aim)
            return
        self.note(f"aims at {host.name}: {self._aim}")
        to_it = [(one, host.number) for one in range(self.size) if one != host.number]
        from_it = [(one, other) for other, one in to_it]
        match self._aim:
            case "vote":
                self._cut(to_it + from_it, now + 3 * LEASE_S)
            case "end":
                host.crash(power=True, back_s=chance.uniform(1.0, 3.0))
            case "history":
                first = min(one.number for one in self.hosts if one is not host)
                self._cut([(host.number, first), (first, host.number)], now + 2.0)
                if host.agent is not None and host.agent.ranks:
                    world.at(now, host.agent, partial(host.agent.rank_leaves, signal=9))
            case "lease":
                most_s, until = chance.uniform(0.4, 0.65) * LEASE_S, now + 5 * LEASE_S
                delays_s = [*(most_s * part / 10 for part in range(1, 11)), 2 * LEASE_S]
                for number, delay_s in enumerate(delays_s):
                    late = dict.fromkeys(to_it, delay_s)
                    world.at(now + number / 2, None, partial(self.net.late.update, late))
                world.at(now + len(delays_s) / 2 - 0.7, None, lambda: self._cut(from_it, until))
                world.at(until, None, self.net.late.clear)

    def _is_hit(self, kind):
        """Return whether this moment, of this kind, is the one that was aimed at; it is only once."""
        is_it = self.faulty and self._aim == kind and any("aims at" in line for line in self.trace)
        self._aim = "" if is_it else self._aim
        return is_it

    def _kill_supervisor(self, chance):
        host = chance.choice(self.hosts)
        self.note(f"supervisor {host.name}")
        host.kill_supervisor(chance.uniform(0.5, 10.0))

    def _keep_failure_from_one(self):
        """Cut the leader off from a host, maybe, so that it alone lacks what the leader acknowledges next."""
        leads = next((one for one in self.hosts if one.takes_part and one.supervisor.ballot.voter.leads), None)
        if leads is not None and self._more.random() < 0.5:
            other = self._more.choice([one for one in self.hosts if one is not leads])
            self.note(f"{other.name} is cut off from {leads.name}, which leads")
            self._cut([(leads.number, other.number), (other.number, leads.number)], self.world.now + 2.0)

    def _may_go(self):
        return sum(host.gone for host in self.hosts) + 1 < max(2, self.size / 2 + 1)

    def _cut(self, ways, until):
        self.net.cut |= {*ways}
        self.world.at(until, None, lambda: self.net.heal(ways))

    def _calm(self):
        """The last fault heals: nothing is cut, lost or suspended; who is gone for good stays gone."""
        self.faulty, self.net.lost, self.net.slow = False, 0.0, 0.0
        self.net.late.clear()
        self.net.heal(list(self.net.cut))
        for host in self.hosts:
            host.fuse = 0
            if host.asleep:
                host.suspended_s -= host.wakes_at - self.world.now
                host.wake(host.wakes_at)
        self.note("calm")
        self.world.run_until(self.world.now + RETURNED_S)

    # -- liveness

    def _judge(self):
        since, steps, quorum = self.world.now, self.steps, self.has_quorum()
        self.note(f"has a quorum: {quorum}, and needs {self.needs} of {self.size} hosts")
        if self._is_over():
            limit_s = GIVES_UP_S + LEASE_S + WAIT_S  # one that is just back waits for the coordinator first
            while (left := self._taking_part()) and self.world.now < (until := max(since, self._lost_at) + limit_s):
                self.world.run_until(until, lambda: not self._taking_part())  # who ends it may be lost as well
            if left:
                raise Broken(f"{', '.join(left)} waits after {limit_s:g} s, though the run has ended")
            return
        if quorum:
            self.world.run_until(since + PROGRESS_S, lambda: self._is_over() or self.steps > steps + 2)
            if self.steps <= steps + 2 and not self._is_over():
                raise Broken(f"no steps within {PROGRESS_S:g} s, though there is a quorum")
            self.progress_s = self.world.now - since
            return
        if self._is_queued():
            self.reach("a run that has not begun waits for a host")
            return
        is_back = lambda: self.steps > steps + 2 or self._is_over()  # noqa: E731 - a leader has come back after all
        limit_s = GIVES_UP_S + (0.0 if self.steps else 5 * WAIT_S)  # nodes that have never joined were awaited before
        self.world.run_until(since + limit_s, lambda: is_back() or not self._taking_part())
        if is_back():
            return
        for name in self._taking_part():
            raise Broken(f"{name} waits after {limit_s:g} s, though there is no quorum")
        # one that was announced may be on disk though its host was lost as it was written
        ended = [host for host in self.hosts if host.up and host.end is not None and not self._announces(host)]
        ends = [host.end for host in ended]
        if any(end.state is State.INTERRUPTED for end in ends):
            self.reach("a run without a quorum is interrupted")
        bad = [end for end in ends if end.state not in (State.INTERRUPTED, State.QUEUED)]
        if bad:
            raise Broken(f"without a quorum it ended as {bad[0].state}: {bad[0].message}")

    def _is_queued(self):
        """Whether the run has not begun, and has a leader, which shows for which hosts it waits."""
        there = [host.supervisor for host in self.hosts if host.takes_part]
        return any(one.ballot.voter.leads for one in there) and not any(one.ready.began for one in there)

    def _is_over(self):
        """Whether the run has ended, as its leader has written or the host that took over from it."""
        ends = [host.end for host in self.hosts if host.end is not None]
        return bool(self.ended) or any(end.state is State.SUCCEEDED for end in ends)

    def _taking_part(self):
        return [host.name for host in self.hosts if host.takes_part]

    def has_quorum(self):
        """Whether one of those that take part or come back could lead, or leads, with the others, which are nodes
        enough."""
        there = [host for host in self.hosts if host.supervises]
        if len(there) < self.needs:
            return False
        if (
            len(there) == 1
            and there[0].supervisor.returning
            and any(host.up for host in self.hosts if host not in there)
        ):
            return False  # the run is over, where machines answer that have no supervisor
        numbers = {host.number for host in there}
        newest = max((host.supervisor.ballot.voter.newest.attempt for host in there), default=0)
        return any(
            host.supervisor.ballot.voter.carries(numbers)
            for host in there
            if host.supervisor.ballot.voter.newest.attempt == newest and host.supervisor.ballot.voter.has_vote
        )

    # -- safety

    def check_ranks(self):
        running = {
            host.number: host.agent.ranks
            for host in self.hosts
            if host.agent is not None and host.agent.alive and host.agent.ranks and not (host.asleep or host.agent.held)
        }
        if len({*running.values()}) > 1:
            self._break(f"two incarnations run at once: {running}")
        if self.ended and any(attempt > self.ended for attempt, _ in running.values()):
            self._break(f"ranks run, though attempt {self.ended} had ended the run: {running}")

    def trains(self, agent):
        """Return the step at which the agent's rank is."""
        alike = [
            host
            for host in self.hosts
            if host.agent is not None and host.agent.ranks == agent.ranks and not host.asleep
        ]
        if len(alike) < agent.start.group_world_size or agent.held:
            return agent.step
        self.steps += 1
        self.saved = max(self.saved, agent.step + 1)
        return agent.step + 1

    def ends(self, host, end):
        """A coordinator or a supervisor has written that the run has succeeded or failed."""
        by_itself = machine.World.current.process is host.process
        self.reach("a supervisor ends a run" if by_itself else f"a coordinator ends a run as {end.state}")
        attempt = host.supervisor.attempt.number
        self.note(f"{host.name} ends attempt {attempt} as {end.state}")
        if self.ended and end.state is not self._ended_as:
            self._break(f"{host.name} ends attempt {attempt} as {end.state}, though it had ended as {self._ended_as}")
        self.ended, self._ended_as = self.ended or attempt, end.state
        if self._lost_as_it_ends and self._may_go():
            self.reach("a leader is lost as the run ends")
            self.net.cut |= {(host.number, other) for other in range(self.size)}  # what it has just sent is lost too
            self.world.at(self.world.now, None, lambda: host.crash(power=True, back_s=None))

    def _break(self, text):
        self.note(text)
        error = Broken(text)
        self.world.failed.append(error)
        raise error

    def _vote(self, voter, attempt, candidate):
        before = self._votes.setdefault((voter, attempt), candidate)
        if before != candidate:
            self._break(f"host {voter} voted for {before} and {candidate} in attempt {attempt}")

    def _lines(self, host, size=None):
        data = host.run.events.read_bytes() if host.run.events.exists() else b""
        return tuple(data[:size].split(b"\n")[:-1])

    def _announces(self, host):
        return any(b'"ending"' in line for line in self._lines(host))

    def acknowledge(self, host, size):
        """All of the history up to there was on half of the voters when something was decided by it."""
        self._kept[host.supervisor.attempt.number] = self._lines(host, int(size))
        self.reach("a restart begins once its failure is copied")
        if self._is_hit("history"):
            self.world.at(self.world.now, None, partial(host.crash, power=True, back_s=20.0))
        elif self.faulty and self._more.random() < 0.3:
            self.note(f"power: {host.name} has just acknowledged")
            self.world.at(self.world.now, None, lambda: host.crash(power=True, back_s=self._more.uniform(1.0, 15.0)))

    def _leads(self, host, attempt):
        before = self._leaders.setdefault(attempt, host.number)
        if before != host.number:
            self._break(f"attempt {attempt} has two leaders: {before} and {host.number}")
        there = self._lines(host)
        if self.ended and attempt > self.ended and not self._announces(host):
            self._break(f"{host.name} leads attempt {attempt}, though attempt {self.ended} had ended the run")
        for number, kept in self._kept.items():
            if number < attempt and there[: len(kept)] != kept:
                self._break(f"{host.name} leads attempt {attempt} without what attempt {number} had acknowledged")

    # -- what is said

    def asks(self, host, question):
        """A supervisor is about to ask others."""
        number = host.number
        match question:
            case Vote(attempt=attempt):
                self.note(f"{host.name} stands for attempt {attempt}")
                self._vote(number, attempt, number)
                others = self._asked.setdefault(attempt, set())
                if others - {number}:
                    self.reach("two candidates stand for one attempt")
                others.add(number)
            case OpenAttempt(attempt=attempt):
                self.note(f"{host.name} opens attempt {attempt} on {', '.join(question.hosts)}")
                self._opening[number] = "a leader is lost between opening and settling"
                if self._is_hit("end"):
                    self._cut(
                        [way for way in permutations(range(self.size), 2) if number in way], self.world.now + 15.0
                    )
            case Prepare():
                self._opening[number] = "a leader is lost between prepare and commit"
            case Settled(attempt=attempt):
                self._leads(host, attempt)
                self._kept[attempt] = self._kept.get(attempt) or self._lines(host)
        if self.faulty and not self._is_aimed and isinstance(question, Vote | OpenAttempt | Settled | Commit):
            self._ambush(host, question)
        if isinstance(question, Commit | Settled):
            self._opening.pop(number, None)

    def _ambush(self, host, question):
        """Strike at a moment that matters: a leader or candidate is about to say this."""
        chance, now = self.chance, self.world.now
        other = chance.choice([one for one in self.hosts if one is not host])
        strike = chance.choice([*9 * [""], "power", "cut", "restart"])
        if isinstance(question, OpenAttempt) and self._more.random() < 0.2:
            strike = "power"
        if strike:
            self.note(f"{strike}: {host.name} is about to say {type(question).__name__} to {other.name}")
        match strike:
            case "power":
                self.world.at(now, None, lambda: host.crash(power=True, back_s=chance.uniform(1.0, 15.0)))
                self.world.thread_here().wait(0.0)
            case "cut":
                ways = [way for way in permutations(range(self.size), 2) if host.number in way]
                self._cut(ways, now + chance.uniform(0.5, LEASE_S))
            case "restart":
                other.crash(power=False, back_s=0.001)

    def is_asked(self, host, question):
        is_hit = isinstance(question, Vote) and self.faulty and not self._is_aimed and not host.fuse
        if is_hit and self.chance.random() < 0.25:
            host.fuse = self.chance.randint(2, 4)  # that may be in the middle of its vote
        if isinstance(question, Vote) and host.boots and self.world.now < host.started_at + 10.0:
            self.reach("a host that has just restarted is asked for its vote")

    def answers(self, host, question, reply):
        if isinstance(reply, Agreed):
            match question:
                case Vote(attempt=attempt, node=node) | OpenAttempt(attempt=attempt, node=node):
                    self._vote(host.number, attempt, node)
            if isinstance(question, Vote) and self._is_hit("vote"):
                for one, back_s in ((host, 1.0), (self.hosts[question.node], 25.0)):
                    self.world.at(self.world.now, None, partial(one.crash, power=True, back_s=back_s))
                self.net.heal(list(self.net.cut))

    def lost(self, host):
        self.note(f"{host.name} is lost")
        self._lost_at = self.world.now
        if (state := self._opening.pop(host.number, None)) is not None:
            self.reach(state)

    def reach(self, state):
        self.reached[state] += 1


def play(seed):
    """Play the run of this seed, and return it. Raises Broken, with all that befell it."""
    root = tempfile.mkdtemp(prefix="simulated-", dir="/dev/shm")
    pool = Pool(seed, root)
    try:
        return pool.play()
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}, {pool.size} hosts", *pool.trace]))
        raise
    finally:
        shutil.rmtree(root)
