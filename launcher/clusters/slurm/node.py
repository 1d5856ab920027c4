"""The keeper of one node's agent, where it is not the first node: starts it, brings it back, ends what it leaves.

    srun ... python -m launcher.clusters.slurm.node RUN_DIR ATTEMPT

A Slurm step tells of a task's end only when all have ended, and nothing there would tidy up behind a killed agent.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

from launcher.agent.processes import signal_process
from launcher.clusters.keeping.agent_processes import AgentProcesses, agent_process
from launcher.clusters.keeping.own_log import log_to
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.slurm.claims import job_id
from launcher.clusters.slurm.next_job import requeue_job
from launcher.clusters.slurm.queries.nodes import read_nodes, show_nodes
from launcher.clusters.slurm.reach import ask
from launcher.clusters.slurm.wishes import WARNINGS
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.plan.model import Plan
from launcher.rundir.attempts import read_plan
from launcher.rundir.durable import make_dir, read_record
from launcher.rundir.identity import alive
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AgentRecord, Handle

_STEP_S = 0.1
_RETURN_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
_SURE_S = 3.0


def main() -> int:
    """Stay until the agent has left for good, or we are told to go."""
    run, number = RunDir(Path(sys.argv[1])), int(sys.argv[2])
    os.umask(0o077)
    bell = Wakeup(WARNINGS)
    plan, attempt = read_plan(run, number), run.attempt(number)
    index = index_of(plan, os.environ.get("SLURMD_NODENAME") or os.uname().nodename)
    make_dir(attempt.node(index))
    log_to(attempt.node_keeper_log(index))
    if index == 0:
        listen(attempt, bell)
    else:
        keep(plan, attempt, index, bell)
    return 0


def keep(plan: Plan, attempt: AttemptDir, index: int, bell: Wakeup) -> None:
    """Have the agent here, as long as it is wanted."""
    post = agent_process(plan, attempt, index)
    crew = AgentProcesses([post], bell, leads=False, return_s=_RETURN_S)
    crew.start()
    sure_at: float | None = None
    while not crew.all_gone(sure_at is not None) and (sure_at is None or time.monotonic() < sure_at):
        crew.watch(sure_at, bring_back=sure_at is None)
        if post.last is not None and os.waitstatus_to_exitcode(post.last) == Exit.LOST:
            post.last = None
            see_to_the_first_node(plan)
        if (bell.stop_asked or bell.warned) and sure_at is None:
            bell.warned = False
            crew.signal_first()
            if bell.stop_asked:  # Slurm ends the step; a mere warning is for the coordinator to act on
                sure_at = time.monotonic() + plan.spec.recovery.grace_s + _SURE_S
    crew.end()


def see_to_the_first_node(plan: Plan) -> None:
    """The coordinator has not been heard for a whole lease. A job whose first node is down, and which was not to be
    killed for a lost node, Slurm leaves as it is, without anybody in charge: have it start anew."""
    first = plan.nodes[0].host
    try:
        node = read_nodes(ask(show_nodes([first])).out).get(first)
        if node is not None and node.is_down:
            requeue_job(RunDir(Path(plan.run_dir)), plan, job_id())
    except Unreachable as error:
        print(error, file=sys.stderr)  # asked again when the next agent gives up waiting


def listen(attempt: AttemptDir, bell: Wakeup) -> None:
    """On the first node the batch process has the agent; what it does not hear, with a GraceTime, is a preemption.

    Slurm tells of that only the tasks of steps. We pass it on, and leave when the agent has.
    """
    while (agent := read_record(attempt.agent(0), AgentRecord)) is None and not bell.stop_asked:
        bell.sleep(_STEP_S)
    if agent is None:
        return
    with contextlib.suppress(ProcessLookupError):
        end = os.pidfd_open(agent.process.pid)
        while alive(agent.process) and not (bell.stop_asked or bell.warned):
            bell.sleep(None, [end])
        handle = read_record(attempt.handle, Handle)
        if handle is not None and handle.keeper is not None and (bell.stop_asked or bell.warned):
            signal_process(handle.keeper, signal.SIGTERM if bell.stop_asked else signal.SIGUSR1)
        select.select([end], [], [])
        os.close(end)


def index_of(plan: Plan, host: str) -> int:
    """Which node of the plan this machine is."""
    for node in plan.nodes:
        if node.host == host:
            return node.index
    raise LaunchError(f"this machine is {host}, which is no node of attempt's plan: {[n.host for n in plan.nodes]}")


if __name__ == "__main__":
    sys.exit(main())
