"""Real agents of one run on machines that have nothing in common but the network, played on this one."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from lab import whole_lines
from replication_lab import TOKEN
from run_folder import RunFolder, plan_of

from launcher.plan.model import NodePlan, RankCommand
from launcher.run.identity import this_process
from launcher.run.layout import RunDir
from launcher.run.processes import end_all, tagged
from launcher.run.records import Intent
from launcher.spec.model import Budget, CheckpointOptions, JobSpec, Recovery, RunOptions
from tests.waits import until

ROOT = Path(__file__).parents[2]
BOUND_S = 150.0
LEASE_S = 8.0  # a machine that is busy for seconds loses nobody by itself


class Hosts:
    """Machines with nothing in common but the network: 127.0.0.1, .2, ..."""

    def __init__(self, root, script, nodes, spares=0, checkpoint=None, gone_after_s=900.0, lease_s=LEASE_S, **args):
        self._root, self._script = root, Path(script)
        self._checkpoint = checkpoint or CheckpointOptions()
        self._gone_after_s, self._lease_s = gone_after_s, lease_s
        self._agents = {}
        self.held = root / "held"
        words = tuple(word for name, value in args.items() for word in (f"--{name}", str(value)))
        for node in range(nodes + spares):
            self._prepare(node, nodes, spares, words)

    def _prepare(self, node, nodes, spares, words):
        folder = RunFolder(self.run_dir(node))
        (folder.path / "code").mkdir()
        shutil.copy(self._script, folder.path / "code")
        rules = Recovery(
            spares=spares,
            lease_s=self._lease_s,
            gone_after_s=self._gone_after_s,
            node_lost=Budget(5, 0.0),
            killed=Budget(5, 0.0),
        )
        plan = msgspec.structs.replace(
            plan_of(folder.path, nodes, 1),
            spec=JobSpec("job", RunOptions(script=self._script.name), checkpoint=self._checkpoint, recovery=rules),
            entry=RankCommand("script", self._script.name, words, sys.executable, ()),
            nodes=tuple(NodePlan(one, f"127.0.0.{one + 1}", one >= nodes, None) for one in range(nodes + spares)),
            env={},
            secrets=(),
            disks_apart=True,
        )
        folder.write(folder.run.plan, plan)
        intent = Intent(1, TOKEN, "local", "submit", None, time.time(), this_process())
        folder.write(folder.run.attempt(1).intent, intent)

    def run_dir(self, node):
        return self._root / f"host-{node}" / "run"

    def checkpoints(self, node):
        return self.run_dir(node) / "checkpoints"

    def start(self, *nodes, agent=("-m", "launcher.node")):
        for node in nodes:
            attempt = RunDir(self.run_dir(node)).attempt(1)
            if node != 0:  # whoever starts agents on other machines tells them where the first one listens
                until("the coordinator", RunDir(self.run_dir(0)).attempt(1).endpoint.exists)
                shutil.copy(RunDir(self.run_dir(0)).attempt(1).endpoint, attempt.path)
            command = [sys.executable, *agent, str(self.run_dir(node)), "1", str(node)]
            with (attempt.path / f"agent-{node}.log").open("ab") as log:
                self._agents[node] = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    def kill(self, node, number=signal.SIGKILL):
        self._agents[node].send_signal(number)
        if number == signal.SIGKILL:
            self._agents[node].wait()

    def lose(self, node):
        """Kill the agent, wait for the end of its ranks, and remove the node's disk."""
        self.kill(node)
        until("the end of its ranks", lambda: not self._processes(node))
        shutil.rmtree(self.run_dir(node))

    def come_back(self, node):
        """An agent that leaves is followed by another one, as its supervisor would have it."""
        self._agents[node].wait(BOUND_S)
        self.start(node)

    def hold(self, step):
        """Write the step into the file that scripts poll: ranks of such a script wait after that step."""
        draft = self.held.with_suffix(".draft")
        draft.write_text(str(step))
        draft.replace(self.held)

    def let_go(self):
        """Remove the file, so that held ranks continue."""
        self.held.unlink()

    def pids(self):
        """Return the process ids of running agents."""
        return [agent.pid for agent in self._agents.values() if agent.poll() is None]

    def end(self, bound_s=BOUND_S):
        """Return the agents' exit codes; fail if the run takes too long."""
        deadline = time.monotonic() + bound_s
        return {node: agent.wait(max(0.1, deadline - time.monotonic())) for node, agent in self._agents.items()}

    def tidy(self):
        """End all of it; a test that has failed shows what the run was at."""
        print(json.dumps(self.state()), *self.lines_of_events()[-20:], sep="\n")
        for agent in self._agents.values():
            agent.kill()
            agent.wait()
        end_all(lambda: [pid for node in self._agents for pid in self._processes(node)])

    def _processes(self, node):
        """Return all processes below an agent, and those that have lost it."""
        return tagged(str(self.run_dir(node)), os.getuid())

    def state(self):
        try:
            return json.loads((self.run_dir(0) / "state.json").read_text())
        except FileNotFoundError:
            return {}

    def events(self, kind):
        return [event for event in map(json.loads, self.lines_of_events()) if event["kind"] == kind]

    def lines_of_events(self):
        return whole_lines(self.run_dir(0) / "events.jsonl")

    def rank_log(self, node, generation):
        (log,) = (self.run_dir(node) / "logs" / f"a0001.g{generation:04d}").glob("rank-*.log")
        return log.read_text()

    def began_at(self, node, generation):
        """The step from which the node's rank went on."""
        return int(re.search(r"^starts at step (\d+)$", self.rank_log(node, generation), re.MULTILINE)[1])

    def rank_pid(self, rank):
        return self.state()["ranks"][rank]["pid"]
