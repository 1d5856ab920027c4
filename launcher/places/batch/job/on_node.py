"""Supervise one node's agent in a batch job, on every node but the first, whose agent the batch process supervises
itself: start it, restart it, and end processes that it leaves.

    python -m launcher.programs on-node KIND RUN_DIR ATTEMPT     started by srun, or the scheduler's counterpart

A job step reports the end of a task only when all its tasks have ended, and nothing else on the node would end the
processes of a killed agent.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from launcher.errors import Unreachable
from launcher.places.batch.batch import BatchSystem
from launcher.places.batch.cluster import queue_of
from launcher.places.batch.job.next_job import start_requeued_job
from launcher.places.batch.job.nodes import STEP_S, index_of
from launcher.plan.model import Plan
from launcher.run.attempts import attempts, read_plan
from launcher.run.durable import make_dir, read_record, readable
from launcher.run.fence import fence
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import waiting_for_disks
from launcher.run.processes import descendants, end_all, name_this, signal_process
from launcher.run.records import AgentRecord, Handle
from launcher.supervisor.agent_processes import AgentProcesses, agent_process
from launcher.supervisor.attempt_end import settle_end
from launcher.supervisor.own_log import log_to
from launcher.supervisor.wakeup import Wakeup

_SURE_S = 3.0
_LOOK_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Supervise this node's agent until it has exited for good or this process is asked to exit; return 0.

    `argv` is KIND RUN_DIR ATTEMPT, where KIND names the batch system, such as slurm.
    """
    name_this("launch-super")
    os.umask(0o077)
    with waiting_for_disks():
        supervise_node(queue_of(argv[0]), RunDir(Path(argv[1])), int(argv[2]))
    return 0


def supervise_node(queue: BatchSystem, run: RunDir, number: int) -> None:
    """Supervise this node's agent in attempt `number` until it has ended; each node of the batch job calls this.

    On the first node of the run's main role the batch process supervises the agent. There, only pass a preemption
    signal on to the batch process, because Slurm sends one only to the tasks of steps.
    """
    wakeup = Wakeup(queue.warnings)
    plan, attempt = read_plan(run, number), run.attempt(number)
    index = index_of(plan, queue.this_host())
    make_dir(attempt.node(index))
    log_to(attempt.node_supervisor_log(index))
    if index == 0 and not plan.is_beside_main:
        listen(attempt, wakeup)
    else:
        keep_agent(queue, plan, run, attempt, index, wakeup)


def keep_agent(queue: BatchSystem, plan: Plan, run: RunDir, attempt: AttemptDir, index: int, wakeup: Wakeup) -> None:
    """Keep the agent of node `index` running until it has ended for good, the attempt has ended or `wakeup` asks to
    stop. Once the agent has exited because it may have lost the coordinator, check the run's folder for the end of the
    attempt, and requeue the job if the scheduler shows the coordinator's host as down.

    In a role other than the main one, the first node's agent coordinates that role, so that its end is the end of the
    role's attempt. For such a role the folder is checked from the beginning, because the process that started the agent
    may be killed alone.
    """
    end_predecessor(run, attempt, index)
    agent = agent_process(plan, attempt, index)
    agent.leads = index == 0
    agents = AgentProcesses([agent], wakeup, leads=False)
    agents.start()
    sure_at: float | None = None
    alone = plan.is_beside_main
    while not agents.all_gone(sure_at is not None) and (sure_at is None or time.monotonic() < sure_at):
        agents.watch(time.monotonic() + _LOOK_S if alone and sure_at is None else sure_at, bring_back=sure_at is None)
        if not plan.is_beside_main and agent.may_have_lost_coordinator():
            alone = True
            requeue_if_first_node_down(queue, plan)
        if alone and sure_at is None and (attempt.end.exists() or fence(run) > attempt.number):
            sure_at = time.monotonic() + _SURE_S
        if (wakeup.stop_asked or wakeup.warned) and sure_at is None:
            wakeup.warned = False
            agents.signal_first()
            if wakeup.stop_asked:  # the scheduler ends the step; a mere warning is for the coordinator to act on
                sure_at = time.monotonic() + plan.spec.recovery.grace_s + _SURE_S
    agents.end()
    if agent.leads and fence(run) <= attempt.number:
        settle_end(run, attempt, plan, agent.last)


def requeue_if_first_node_down(queue: BatchSystem, plan: Plan) -> bool:
    """Requeue the job if the scheduler reports the coordinator's host as down, and return whether that was done.

    If the scheduler refuses or does not answer, print the reason and return False. Return False, too, for a batch
    system that requeues a job only by the exit code of its own process.
    """
    if queue.leaves_with is not None:
        return False  # no process but that of the lost host could do it: the scheduler has to, and by itself
    job = queue.this_start().job
    try:
        node = queue.nodes([plan.nodes[0].host]).get(plan.nodes[0].host)
        if node is None or not node.down:
            return False
        refusal = queue.requeue(job)
    except Unreachable as error:
        refusal = str(error)  # asked again when the next agent gives up waiting
    if refusal:
        print(f"the job is not requeued: {refusal}", file=sys.stderr)
        return False
    start_requeued_job(queue, RunDir(Path(plan.run_dir)), plan, job, 0.0)
    return True


def end_predecessor(run: RunDir, attempt: AttemptDir, index: int) -> None:
    """End the agent that node `index`, this one, had in an earlier attempt, and all processes below it.

    Its job step outlives the srun that the batch process has ended, and its ranks would run beside the new ones until
    their lease expires.
    """
    for before in attempts(run):
        record = readable(before.agent(index), AgentRecord) if before.number < attempt.number else None
        if record is not None and alive(record.process):
            end_all(partial(_tree, record.process.pid))


def _tree(pid: int) -> list[int]:
    """Return the pids of the process and of all processes below it."""
    return [pid, *descendants(pid)]


def listen(attempt: AttemptDir, wakeup: Wakeup) -> None:
    """Wait on the first node until its agent has exited. Meanwhile pass the first signal that `wakeup` receives on to
    the batch process: a stop as SIGTERM, the warning of a preemption as SIGUSR1.

    If a partition has a GraceTime, Slurm signals a preemption only to tasks that srun has started, and not to the batch
    process, so that the first node needs such a task, which calls this.
    """
    while (agent := read_record(attempt.agent(0), AgentRecord)) is None and not wakeup.stop_asked:
        wakeup.sleep(STEP_S)
    if agent is None:
        return
    with contextlib.suppress(ProcessLookupError):
        end = os.pidfd_open(agent.process.pid)
        while alive(agent.process) and not (wakeup.stop_asked or wakeup.warned):
            wakeup.sleep(None, [end])
        handle = read_record(attempt.handle, Handle)
        if handle is not None and handle.supervisor is not None and (wakeup.stop_asked or wakeup.warned):
            signal_process(handle.supervisor, signal.SIGTERM if wakeup.stop_asked else signal.SIGUSR1)
        select.select([end], [], [])
        os.close(end)
