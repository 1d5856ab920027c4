"""The processes of an attempt on its machines: node 0's agent as a child of the batch process, the others by srun."""

import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.places.batch.batch import node_command
from launcher.places.slurm.container import Container, container_of
from launcher.places.slurm.script import gres_of
from launcher.plan.model import Plan
from launcher.run.layout import AttemptDir
from launcher.supervisor.agent_processes import AgentProcess, agent_process, starter_process

_NO_INPUT = "--input=none"
# A warning signal would end a supervisor or agent while its Python starts, so it stays blocked until then.
_UNWARNED = ("/bin/sh", "-c", "trap '' USR1 USR2; exec \"$@\"", "sh")


def processes(plan: Plan, attempt: AttemptDir) -> list[AgentProcess]:
    """Return node 0's agent, our child, and one srun for the other agents, each below a supervisor, and a listener on
    node 0.

    Slurm announces a preemption only to the tasks of a step, hence the listener.
    """
    container = container_of(plan.spec.slurm.container, mounts(plan), plan.gpus_per_node > 0)
    argv = node_command("slurm", plan, attempt)
    options, prefix = (container.srun_options, container.prefix) if container is not None else ((), ())
    words = (*_srun([node.host for node in plan.nodes], plan), *options, *_UNWARNED, *prefix, *argv)
    step = starter_process(words, plan, attempt)
    return [_inside(agent_process(plan, attempt, 0), container, plan, attempt), step]


def visit_words(plan: Plan, job: str, host: str) -> list[str]:
    """Return the command prefix that runs a program on one of the job's hosts, in a container like its ranks'."""
    container = container_of(plan.spec.slurm.container, mounts(plan), plan.gpus_per_node > 0)
    options, prefix = (container.srun_options, container.prefix) if container is not None else ((), ())
    step = [word for word in _srun([host], plan) if word != _NO_INPUT]
    return [*step, f"--jobid={job}", "--chdir=/", *options, *prefix]


def mounts(plan: Plan) -> list[str]:
    """Return the paths that must be visible inside a container under the same name."""
    code = str(Path(__file__).resolve().parents[3])
    return list(dict.fromkeys([plan.run_dir, sys.prefix, sys.base_prefix, code]))


def _inside(agent: AgentProcess, container: Container | None, plan: Plan, attempt: AttemptDir) -> AgentProcess:
    """Return the agent inside its container; a container that only srun can open needs a step on this node too."""
    if container is None:
        return agent
    if not container.srun_options:
        return AgentProcess((*container.prefix, *agent.argv), agent.environment, agent.log)
    words = (*_srun([plan.nodes[0].host], plan), *container.srun_options, *_UNWARNED, *agent.argv)
    return starter_process(words, plan, attempt)


def _srun(hosts: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """Return an srun for one task on each of these hosts, where neither a failed task nor a lost node ends the
    others.
    """
    return (
        "srun",
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(hosts)}",
        f"--cpus-per-task={plan.ranks_per_node * plan.cpus_per_rank}",
        f"--gres={gres_of(plan) or 'none'}",  # after a requeue to other nodes Slurm itself gets this wrong
        "--mem=0",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        _NO_INPUT,
        "--quiet",
    )
