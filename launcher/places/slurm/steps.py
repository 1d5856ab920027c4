"""The processes that start an attempt's agents: node 0's as a child of the batch process, the others by srun, each
below a process that supervises it.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.places.batch.batch import node_command
from launcher.places.slurm.container import Container, container_of
from launcher.places.slurm.queries.nodes import hostlist
from launcher.places.slurm.script import components, gres_of
from launcher.plan.model import Plan
from launcher.run.layout import AttemptDir
from launcher.supervisor.agent_processes import AgentProcess, agent_process, starter_process

_NO_INPUT = "--input=none"
# A warning signal would end a supervisor or agent while its Python starts, so it stays blocked until then.
_UNWARNED = ("/bin/sh", "-c", "trap '' USR1 USR2; exec \"$@\"", "sh")


def processes(plan: Plan, attempt: AttemptDir, job: str) -> list[AgentProcess]:
    """Return the processes to start for an attempt in the job `job`: node 0's agent as a child process, and one srun
    with a task on every node.

    On node 0 that task only listens for a preemption, which Slurm announces only to the tasks of a step; on each other
    node it supervises the agent.
    """
    container = container_of(plan.spec.slurm.container, mounts(plan), plan.gpus_per_node > 0)
    agent = agent_process(plan, attempt, 0)
    step = _step(plan, attempt, [node.host for node in plan.nodes], plan, job)
    return [_inside(agent, container, plan, attempt, job), step]


def role_processes(whole: Plan, plan: Plan, attempt: AttemptDir, job: str) -> list[AgentProcess]:
    """Return the processes to start for a role (one program of a run that has several) other than the main one: an srun
    for the agent of its node 0, and another for its other agents, if there are any. `plan` is the role's plan, and
    `whole` that of the whole run in the job `job`.

    They are two because a step ends only with all its tasks, while the end of the first agent is the end of the
    attempt.
    """
    first, *others = [node.host for node in plan.nodes]
    leading = _step(plan, attempt, [first], whole, job)
    leading.stops_by = signal.SIGUSR1  # at SIGTERM an srun kills its tasks
    return [leading, *([_step(plan, attempt, others, whole, job)] if others else [])]


def _step(plan: Plan, attempt: AttemptDir, hosts: Sequence[str], whole: Plan, job: str) -> AgentProcess:
    """Return an srun that starts, on each of the hosts, the process that supervises an agent. `whole` is the plan of
    the whole job, whose id is `job`; `plan` is the same, or, in a run of several programs (roles), the plan of one of
    them.
    """
    container = container_of(plan.spec.slurm.container, mounts(whole), plan.gpus_per_node > 0)
    options, prefix = (container.srun_options, container.prefix) if container is not None else ((), ())
    argv = node_command("slurm", plan, attempt)
    words = (*_srun(hosts, whole, plan, job), *options, *_UNWARNED, *prefix, *argv)
    return starter_process(words, plan, attempt)


def step_command(whole: Plan, plan: Plan, job: str, host: str) -> list[str]:
    """Return the words before a program's command that run it by srun on one host of the job, in the same container as
    ranks of `plan`.

    `plan` is that of the run, or of one role of it. `whole` is the plan of the whole run, for which the job was made.
    """
    container = container_of(plan.spec.slurm.container, mounts(plan), plan.gpus_per_node > 0)
    options, prefix = (container.srun_options, container.prefix) if container is not None else ((), ())
    step = [word for word in _srun([host], whole, plan, job) if word != _NO_INPUT]
    return [*step, f"--jobid={job}", "--chdir=/", *options, *prefix]


def mounts(plan: Plan) -> list[str]:
    """Return the paths that a container must mount under the names that they have outside: the run's folder, the Python
    environment and the launcher's code.
    """
    code = str(Path(__file__).resolve().parents[3])
    return list(dict.fromkeys([plan.run_dir, sys.prefix, sys.base_prefix, code]))


def _inside(
    agent: AgentProcess, container: Container | None, plan: Plan, attempt: AttemptDir, job: str
) -> AgentProcess:
    """Return the process that starts the agent inside its container, or `agent` unchanged if it has none. If only srun
    can open the container, the process is srun, which starts a step of the job `job` on this node.
    """
    if container is None:
        return agent
    if not container.srun_options:
        return AgentProcess((*container.prefix, *agent.argv), agent.environment, agent.log)
    words = (*_srun([plan.nodes[0].host], plan, plan, job), *container.srun_options, *_UNWARNED, *agent.argv)
    return starter_process(words, plan, attempt)


def _srun(hosts: Sequence[str], whole: Plan, plan: Plan, job: str) -> tuple[str, ...]:
    """Return the srun command for one task on each of the hosts. The failure of a task, or the loss of a node, does not
    end the other tasks.

    `whole` is the plan of the whole job, of which `plan` may be one role.
    """
    those = components(whole, is_array="_" in job)
    number, (_, share) = next((n, one) for n, one in enumerate(those) if plan.first_host in one.hosts)
    return (
        "srun",
        *([f"--het-group={number}"] if len(those) > 1 else []),
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        f"--nodelist={hostlist(hosts)}",
        f"--cpus-per-task={share.cpus}",
        f"--gres={gres_of(whole, share) or 'none'}",  # after a requeue to other nodes Slurm itself gets this wrong
        "--mem=0",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        _NO_INPUT,
        "--quiet",
    )
