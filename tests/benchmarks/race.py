"""One start of one script under launch or torchrun, in a folder of its own, with everything ended after it."""

import itertools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from pathlib import Path

from launcher.run.processes import end_all

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
TORCHRUN = "torchrun"
WITH_VARIABLE = "torchrun, own store"
LAUNCH = "launch"
HOT = "launch, hot"
RESERVE, HOT_RESERVE = "launch, reserve", "launch, hot, reserve"  # a process for each rank; one for all on a node
PEERS = (LAUNCH, TORCHRUN, WITH_VARIABLE)
LEGEND = (
    f"`{WITH_VARIABLE}` is torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: rank 0 has the ranks' TCP store. In the "
    f"row `{TORCHRUN}`, torchrun's agent has it."
)
_TAG = "BENCHMARK_RACE"
_SPEC = """name: race
run:
  script: {script}
  args: {args}
{preload}resources:
  nodes: {nodes}
  ranks_per_node: {ranks}
  gpus_per_node: 0
  cpus_per_rank: 1
recovery:
  mode: {mode}
  killed: {{restarts: unlimited, backoff: 0s..0s}}  # as torchrun: at once, every time
  no_progress: off
{recovery}{checkpoint}"""


class Race:
    """`with Race(peer, ranks, words) as race:` the clock runs from `race.began`."""

    def __init__(
        self,
        peer,
        ranks,
        *words,
        script="ddp_steps.py",
        preload=None,
        nodes=1,
        least=None,
        recovery="",
        checkpoint="",
    ):
        self.peer = peer
        self.ranks = ranks
        self.script = script
        self.preload = preload  # None: launch finds out what the script will import
        self.nodes, self.recovery = nodes, recovery  # of launch: where its ranks are, and more lines of `recovery:`
        self.checkpoint = checkpoint  # and the section of that name
        self._range = nodes if least is None else f"{least}..{nodes}"
        self.folder = Path(tempfile.mkdtemp(prefix="race-"))
        self.steps = self.folder / "steps.txt"
        self.notes = defaultdict(list)  # rank: (time, pid, what)
        self._words = ["--out", str(self.steps), *map(str, words)]
        self._tag = uuid.uuid4().hex
        self._read = 0
        self._rest = b""

    def __enter__(self):
        project = self.folder / "project"
        project.mkdir()
        (project / "pyproject.toml").touch()
        for name in (self.script, "tiny_mlp.py"):
            shutil.copy(HERE / name, project)
        (project / "job.yaml").write_text(self._spec())
        command, more = self._command()
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {_TAG: self._tag, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        env |= {"XDG_STATE_HOME": str(self.folder / "state"), "LAUNCH_RUNS": str(self.folder / "runs"), **more}
        with (self.folder / "said.txt").open("wb") as said:
            self.began = time.monotonic()
            self.process = subprocess.Popen(command, cwd=project, env=env, stdout=said, stderr=said)
        return self

    def __exit__(self, *_):
        end_all(self.processes)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spec(self):
        preload = "" if self.preload is None else f"  preload: {list(self.preload)}\n"
        mode = "hot" if self.is_hot else "warm"
        reserve = {RESERVE: self.ranks // self.nodes, HOT_RESERVE: 1}.get(self.peer)
        return _SPEC.format(
            script=self.script,
            args=self._words,
            preload=preload,
            nodes=self._range,
            ranks=self.ranks // self.nodes,
            mode=mode,
            recovery=self.recovery + ("" if reserve is None else f"  reserve: {reserve}\n"),
            checkpoint=self.checkpoint,
        )

    def _command(self):
        if self.is_launch:
            return [BIN / "launch", "submit", "job.yaml"], {}
        more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self.peer == WITH_VARIABLE else {}
        options = ["--standalone", f"--nproc-per-node={self.ranks}", "--max-restarts=1000000"]
        return [BIN / "torchrun", *options, self.script, *self._words], more

    @property
    def is_launch(self):
        return self.peer.startswith(LAUNCH)

    @property
    def is_hot(self):
        return self.peer.startswith(HOT)

    def processes(self):
        """Every process of this race; who has overwritten its environment, as Ray's do, is known by its folder."""
        word = f"{_TAG}={self._tag}".encode()
        return [pid for pid in all_pids() if word in environment(pid) or working_in(self.folder, pid)]

    def wait(self, condition, timeout_s):
        """Wait until the condition on the ranks' notes holds; return False if it does not within the time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._listen()
            if condition():
                return True
            time.sleep(0.02)  # the times that count are in the notes
        return False

    def firsts(self, strangers=frozenset()):
        """Return when each rank first noted something in a process that is not among these, or None until all have."""
        times = []
        for rank in range(self.ranks):
            own = (at for at, pid, _ in self.notes[rank] if pid not in strangers)
            times.append(next(own, None))
        return None if None in times else times

    def firsts_in_place(self, strangers, after):
        """When each rank made the first step that one which is in a new process has part in: what that one notes first
        is the step after which it has taken its place. None until all have."""
        begun = [int(what) for notes in self.notes.values() for _, pid, what in notes if pid not in strangers]
        if not begun:
            return None
        step = str(min(begun) + 1)
        times = [
            next((at for at, _, what in self.notes[rank] if what == step and at > after), None) for rank in self.notes
        ]
        return None if None in times else times

    def step_s(self):
        """Return the median time of an undisturbed step."""
        apart = [
            now - before
            for notes in self.notes.values()
            for (before, pid, what), (now, same, following) in itertools.pairwise(notes)
            if pid == same and int(following) == int(what) + 1
        ]
        return statistics.median(apart)

    def pids(self):
        """The newest process of each rank."""
        return [self.notes[rank][-1][1] for rank in range(self.ranks)]

    def all_pids(self):
        """Every process that has noted anything."""
        return frozenset(pid for notes in self.notes.values() for _, pid, _ in notes)

    def said(self):
        return (self.folder / "said.txt").read_text()

    def _listen(self):
        if not self.steps.exists():
            return
        with self.steps.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            at, rank, pid, what = line.split()
            self.notes[int(rank)].append((float(at), int(pid), what.decode()))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def working_in(folder, pid):
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False
