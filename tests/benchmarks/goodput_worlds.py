"""Who trains in goodput.py, and where: launch, torchrun and torchft, on this machine and on the hosts of a lab.

The faults and what they hit are those of tests/chaos. What restarts a peer's own process, where it dies, is a shell
loop: `while :; do torchrun …; done`, as people write it.
"""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, ClassVar

from goodput_account import Decided, newest, read_notes
from goodput_faults import LAST, ON_HOSTS, ONE_BY_ONE
from lab import Lab, environment, parent
from noted_steps import network_card
from race import free_port
from ssh_desk import Desk, is_of_a_login

from launcher.run.processes import descendants, end_all
from tests.chaos.schedule import Kind
from tests.chaos.worlds import CAUSES, CUTS, SETTINGS, Local, Pool, World, faults_of, small_disk, strike

HERE = Path(__file__).parent
SCRIPT = "goodput_steps.py"
NODES = 3
LAUNCH, HOT, TORCHRUN, TORCHFT = "launch", "launch, hot", "torchrun, own store", "torchft"
KILLS, MIXED = "rank kills", "mixed"
TAG = "BENCHMARK_GOODPUT"
SPEC = """name: goodput
run:
  script: {script}
  python: {python}
  args: {args}
resources: {{nodes: {nodes}, ranks_per_node: 1, gpus_per_node: 0, cpus_per_rank: 1}}
checkpoint: {{every: {every} steps}}
recovery: {{{recovery}}}
"""
_RECOVERY = dict.fromkeys(CAUSES, "unlimited") | SETTINGS | {"hang_after": "auto"}
RECOVERY = ", ".join(f"{name}: {value}" for name, value in _RECOVERY.items())
_MIXED = {
    "kill-rank": Kind(4),
    "stop-rank": Kind(1),
    "kill-agent": Kind(2),
    "freeze-agent": Kind(1, lasts_s=(1.0, 8.0)),
}


_CUTS = {name: Kind(1, lasts_s=(1.0, 8.0)) for name in ("cut-both", "reset")}


class Side:
    """Mixed into a world of tests/chaos: a training of ours in it, and what its ranks noted."""

    ranks, nodes = 1, NODES
    mixed = _MIXED

    def __init__(self, desk, folder):
        super().__init__(desk, folder)
        self.folder, self.out = folder, folder / "notes.txt"
        shutil.copy(HERE / SCRIPT, desk.project)

    def notes(self):
        return read_notes(self.out.read_text()) if self.out.exists() else []

    def newest_ranks(self):
        return newest(self.notes())

    def decisions(self):
        return []

    def words(self, every):
        return ["--out", str(self.out), "--every", f"{every} steps"]


class Launched(Side):
    """A training that `launch submit` has started."""

    mixed = _MIXED | {"kill-zygote": Kind(2)}

    def begin(self, every):
        text = SPEC.format(
            script=SCRIPT,
            python=sys.executable,
            args=json.dumps(self.words(every)),
            nodes=NODES,
            every=every,
            recovery=RECOVERY + self.more,
        )
        self.run = self.desk.submit(self.desk.spec(text), *self.where)

    def decisions(self):
        """Return failures and the generations that followed them, from events.jsonl."""
        found, noticed = [], None
        for event in self.events():
            if event["kind"] in ("failure", "requeue") and noticed is None:
                noticed = event["at"]
            elif event["kind"] == "generation_opened" and noticed is not None:
                found.append(Decided(noticed, event["at"]))
                noticed = None
        return found

    def events(self):
        return self.desk.events(self.run)

    def said(self):
        return self.desk.launch("logs", self.run, check=None).stdout[-3000:]

    def end(self):
        self.desk.launch("cancel", self.run, check=None)


class LaunchedHere(Launched, Local):
    one_by_one: ClassVar[Any] = ONE_BY_ONE | LAST

    def agent_of(self, note):
        """Return the agent whose rank has written this, or None."""
        return parent(note.pid)

    def of_node(self, agent):
        """Return all processes of a node of this run."""
        return [agent, *descendants(agent)]

    def of_machine(self, agent):
        """Return all processes of this run on the same machine."""
        return self.processes()

    def number_of(self, agent):
        """Return the number of the agent's machine."""
        return 0


class StayingHere(LaunchedHere):
    """Ranks of a `Trainer`, of which those that were not killed stay."""

    more = ", mode: hot"

    def words(self, every):
        return [*super().words(every), "--trainer"]


class LaunchedThere(Launched, Pool):
    mixed = Launched.mixed | _CUTS
    faults: ClassVar[Any] = Pool.faults | faults_of(["kill-zygote"])
    one_by_one: ClassVar[Any] = ONE_BY_ONE | ON_HOSTS | LAST

    def agent_of(self, note):
        """Return the agent of the host on which a rank has written this, or None."""
        here = next(node for node in self.machines if node.name == note.host).started()
        return next((pid for pid in self.called("agent") if pid in here), None)

    def of_node(self, agent):
        """Return all processes of the run on the agent's host."""
        return [pid for pid in self.machines[self.number_of(agent)].started() if not is_of_a_login(pid)]

    of_machine = of_node

    def number_of(self, agent):
        """Return the number of the agent's host."""
        return next(number for number, node in enumerate(self.machines) if agent in node.started())

    def events(self):
        """Every host that led has written some."""
        found = {}
        for index in range(len(self.machines)):
            path = self.desk.there(index, self.run, "events.jsonl")
            for line in path.read_text().splitlines() if path.exists() else ():
                found[line] = json.loads(line)
        return sorted(found.values(), key=lambda event: event["at"])


class Peer(Side):
    """Loops in a shell, one for each node."""

    faults: ClassVar[Any] = faults_of(("kill-rank", "stop-rank", "kill-agent", "freeze-agent", *CUTS))
    loops = ()

    def begin(self, every):
        self.tag = uuid.uuid4().hex
        self.loops = [self.loop(index, self.command(index, every)) for index in range(NODES)]

    def environment(self, index):
        return {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", TAG: self.tag} | self.more_variables

    more_variables: ClassVar[Any] = {}

    def shell(self, index, command):
        variables = [f"{name}={value}" for name, value in self.environment(index).items()]
        body = shlex.join(["env", *variables, *map(str, command)])
        return f"cd {shlex.quote(str(self.desk.project))}; while :; do {body}; done"

    def start(self, argv, name):
        with (self.folder / f"said-{name}.txt").open("w") as said:
            return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=self.outside())

    def outside(self):
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def said(self):
        return "\n".join(path.read_text()[-1000:] for path in sorted(self.folder.glob("said-*.txt")))

    def end(self):
        for loop in self.loops:
            loop.kill()
            loop.wait()
        end_all(self.processes)


class PeerHere(Peer):
    def __init__(self, folder):
        super().__init__(Lab(folder), folder)

    def loop(self, index, command):
        return self.start(["env", f"{TAG}={self.tag}", "sh", "-c", self.shell(index, command)], index)

    def environment(self, index):
        return super().environment(index) | {"GLOO_SOCKET_IFNAME": "lo"}

    def address(self, index):
        return "127.0.0.1"

    def processes(self):
        word = f"{TAG}={self.tag}".encode()
        pids = (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())
        return [pid for pid in pids if word in environment(pid)]

    def strike_rank(self, note, number):
        return strike(note.pid, number)


class PeerThere(Peer):
    mixed = _MIXED | _CUTS

    def __init__(self, folder, hosts):
        super().__init__(Desk(folder, hosts), folder)
        self.machines = hosts.nodes

    def loop(self, index, command):
        ssh = ["ssh", "-F", str(self.desk.hosts.config), "-o", "BatchMode=yes", self.machines[index].name]
        return self.start([*ssh, self.shell(index, command)], index)

    def environment(self, index):
        return super().environment(index) | {"GLOO_SOCKET_IFNAME": network_card(self.machines[index])}

    def address(self, index):
        return self.machines[index].address

    def processes(self):
        return [pid for node in self.machines for pid in node.started() if not is_of_a_login(pid)]

    strike_rank = Pool.strike_rank


class Torchrun:
    """torchrun with a c10d rendezvous on the first node, and a separate store for ranks, without which it rarely
    recovers.
    """

    own: ClassVar[Any] = {"agent": b"torch.distributed.run\0"}
    more_variables: ClassVar[Any] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    port = 0

    def command(self, index, every):
        self.port = self.port or free_port()
        return [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={NODES}", "--nproc-per-node=1"),
            *("--max-restarts=1000000", "--rdzv-backend=c10d", f"--rdzv-id={self.tag}"),
            *(f"--rdzv-endpoint={self.address(0)}:{self.port}", f"--local-addr={self.address(index)}"),
            *(SCRIPT, *self.words(every), "--folder", self.folder / "checkpoints"),
        ]


class Torchft:
    """A training with torchft: each group is one process; the lighthouse, which no fault hits, is on the first node."""

    own: ClassVar[Any] = {"agent": SCRIPT.encode()}  # there is none: what a loop starts is the rank
    port = 0

    def begin(self, every):
        self.port = free_port()
        super().begin(every)
        self.loops.append(self.loop(0, [BIN / "torchft_lighthouse", *self.quorum()]))

    def quorum(self):
        return ["--min_replicas", "1", "--join_timeout_ms", "1000", "--bind", f"[::]:{self.port}"]

    def environment(self, index):
        return super().environment(index) | {"TORCHFT_LIGHTHOUSE": f"http://{self.address(0)}:{self.port}"}

    def command(self, index, every):
        folder = self.folder / f"checkpoints-{index}"
        return [sys.executable, SCRIPT, *self.words(every), "--folder", folder, "--replica", index]


BIN = Path(sys.executable).parent


class TorchrunHere(Torchrun, PeerHere, World):
    pass


class TorchrunThere(Torchrun, PeerThere, World):
    pass


class TorchftHere(Torchft, PeerHere, World):
    pass


class TorchftThere(Torchft, PeerThere, World):
    pass


@contextlib.contextmanager
def small_side(folder, hosts=None):
    """Yield a training of ours, not yet started, whose project can fill its disk; end it afterwards."""
    with contextlib.ExitStack() as stack:
        if hosts is None:
            desk = Lab(folder)
            stack.enter_context(small_disk(desk))
            world = LaunchedHere(desk, folder)
        else:
            stack.callback(hosts.clear)
            world = LaunchedThere(Desk(folder, hosts), folder)
        stack.callback(world.tidy)
        stack.callback(world.end)
        yield world


@contextlib.contextmanager
def side_of(peer, folder, hosts=None):
    """Yield a training of this kind, not yet started: on `hosts` if given, else on this machine; end it afterwards."""
    if peer == LAUNCH:
        world = LaunchedHere(Lab(folder), folder) if hosts is None else LaunchedThere(Desk(folder, hosts), folder)
    elif peer == HOT:
        assert hosts is None
        world = StayingHere(Lab(folder), folder)
    elif hosts is None:
        world = {TORCHRUN: TorchrunHere, TORCHFT: TorchftHere}[peer](folder)
    else:
        world = {TORCHRUN: TorchrunThere, TORCHFT: TorchftThere}[peer](folder, hosts)
    try:
        yield world
    finally:
        world.end()
        world.tidy()
        if hosts is not None:
            hosts.clear()
