"""Measure how long users of SSH hosts wait for a submit, a status, a first step, and after a lost rank or host.

    uv run python tests/benchmarks/ssh.py [--write]
    uv run python tests/benchmarks/ssh.py --only many --many 32 100 200 [--write]    # 200 hosts take 15 GB

Runs in the lab of tests/lab: hosts in namespaces of their own, each with a real sshd and a disk of its own. The peer is
what a shell loop does: `ssh` to each host, which starts torchrun there with the c10d rendezvous on the first one; same
script, same hosts, the sides take turns. Code is there already. Where a rank of another host is killed, the next step
counts once every rank has made one in a process that was not there before.

With many hosts, all of them are on this machine's cores, so the table separates what the submitter takes, which is all
that grows for a user with the number of hosts, from what each host takes, which a user's hosts do side by side.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), *(str(Path(__file__).parents[1] / name) for name in ("local", "ssh"))]
from noted_steps import Steps, network_card
from results import benchmark_parser, publish
from sides import LAUNCH, START_S, first_step_row, middle, recovery_rows, take_turns, to_recover
from ssh_desk import Desk

from launcher.remote.parallel import connect_all, for_all
from launcher.remote.target import target_of
from launcher.spec.model import SshHost
from tests.lab import claims
from tests.lab.hosts import HostLab
from tests.lab.nodes import namespace_of
from tests.waits import BOUND_S

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
_ALL = ["submit", "many", "together", "start", "kill", "host"]
TORCHRUN, WITH_VARIABLE = "ssh torchrun", "ssh torchrun, own store"
SPEC = """name: race
run:
  script: ddp_steps.py
  args: [--out, {out}, --step-s, "0.02"]
resources:
  nodes: {nodes}
  ranks_per_node: 1
  gpus_per_node: 0
  cpus_per_rank: 1
ssh:
  python: {python}
recovery:
  spares: {spares}
  killed: {{restarts: unlimited, backoff: 0s..0s}}
  no_progress: off
"""


class Bench:
    """A user and a pool."""

    def __init__(self, folder, hosts=4, **how):
        self.folder = folder
        (folder / "user").mkdir()
        self.hosts = HostLab(folder / "lab", hosts, **how)
        self.desk = None
        self.peers = []

    def __enter__(self):
        self.hosts.__enter__()
        self.desk = Desk(self.folder / "user", self.hosts)
        self.desk.env.pop("PYTHONDONTWRITEBYTECODE", None)
        shutil.copy(HERE / "ddp_steps.py", self.desk.project)
        return self

    def __exit__(self, *error):
        self.clear()
        self.hosts.__exit__(*error)

    def clear(self):
        for peer in self.peers:
            peer.kill()
            peer.wait()
        self.peers.clear()
        self.hosts.clear()

    def timed(self, command):
        began = time.monotonic()
        done = subprocess.run(command, cwd=self.desk.project, env={**os.environ, **self.desk.env}, check=True,
                              capture_output=True, text=True)  # fmt: skip
        return time.monotonic() - began, done.stdout


def begin(bench, peer, turn, nodes=4, spares=0):
    """Start one side; gives its steps, and the moment at which it was asked to."""
    out = bench.folder / f"steps-{peer.replace(' ', '-').replace(',', '')}-{turn}.txt"
    at = time.monotonic()
    if peer == LAUNCH:
        text = SPEC.format(out=out, nodes=nodes, spares=spares, python=sys.executable)
        bench.desk.submit(bench.desk.spec(text), "--on", "pool")
        return Steps(out), at
    variable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" if peer == WITH_VARIABLE else ""
    head = bench.hosts.nodes[0]
    words = f"env OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME={network_card(head)} {variable} {BIN / 'torchrun'} "
    words += f"--nnodes={nodes} --nproc-per-node=1 --max-restarts=1000 --rdzv-backend=c10d --rdzv-id=race-{turn} "
    words += f"--rdzv-endpoint={head.address}:29400 {bench.desk.project / 'ddp_steps.py'} --out {out} --step-s 0.02"
    for node in bench.hosts.nodes[:nodes]:
        ssh = ["ssh", "-F", str(bench.hosts.config), "-o", "BatchMode=yes", node.name, words]
        said = (bench.folder / f"said-{node.name}.txt").open("w")
        bench.peers.append(subprocess.Popen(ssh, stdout=said, stderr=said, stdin=subprocess.DEVNULL))
    return Steps(out), at


def first_step(bench, peer, turn):
    steps, at = begin(bench, peer, turn)
    last = steps.wait(START_S)
    bench.clear()
    if last is None:
        raise SystemExit(f"{peer} made no step:\n{(bench.folder / 'said-node0.txt').read_text()[-2000:]}")
    return last - at


def killed_rank(bench, peer, turn, patience_s):
    """Seconds from kill -9 of rank 3, on the last host, to the next step of all; None where that never comes."""
    steps, _ = begin(bench, peer, f"kill-{turn}")
    took = to_recover(steps, lambda notes: bench.hosts.nodes[3].exec("kill", "-9", notes[3][-1][1]), patience_s)
    bench.clear()
    return took


def lost_host(bench, turn):
    """Seconds from the power cut of a host to the next step of all, with a spare."""
    steps, _ = begin(bench, LAUNCH, f"lost-{turn}", nodes=3, spares=1)
    took = to_recover(steps, lambda _: bench.hosts.nodes[1].power_off(), 120, ranks=3)
    bench.clear()
    return took


def submits(folder, pairs, hosts):
    """Whole processes of `launch submit` and `launch status`, and of a bare `ssh HOST true`."""
    with Bench(folder, hosts) as bench:
        body = "name: quick\nrun:\n  command: [sleep, '60']\nresources: "
        spec = bench.desk.spec(body + f"{{nodes: {hosts}, ranks_per_node: 1, gpus_per_node: 0}}\n")
        submitting, asking, connecting = [], [], []
        for turn in range(pairs + 1):
            took, run = bench.timed([BIN / "launch", "submit", spec, "--on", "pool"])
            status, _ = bench.timed([BIN / "launch", "status", run.strip()])
            ssh, _ = bench.timed(["ssh", "-F", str(bench.hosts.config), "-o", "BatchMode=yes", "node0", "true"])
            bench.desk.launch("cancel", run.strip())
            if turn:
                submitting.append(took)
                asking.append(status)
                connecting.append(ssh)
        return middle(submitting), middle(asking), middle(connecting)


def cpu_of(hosts):
    """Seconds of CPU that all processes on the hosts, and the dead ones among them, have had."""
    tables, ticks = {node.table for node in hosts.nodes}, 0
    for pid in claims.pids():
        if namespace_of(pid) in tables and (stat := claims.read(pid, "stat")):
            ticks += sum(map(int, stat.rpartition(b")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def used_by(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def many(folder, pairs, hosts):
    """Seconds until submit returns, of its own CPU, of the hosts' until then, and of status and its CPU: medians."""
    with Bench(folder, hosts, disk_size="64m") as bench:
        body = "name: quick\nrun:\n  command: [sleep, '600']\nresources: "
        spec = bench.desk.spec(body + f"{{nodes: {hosts}, ranks_per_node: 1, gpus_per_node: 0}}\n")
        rows = []
        for _ in range(pairs + 1):
            before, own = cpu_of(bench.hosts), used_by(resource.RUSAGE_CHILDREN)
            took, run = bench.timed([BIN / "launch", "submit", spec, "--on", "pool"])
            own, theirs = used_by(resource.RUSAGE_CHILDREN) - own, cpu_of(bench.hosts) - before
            run = run.strip()
            bench.desk.until("the run", lambda run=run: bench.desk.state_there(0, run).get("state") == "running")
            asked = used_by(resource.RUSAGE_CHILDREN)
            status, _ = bench.timed([BIN / "launch", "status", run])
            rows.append((took, own, theirs, status, used_by(resource.RUSAGE_CHILDREN) - asked))
            bench.desk.launch("cancel", run, timeout=4 * BOUND_S)
        return [middle(values) for values in zip(*rows[1:], strict=True)]  # the first brings the launcher there


MANY = (
    "Measure how long `launch submit` and `launch status` take with a pool of many SSH hosts, "
    "and how much CPU time they need."
)
COLUMNS = (
    "The first columns are about `launch submit` of a run on every host of the pool: how long it takes, its "
    "own CPU time, the CPU time of all hosts until then, and that of `each` host. `status` and the column "
    "after it are `launch status` of this run and its CPU time. The last three columns are a comparison "
    "without launch's programs: as many SSH logins to one sshd, with a command over each, the CPU time of "
    "the client, and that of the sshd."
)
_PROBE = str(HERE.parents[1] / "launcher" / "places" / "ssh" / "probe_there.py")
_BOTH = ("launcher.places.ssh.host.server", "launcher.places.ssh.host.receive", "launcher.supervisor.__main__",
         "launcher.places.ssh.host.host_supervisor")  # fmt: skip
PARTS = {
    "the first": [_PROBE, '{"workdir": "~/launch"}'],
    "the second, if it only answers the submitter": ["-m", "launcher.programs", "host"],
    "the second, with all modules that it and its fork import": ["-c", f"import {', '.join(_BOTH)}"],
}


def parts_of_a_host(times=5):
    """Milliseconds of CPU for each Python that a submit starts on a host, the least of a few."""
    found = {}
    for what, words in PARTS.items():
        taken = []
        for _ in range(times):
            before = used_by(resource.RUSAGE_CHILDREN)
            nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            subprocess.run([sys.executable, "-P", *words], check=True, **nothing)
            taken.append(used_by(resource.RUSAGE_CHILDREN) - before)
        found[what] = 1000 * min(taken)
    return found


def logins(folder, count):
    """Seconds for so many logins to one sshd and a command over each, of this process's CPU, and of the host's."""
    with Bench(folder, 1) as bench:
        os.environ |= bench.hosts.env
        target = target_of(SshHost("node0"))
        connect_all([target], lambda *_: None)["node0"].close()  # imports
        began, before, there = time.monotonic(), used_by(resource.RUSAGE_SELF), cpu_of(bench.hosts)
        lines = connect_all([replace(target, name=f"host{number}") for number in range(count)], lambda *_: None)
        if any(done.code for done in for_all(lines, lambda _, line: line.run(["true"])).values()):
            raise SystemExit("not every command succeeded")
        took, cpu = time.monotonic() - began, used_by(resource.RUSAGE_SELF) - before
        for line in lines.values():
            line.close()
        bench.desk.until("the logins' end", lambda: not bench.desk.everything())
        return took, cpu, cpu_of(bench.hosts) - there


def together(folder, submits, hosts):
    """Seconds until all of these submits have returned that are made at once, to hosts with nothing of ours on them."""
    with Bench(folder, hosts) as bench:
        bench.hosts.empty(libraries=False)
        body = (
            "name: quick\nrun:\n  command: [sleep, '60']\nresources: {nodes: 1, ranks_per_node: 1, gpus_per_node: 0}\n"
        )
        words = [BIN / "launch", "submit", bench.desk.spec(body), "--on", "pool"]
        environment, began = {**os.environ, **bench.desk.env}, time.monotonic()
        running = [subprocess.Popen(words, cwd=bench.desk.project, env=environment) for _ in range(submits)]
        if any(submit.wait() for submit in running):
            raise SystemExit("not every submit was taken")
        return time.monotonic() - began


def main():
    parser = benchmark_parser(__doc__, pairs=5)
    parser.add_argument("--many", type=int, nargs="+", default=[32, 100, 200])
    parser.add_argument("--patience-s", type=float, default=60)
    parser.add_argument("--only", nargs="+", choices=_ALL)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the lab comes down
    chosen = args.only or _ALL
    rows = ["| what | launch | beside it | |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if "submit" in chosen:
            (folder / "submit").mkdir()
            submit, status, ssh = submits(folder / "submit", args.pairs, 4)
            rows.append(f"| submit returns, 4 hosts | {submit:.2f} s | | |")
            beside = f"`ssh HOST true` {ssh:.3f} s"
            rows.append(f"| status of one run | {status:.3f} s | {beside} | + {status - ssh:.3f} s |")
        if "many" in chosen:
            publish("ssh_many", table_of_many(folder, args), write=args.write, title="ssh.py --only many", what=MANY)
        if "together" in chosen:
            times = []
            for turn in range(args.pairs):
                (folder / f"together-{turn}").mkdir()
                times.append(together(folder / f"together-{turn}", 8, 4))
            rows.append(f"| 8 submits at once return, 4 hosts with nothing of ours | {middle(times):.1f} s | | |")
        if {"start", "kill", "host"} & {*chosen}:
            (folder / "races").mkdir()
            with Bench(folder / "races") as bench:
                races(bench, args, chosen, rows)
    if rows[2:]:
        notes = (
            "`beside it` is the time of the same task without launch, and the last column the difference or the ratio "
            "of the two. `ssh torchrun` starts torchrun on each host by ssh. `own store` means "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; `5 of 5` is the number of kills after which all ranks made a "
            "step. The first step was measured with the code on the hosts already. The hosts were network namespaces "
            "of this machine, each with its own sshd and disk (tests/lab). In the row of several submits at once, "
            "hosts do not have the launcher yet."
        )
        publish("ssh", "\n".join([*rows, "", notes]), write=args.write)


def table_of_many(folder, args):
    head = ["hosts", "submit returns, s", "its CPU, s", "the hosts' CPU until then, s", "each, s", "status, s",
            "its CPU, s", "as many logins to one sshd and a command each, s", "their CPU, s", "sshd's, s"]  # fmt: skip
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for count in args.many:
        for what in ("hosts", "logins"):
            (folder / f"{what}-{count}").mkdir()
        took, own, theirs, status, asking = many(folder / f"hosts-{count}", args.pairs, count)
        shown = [took, own, theirs, theirs / count, status, asking, *logins(folder / f"logins-{count}", count)]
        rows.append(f"| {count} | {' | '.join(f'{value:.2f}' for value in shown)} |")
    parts = "; ".join(f"{what}, {ms:.0f}" for what, ms in parts_of_a_host().items())
    cost = f"Their CPU time, in ms: {parts}. Disks of hosts are in memory."
    second = "The second answers the submitter, receives the run and forks the supervisor."
    rows.append(
        f"\n{COLUMNS}\n\nOn each host a submit starts two Python processes. The first checks the host. {second} {cost}"
    )
    return "\n".join(rows)


def races(bench, args, chosen, rows):
    if "start" in chosen:
        first_step(bench, LAUNCH, "code")  # code is there already
        taken = take_turns(args.pairs, (LAUNCH, TORCHRUN), lambda peer, turn: first_step(bench, peer, turn))
        rows.append(first_step_row("submit to first step of all, 4 hosts", taken))
    if "kill" in chosen:
        peers = (LAUNCH, WITH_VARIABLE, TORCHRUN)
        taken = take_turns(args.pairs, peers, lambda peer, turn: killed_rank(bench, peer, turn, args.patience_s))
        rows += recovery_rows("kill -9 on host 4 to next step of all", taken)
    if "host" in chosen:
        times = [lost_host(bench, turn) for turn in range(min(3, args.pairs))]
        rows.append(f"| power of a host cut to next step of all, a spare, lease 15 s | {middle(times):.1f} s | | |")


if __name__ == "__main__":
    main()
