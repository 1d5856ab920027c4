"""Run the agents of roles beside the main one on a host that does not lead, as the leader opens and ends them.

The leader's host has the coordinators of all roles and their records. A follower starts its agents of a role's attempt
once the coordinator's address is here, by the shared disk or as a copy, and ends them after the attempt's end.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from launcher.ids import attempt_token, role_secret
from launcher.places.ssh.host.supervisor_state import SupervisorState
from launcher.plan.model import Plan
from launcher.run.attempts import newest, read_intent
from launcher.run.durable import readable, write_record
from launcher.run.fence import raise_fence
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import Intent
from launcher.states import LOCAL
from launcher.supervisor.agent_processes import AgentProcess, AgentProcesses
from launcher.supervisor.allocation import SURE_S


@dataclass(slots=True)
class _Here:
    """The agents of one attempt of a role on this host."""

    plan: Plan
    attempt: AttemptDir
    agents: list[AgentProcess]
    sure_at: float | None = None  # monotonic time at which agents left are killed; None: the attempt has not ended


class RolesOnHost:
    """The agents on this host of the roles beside the main one. `look` starts and ends them by the roles' records,
    which the leader sends; call it whenever one may have come.
    """

    def __init__(self, supervisor: SupervisorState, agents: AgentProcesses) -> None:
        self._supervisor, self._agents = supervisor, agents
        self._here: dict[str, _Here] = {}
        self._token = read_intent(supervisor.attempt).token if supervisor.plan.roles else ""

    @property
    def all_gone(self) -> bool:
        """Return whether no agent of these roles runs on this host."""
        return all(agent.pid is None for one in self._here.values() for agent in one.agents)

    def look(self) -> None:
        """Start this host's agents of each role whose coordinator has opened an attempt, and end those of attempts that
        are over: at once if a newer one follows, else after the grace period in which their ranks may still exit.
        """
        for plan in self._supervisor.plan.roles:
            name, opened, here = Path(plan.run_dir).name, self._opened(plan), self._here.get(Path(plan.run_dir).name)
            if here is not None and (opened is None or opened.number != here.attempt.number):
                self._end(name, here)
                here = None
            if opened is None:
                continue
            is_over = opened.end.exists()
            if here is None and not is_over:
                self._start(name, plan, opened)
            elif here is not None and is_over:
                self._let_leave(name, here)

    def _start(self, name: str, plan: Plan, attempt: AttemptDir) -> None:
        """Start this host's agents of a role's attempt, which see only the GPUs that the host has for the run; raise
        OSError if one cannot be started. `name` is that of the role's run folder, `plan` the role's plan.
        """
        ready = self._supervisor.ready
        agents = self._supervisor.here.role_agents(ready.gpus, ready.fds, None, plan, attempt)
        self._here[name] = _Here(plan, attempt, agents)
        self._agents.add(agents)
        for agent in agents:
            agent.start()

    def _let_leave(self, name: str, here: _Here) -> None:
        """End the agents of an ended attempt if they have all exited, or if the grace period of its ranks has passed
        since the first call for it; else do nothing, so that a later call does. `name` is that of the role's run
        folder.
        """
        if here.sure_at is None:
            here.sure_at = time.monotonic() + here.plan.spec.recovery.grace_s + SURE_S
        if all(agent.pid is None for agent in here.agents) or time.monotonic() >= here.sure_at:
            self._end(name, here)

    def _end(self, name: str, here: _Here) -> None:
        """Kill the agents in `here`, those of a role's attempt on this host, with all processes below them, and forget
        them; `name` is that of the role's run folder.
        """
        self._agents.end_now(here.agents)
        self._agents.drop(here.agents)
        del self._here[name]

    def _opened(self, plan: Plan) -> AttemptDir | None:
        """Return the newest attempt of the role with the plan `plan` if it belongs to the run's present attempt and its
        coordinator has an address, else None.
        """
        run = RunDir(Path(plan.run_dir))
        attempt = self._copied(run) if plan.disks_apart else newest(run)
        if attempt is None or not attempt.endpoint.exists():
            return None
        intent, token = readable(attempt.intent, Intent), self._token_of(run, attempt.number)
        return attempt if intent is not None and intent.token == token else None

    def _copied(self, run: RunDir) -> AttemptDir | None:
        """Return the attempt whose records the leader has sent for the role with the run folder `run`, or None if it
        has sent none. Write the attempt's intent here, with a token derived from the run's secret, as the leader sends
        no token.
        """
        number = self._supervisor.roles_opened.get(run.path.name)
        if number is None:
            return None
        attempt, token = run.attempt(number), self._token_of(run, number)
        known = readable(attempt.intent, Intent)
        if known is None or known.token != token:
            raise_fence(run, number)
            cluster, me = self._supervisor.plan.cluster, this_process()
            write_record(attempt.intent, Intent(number, token, cluster, "submit", None, time.time(), me, LOCAL))
        return attempt

    def _token_of(self, run: RunDir, number: int) -> str:
        """Return the token of attempt `number` of the role whose run folder is `run`, derived from the run's secret."""
        return attempt_token(role_secret(self._token, run.path.name), number)
