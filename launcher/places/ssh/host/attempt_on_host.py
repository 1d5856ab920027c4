"""Keep one host's part in an attempt: its plan, its records on this disk, its agent, and the change to the next."""

import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec
from msgspec import structs

from launcher.errors import Exit, Fenced
from launcher.node.ranks.ports import address_drawer
from launcher.places.ssh.host.supervisor_messages import OpenAttempt
from launcher.plan.model import NodePlan, Plan
from launcher.plan.on_hosts import with_addresses, with_hosts
from launcher.run.attempts import attempts, read_intent, read_plan
from launcher.run.durable import make_dir, read_record, readable, sync_dir, write_record
from launcher.run.fence import raise_fence
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Handle, Intent, RunState
from launcher.run.shared_event import SharedEvent
from launcher.states import LOCAL, Cause, State
from launcher.supervisor.agent_processes import AgentProcess, agent_process, coordinator_process
from launcher.supervisor.allocation import claim_attempt
from launcher.supervisor.attempt_end import first_state, pass_on_stop, write_end
from launcher.supervisor.own_log import log_to
from launcher.supervisor.roles import make_role_dir


class AttemptOnHost:
    """An attempt as one host works in it.

    `move` changes to another attempt, in whose plan the host has the same name, `host`, but maybe another node number.
    """

    def __init__(self, run: RunDir, number: int, node: int) -> None:
        self.run = run
        self.before: AttemptDir | None = None
        self.attempt, self.plan = run.attempt(number), _plan_of(run, number)
        self.host = self.plan.nodes[node].host

    @property
    def index(self) -> int:
        """Return this host's node number in the plan; raise Fenced if the plan has no such host."""
        for node in self.plan.nodes:
            if node.host == self.host:
                return node.index
        raise Fenced(f"{self.host} has no part in this attempt any more")

    @property
    def leads(self) -> bool:
        """Return whether this host leads the attempt: it has node 0, whose agent runs the coordinator."""
        return self.index == 0

    def agent(
        self, gpus: Sequence[str] | None, fds: Sequence[int], records_due: SharedEvent | None = None
    ) -> AgentProcess:
        """Return this node's agent, not yet started. It sees only the GPUs `gpus` of this host, or all with None, and
        inherits the file descriptors `fds`, by which it holds the host's slots.

        The coordinator, if it runs in this agent, sets `records_due` when records are to be copied to other hosts at
        once.
        """
        return agent_process(self.plan, self.attempt, self.index, keep=fds, gpus=gpus, records_due=records_due)

    def role_agents(
        self,
        gpus: Sequence[str] | None,
        fds: Sequence[int],
        records_due: SharedEvent | None,
        plan: Plan,
        attempt: AttemptDir,
    ) -> list[AgentProcess]:
        """Return the processes, not yet started, that this host runs for an attempt of a role beside the main one,
        whose plan is `plan`.

        On the leader the first is the role's coordinator, which sets `records_due` when records are to be copied to
        other hosts at once. The agents see only the GPUs `gpus` of this host (None: all of them), and all processes
        inherit the file descriptors `fds`.
        """
        nodes = [node.index for node in plan.nodes if node.host == self.host]
        agents = [agent_process(plan, attempt, node, keep=fds, gpus=gpus) for node in nodes]
        return (
            [coordinator_process(plan, attempt, keep=fds, records_due=records_due), *agents] if self.leads else agents
        )

    def log_to(self) -> None:
        """Write this process's output to its log of the attempt from now on."""
        make_dir(self.attempt.node(self.index))
        log_to(self.attempt.supervisor_log if self.leads else self.attempt.node_supervisor_log(self.index))

    def register(self) -> None:
        """Record this process as the attempt's supervisor on this host, for commands that show or end the attempt. On a
        shared disk only the leader's supervisor does so.
        """
        if self.leads or self.plan.disks_apart:
            write_record(self.attempt.handle, Handle(LOCAL, supervisor=this_process()))

    def open(self, *, again: bool = False) -> None:
        """Claim the attempt for this process, so that no other supervisor runs it here and no older attempt writes any
        more; raise Fenced if another process has claimed it.

        With `again`, the process that had claimed it is known to be gone: this one takes its place, and no Fenced is
        raised.
        """
        self.log_to()
        place = self.attempt.started if self.leads else self.attempt.node_started(self.index)
        if again:
            write_record(place, this_process())  # who ends the run here asks us
        elif not claim_attempt(place):
            raise Fenced(f"attempt {self.attempt.number} of {self.run.path.name} has its supervisor already")
        self.register()
        with suppress(Fenced) if again else nullcontext():
            raise_fence(self.run, self.attempt.number)
        if self.plan.roles:
            write_record(self.attempt.plan, self.plan)  # on a shared disk each host writes the very same
        for role in self.plan.roles:
            make_role_dir(self.run, RunDir(Path(role.run_dir)), structs.replace(role, code=self.plan.code))
        if self.leads and not again:  # else its coordinator writes it
            write_record(self.run.state, self._starting())

    def prepare(self, proposal: OpenAttempt, known: dict[str, NodePlan], token: str) -> None:
        """Write this host's records of the next attempt, as its leader proposed it: the plan for the hosts that the
        leader chose, and the intent, which names the attempt and contains `token`, unique to this start.

        On a shared disk do nothing, as the leader has written both. `known` has all nodes of the run's first plan by
        host.
        """
        number = proposal.attempt
        if self.plan.disks_apart:
            attempt = self.run.attempt(number)
            make_dir(attempt.path)
            sync_dir(self.run.attempts)
            write_record(attempt.plan, reseated(self.plan, known, proposal.hosts, proposal.away))
            cause, cluster, now = proposal.cause, self.plan.cluster, time.time()
            write_record(attempt.intent, Intent(number, token, cluster, "requeue", cause, now, this_process()))

    def move(self, number: int) -> None:
        """Change to attempt `number`: read its plan, which is on disk, and keep the present attempt as the one before
        it.
        """
        self.plan = _plan_of(self.run, number)
        self.before, self.attempt = self.attempt, self.run.attempt(number)

    def pass_on_stop(self) -> None:
        """Copy a user's stop request from the attempt before this one to this one, so that it still counts if that one
        had just ended. Do nothing if there is none, or if this attempt has its own.
        """
        pass_on_stop(self.before, self.attempt)

    def discard(self) -> None:
        """Remove the run's folder, because its submitter is gone and no host was told to begin, so that the run never
        existed.
        """
        if self.plan.disks_apart and len(attempts(self.run)) == 1:
            shutil.rmtree(self.run.path, ignore_errors=True)

    def give_up(self, why: str) -> None:
        """Write, before this supervisor exits because of the error `why`, that the attempt failed by a launcher fault.
        Do so only if this host leads and the attempt has no end yet. If another host leads, the other hosts notice that
        this one is gone.
        """
        if self.leads and read_record(self.attempt.end, AttemptEnd) is None:
            self.end(AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, 0.0, why))

    def end(self, end: AttemptEnd) -> None:
        """Write the attempt's end to this host's records.

        If hosts share no disk and this host does not lead the attempt, the end is marked `alone`: other hosts may have
        continued.
        """
        alone = self.plan.disks_apart and self.plan.nodes[0].host != self.host
        write_end(self.run, self.attempt, msgspec.structs.replace(end, alone=alone), self.plan)

    def _starting(self) -> RunState:
        """Return the state to write for the run as this attempt starts: `starting` if the run has no state yet, or is
        queued in this attempt; else the state as it was written last.
        """
        before = readable(self.run.state, RunState)
        if before is None:
            return first_state(self.plan, self.attempt.number)
        if before.attempt == self.attempt.number and before.state is State.QUEUED:
            return msgspec.structs.replace(before, state=State.STARTING, message="starting agents")
        return before


def _plan_of(run: RunDir, number: int) -> Plan:
    """Return the plan of attempt `number`. If the run has several roles, the plan has the address of each rank, which
    all hosts derive from the attempt's token.
    """
    plan = read_plan(run, number)
    if not plan.roles or plan.addresses:
        return plan
    return with_addresses(plan, address_drawer(read_intent(run.attempt(number)).token))


def reseated(plan: Plan, known: dict[str, NodePlan], names: Sequence[str], away: Sequence[str]) -> Plan:
    """Return the plan with its nodes on the hosts `names`: the first is the leader, and those beyond what the run needs
    are spares.

    Hosts in `away` are lost and may return: they get the last node numbers, and the run does not wait for them. `known`
    has the node, with its address, of each host by name.
    """
    here, gone = ([(name, known[name].address) for name in some] for some in (names, away))
    return with_hosts(plan, here, gone)
