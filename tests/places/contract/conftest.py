"""Every place where runs go, as a user has it: a project, and the name of a cluster. The real ones, in the lab."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab import BOUND_S, Lab
from login_node import MISSING, Laptop, LoginNode
from ssh_desk import Desk

from tests.lab.fixtures import hosts, lab_possible, shared_grid_engine_lab, shared_hosts, shared_lab
from tests.lab.requirements import skip_or_fail
from tests.places.batch_sites import LSF, PBS, BatchSite
from tests.places.kube_cluster import set_up, tear_down

__all__ = ["hosts", "lab_possible", "shared_grid_engine_lab", "shared_hosts", "shared_lab"]

VERBS = Path(__file__).parent / "verbs.py"
PLACES = ("local", "slurm", "gridengine", "pbs", "lsf", "k8s", "ssh", "ssh by OpenSSH", "login")


class Site:
    """A user's project, and a cluster; each verb is asked in a process of its own, of an object that knows nothing."""

    def __init__(self, desk, on, everything):
        self.desk = desk
        self.on = on
        self.everything = everything  # the processes of the runs, wherever they are

    def verb(self, name, *words):
        """Return what verbs.py prints."""
        done = subprocess.run(
            [sys.executable, VERBS, name, self.on, *map(str, words)],
            cwd=self.desk.project,
            env=self.desk.env,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, steps, *words):
        spec = self.desk.chain(args=f"steps: {steps}", resources="ranks_per_node: 2\ngpus_per_node: 0")
        return self.desk.submit(spec, "--on", self.on, *words)

    def ended(self):
        """A run that has ended here, and would go on for long if it were resumed with more steps."""
        run = self.submit(3)
        self.desk.wait(run)
        self.desk.until("the end of its processes", lambda: not self.everything())
        return run

    def state(self, run):
        return self.desk.status(run)["state"]

    def until_running(self, run):
        """Wait for a step of the newest attempt: the step alone may be that of an earlier one."""
        self.desk.until("a step", lambda: (now := self.desk.status(run))["state"] == "running" and now["step"])


@pytest.fixture(params=PLACES)
def site(request, tmp_path):
    make = {
        "local": _local,
        "slurm": _slurm,
        "gridengine": _grid_engine,
        "pbs": _queue_of(PBS, "pbs"),
        "lsf": _queue_of(LSF, "lsf"),
        "k8s": _kubernetes,
        "ssh": _pool,
        "ssh by OpenSSH": _pool_by_openssh,
        "login": _login,
    }[request.param]
    site = make(request, tmp_path)
    yield site
    try:
        site.desk.until("the end of every process of its runs", lambda: not site.everything())
    finally:
        site.desk.tidy()


def _local(_request, folder):
    desk = Lab(folder)
    return Site(desk, "local", desk.processes)


def _slurm(request, folder):
    slurm = request.getfixturevalue("shared_lab")
    slurm.well()
    request.addfinalizer(slurm.clear)
    desk = Lab(folder)
    desk.env |= slurm.env
    return Site(desk, "slurm", desk.processes)


def _grid_engine(request, folder):
    grid = request.getfixturevalue("shared_grid_engine_lab")
    grid.well()
    request.addfinalizer(grid.clear)
    desk = Lab(folder)
    desk.env |= grid.env
    return Site(desk, "gridengine", desk.processes)


def _queue_of(programs, on):
    """A batch system whose programs carry jobs out on this machine."""

    def made(request, folder):
        desk = Lab(folder)
        jobs = BatchSite(desk, folder, programs)
        request.addfinalizer(jobs.tidy)
        return Site(desk, on, desk.processes)

    return made


def _kubernetes(request, folder):
    desk = Lab(folder)
    cluster = set_up(desk, folder)
    request.addfinalizer(lambda: tear_down(desk, cluster))
    return Site(desk, "plain", desk.processes)


def _login(request, folder):
    """A login node whose cluster is that machine itself."""
    if MISSING:
        skip_or_fail(MISSING)
    node = LoginNode(folder / "far").up()
    request.addfinalizer(node.tidy)
    desk = Lab(folder)
    near = Laptop(folder / "near", node)
    clusters = near.root / "config" / "launch" / "clusters.yaml"
    desk.env |= {"LAUNCH_CLUSTERS": str(clusters), "LAUNCH_SSH_CONFIG": near.env["LAUNCH_SSH_CONFIG"]}
    return Site(desk, node.name, node.processes)


def _pool(request, folder):
    desk = Desk(folder, request.getfixturevalue("hosts"))
    return Site(desk, "pool", desk.everything)


def _pool_by_openssh(request, folder):
    site = _pool(request, folder)
    text = Path(site.desk.env["LAUNCH_CLUSTERS"]).read_text()
    own = folder / "clusters.yaml"
    own.write_text(text.replace("kind: ssh", "kind: ssh\n  transport: openssh"))
    own.chmod(0o600)
    site.desk.env["LAUNCH_CLUSTERS"] = str(own)
    return site
