"""`python -m launcher.node RUN_DIR ATTEMPT NODE`: the agent process of one node, which on node 0 runs the coordinator
as well.

With `coordinator` as NODE it runs no agent, but the coordinator of a role whose first node is another host of a pool.
`standing_by.py` has the arguments of an agent that starts before there is an attempt.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from launcher.coordinator.server import CoordinatorServer
from launcher.copies.memory_tier import close_tier, open_tier, sweep
from launcher.errors import Exit, Fenced, LaunchError
from launcher.node.environment import node_environment
from launcher.node.node import NodeAgent
from launcher.node.ranks.group import Home
from launcher.node.ranks.lease import Lease, Watchdog, after_suspend, start_watchdog
from launcher.node.ranks.reaper import Reaper
from launcher.node.ranks.zygote_link import OfferedZygote
from launcher.node.standing_by import COORDINATOR, agent_arguments, gate_from
from launcher.plan.model import NodePlan, Plan
from launcher.plan.on_hosts import own_gpus, voters_of
from launcher.run.attempts import read_intent, read_plan
from launcher.run.durable import make_dir, readable, write_record
from launcher.run.fence import check_fence
from launcher.run.identity import alive, this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import waiting_for_disks
from launcher.run.processes import become_subreaper, die_with, forbid_core_dumps, name_this, raise_descriptors
from launcher.run.records import AgentRecord, Intent, ProcessId, StopRequest
from launcher.run.shared_event import setter_from
from launcher.wire.interfaces import address_of, interface_of


def main() -> int:
    """Run the agent of the node whose index is the last argument, or the coordinator alone if that argument is the word
    for it (`COORDINATOR`); return an exit code of `launcher.errors.Exit`. An unforeseen error writes its traceback to
    agent.log.
    """
    name_this("launch-agent")
    offered = OfferedZygote.taken_from(os.environ)
    words = agent_arguments(sys.argv[1:])
    if words is None:
        return Exit.OK
    lease, gate = Lease.taken_from(os.environ), gate_from(os.environ)
    lease.notify = setter_from(os.environ)
    run, number = RunDir(Path(words[0])), int(words[1])
    os.umask(0o077)
    forbid_core_dumps()
    raise_descriptors()
    become_subreaper()
    try:
        check_fence(run, number)
        plan = read_plan(run, number)
        if plan.role:  # nothing else would end it: with several roles no program continues without the supervisor
            die_with(os.getppid())
        if words[2] == COORDINATOR:
            return asyncio.run(coordinate(run, plan, number, lease))
        if (mine := own_gpus(plan, os.environ.get("CUDA_VISIBLE_DEVICES"))) is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        index = int(words[2])
        watchdog = start_watchdog(after_suspend(plan, index), lease=lease)
        return asyncio.run(live(run, plan, number, index, watchdog, offered, gate))
    except Fenced as fenced:
        print(fenced, file=sys.stderr)
        return Exit.FENCED


async def coordinate(run: RunDir, plan: Plan, number: int, lease: Lease) -> Exit:
    """Run the coordinator of a role (one of several programs of a run) whose node 0 is another machine, without an
    agent. Return the exit code for this process once the attempt has ended.

    `number` is the attempt's. `lease` is only used for the memory that it shares with this process's supervisor; no
    rank runs here.
    """
    attempt, loop = run.attempt(number), asyncio.get_running_loop()
    token, copies = read_intent(attempt).token, lease.copies if plan.disks_apart else None
    server = CoordinatorServer(run, attempt, plan, plan.coordinator, token, copies=copies, notify=lease.notify)

    def stop() -> None:
        """Stop the coordinator, for the reason in the run's stop request."""
        request = readable(attempt.stop, StopRequest)
        server.stop("preempt" if request is None else request.kind)

    loop.add_signal_handler(signal.SIGTERM, stop)
    await server.start()
    code = await server.ended
    await server.close()
    return code


async def live(
    run: RunDir,
    plan: Plan,
    number: int,
    index: int,
    watchdog: Watchdog,
    offered: OfferedZygote | None = None,
    gate: int | None = None,
) -> Exit:
    """Prepare node `index` for attempt `number`, run its agent, and on node 0 the coordinator too; return the exit
    code.

    `watchdog` is the process that kills the ranks when the node's lease expires. `offered` is a zygote (a process that
    has imported torch and forks ranks) whose imports are done, or None. `gate` is the descriptor over which a process
    that waits to be the node's next agent gets its arguments, or None if none is to wait.
    """
    attempt = run.attempt(number)
    intent = read_intent(attempt)
    node = located(plan.nodes[index], plan.interface)
    with waiting_for_disks():  # nothing runs here yet; later this thread may not wait, or its heartbeat would stop
        make_dir(attempt.node(index))
        make_dir(run.metrics)
        buried = predecessor(attempt, index)
        write_record(attempt.agent(index), AgentRecord(index, node.address, this_process()))
    goes_on = False
    try:
        memory, interface = memory_of(plan, node, intent), interface_of(node.address)
        snapshots = memory if keeps_snapshots(plan) else None
        environment = node_environment(os.environ, plan, node, number, read_secrets(run), snapshots, interface)
        notes = notes_in(memory) if memory is not None and plan.ranks_may_stay else None
        home = Home(plan, run, attempt, node, environment, offered, notes, snapshots, gate)
        code, goes_on = await work(home, intent.token, watchdog, buried)
        watchdog.lease.exit_code = code  # for a supervisor that is not our parent
        return code
    finally:
        # On this machine alone the next attempt is sure to find it, and its supervisor sure to take it away in the end.
        if not (goes_on and plan.one_machine):
            close_tier(Path(plan.run_dir), number, index)


async def work(home: Home, token: str, watchdog: Watchdog, buried: ProcessId | None) -> tuple[Exit, bool]:
    """Run the node's agent, and on node 0 the coordinator too; return (exit code of this process, whether another
    attempt follows).

    `home` says for which run and node, and `token` is the attempt's secret. The agent reports `buried`, the node's
    previous agent, as exited; None means that there was none, or that it may still run.
    """
    agent = NodeAgent(home, token, Reaper(asyncio.get_running_loop()), watchdog, buried)
    if home.node.index != 0 or home.plan.coordinator:
        return await agent.run(), agent.goes_on
    lease, address = watchdog.lease, home.node.address
    copies = lease.copies if voters_of(home.plan) else None
    host = CoordinatorServer(home.run, home.attempt, home.plan, address, token, copies=copies, notify=lease.notify)
    await host.start()
    working = asyncio.create_task(agent.run())
    await asyncio.wait([working, host.ended], return_when=asyncio.FIRST_COMPLETED)
    return await close(host, agent, working), host.goes_on


async def close(host: CoordinatorServer, agent: NodeAgent, working: "asyncio.Task[Exit]") -> Exit:
    """Wait until the agent, whose task is `working`, has ended, and then close the coordinator `host`, which writes its
    last records. If the coordinator has ended by itself, tell the agent to leave, and return the coordinator's exit
    code; else return the agent's.
    """
    if host.ended.done():
        agent.goes_on = host.goes_on
        agent.leave(Exit.OK)
    code = await working
    await host.close()
    return host.ended.result() if host.ended.done() else code


def predecessor(attempt: AttemptDir, index: int) -> ProcessId | None:
    """Return the process of the previous agent of node `index` if it has certainly exited; None if there was none, it
    still runs, or that is unknown. The process that started this agent has ended the ranks of the previous one.
    """
    record = readable(attempt.agent(index), AgentRecord)
    return record.process if record is not None and alive(record.process) is False else None


def located(node: NodePlan, interface: str | None) -> NodePlan:
    """Return the node with the address on which it listens: the plan's, or if the plan has none, that of `interface`.
    Raise LaunchError if it has neither.
    """
    if node.address:
        return node
    if interface is None:
        raise LaunchError(f"node {node.index}: the plan gives it neither an address nor an interface")
    return msgspec.structs.replace(node, address=address_of(interface))


def memory_of(plan: Plan, node: NodePlan, intent: Intent) -> Path | None:
    """Return the folder in the node's memory (tmpfs) for snapshots and for what ranks record at each step.

    If `intent`, the record of why the attempt was opened, says that it was requeued, the folder is the previous
    attempt's. Return None if the spec asks for neither, or if the machine offers no such memory.
    """
    if not keeps_snapshots(plan) and not plan.ranks_may_stay:
        return None
    try:
        sweep()
        return open_tier(Path(plan.run_dir), node.index, intent.attempt, inherit=intent.reason == "requeue")
    except OSError as error:
        if keeps_snapshots(plan) or plan.spec.recovery.mode == "hot":  # else none was requested
            print(f"no snapshots and no notes in memory on node {node.index}: {error}", file=sys.stderr)
        return None


def keeps_snapshots(plan: Plan) -> bool:
    """Return whether the spec asks ranks to save snapshots of their state in the node's memory."""
    wanted = plan.spec.checkpoint
    return wanted.memory_every_steps is not None or wanted.memory_every_s is not None


def notes_in(memory: Path) -> Path:
    """Return the folder within `memory` in which ranks record their own state at each step, and create it if it does
    not exist.
    """
    notes = memory / "notes"
    notes.mkdir(mode=0o700, exist_ok=True)
    return notes


def read_secrets(run: RunDir) -> dict[str, str]:
    """Return the values of the spec's secrets by name, from the file in which they are stored; {} if there is none.
    Raise LaunchError if the file is damaged.
    """
    try:
        return msgspec.json.decode(run.secrets.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise LaunchError(f"{run.secrets}: is damaged") from error


if __name__ == "__main__":
    sys.exit(main())
