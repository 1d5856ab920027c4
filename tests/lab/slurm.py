"""A Slurm cluster of its own: munged, slurmctld and a slurmd in each node, with slurmdbd and MariaDB on request."""

import os
import secrets
import signal
import stat
import sys
import time
from pathlib import Path

from tests.lab import accounting
from tests.lab.claims import kill
from tests.lab.nodes import (
    LabError,
    Namespace,
    Node,
    Program,
    command_of,
    lay_bridge,
    power_on,
    until,
    write_hosts,
)
from tests.lab.up_and_down import ClusterLab

CPUS, MEMORY_MB, GPUS = 8, 8000, 2

# What the tests count on; a lab is given others by name. Short times, as a test waits for the end of each.
CONF = {
    "SlurmUser": "root",
    "AuthType": "auth/munge",
    "CredType": "cred/munge",
    "MpiDefault": "none",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU_Memory",
    "DefMemPerCPU": "100",
    "GresTypes": "gpu",
    "SlurmdParameters": "config_overrides",
    "CommunicationParameters": "NoCtldInAddrAny",
    "ReturnToService": "2",
    "SlurmdTimeout": "10",
    "MessageTimeout": "5",
    "KillWait": "5",
    "MinJobAge": "300",
    "InactiveLimit": "0",
    "JobRequeue": "1",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "LogTimeFormat": "iso8601_ms",
    "SlurmctldDebug": "verbose",
    "SlurmdDebug": "verbose",
}
PARTITIONS = (
    "main Default=YES PriorityTier=10 PreemptMode=REQUEUE GraceTime=0",
    "graceful PriorityTier=10 PreemptMode=REQUEUE GraceTime=10",
    "cancelled PriorityTier=10 PreemptMode=CANCEL GraceTime=0",
    "urgent PriorityTier=100 PreemptMode=OFF",
    "minute PriorityTier=10 PreemptMode=REQUEUE MaxTime=1",
)
# A requeued job waits for as long as a job's credential lives, and a second; Slurm takes less than 5 as 120.
REQUEUE_DELAY_S = 5
_BATCH_STEP = 0xFFFFFFFB  # of a script, in the name of the socket of its slurmstepd
_MOST_LETTERS = 107  # of the name of a socket
_GENTLE_S = 5  # how long a cluster may take to get well by itself
_REPAIR_S = 20  # how long it may take to after what was done last


class SlurmNode(Node):
    port: int  # at which its slurmd listens

    def kill_slurmd(self) -> None:
        """kill -9 of the daemon alone: its jobs live on."""
        self.kill_program("slurmd")

    def start_slurmd(self) -> None:
        """Start slurmd and wait until it listens, as srun takes a refused connection for an answer."""
        self.start(self.programs["slurmd"])
        until(f"slurmd of {self.name}", self._came_up)

    def _came_up(self) -> bool:
        self.check()
        return self.listens(self.port)

    def job_pids(self) -> list[int]:
        """The processes of jobs, and what they left behind: all but the first process, its programs and slurmstepd."""
        return [pid for pid in self.started() if command_of(pid) != "slurmstepd"]


class SlurmLab(ClusterLab):
    """A cluster of this many nodes."""

    def __init__(self, folder: Path, nodes: int = 4, *, accounting: bool = False, stays: bool = False, **conf: str):
        super().__init__(folder, stays=stays)
        self.size = nodes
        self.accounting = accounting
        self.conf = {**CONF, **conf}
        self.slurm_conf = self.folder / "slurm.conf"
        self.env = {"SLURM_CONF": str(self.slurm_conf)}
        self.munge_socket = self.folder / "munge.sock"
        self.nodes: list[SlurmNode] = []
        self._counts_again = 0.0  # from when on its controller may be told to

    # -- up and down

    def come_up(self) -> None:
        socket = self.folder / "spool" / "node0" / f"node0_9999.{_BATCH_STEP}"
        if len(os.fsencode(socket)) > _MOST_LETTERS:
            raise LabError(f"{self.folder} is too long a name: jobs would be held, as slurmstepd cannot have {socket}")
        self.address = self.claim.address(1)
        self.port = 20000 + 10 * self.claim.subnet
        self.control = Namespace("control", self.own_etc, self.claim, net=False)
        self.nodes = [
            SlurmNode(index, self.claim, self.own_etc, [self._slurmd(index)], self.env) for index in range(self.size)
        ]
        for node in self.nodes:
            node.port = self.port + 1
        self.parts = [*self.nodes, self.control]
        write_hosts(self.hosts, {"control": self.address, **{node.name: node.address for node in self.nodes}})
        self._write_files()
        lay_bridge(self.claim)
        self._start_control()
        power_on(self.nodes)
        until("an idle cluster", self.all_idle)

    def _start_control(self) -> None:
        self.control.begin()
        self.control.finish()
        munged = ["munged", "--foreground", "--force", f"--socket={self.munge_socket}"]
        for option, name in (("key", "munge.key"), ("pid", "munged.pid"), ("seed", "munge.seed")):
            munged.append(f"--{option}-file={self.folder / name}")
        munged.append(f"--log-file={self.logs}/munged.log")
        self.control.start(Program("munged", munged, self.logs / "munged.out"))
        until("munged's socket", self.munge_socket.exists)
        if self.accounting:
            accounting.start(self.folder, self.control, address=self.address, port=self.port + 2, logs=self.logs)
        self.start_controller()

    def _slurmd(self, index: int) -> Program:
        return Program(
            "slurmd", ["slurmd", "-D", "-N", f"node{index}"], self.logs / f"slurmd-node{index}.log", self.env
        )

    # -- files

    def _write_files(self) -> None:
        for name in ("dev", "state", *(f"spool/{node.name}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        for number in range(GPUS):
            os.mknod(self.folder / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(195, 200 + number))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/dev/gpu[0-{GPUS - 1}]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.slurm_conf.write_text(self._configuration())

    def _configuration(self) -> str:
        lines = {
            "ClusterName": f"lab{self.claim.subnet}",
            "SlurmctldHost": f"control({self.address})",
            "SlurmctldPort": str(self.port),
            "SlurmdPort": str(self.port + 1),
            "AuthInfo": f"socket={self.munge_socket},cred_expire={REQUEUE_DELAY_S}",
            "SlurmctldPidFile": f"{self.folder}/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/slurmd-%n.pid",
            "SlurmdSpoolDir": f"{self.folder}/spool/%n",
            "StateSaveLocation": f"{self.folder}/state",
            "AccountingStorageType": "accounting_storage/none",
        }
        if self.accounting:
            port = self.port + 2
            lines |= accounting.configure(self.folder, address=self.address, port=port, munge=self.munge_socket)
        shape = f"CPUs={CPUS} RealMemory={MEMORY_MB} Gres=gpu:{GPUS} State=UNKNOWN"
        text = [f"{key}={value}" for key, value in (lines | self.conf).items()]
        text += [
            f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} {shape}" for node in self.nodes
        ]
        text += [f"PartitionName={line} Nodes=node[0-{self.size - 1}] State=UP" for line in PARTITIONS]
        return "\n".join(text) + "\n"

    # -- the controller

    def start_controller(self) -> None:
        self.control.start(Program("slurmctld", ["slurmctld", "-D"], self.logs / "slurmctld.log", self.env))

    def stop_controller(self) -> None:
        """kill -9. A job that it has not saved yet is lost at its return, processes and all, and its id goes round."""
        self.control.kill_program("slurmctld")

    def save_state(self) -> None:
        """Have the controller save its state to disk, which it does not do by itself when a job starts."""

        def saved_at():
            try:
                return (self.folder / "state" / "job_state").stat().st_mtime_ns
            except FileNotFoundError:
                return 0  # none yet, or the controller is replacing it

        before = saved_at()
        self.ask("scontrol", "reconfigure")
        until("saved state", lambda: saved_at() not in (0, before))

    def freeze_controller(self) -> None:
        """Suspend the controller, which then accepts connections and never answers."""
        self.control.signal("slurmctld", signal.SIGSTOP)

    def thaw_controller(self) -> None:
        self.control.signal("slurmctld", signal.SIGCONT)

    # -- use

    def clear(self, timeout: float = 150, repair_s: float = _REPAIR_S) -> None:
        """Undo everything: every job and process of one ends, and all nodes and the controller are well again.

        One more thing is restarted each `repair_s` until they are.
        """
        if not self.control.up:
            self._start_control()
        elif "slurmctld" not in self.control.running():
            self.start_controller()
        self.thaw_controller()
        for node in self.nodes:
            node.revive()
        began = time.monotonic()
        repairs = iter((self._restart_deaf_nodes, self._boot_deaf_nodes, self._restart_controller) * 9)
        next_repair = began + repair_s

        def clear() -> bool:
            nonlocal next_repair
            now = time.monotonic()
            if now > next_repair:
                repair = next(repairs)
                deaf = ", ".join(node.name for node in self._deaf()) or "no node"
                print(f"the lab is repaired: {repair.__name__}, {deaf} is deaf", file=sys.stderr)
                repair()
                next_repair = time.monotonic() + repair_s
            return self._cleared(now > began + _GENTLE_S)

        try:
            until("a clear cluster", clear, timeout)
            self._give_all_nodes()
        except LabError as error:
            logs = "".join(f"{node.name}: {self._log_of(node)}" for node in self._deaf())
            raise LabError(f"{error}: {self.run('sinfo', '-N').stdout}{self.run('squeue').stdout}{logs}") from None

    def _give_all_nodes(self) -> None:
        """One job gets every node whole. A controller that was killed may call all nodes idle and yet keep some of
        their processors for a job that is gone, until it is started again."""
        whole = ("salloc", "-Q", f"-N{self.size}", "--exclusive", f"--gres=gpu:{GPUS}", f"--immediate={_REPAIR_S}")
        if (asked := self.run(*whole, "true")).returncode:
            kept = self.run("scontrol", "show", "nodes", "-o").stdout
            print(f"the lab is repaired: idle nodes are not given, {asked.stderr}{kept}", file=sys.stderr)
            self.stop_controller()
            self.start_controller()
        until("an idle cluster", self.idle)

    def _deaf(self) -> list[SlurmNode]:
        lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").stdout.splitlines()
        deaf = {line.split()[0] for line in lines if line.endswith("*")}
        return [node for node in self.nodes if node.name in deaf]

    def _log_of(self, node: SlurmNode) -> str:
        return (self.logs / f"slurmd-{node.name}.log").read_text(errors="replace")[-2000:]

    def _restart_deaf_nodes(self) -> None:
        """A controller that died in the midst of a job's end may wait for minutes before it asks a node again."""
        for node in self._deaf():
            if "slurmd" in node.running():
                node.kill_slurmd()
            node.start(node.programs["slurmd"])

    def _boot_deaf_nodes(self) -> None:
        for node in self._deaf():
            node.power_off()
            node.power_on()

    def _restart_controller(self) -> None:
        if self._deaf():
            self.stop_controller()
            self.start_controller()

    def _cleared(self, impatient: bool) -> bool:
        listed = self.run("squeue", "-h", "-o", "%A")
        if jobs := listed.stdout.split():
            self.run("scancel", *set(jobs))
        for node in self.nodes:
            for pid in node.job_pids():
                kill(pid)
        for line in self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").stdout.splitlines():
            name, state = line.split()
            if state in {"down", "drained", "draining"}:
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
            elif state.startswith("completing"):
                if impatient:
                    # Told to end a job, it had no power; it is told again after a minute only. The job of a node that
                    # is said to be down is over.
                    self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=lab")
                if listed.returncode == 0 and not jobs:
                    self._count_anew()
        return self.idle()

    def _count_anew(self) -> None:
        """Killed after it had saved that a node is down, and before that its job has ended, the controller takes
        another node of that job for one that ends it, for ever, until it reads its configuration."""
        if time.monotonic() > self._counts_again:
            self.run("scontrol", "reconfigure")
            self._counts_again = time.monotonic() + _REPAIR_S

    def idle(self) -> bool:
        nodes = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        if nodes.returncode or nodes.stdout.split() != ["idle"] * self.size:
            return False
        jobs = self.run("squeue", "-h", "-o", "%i")
        return jobs.returncode == 0 and not jobs.stdout.strip()
