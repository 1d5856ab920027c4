"""A Grid Engine cluster of its own: sge_qmaster, and a sge_execd in each node. No install script is run.

The cluster knows its machines by the names that its hosts file gives them, so its clients run under such a name, too:
`qsub` and the others are small scripts in FOLDER/bin that enter the box of the qmaster first.
"""

import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.lab.claims import kill
from tests.lab.nodes import (
    BOUND_S,
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

LIB, SHARE = Path("/usr/lib/gridengine"), Path("/usr/share/gridengine")
CLIENTS = ("qacct", "qalter", "qconf", "qdel", "qhost", "qmod", "qrls", "qrsh", "qselect", "qstat", "qsub")
SLOTS, GPUS = 8, 2

# What the tests count on; a lab is given others by name. Short times, as a test waits for the end of each.
CONF = {
    "min_uid": "0",
    "min_gid": "0",
    "mailer": "/bin/true",
    "load_report_time": "00:00:01",
    "max_unheard": "00:00:05",
    "reschedule_unknown": "00:00:02",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 "
    "joblog=false sharelog=00:00:00",
}
SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "job_load_adjustments": "NONE",
}
# One slot on each host is a host for launch; with `packed` a job has any hosts, and with `single` but one.
ENVIRONMENTS = {"launch": "1", "packed": "$fill_up", "single": "$pe_slots"}
ENVIRONMENT = {
    "slots": "999",
    "user_lists": "NONE",
    "xuser_lists": "NONE",
    "start_proc_args": "NONE",
    "stop_proc_args": "NONE",
    "control_slaves": "TRUE",
    "job_is_first_task": "FALSE",
    "urgency_slots": "min",
    "accounting_summary": "TRUE",
    "qsort_args": "NONE",
}
QUEUE = {
    "hostlist": "@allhosts",
    "seq_no": "0",
    "suspend_interval": "00:05:00",
    "nsuspend": "1",
    "priority": "0",
    "min_cpu_interval": "00:05:00",
    "processors": "UNDEFINED",
    "qtype": "BATCH INTERACTIVE",
    "pe_list": " ".join(ENVIRONMENTS),
    "rerun": "FALSE",
    "slots": str(SLOTS),
    "tmpdir": "/tmp",
    "shell": "/bin/sh",
    "shell_start_mode": "unix_behavior",
    "notify": "00:00:05",
    "initial_state": "default",
}
_UNSET = (
    "load_thresholds suspend_thresholds ckpt_list prolog epilog starter_method suspend_method resume_method "
    "terminate_method owner_list user_lists xuser_lists subordinate_list complex_values projects xprojects calendar"
)
_LIMITS = "rt cpu fsize data stack core rss vmem"
_GENTLE_S = 5  # how long a cluster may take to get well by itself
_CALL_S = 15  # how long a daemon that was started again may take to be heard, before it is once more


class GridEngineNode(Node):
    def kill_execd(self) -> None:
        """kill -9 of the daemon alone: its jobs live on."""
        self.kill_program("sge_execd")

    def start_execd(self) -> None:
        self.start(self.programs["sge_execd"])

    def job_pids(self) -> list[int]:
        """The processes of jobs, and what they left behind."""
        return [pid for pid in self.started() if command_of(pid) != "sge_shepherd"]


class GridEngineLab(ClusterLab):
    """A cluster of this many nodes."""

    def __init__(self, folder: Path, nodes: int = 3, *, stays: bool = False, **conf: str):
        super().__init__(folder, stays=stays)
        self.size = nodes
        self.conf = {**CONF, **conf}
        self.root = self.folder / "sge"
        self.common = self.root / "default" / "common"
        self.spool = self.folder / "spool"
        self.bin = self.folder / "bin"
        self.nodes: list[GridEngineNode] = []

    # -- up and down

    def come_up(self) -> None:
        port = 20000 + 10 * self.claim.subnet + 5
        self.cell = {
            "SGE_ROOT": str(self.root),
            "SGE_CELL": "default",
            "SGE_ARCH": "lx-amd64",
            "SGE_CLUSTER_NAME": f"lab{self.claim.subnet}",
            "SGE_QMASTER_PORT": str(port),
            "SGE_EXECD_PORT": str(port + 1),
        }
        self.env = {**self.cell, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        self.control = Namespace("control", self.own_etc, self.claim, net=False, env=self.cell)
        self.nodes = [
            GridEngineNode(index, self.claim, self.own_etc, [self._execd(index)], self.cell)
            for index in range(self.size)
        ]
        self.parts = [*self.nodes, self.control]
        write_hosts(self.hosts, {"control": self.claim.address(1), **{node.name: node.address for node in self.nodes}})
        lay_bridge(self.claim)
        self._write_files()
        self._start_control()
        self._configure()
        power_on(self.nodes)
        until("an idle cluster", self.all_idle)

    def _execd(self, index: int) -> Program:
        return self._daemon("sge_execd", f"node{index}")

    def _daemon(self, name: str, place: str) -> Program:
        stays = {"SGE_ND": "1"}  # in the foreground
        return Program(name, [str(LIB / name)], self.logs / f"{name}-{place}.log", {**self.cell, **stays})

    def _start_control(self) -> None:
        self.control.begin()
        self.control.finish()
        self._write_clients()
        if not (self.spool / "qmaster" / "managers").exists():
            self._make_spool()
        self.start_master()

    # -- files

    def _write_files(self) -> None:
        for folder in (self.common, self.bin, self.spool / "qmaster" / "job_scripts", self.spool / "execd"):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ("bin", "lib", "utilbin"):
            (self.root / name).mkdir(exist_ok=True)
            (self.root / name / self.cell["SGE_ARCH"]).symlink_to(LIB)
        (self.root / "util").symlink_to(SHARE / "util")
        (self.common / "act_qmaster").write_text("control\n")
        (self.common / "cluster_name").write_text(f"{self.cell['SGE_CLUSTER_NAME']}\n")
        _write(self.common / "bootstrap", {
            "admin_user": "none",
            "default_domain": "none",
            "ignore_fqdn": "false",
            "spooling_method": "classic",
            "spooling_lib": "libspoolc",
            "spooling_params": self._spooling,
            "binary_path": str(LIB),
            "qmaster_spool_dir": f"{self.spool}/qmaster",
            "security_mode": "none",
            "listener_threads": "2",
            "worker_threads": "2",
            "scheduler_threads": "1",
        })  # fmt: skip

    @property
    def _spooling(self) -> str:
        return f"{self.common};{self.spool}/qmaster"

    def _write_clients(self) -> None:
        """Write Grid Engine's client programs; outside of its nodes they run in the control node's namespaces."""
        enter = f'nsenter --target={self.control.pid} --mount --uts --wdns="$PWD"'
        for name in CLIENTS:
            script = self.bin / name
            script.write_text(
                f'#!/bin/sh\ncmp -s /etc/hosts {self.hosts} && exec {LIB / name} "$@"\nexec {enter} {LIB / name} "$@"\n'
            )
            script.chmod(0o755)

    def _make_spool(self) -> None:
        """Write the files that the qmaster reads when it starts for the first time."""
        conf = _read(SHARE / "default-configuration") | {"execd_spool_dir": f"{self.spool}/execd"} | self.conf
        _write(self.folder / "spool" / "configuration", conf)
        resources = SHARE / "util" / "resources"
        self._prepare("spoolinit", "classic", "libspoolc", self._spooling, "init")
        for kind, value in (
            ("configuration", f"{self.spool}/configuration"),
            ("complexes", f"{resources}/centry"),
            ("usersets", f"{resources}/usersets"),
            ("managers", "root"),
            ("adminhosts", "control"),
        ):
            self._prepare("spooldefaults.bin", kind, value)

    def _prepare(self, program: str, *words: str) -> None:
        done = self.control.exec(str(LIB / program), *words, env={**self.cell, "LD_LIBRARY_PATH": str(LIB)})
        if done.returncode:
            raise LabError(f"{program} {' '.join(words)}: {done.stdout}{done.stderr}")

    def _configure(self) -> None:
        """Configure hosts, resources and queues of the running qmaster, as an administrator would."""
        names = [node.name for node in self.nodes]
        self.ask("qconf", "-ah", ",".join(names))
        self.ask("qconf", "-as", ",".join(["control", *names]))
        self.set("-Mc", "complexes", self.ask("qconf", "-sc") + "\ngpu gpu INT <= YES YES 0 0")
        for name in names:
            values = dict.fromkeys(("load_scaling", "user_lists", "xuser_lists", "projects", "xprojects"), "NONE")
            values |= {"usage_scaling": "NONE", "report_variables": "NONE"}
            self.set("-Ae", name, _lines({"hostname": name, "complex_values": f"gpu={GPUS}", **values}))
        self.set("-Ahgrp", "allhosts", _lines({"group_name": "@allhosts", "hostlist": " ".join(names)}))
        for name, rule in ENVIRONMENTS.items():
            self.set("-Ap", name, _lines({"pe_name": name, "allocation_rule": rule, **ENVIRONMENT}))
        limits = {f"{kind}_{name}": "INFINITY" for kind in "sh" for name in _LIMITS.split()}
        unset = dict.fromkeys(_UNSET.split(), "NONE")
        self.set("-Aq", "all.q", _lines({"qname": "all.q", **unset, **limits, **QUEUE}))
        self.set("-Msconf", "scheduler", _lines(_parse(self.ask("qconf", "-ssconf")) | SCHEDULER))

    def set(self, option: str, name: str, text: str) -> None:
        """Give the qmaster a file, as qconf has it."""
        file = self.spool / f"{name}{option}"
        file.write_text(text + "\n")
        self.ask("qconf", option, str(file))

    # -- the qmaster

    def start_master(self) -> None:
        self.control.start(self._daemon("sge_qmaster", "control"))
        until("an answer of sge_qmaster", self._answers)

    def _answers(self) -> bool:
        self.control.check()
        return self.run("qconf", "-sh").returncode == 0

    def stop_master(self) -> None:
        """kill -9. It writes down late which number the last job had: none is to be a job's again, and ended for it."""
        self.control.kill_program("sge_qmaster")
        last = self.spool / "qmaster" / "jobseqnum"
        last.write_text(f"{(int(last.read_text()) if last.exists() else 0) + 100}\n")

    def thaw_master(self) -> None:
        self.control.signal("sge_qmaster", signal.SIGCONT)

    # -- use

    def clear(self, timeout: float = BOUND_S) -> None:
        """Undo everything: every job and process of one ends, and all nodes and the qmaster are well again."""
        alone = not self.control.up or "sge_qmaster" not in self.control.running()
        if not self.control.up:
            self._start_control()
        elif alone:
            self.start_master()
        self.thaw_master()
        if alone:
            self._restart_execds([node.name for node in self.nodes])
        for node in self.nodes:
            node.revive()
        gentle = time.monotonic() + _GENTLE_S
        try:
            until("a clear cluster", lambda: self._cleared(time.monotonic() > gentle), timeout)
        except LabError as error:
            raise LabError(f"{error}: {self.run('qstat', '-f', '-u', '*').stdout}") from None

    def _restart_execds(self, names: Collection[str]) -> None:
        """Left alone, one may call a new qmaster, or one that takes it for its dead forerunner, only after a minute."""
        for node in self.nodes:
            if node.name in names and node.up and "sge_execd" in node.running():
                node.kill_execd()
                node.start_execd()

    def _cleared(self, impatient: bool) -> bool:
        if self.idle():
            return True
        self.run("qdel", "-f", "-u", "*")
        for node in self.nodes:
            for pid in node.job_pids():
                kill(pid)
        self.run("qmod", "-c", "*")
        self.run("qmod", "-e", "*")
        if impatient:
            self._restart_execds(self._unheard())
            call_by = time.monotonic() + _CALL_S
            while self._unheard() and time.monotonic() < call_by:
                time.sleep(0.1)
        time.sleep(0.1)
        return False

    def _unheard(self) -> list[str]:
        """The nodes whose daemons the qmaster does not hear."""
        return [queue.partition("@")[2] for queue in self.run("qselect", "-qs", "u").stdout.split()]

    def idle(self) -> bool:
        queues = self.run("qselect", "-q", "all.q")
        unwell = self.run("qselect", "-qs", "audDsSE")
        jobs = self.run("qstat", "-u", "*")
        whole = queues.returncode == 0 and len(queues.stdout.split()) == self.size
        return whole and not unwell.stdout.strip() and jobs.returncode == 0 and not jobs.stdout.strip()


def _lines(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name} {value}" for name, value in values.items())


def _write(path: Path, values: Mapping[str, str]) -> None:
    path.write_text(_lines(values) + "\n")


def _read(path: Path) -> dict[str, str]:
    return _parse(path.read_text())


def _parse(text: str) -> dict[str, str]:
    rows = (line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return dict(rows)
