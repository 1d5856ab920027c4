"""A user's project and state folder of their own, and the real `launch` command on them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from launcher.run.identity import process_id
from launcher.run.processes import TAG, end_all
from tests import documented
from tests.lab.claims import read
from tests.waits import BOUND_S, until

SCRIPTS = Path(__file__).parent / "scripts"


class Lab:
    undisturbed: ClassVar[dict[str, str]] = {}

    def __init__(self, root: Path):
        self.project = root / "project"
        self.project.mkdir()
        (self.project / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
        self.env = {**os.environ, "XDG_STATE_HOME": str(root / "state"), "XDG_CONFIG_HOME": str(root / "config")}
        self.env.pop("LAUNCH_RUNS", None)
        self.inside: list[str] = []  # what enters a network of its own, before each command

    # -- the project

    def rest(self):
        """Wait until no file is so young that a submit would not note what it hashed to: submits are alike then."""
        files = [path for path in self.project.iterdir() if path.is_file()]
        young = max(path.stat().st_ctime for path in files)
        self.until("files at rest", lambda: time.time() > young + 2.5)

    def script(self, name, text=None):
        (self.project / name).write_text((SCRIPTS / name).read_text() if text is None else text)
        return name

    def spec(self, body, name="job.yaml"):
        (self.project / name).write_text(body)
        return name

    def small_resnet(self, *, steps, ranks, every, more, name="job.yaml"):
        """A spec that runs small_resnet.py on two nodes: slowly, as long as the file `brake` is there."""
        self.script("small_resnet.py")
        args = f"{{steps: {steps}, brake: {json.dumps(str(self.brake))}}}"
        resources = f"{{nodes: 2, ranks_per_node: {ranks}, gpus_per_node: 0, cpus_per_rank: 1}}"
        run = f"run:\n  script: small_resnet.py\n  args: {args}\nresources: {resources}\n"
        return self.spec(f"name: resnet\n{run}checkpoint: {{every: {every} steps}}\n{more}", name)

    @property
    def brake(self):
        return self.project.parent / "brake"

    def hold(self, step):
        """Let no rank of chain.py or lessons.py go beyond that step until the lab releases it."""
        draft = self.held.with_suffix(".draft")
        draft.write_text(str(step))
        draft.replace(self.held)

    def let_go(self):
        self.held.unlink()

    @property
    def held(self):
        return self.project.parent / "held"

    def chain(self, *, args="steps: 50", resources="ranks_per_node: 2", more="", hold=None):
        """A spec that runs chain.py; with `hold` no further than to that step until it is let go."""
        self.script("chain.py")
        if hold is not None:
            self.hold(hold)
            args += f"\nhold: {json.dumps(str(self.held))}"
        indented = "\n".join(f"    {line}" for line in args.splitlines())
        placed = "\n".join(f"  {line}" for line in resources.splitlines())
        return self.spec(f"name: chain\nrun:\n  script: chain.py\n  args:\n{indented}\nresources:\n{placed}\n{more}")

    def fall_sick(self, *nodes):
        """These nodes and no others compute wrongly, in runs that were submitted with what this gives."""
        folder = self.project.parent / "sick"
        folder.mkdir(exist_ok=True)
        (folder / "sick.py").write_text((SCRIPTS / "sick.py").read_text())
        draft = folder / "draft"
        draft.write_text(" ".join(nodes))
        draft.replace(folder / "nodes")
        env = f"env={{PYTHONPATH: {folder}, SICK: {folder / 'nodes'}}}"
        return "--set", "run.preload=[sick]", "--set", env, "--set", "recovery.health=true"

    # -- the command

    def launch(self, *words, check=0, env=None, timeout=BOUND_S, cwd=None, typed=None):
        done = subprocess.run(
            [*self.inside, sys.executable, "-m", "launcher.cli.main", *words],
            input=typed,
            cwd=cwd or self.project,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check is not None:
            assert done.returncode == check, f"launch {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        documented.check(words, done.stdout)
        return done

    def submit(self, spec, *words, **more):
        return self.launch("submit", spec, *words, **more).stdout.strip()

    def fingerprint_of(self, spec):
        """Return the fingerprint of an undisturbed run, made once for all tests with the same spec."""
        text = (self.project / spec).read_text()
        if text not in self.undisturbed:
            self.undisturbed[text] = self.wait(self.submit(spec))["fingerprint"]
        return self.undisturbed[text]

    def status(self, run):
        return json.loads(self.launch("status", run, "--json").stdout)

    def wait(self, run, check=0, timeout=BOUND_S):
        self.launch("wait", run, check=check, timeout=timeout)
        return self.status(run)

    # -- looking inside

    def run_dir(self, run):
        return self.project / ".launch" / "runs" / run

    until = staticmethod(until)

    def until_step(self, run, step):
        def reached():
            state = self.read_state(run)
            return state if (state.get("step") or 0) >= step and state["state"] == "running" else None

        return self.until(f"step {step}", reached)

    def read_state(self, run):
        return json.loads((self.run_dir(run) / "state.json").read_text())

    def events(self, run, kind=None):
        lines = whole_lines(self.run_dir(run) / "events.jsonl")
        return [event for event in map(json.loads, lines) if kind is None or event["kind"] == kind]

    def rank_logs(self, run):
        return "".join(path.read_text() for path in sorted((self.run_dir(run) / "logs").glob("*/rank-*.log")))

    def agent_pid(self, run, node, attempt=1):
        path = self.run_dir(run) / "attempts" / f"{attempt:04d}" / f"node-{node:02d}" / "agent.json"
        return json.loads(path.read_text())["process"]["pid"]

    def processes(self, below=None):
        """Every process that carries the tag of a run of this lab."""
        prefix = f"{TAG}={below or self.project}".encode()
        return [pid for pid in all_pids() if any(word.startswith(prefix) for word in environment(pid))]

    def children(self, pid, containing=b""):
        return [child for child in all_pids() if parent(child) == pid and containing in command(child)]

    def zygotes(self, agent):
        """The zygote of this agent, then its standby. Ranks have the same command line, and other logs."""
        found = [pid for pid in self.children(agent, b"zygote.py") if log_of(pid).endswith("zygote.log")]
        return sorted(found, key=lambda pid: process_id(pid).start_ticks)

    def tidy(self):
        """End what a failed test left, and say what that was."""
        ended, _ = end_all(self.processes)
        return ended


def whole_lines(path):
    """None of a file that is not there yet, and not what is only half written."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def environment(pid):
    return read(pid, "environ").split(b"\0")


def log_of(pid):
    """Return the path of the process's stdout; empty if the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def command(pid):
    return read(pid, "cmdline")


def parent(pid):
    stat = read(pid, "stat")
    return int(stat.rpartition(b")")[2].split()[1]) if stat else None


def kill(pid, number=signal.SIGKILL):
    """True where the fault really fired at a live process."""
    if process_id(pid) is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
