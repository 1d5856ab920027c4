"""Measure how the coordinator's time, CPU and memory grow with up to 12,500 nodes, each with a simulated agent.

    uv run python tests/benchmarks/coordinator.py [--write]

The coordinator runs in a process of its own, with its files on disk as in a run; the agents, each with an address of
its own, share a few others, whose work (each plays thousands of machines) is part of what is measured on a small
machine. All join and start ranks; for some seconds they send nothing but heartbeats; one rank is killed, all ranks are
stopped and started again; the run is cancelled and each rank's end is recorded. The exponent of the growth from each
size to the next follows.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import benchmark_parser, publish

from launcher.clock import heartbeat_every_s, lease_of_ranks
from launcher.coordinator.server import CoordinatorServer
from launcher.plan.model import FrozenCode, NodePlan, Plan, RankCommand
from launcher.run import registry
from launcher.run.attempts import new_attempt, read_intent, read_plan
from launcher.run.durable import make_dir, read_lines, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import Endpoint, RankExit, RunState
from launcher.spec.model import JobSpec, NodeRange, Recovery, Resources, RunOptions
from launcher.states import State
from launcher.wire import messages
from launcher.wire.frames import WireError, dial, wire_key

SIZES = (10, 100, 1000, 10_000, 12_500)
ROUNDS = 3
RANKS = 8  # of each agent
IDLE_S = 10.0
LAUNCH = Path(sys.executable).parent / "launch"
PLAYERS = 4  # processes that play agents
AGAIN_S = 0.05  # as agents have it
LIMIT_S = 120.0
ME = this_process()


def plan_of(run_dir, nodes):
    spec = JobSpec("scale", RunOptions(script="x.py"), resources=Resources(nodes=NodeRange(nodes, nodes)))
    return Plan(
        run_id="scale-0000", name="scale", cluster="local", cluster_kind="local", submitted_at=0.0, spec_file="",
        project="", run_dir=str(run_dir), workdir="code", spec=spec, overrides=(),
        entry=RankCommand("script", "x.py", (), sys.executable, ()), setup=None,
        nodes=tuple(NodePlan(index, address_of(index), False, None) for index in range(nodes)),
        nodes_min=nodes, nodes_max=nodes, ranks_per_node=RANKS, cpus_per_rank=1, gpus_per_node=0, env={}, secrets=(),
        code=FrozenCode("", 0, 0),
    )  # fmt: skip


def address_of(node):
    """Return the node's address, one of the loopback's; the first is 127.0.0.1."""
    return f"127.0.{node // 250}.{node % 250 + 1}"


async def coordinate(run):
    attempt = run.attempt(1)
    plan = read_plan(run, 1)
    host = CoordinatorServer(run, attempt, plan, plan.nodes[0].address, read_intent(attempt).token)
    began = resource.getrusage(resource.RUSAGE_SELF)
    await host.start()
    await host.ended
    await asyncio.sleep(0.2)
    await host.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime
    print(json.dumps({"peak_mb": used.ru_maxrss / 1024, "cpu_s": cpu_s}), flush=True)


class Fleet:
    """All agents of a run, simulated without their machines."""

    def __init__(self, run, nodes, *, steps=False):
        self.run = run
        self.steps, self.told_of = steps, {}
        self.key = wire_key(read_intent(run.attempt(1)).token, messages.WIRE, "scale-0000", 1)
        self.nodes = nodes
        self.started = 0
        self.told = 0
        self.all_started = asyncio.Event()
        self.all_told = asyncio.Event()
        self.wires = {}
        self.generation = 0
        self.every_s = beat_s(len(nodes) * PLAYERS)

    async def keep_heartbeats(self):
        """Send each agent's heartbeats as it does, evenly spread over the interval."""
        for seq in itertools.count(1):
            began = time.monotonic()
            for number, (node, wire) in enumerate([*self.wires.items()]):
                await asyncio.sleep(began + number * self.every_s / len(self.nodes) - time.monotonic())
                wire.send(self.heartbeat(node, seq))
            await asyncio.sleep(max(0.01, began + self.every_s - time.monotonic()))

    def heartbeat(self, node, seq):
        """Return a heartbeat: in full once in each generation and with --steps, else one that says `same`."""
        told = self.told_of.get(node) == self.generation
        self.told_of[node] = self.generation
        if told and not self.steps:
            return messages.Heartbeat(node, seq, self.generation, same=True, answered=max(0, seq - 1))
        numbers = range(node * RANKS, (node + 1) * RANKS) if self.generation else ()
        step = seq if self.steps else None
        ranks = tuple(messages.RankHeartbeat(rank, 0.0, True, False, step=step) for rank in numbers)
        return messages.Heartbeat(node, seq, self.generation, ranks, answered=max(0, seq - 1))

    async def dialled(self, endpoint, node):
        """Return a connection; it is tried again as an agent does."""
        while True:
            try:
                port, peers = endpoint.port, len(self.nodes) * PLAYERS
                own = address_of(node)
                return await dial(endpoint.address, port, own, self.key, messages.TO_AGENT, peers=peers)
            except WireError:
                await asyncio.sleep(AGAIN_S)

    async def agent(self, endpoint, node):
        wire = await self.dialled(endpoint, node)
        self.wires[node] = wire
        wire.send(messages.Join(node, address_of(node), ME, 20_000 + node))
        wire.send(messages.Ready(node))
        wire.send(self.heartbeat(node, 0))
        while (message := await wire.receive()) is not None:
            match message:
                case messages.Start(generation=generation):
                    wire.send(messages.Started(node, generation, (1000 + node,) * RANKS, 20_000 + node))
                    self.generation = generation
                    self.started += 1
                    if self.started == len(self.nodes):
                        self.all_started.set()
                case messages.Stop(generation=generation):
                    self.told += 1
                    if generation > 1:
                        for rank in range(node * RANKS, (node + 1) * RANKS):
                            end = RankExit(generation, rank, rank % RANKS, node, 1000 + node, signal=15, stopping=True)
                            wire.send(messages.Exited(node, end))
                    if self.told == len(self.nodes):
                        self.all_told.set()
                    wire.send(messages.Stopped(node, generation))
                case messages.End():
                    return


async def play(run, nodes, *, steps):
    """Play these agents; print when all have started and when all know of the failure. Input starts each phase."""
    loop, fleet = asyncio.get_running_loop(), Fleet(run, nodes, steps=steps)
    while (endpoint := read_record(run.attempt(1).endpoint, Endpoint)) is None:
        await asyncio.sleep(0.005)
    print("here", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    agents = [asyncio.create_task(fleet.agent(endpoint, node)) for node in nodes]
    heartbeats = asyncio.create_task(fleet.keep_heartbeats())
    await fleet.all_started.wait()
    print("started", flush=True)
    wish = (await loop.run_in_executor(None, sys.stdin.readline)).split()
    if wish[0] == "fail":
        victim = int(wish[1])
        end = RankExit(1, victim * RANKS, 0, victim, 1000 + victim, signal=9)
        fleet.wires[victim].send(messages.Exited(victim, end))
    await fleet.all_told.wait()
    print("told", flush=True)
    if (await loop.run_in_executor(None, sys.stdin.readline)).split() == ["cancel"]:
        fleet.wires[nodes[0]].send(messages.StopAsked(0, "cancel"))
    await asyncio.wait(agents, timeout=LIMIT_S)
    heartbeats.cancel()


def race(run, nodes, host, *, steps):
    """Play all agents in some processes; return how long they take to join and to learn of a failure, and what share
    of a core the coordinator takes while nothing happens.
    """
    words = [sys.executable, __file__, *(["--steps"] if steps else []), "--agents", str(run.path)]
    players = [
        subprocess.Popen(
            [*words, f"{first}:{nodes}:{PLAYERS}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for first in range(min(PLAYERS, nodes))
    ]
    try:
        expect_line(players, "here")
        began = time.monotonic()
        for player in players:
            send_line(player, "go")
        expect_line(players, "started")
        joined_s = time.monotonic() - began
        until_running(run, 1)
        time.sleep(beat_s(nodes))  # each agent tells of its ranks in full once
        before = cpu_s(host)
        time.sleep(IDLE_S)
        idle = (cpu_s(host) - before) / IDLE_S
        failed = time.monotonic()
        for number, player in enumerate(players):
            send_line(player, f"fail {nodes // 2}" if number == (nodes // 2) % len(players) else "go on")
        expect_line(players, "told")
        told_s = time.monotonic() - failed
        until_running(run, 2)
        status_s, state_mb = status(run)
        for number, player in enumerate(players):
            send_line(player, "go on" if number else "cancel")
        for player in players:
            player.wait(LIMIT_S)
    finally:
        for player in players:
            player.kill()
            player.communicate()
    return {"joined_s": joined_s, "told_s": told_s, "idle": 100 * idle, "status_s": status_s, "state_mb": state_mb}


def beat_s(nodes):
    """Return the seconds between two heartbeats of one of so many agents."""
    return heartbeat_every_s(lease_of_ranks(Recovery().lease_s), nodes)


def until_running(run, generation):
    """Wait until the run's state on disk says that this generation runs."""
    until = time.monotonic() + LIMIT_S
    while (state := read_record(run.state, RunState)) is None or (state.state, state.generation) != (
        State.RUNNING,
        generation,
    ):
        if time.monotonic() > until:
            raise SystemExit(f"generation {generation} does not run: {state and state.message}")
        time.sleep(0.2)


def cpu_s(process):
    """Return the seconds of CPU that the process has taken."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(run):
    """Return how long `launch status` of the run takes, and the size of its state."""
    began = time.monotonic()
    subprocess.run([LAUNCH, "status", run.path.name], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, run.state.stat().st_size / 1e6


def expect_line(players, word):
    """Read a line from each process, and exit if it is not this word."""
    for player in players:
        said = player.stdout.readline().strip()
        if said != word:
            raise SystemExit(f"agents said {said!r} instead of {word!r}")


def send_line(player, line):
    """Write a line to the process's stdin."""
    player.stdin.write(f"{line}\n")
    player.stdin.flush()


def measure(nodes, *, steps):
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        run = RunDir(Path(folder) / "scale-0000")
        make_dir(run.path)
        write_record(run.plan, plan_of(run.path, nodes))
        registry.register(run.path.name, run.path)
        new_attempt(run, "local", "submit", None)
        host = subprocess.Popen([sys.executable, __file__, "--host", str(run.path)], stdout=subprocess.PIPE, text=True)
        found, ended = race(run, nodes, host, steps=steps), time.monotonic()
        out, _ = host.communicate(timeout=LIMIT_S)
        records_s, exits = time.monotonic() - ended, read_lines(run.attempt(1).exits, RankExit)
        if len(exits) < nodes * RANKS:
            raise SystemExit(f"{len(exits)} ends of {nodes * RANKS} ranks are recorded")
        plan_mb = run.plan.stat().st_size / 1e6
    return {**found, "records_s": records_s, "plan_mb": plan_mb, **json.loads(out)}


def exponent(earlier, later, name):
    """Return the exponent with which this figure grows from one size to another."""
    (few, before), (many, after) = earlier, later
    return math.log(after[name] / before[name]) / math.log(many / few) if before[name] and after[name] else 0.0


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--agents", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", action="store_true", help="ranks make a step between any two heartbeats")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if args.agents:
        folder, part = args.agents
        asyncio.run(play(RunDir(Path(folder)), range(*map(int, part.split(":"))), steps=args.steps))
        return
    if args.host:
        asyncio.run(coordinate(RunDir(Path(args.host))))
        return
    columns = {
        "joined_s": ("joined and started, s", ".3f"), "told_s": ("failure known to all, s", ".3f"),
        "peak_mb": ("coordinator's peak, MB", ".0f"), "idle": ("idle, % of a core", ".1f"), "cpu_s": ("CPU, s", ".2f"),
        "records_s": ("ends on disk after the end, s", ".2f"), "state_mb": ("state.json, MB", ".2f"),
        "plan_mb": ("plan, MB", ".2f"), "status_s": ("`launch status`, s", ".2f"),
    }  # fmt: skip
    rows = [f"| agents | {' | '.join(title for title, _ in columns.values())} |", "|---" * (len(columns) + 1) + "|"]
    middles = {}
    for nodes in args.sizes:
        found = [measure(nodes, steps=args.steps) for _ in range(args.rounds)]
        middles[nodes] = {name: statistics.median(one[name] for one in found) for name in found[0]}
        shown = (format(middles[nodes][name], digits) for name, (_, digits) in columns.items())
        rows.append(f"| {nodes} | {' | '.join(shown)} |")
    for earlier, later in itertools.pairwise(middles.items()):
        grown = (f"{exponent(earlier, later, name):.2f}" for name in columns)
        rows.append(f"| exponent, {earlier[0]} to {later[0]} | {' | '.join(grown)} |")
    notes = (
        f"Each agent had {RANKS} ranks; some processes on the same machine simulated all agents. `joined and started` "
        "is the time until all agents have connected and report that their ranks run. `failure known to all` is the "
        "time from the end of one rank until all agents are told to stop theirs. `idle` is the coordinator's CPU "
        "time while agents send only heartbeats, and `CPU` that of the whole run. `ends on disk` is the time from "
        "the end of the agents until the coordinator has recorded each rank's end and has exited. `state.json` is "
        "the file with the run's state, and `plan` the file with what is to be started. In a row `exponent`, a value "
        "k means that the column grows as the number of agents to the power k."
    )
    publish("coordinator", "\n".join([*rows, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
