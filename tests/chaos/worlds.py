"""Where runs are disturbed: this machine, hosts of a pool, a Slurm cluster; and every fault that can be done there.

A fault is a context: it comes on entering and is undone on leaving. It gives whether there was something to hit.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lab import SCRIPTS, Lab, all_pids, command, log_of, parent, whole_lines
from ssh_desk import Desk, is_of_a_login

from launcher.run.identity import process_id
from launcher.run.processes import end_all
from tests.chaos.audit import Deed, Promise, apart_fingerprint, chain_fingerprint
from tests.chaos.records import harm, records
from tests.chaos.schedule import Kind
from tests.lab.hosts import HostLab
from tests.lab.nodes import Cut, LabError, Node
from tests.lab.slurm import SlurmLab
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.layout import data_name

APART = Path(__file__).parents[1] / "node" / "scripts" / "project" / "apart.py"
_ALONE_S, _UNMOUNT_S = 600.0, 60.0  # against hanging alone
_LARGE_DISK = 1 << 30
Fault = Callable[["World", int], contextlib.AbstractContextManager[bool]]
CAUSES = ("killed", "node_lost", "communication", "hang", "launcher_fault", "disk")
SETTINGS = {
    "no_progress": "off", "hang_after": "10s", "hang_at_start": "20s", "lease": "4s", "wait": "60s", "avoid": "5s",
    "grace": "2s",
}  # fmt: skip
RECOVERY = ", ".join(f"{name}: {value}" for name, value in (dict.fromkeys(CAUSES, "unlimited") | SETTINGS).items())


class World:
    """One run in one place, disturbed. `own`: what the command lines of our own programs there contain."""

    kinds: ClassVar[Mapping[str, Kind]]
    faults: ClassVar[Mapping[str, Fault]]
    own: ClassVar[Mapping[str, bytes]]
    script = SCRIPTS / "chain.py"
    ranks = 2  # on each node
    nodes = 2
    at_least = 0  # nodes that the run goes on with; 0: all
    steps_per_s = 14.0  # about what the pause leaves
    more = ""  # of the spec
    preload = "[]"
    resumed_by_hand: frozenset[str] = frozenset({"interrupted"})  # states in which the user says `launch resume`
    where: Sequence[str] = ()
    machines: Sequence[Node] = ()  # of nodes that are computers of their own
    clock_names: Sequence[str] = ()  # of nodes, or hosts, whose clock can be wrong

    def __init__(self, desk: Lab, folder: Path) -> None:
        self.desk, self.audit, self.clocks = desk, folder / "audit.jsonl", folder / "clocks"
        self.observers = {"the user": desk}
        self.run = ""
        self.damaged: set[int] = set()  # steps whose checkpoint has a changed file
        self.harmed: dict[str, str] = {}  # records that have been damaged, by their names, and how

    # -- the run

    def submit(self, steps: int, every: int, pause_s: float) -> None:
        for path in (SCRIPTS / "audited.py", self.script):
            (self.desk.project / path.name).write_text(path.read_text())
        self.run = self.desk.submit(
            self.desk.spec(self.spec(steps, every, pause=pause_s, audit=str(self.audit))), *self.where
        )

    def spec(self, steps: int, every: int, **given: object) -> str:
        args = json.dumps({"steps": steps, "every": every, **given})
        nodes = f"{self.at_least}..{self.nodes}" if self.at_least else self.nodes
        resources = f"{{nodes: {nodes}, ranks_per_node: {self.ranks}}}"
        words = f"python: {json.dumps(sys.executable)}, preload: {self.preload}, args: {args}"
        run = f"{{script: {self.script.name}, {words}}}"
        return f"name: chaos\nrun: {run}\nresources: {resources}\nrecovery: {{{RECOVERY}{self.more}}}\n"

    promise: ClassVar = Promise()  # a checkpoint that rank 0 has saved is on the disk that all share

    def fingerprint(self, steps: int) -> str:
        return chain_fingerprint(steps, self.nodes * self.ranks)

    def deeds(self) -> list[Deed]:
        return [Deed(**json.loads(line)) for line in whole_lines(self.audit)]

    def status(self, desk: Lab, timeout_s: float) -> dict[str, Any] | None:
        done = desk.launch("status", self.run, "--json", check=None, timeout=timeout_s)
        return json.loads(done.stdout) if done.returncode == 0 else None

    # -- what there is to hit

    def disk(self, target: int) -> Path:
        """A folder on the disk that a node writes to."""
        return self.desk.project

    def folders(self) -> list[Path]:
        """Return the folders that have records of the run."""
        return [self.desk.run_dir(self.run)]

    def processes(self) -> list[int]:
        """Return the process ids of the run that this machine knows."""
        raise NotImplementedError

    def called(self, what: str) -> list[int]:
        """A guard has the command line of who has forked it, a rank and a standby that of the zygote beside them."""
        kind = {"guard": "agent", "standby": "zygote"}.get(what, what)
        like = sorted(pid for pid in self.processes() if self.own[kind] in command(pid))
        forked = [pid for pid in like if parent(pid) in like]
        by_themselves = [pid for pid in like if pid not in forked]
        if kind == "agent":
            return forked if what == "guard" else by_themselves
        if kind == "zygote":
            by_themselves = [pid for pid in by_themselves if log_of(pid).endswith("zygote.log")]
            zygotes = eldest(by_themselves)
            return [pid for pid in by_themselves if pid not in zygotes] if what == "standby" else zygotes
        return by_themselves

    def newest_ranks(self) -> list[Deed]:
        """The first thing that each rank of the newest incarnation did."""
        starts = [deed for deed in self.deeds() if deed.what == "start"]
        newest = max((deed.incarnation for deed in starts), default=None)
        return sorted((deed for deed in starts if deed.incarnation == newest), key=lambda deed: deed.rank)

    def strike_rank(self, deed: Deed, number: int) -> bool:
        node = next(node for node in self.machines if node.name == deed.host)
        return node.up and node.exec("kill", f"-{number}", str(deed.pid)).returncode == 0

    def left(self) -> list[str]:
        """What of it is still there."""
        return [f"{pid} {command(pid).replace(bytes(1), b' ').decode()}" for pid in self.processes()]

    def tidy(self) -> None:
        """Remove everything of the run; called after the last check."""
        end_all(self.processes)


def eldest(pids: Sequence[int]) -> list[int]:
    """The one of each parent's that was there first."""
    first: dict[int | None, tuple[int, int]] = {}
    for pid in pids:
        if (identity := process_id(pid)) is not None:
            above, age = parent(pid), (identity.start_ticks, pid)
            first[above] = min(age, first.get(above, age))
    return sorted(pid for _, pid in first.values())


# -- faults that every place has


def rank_signal(number: int) -> Fault:
    @contextlib.contextmanager
    def fault(world: World, target: int) -> Iterator[bool]:
        found = world.newest_ranks()
        yield bool(found) and world.strike_rank(found[target % len(found)], number)

    return fault


def killed(what: str) -> Fault:
    @contextlib.contextmanager
    def fault(world: World, target: int) -> Iterator[bool]:
        found = world.called(what)
        yield bool(found) and strike(found[target % len(found)], signal.SIGKILL)

    return fault


def frozen(what: str) -> Fault:
    @contextlib.contextmanager
    def fault(world: World, target: int) -> Iterator[bool]:
        found = world.called(what)
        if not found:
            yield False
            return
        pid = found[target % len(found)]
        identity = process_id(pid)
        yield strike(pid, signal.SIGSTOP)
        if process_id(pid) == identity:
            strike(pid, signal.SIGCONT)

    return fault


@contextlib.contextmanager
def frozen_with_guard(world: World, target: int) -> Iterator[bool]:
    """An agent and its guard together: neither is left to end the ranks."""
    agents = world.called("agent")
    agent = agents[target % len(agents)] if agents else None
    both = [one for one in (*world.called("guard"), agent) if one is not None and agent in (one, parent(one))]
    hit = [(pid, identity) for pid in both if (identity := process_id(pid)) and strike(pid, signal.SIGSTOP)]
    yield len(hit) == 2
    for pid, identity in hit:
        if process_id(pid) == identity:
            strike(pid, signal.SIGCONT)


def strike(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def harmed_record(world: "World", target: int) -> Iterator[bool]:
    """Damage a record of the run; it stays damaged until a process of the run rewrites it."""
    draw = random.Random(target)
    found = list(records(world.folders()))
    path = draw.choice(found) if found else None
    if path is not None:
        world.harmed[path.name] = harm(path, draw)
    yield path is not None


CLOCKS = """
import os, sys, time
true_time, here = time.time, os.path.dirname(__file__)
def shown():
    agent = sys.orig_argv[-1] if "launcher.node" in sys.orig_argv else None
    try:
        with open(os.path.join(here, f"shift-{BY}")) as file:
            return true_time() + float(file.read())
    except (OSError, ValueError):
        return true_time()
time.time = shown
"""
BY_NODE, BY_HOST = "{os.environ.get('LAUNCH_NODE', agent)}", "{os.uname().nodename}"


def lay_clocks(world: "World", by: str) -> None:
    """Have all Python processes of the run read from a file how far their node's clock is off."""
    world.clocks.mkdir()
    (world.clocks / "sitecustomize.py").write_text(CLOCKS.replace("{BY}", by))
    world.desk.env["PYTHONPATH"] = str(world.clocks)


@contextlib.contextmanager
def wrong_clock(world: "World", target: int) -> Iterator[bool]:
    """The clock of one node jumps, and later back; two such faults may hit the same one."""
    whose = world.clock_names[target % len(world.clock_names)]
    draft, shift = world.clocks / f"draft-{time.monotonic_ns()}", world.clocks / f"shift-{whose}"
    draft.write_text(str(random.Random(target).choice((-172_800.0, -7_200.0, 7_200.0))))
    draft.replace(shift)
    yield True
    shift.unlink(missing_ok=True)


@contextlib.contextmanager
def full_disk(world: World, target: int) -> Iterator[bool]:
    """Fill the disk on which a node has the run; one that is large is left alone."""
    folder = world.disk(target)
    size = os.statvfs(folder)
    if size.f_blocks * size.f_frsize > _LARGE_DISK:
        yield False
        return
    filler = folder / f"filler-{time.monotonic_ns()}"  # another one may be there already
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)
    yield True
    filler.unlink(missing_ok=True)


@contextlib.contextmanager
def starved(world: World, target: int) -> Iterator[bool]:
    """Suspend every process of the run, as on a machine that is suspended."""
    found = world.processes()
    hit = [(pid, identity) for pid in found if (identity := process_id(pid)) and strike(pid, signal.SIGSTOP)]
    yield bool(hit)
    for pid, identity in hit:
        if process_id(pid) == identity:
            strike(pid, signal.SIGCONT)


# -- faults of hosts, and of nodes of a cluster


def node_of(world: World, target: int) -> Node:
    """A node that has something of the run."""
    used = [node for node in world.machines if node.up and node.started()]
    return (used or list(world.machines))[target % len(used or world.machines)]


@contextlib.contextmanager
def no_power(world: World, target: int) -> Iterator[bool]:
    node = node_of(world, target)
    node.power_off()
    yield True
    node.power_on()


def cut_off(how: Cut) -> Fault:
    @contextlib.contextmanager
    def fault(world: World, target: int) -> Iterator[bool]:
        node = node_of(world, target)
        if node.up:
            node.cut(how)
        yield node.up
        node.mend()

    return fault


@contextlib.contextmanager
def cut_pair(world: World, target: int) -> Iterator[bool]:
    """Cut the network between two nodes; all other pairs stay connected."""
    node, other = random.Random(target).sample(list(world.machines), 2)
    if node.up:
        node.cut(Cut.BOTH, peers=[other])
    yield node.up
    node.mend()


@contextlib.contextmanager
def split(world: World, target: int) -> Iterator[bool]:
    """The nodes fall into two sides of any shape that do not hear each other, and hear everybody else."""
    nodes = list(world.machines)
    side = 1 + target % (2 ** (len(nodes) - 1) - 1)  # as bits; the last node is always on the other side
    here = [node for at, node in enumerate(nodes) if side >> at & 1]
    there = [node for node in nodes if node not in here]
    live = [node for node in here if node.up]
    for node in live:
        node.cut(Cut.BOTH, peers=there)
    yield bool(live)
    for node in live:
        node.mend()


@contextlib.contextmanager
def damaged_file(world: World, target: int) -> Iterator[bool]:
    """A byte of a host's newest checkpoint is another one, and its rank is killed, as only a start reads checkpoints:
    stopped before, as it would soon have saved a newer one."""
    assert isinstance(world, Pool)
    found = world.newest_ranks()
    rank = found[target % len(found)] if found else None
    if rank is None or not world.strike_rank(rank, signal.SIGSTOP):
        yield False
        return
    damaged = world.damage(rank)
    yield world.strike_rank(rank, signal.SIGKILL if damaged else signal.SIGCONT) and damaged


# -- faults of a Slurm cluster


@contextlib.contextmanager
def no_controller(world: World, target: int) -> Iterator[bool]:
    assert isinstance(world, Slurm)
    try:
        world.slurm.save_state()
    except LabError:  # it does not answer, for another fault: in a moment it can be hit
        yield False
        return
    world.slurm.stop_controller()
    yield True
    world.slurm.start_controller()


@contextlib.contextmanager
def frozen_controller(world: World, target: int) -> Iterator[bool]:
    assert isinstance(world, Slurm)
    world.slurm.freeze_controller()
    yield True
    world.slurm.thaw_controller()


@contextlib.contextmanager
def preempted(world: World, target: int) -> Iterator[bool]:
    """A job of higher priority takes all nodes for a second."""
    assert isinstance(world, Slurm)
    words = ("--partition=urgent", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 1")
    yield world.slurm.run("sbatch", *words).returncode == 0


@contextlib.contextmanager
def requeued(world: World, target: int) -> Iterator[bool]:
    assert isinstance(world, Slurm)
    jobs = world.slurm.run("squeue", "--noheader", "--states=R", "--format=%i").stdout.split()
    yield bool(jobs) and world.slurm.run("scontrol", "requeue", jobs[0]).returncode == 0


@contextlib.contextmanager
def no_munge(world: World, target: int) -> Iterator[bool]:
    """Freeze munged, so that Slurm cannot authenticate anybody, and continue it afterwards."""
    assert isinstance(world, Slurm)
    world.slurm.control.signal("munged", signal.SIGSTOP)
    yield True
    world.slurm.control.signal("munged", signal.SIGCONT)


CUTS: dict[str, Fault] = {
    "cut-both": cut_off(Cut.BOTH),
    "cut-in": cut_off(Cut.IN),
    "cut-out": cut_off(Cut.OUT),
    "cut-link": cut_off(Cut.LINK),
    "cut-pair": cut_pair,
    "split": split,
    "reset": cut_off(Cut.RESET),
    "loss": cut_off(Cut.LOSS),
}
FAULTS: dict[str, Fault] = CUTS | {
    "kill-rank": rank_signal(signal.SIGKILL),
    "stop-rank": rank_signal(signal.SIGSTOP),
    **{f"kill-{what}": killed(what) for what in ("agent", "batch", "guard", "standby", "supervisor", "zygote")},
    **{f"freeze-{what}": frozen(what) for what in ("agent", "supervisor", "zygote")},
    "freeze-both": frozen_with_guard,
    "full-disk": full_disk,
    "starve": starved,
    "clock": wrong_clock,
    "record": harmed_record,
    "damage": damaged_file,
    "power": no_power,
    "preempt": preempted,
    "requeue": requeued,
    "no-controller": no_controller,
    "freeze-controller": frozen_controller,
    "no-munge": no_munge,
}


def faults_of(kinds: Iterable[str]) -> dict[str, Fault]:
    """Return how each of these kinds of fault is done."""
    return {name: FAULTS[name] for name in kinds}


# -- this machine


class Local(World):
    kinds: ClassVar = {
        "kill-rank": Kind(4),
        "stop-rank": Kind(1),
        "kill-agent": Kind(2),
        "freeze-agent": Kind(2, lasts_s=(1.0, 12.0)),
        "freeze-both": Kind(1, lasts_s=(1.0, 12.0)),
        "kill-guard": Kind(1),
        "kill-zygote": Kind(2),
        "kill-standby": Kind(1),
        "freeze-zygote": Kind(1, lasts_s=(1.0, 12.0)),
        "freeze-supervisor": Kind(1, lasts_s=(1.0, 12.0)),
        "full-disk": Kind(1, lasts_s=(0.5, 6.0)),
        "starve": Kind(1, lasts_s=(1.0, 12.0)),
        "clock": Kind(1, lasts_s=(2.0, 20.0)),
        "record": Kind(1),
    }
    faults: ClassVar = faults_of(kinds)
    own: ClassVar = {"agent": b"launcher.node\0", "zygote": b"zygote.py", "supervisor": b"local_supervisor:"}
    clock_names = ("0", "1")
    preload = "[decimal]"  # with nothing to import a zygote leaves no standby

    def processes(self) -> list[int]:
        return self.desk.processes(self.desk.run_dir(self.run))

    def strike_rank(self, deed: Deed, number: int) -> bool:
        return strike(deed.pid, number)


class LonelyLocal(Local):
    """Like `LonelyPool`, on this machine: a spare replaces a node whose old ranks may still run."""

    more = ", spares: 1"
    script = SCRIPTS / "lonely.py"
    promise: ClassVar = Promise(kept="")

    def fingerprint(self, steps: int) -> str:
        return f"{steps} steps"


class Hot(Local):
    """A training whose ranks stay when others are killed. What is not put back in them shows in the weights."""

    script = SCRIPTS / "in_place.py"
    more = ", mode: hot, spares: 1"
    strategy = "ddp"
    width = 40_000  # so large a state is read out of a rank's memory
    steps_per_s = 6.0
    kept: ClassVar[Mapping[str, object]] = {}  # beside checkpoints on disk
    alone = ""  # the run that nothing disturbs

    def spec(self, steps: int, every: int, **given: object) -> str:
        args = json.dumps({"steps": steps, "strategy": self.strategy, "width": self.width, **given})
        return (
            f"name: hot\nrun: {{script: {self.script.name}, python: {json.dumps(sys.executable)}, args: {args}}}\n"
            f"resources: {{nodes: {self.nodes}, ranks_per_node: {self.ranks}, gpus_per_node: 0, cpus_per_rank: 1}}\n"
            f"checkpoint: {json.dumps({'every': f'{every} steps', **self.kept})}\n"
            f"recovery: {{{RECOVERY}{self.more}}}\n"
        )

    def fingerprint(self, steps: int) -> str:
        """Of the training that is left alone, here and now."""
        self.alone = self.desk.submit(self.desk.spec(self.spec(steps, 1000)))
        return str(self.desk.wait(self.alone, timeout=_ALONE_S)["fingerprint"])

    def tidy(self) -> None:
        super().tidy()
        if self.alone:
            end_all(lambda: self.desk.processes(self.desk.run_dir(self.alone)))

    def deeds(self) -> list[Deed]:
        """A rank that is born does nothing yet there: others may still be at a step of the generation before. And what
        is done with a step may be done with it again."""
        return [deed for deed in super().deeds() if deed.what not in ("born", "done")]

    def newest_ranks(self) -> list[Deed]:
        """That live; of one place the newest."""
        born = {deed.rank: deed for deed in super().deeds() if deed.what == "born"}
        return [born[rank] for rank in sorted(born)]


class HotFsdp(Hot):
    strategy = "fsdp"
    kept: ClassVar = {"memory_every": "2 steps", "buddy": True}


class HotZero1(HotFsdp):
    strategy = "zero1"
    more = f"{Hot.more}, reserve: 1"


@contextlib.contextmanager
def local_world(folder: Path, kind: type[World] = Local) -> Iterator[World]:
    """The project lies on a small disk of its own, which can be full."""
    desk = Lab(folder)
    with small_disk(desk):
        world = kind(desk, folder)
        lay_clocks(world, BY_NODE)
        try:
            yield world
        finally:
            world.tidy()


@contextlib.contextmanager
def small_disk(desk: Lab) -> Iterator[None]:
    """Put the project on a small disk of its own, until all processes that use it have ended."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", desk.project], check=True)
    (desk.project / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    try:
        yield
    finally:
        deadline = time.monotonic() + _UNMOUNT_S  # a large process that has ended lets go of its folder a little later
        while subprocess.run(["umount", desk.project], check=time.monotonic() > deadline).returncode:
            time.sleep(0.1)


# -- hosts of a pool


WIRES = dict.fromkeys(("cut-both", "cut-in", "cut-out", "cut-link", "cut-pair"), Kind(1, lasts_s=(1.0, 15.0))) | {
    "split": Kind(2, lasts_s=(1.0, 30.0)),
    "reset": Kind(1, lasts_s=(0.5, 5.0)),
    "loss": Kind(1, lasts_s=(2.0, 20.0)),
}


class Pool(World):
    """Hosts of which a run uses all but two and has one to spare: one may go for good, as none comes back by itself."""

    kinds: ClassVar = {
        "kill-rank": Kind(4),
        "stop-rank": Kind(1),
        "kill-agent": Kind(2),
        "kill-guard": Kind(1),
        "freeze-agent": Kind(3, lasts_s=(1.0, 40.0)),
        "freeze-both": Kind(2, lasts_s=(1.0, 40.0)),
        "freeze-supervisor": Kind(2, lasts_s=(1.0, 40.0)),
        "kill-supervisor": Kind(1, most=1, group="host"),
        "power": Kind(1, most=1, group="host", lasts_s=(5.0, 20.0)),
        "clock": Kind(1, lasts_s=(2.0, 20.0)),
        "damage": Kind(1, most=1, group="host"),
        "record": Kind(1),
        **WIRES,
    }
    faults: ClassVar = faults_of(kinds)
    own: ClassVar = {"agent": b"launcher.node\0", "zygote": b"zygote.py", "supervisor": b"ssh.host.host_supervisor"}
    script = APART
    ranks = 1
    more = ", spares: 1"
    where = ("--on", "pool")
    disk_size = ""  # of each host; "": that of this machine

    def __init__(self, desk: Desk, folder: Path) -> None:
        super().__init__(desk, folder)
        self.machines = desk.hosts.nodes
        self.nodes = desk.hosts.size - 2
        self.clock_names = [node.name for node in self.machines]
        (folder / "elsewhere").mkdir()
        self.observers["another machine"] = Desk(folder / "elsewhere", desk.hosts)

    promise: ClassVar = Promise(kept="safe")  # each host writes to its own disk, and any one may be lost

    def fingerprint(self, steps: int) -> str:
        return apart_fingerprint(steps, self.nodes)

    def processes(self) -> list[int]:
        return [pid for node in self.machines for pid in node.started() if not is_of_a_login(pid)]

    def damage(self, deed: Deed) -> bool:
        """The first byte of what this rank has saved last; False where that is nothing yet."""
        newest = catalog.entries(self.checkpoints(deed.host))[-1:]
        for entry in newest:
            with (entry.path / data_name(deed.rank)).open("r+b", buffering=0) as file:
                self.damaged.add(entry.step)
                os.pwrite(file.fileno(), bytes([file.read(1)[0] ^ 1]), 0)
        return bool(newest)

    def disk(self, target: int) -> Path:
        path: Path = self.desk.hosts.disk(target % len(self.machines))
        return path

    def folders(self) -> list[Path]:
        return [*super().folders(), *(self.desk.there(index, self.run) for index in range(len(self.machines)))]

    def checkpoints(self, host: str) -> Path:
        """Return the folder in which this host has checkpoints of the run."""
        there: Path = self.desk.there(self.clock_names.index(host), self.run, "checkpoints")
        return there


class SmallPool(Pool):
    """Hosts whose small disks run full, which lose power one after the other; a look at the run brings them back."""

    disk_size = "256m"
    resumed_by_hand = frozenset({"interrupted", "lost"})  # all hosts may be without power at once
    kinds: ClassVar = {**Pool.kinds, "power": Kind(5, lasts_s=(5.0, 20.0)), "full-disk": Kind(5, lasts_s=(0.5, 10.0))}
    faults: ClassVar = faults_of(kinds)


class LonelyPool(Pool):
    """Ranks that never talk to each other: one that is not ended with its lease is seen beside its successor.

    A range of nodes and a spare: what is cut off may be left out, replaced, or go on by itself, which it must not.
    """

    at_least = 1
    script = SCRIPTS / "lonely.py"
    promise: ClassVar = Promise(kept="")
    kinds: ClassVar = {name: kind for name, kind in Pool.kinds.items() if name != "damage"}

    def fingerprint(self, steps: int) -> str:
        return f"{steps} steps"


@contextlib.contextmanager
def pool_world(folder: Path, hosts: HostLab, kind: type[Pool] = Pool) -> Iterator[World]:
    """What a run has on a host begins in a login, and has from there where the clock is looked up."""
    world = kind(Desk(folder, hosts), folder)
    lay_clocks(world, BY_HOST)
    for index in range(hosts.size):
        (hosts.home(index) / ".bashrc").write_text(f"export PYTHONPATH={world.clocks}\n")
    try:
        yield world
    finally:
        world.tidy()


# -- a Slurm cluster


class Slurm(World):
    kinds: ClassVar = {
        "kill-rank": Kind(4),
        "stop-rank": Kind(1),
        "kill-agent": Kind(2),
        "kill-guard": Kind(1),
        "freeze-agent": Kind(2, lasts_s=(1.0, 20.0)),
        "kill-batch": Kind(1),
        "power": Kind(1, most=1, lasts_s=(5.0, 20.0)),
        "preempt": Kind(2, most=2),
        "requeue": Kind(1, most=2),
        "no-controller": Kind(1, lasts_s=(1.0, 10.0)),
        "freeze-controller": Kind(1, lasts_s=(1.0, 15.0)),
        "no-munge": Kind(1, lasts_s=(1.0, 10.0)),
        "clock": Kind(1, lasts_s=(2.0, 20.0)),
        "record": Kind(1),
        **WIRES,
    }
    faults: ClassVar = faults_of(kinds)
    own: ClassVar = {"agent": b"launcher.node\0", "batch": b"job.batch_process:"}
    where = ("--on", "slurm")

    def __init__(self, desk: Lab, folder: Path, slurm: SlurmLab) -> None:
        super().__init__(desk, folder)
        self.slurm, self.machines = slurm, slurm.nodes
        self.clock_names = [node.name for node in slurm.nodes]

    def processes(self) -> list[int]:
        """The batch process carries no tag of the run: its command line tells whose it is."""
        folder = self.desk.run_dir(self.run)
        words = b"%sslurm\0%s\0" % (self.own["batch"], os.fsencode(folder))
        return [*self.desk.processes(folder), *(pid for pid in all_pids() if words in command(pid))]

    def left(self) -> list[str]:
        """Return what is left of the run; jobs that Slurm is still completing do not count alone."""
        left = super().left()
        jobs = self.slurm.run("squeue", "--noheader", "--format=job %i %T %j of %P: %r").stdout.splitlines()
        return [*left, *(job for job in jobs if left or job.split()[2] != "COMPLETING")]


@contextlib.contextmanager
def slurm_world(folder: Path, slurm: SlurmLab) -> Iterator[World]:
    desk = Lab(folder)
    desk.env |= slurm.env
    world = Slurm(desk, folder, slurm)
    lay_clocks(world, BY_HOST)
    try:
        yield world
    finally:
        slurm.run("scancel", "--user=root")
        world.tidy()
