"""The attempt at hand as one host carries it: its plan, its records on this disk, its agent, the way to the next."""

import shutil
import time
from collections.abc import Sequence

import msgspec

from launcher.errors import Exit, Fenced
from launcher.places.ssh.host.keeper_messages import OpenAttempt
from launcher.plan.model import NodePlan, Plan
from launcher.plan.on_hosts import with_hosts
from launcher.run.attempts import attempts, read_plan
from launcher.run.durable import make_dir, read_record, readable, sync_dir, write_record
from launcher.run.fence import raise_fence
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Handle, Intent, RunState
from launcher.states import LOCAL, Cause, State
from launcher.supervisor.agent_processes import AgentProcess, agent_process
from launcher.supervisor.allocation import claim_attempt
from launcher.supervisor.attempt_end import first_state, pass_on_stop, write_end
from launcher.supervisor.own_log import log_to


class AttemptOnHost:
    """Which attempt it is changes with `move`; the host, named as in the plan of the first one, does not."""

    def __init__(self, run: RunDir, number: int, node: int) -> None:
        self.run = run
        self.before: AttemptDir | None = None
        self.attempt, self.plan = run.attempt(number), read_plan(run, number)
        self.host = self.plan.nodes[node].host

    @property
    def index(self) -> int:
        """Which node of its plan this host is. Raises Fenced."""
        for node in self.plan.nodes:
            if node.host == self.host:
                return node.index
        raise Fenced(f"{self.host} has no part in this attempt any more")

    @property
    def leads(self) -> bool:
        return self.index == 0

    def agent(self, gpus: Sequence[str] | None, fds: Sequence[int]) -> AgentProcess:
        """Our node's: it has the GPUs that we hold and sees no others, none at all where we hold none."""
        return agent_process(self.plan, self.attempt, self.index, keep=fds, gpus=gpus)

    def log_to(self) -> None:
        make_dir(self.attempt.node(self.index))
        log_to(self.attempt.keeper_log if self.leads else self.attempt.node_keeper_log(self.index))

    def register(self) -> None:
        """Be known as the keeper of the attempt here: who asks, or ends it, looks for us."""
        if self.leads or self.plan.disks_apart:
            write_record(self.attempt.handle, Handle(LOCAL, keeper=this_process()))

    def open(self, *, again: bool = False) -> None:
        """Take it up: there is one process that does, and nothing older writes here any more. Raises Fenced.

        `again`: the one that did is gone.
        """
        self.log_to()
        place = self.attempt.started if self.leads else self.attempt.node_started(self.index)
        if again:
            write_record(place, this_process())  # who ends the run here asks us
        elif not claim_attempt(place):
            raise Fenced(f"attempt {self.attempt.number} of {self.run.path.name} has its supervisor already")
        self.register()
        raise_fence(self.run, self.attempt.number)
        if self.leads:
            write_record(self.run.state, self._starting())

    def prepare(self, proposal: OpenAttempt, known: dict[str, NodePlan], token: str) -> None:
        """The next attempt on this disk: by our own plan, on the hosts that its leader has chosen. Raises Fenced."""
        number = proposal.attempt
        raise_fence(self.run, number)
        if self.plan.disks_apart:
            attempt = self.run.attempt(number)
            make_dir(attempt.path)
            sync_dir(self.run.attempts)
            write_record(attempt.plan, reseated(self.plan, known, proposal.hosts, proposal.away))
            cause, cluster, now = proposal.cause, self.plan.cluster, time.time()
            write_record(attempt.intent, Intent(number, token, cluster, "requeue", cause, now, this_process()))

    def move(self, number: int) -> None:
        """On to this one, whose plan is on disk."""
        self.plan = read_plan(self.run, number)
        self.before, self.attempt = self.attempt, self.run.attempt(number)

    def pass_on_stop(self) -> None:
        pass_on_stop(self.before, self.attempt)

    def discard(self) -> None:
        """The submitter is gone and nobody was told to go: there has never been such an attempt."""
        if self.plan.disks_apart and len(attempts(self.run)) == 1:
            shutil.rmtree(self.run.path, ignore_errors=True)

    def give_up(self, why: str) -> None:
        """Our own fault is said where people look; the others notice that we are gone."""
        if self.leads and read_record(self.attempt.end, AttemptEnd) is None:
            self.end(AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, 0.0, why))

    def end(self, end: AttemptEnd) -> None:
        """Who does not lead it speaks for this host alone."""
        alone = self.plan.disks_apart and self.plan.nodes[0].host != self.host
        write_end(self.run, self.attempt, msgspec.structs.replace(end, alone=alone), self.plan)

    def _starting(self) -> RunState:
        before = readable(self.run.state, RunState)
        if before is None:
            return first_state(self.plan, self.attempt.number)
        if before.attempt == self.attempt.number and before.state is State.QUEUED:
            return msgspec.structs.replace(before, state=State.STARTING, message="starting agents")
        return before


def reseated(plan: Plan, known: dict[str, NodePlan], names: Sequence[str], away: Sequence[str]) -> Plan:
    """The plan on these hosts, the first of them as the leader; what is more than the run needs are spares."""
    here, gone = ([(name, known[name].address) for name in some] for some in (names, away))
    return with_hosts(plan, here, gone)
