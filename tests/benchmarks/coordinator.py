"""Measure how the coordinator scales: 10, 100 and 1,000 simulated agents over real sockets.

    uv run python tests/benchmarks/coordinator.py [--write]

The coordinator runs in a process of its own, with its files on disk as in a run; the agents share a few others, whose
work (each plays thousands of machines) is part of what is measured on a small machine.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import benchmark_parser, publish

from launcher.coordinator.server import CoordinatorServer
from launcher.plan.model import FrozenCode, NodePlan, Plan, RankCommand
from launcher.run.attempts import new_attempt, read_intent, read_plan
from launcher.run.durable import make_dir, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.records import Endpoint, RankExit
from launcher.spec.model import JobSpec, NodeRange, Resources, RunOptions
from launcher.wire import messages
from launcher.wire.frames import WireError, dial, wire_key

SIZES = (10, 100, 1000)
ROUNDS = 5
PLAYERS = 4  # processes that play agents
AGAIN_S = 0.05  # as agents have it
LIMIT_S = 120.0


def plan_of(run_dir, nodes):
    spec = JobSpec("scale", RunOptions(script="x.py"), resources=Resources(nodes=NodeRange(nodes, nodes)))
    return Plan(
        run_id="scale-0000", name="scale", cluster="local", cluster_kind="local", submitted_at=0.0, spec_file="",
        project="", run_dir=str(run_dir), workdir="code", spec=spec, overrides=(),
        entry=RankCommand("script", "x.py", (), sys.executable, ()), setup=None,
        nodes=tuple(NodePlan(index, "127.0.0.1", False, None) for index in range(nodes)),
        nodes_min=nodes, nodes_max=nodes, ranks_per_node=1, cpus_per_rank=1, gpus_per_node=0, env={}, secrets=(),
        code=FrozenCode("", 0, 0),
    )  # fmt: skip


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

    def __init__(self, run, nodes):
        self.run = run
        self.key = wire_key(read_intent(run.attempt(1)).token, messages.WIRE, "scale-0000", 1)
        self.nodes = nodes
        self.started = 0
        self.told = 0
        self.all_started = asyncio.Event()
        self.all_told = asyncio.Event()
        self.wires = {}

    async def dialled(self, endpoint):
        """Return a connection; it is tried again as an agent does."""
        while True:
            try:
                port, peers = endpoint.port, len(self.nodes) * PLAYERS
                return await dial(endpoint.address, port, "127.0.0.1", self.key, messages.TO_AGENT, peers=peers)
            except WireError:
                await asyncio.sleep(AGAIN_S)

    async def agent(self, endpoint, node):
        wire = await self.dialled(endpoint)
        self.wires[node] = wire
        wire.send(messages.Join(node, "127.0.0.1", this_process(), 20_000 + node))
        wire.send(messages.Ready(node))
        while (message := await wire.receive()) is not None:
            match message:
                case messages.Start(generation=generation):
                    wire.send(messages.Started(node, generation, (1000 + node,), 20_000 + node))
                    self.started += 1
                    if self.started == len(self.nodes):
                        self.all_started.set()
                case messages.Stop(generation=generation):
                    self.told += 1
                    if self.told == len(self.nodes):
                        self.all_told.set()
                    wire.send(messages.Stopped(node, generation))
                case messages.End():
                    return


async def play(run, nodes):
    """Play these agents; print when all have started and when all know of the failure. Input starts each phase."""
    loop, fleet = asyncio.get_running_loop(), Fleet(run, nodes)
    while (endpoint := read_record(run.attempt(1).endpoint, Endpoint)) is None:
        await asyncio.sleep(0.005)
    print("here", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    agents = [asyncio.create_task(fleet.agent(endpoint, node)) for node in nodes]
    await fleet.all_started.wait()
    print("started", flush=True)
    wish = (await loop.run_in_executor(None, sys.stdin.readline)).split()
    if wish[0] == "fail":
        victim = int(wish[1])
        end = RankExit(1, victim, 0, victim, 1000 + victim, signal=9)
        fleet.wires[victim].send(messages.Exited(victim, end))
    await fleet.all_told.wait()
    print("told", flush=True)
    if (await loop.run_in_executor(None, sys.stdin.readline)).split() == ["cancel"]:
        fleet.wires[nodes[0]].send(messages.StopAsked(0, "cancel"))
    await asyncio.wait(agents, timeout=60)


def race(run, nodes):
    """Play all agents in some processes; print how long they take to join and to learn of a failure."""
    words = [sys.executable, __file__, "--agents", str(run.path)]
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
        time.sleep(1.0)  # let the last Started arrive: the failure is to strike a running generation
        failed = time.monotonic()
        for number, player in enumerate(players):
            send_line(player, f"fail {nodes // 2}" if number == (nodes // 2) % len(players) else "go on")
        expect_line(players, "told")
        told_s = time.monotonic() - failed
        for number, player in enumerate(players):
            send_line(player, "go on" if number else "cancel")
        for player in players:
            player.wait(LIMIT_S)
    finally:
        for player in players:
            player.kill()
            player.communicate()
    return joined_s, told_s


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


def measure(nodes):
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder) / "scale-0000")
        make_dir(run.path)
        write_record(run.plan, plan_of(run.path, nodes))
        new_attempt(run, "local", "submit", None)
        host = subprocess.Popen([sys.executable, __file__, "--host", str(run.path)], stdout=subprocess.PIPE, text=True)
        joined_s, told_s = race(run, nodes)
        out, _ = host.communicate(timeout=60)
    return {"joined_s": joined_s, "told_s": told_s, **json.loads(out)}


def main():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--agents", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if args.agents:
        folder, part = args.agents
        asyncio.run(play(RunDir(Path(folder)), range(*map(int, part.split(":")))))
        return
    if args.host:
        asyncio.run(coordinate(RunDir(Path(args.host))))
        return
    rows = [
        "| agents | joined and started, s | failure known to all, s | coordinator's peak, MB | its CPU, s |",
        "|---|---|---|---|---|",
    ]
    for nodes in args.sizes:
        found = [measure(nodes) for _ in range(args.rounds)]
        middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
        rows.append("| {} | {joined_s:.3f} | {told_s:.3f} | {peak_mb:.0f} | {cpu_s:.2f} |".format(nodes, **middle))
    publish("coordinator", "\n".join(rows), write=args.write)


if __name__ == "__main__":
    main()
