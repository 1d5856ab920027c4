"""What holds for every test: whose environment it sees, and that the whole suite leaves no process behind."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from lab import Lab
from shares import SEED, SHARE, of_other_days

from launcher.agent.processes import TAG
from tests.lab.requirements import PACKAGES as LAB_PACKAGES

# On a busy machine one example in a thousand is slow for no fault of its own; each test has its time-out.
settings.register_profile("project", deadline=None, print_blob=True, max_examples=100 * SHARE)
settings.load_profile("project")


_FUZZING_S = 120.0  # for a target, at the share of CI
PROGRAMS = {
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "fish": "fish",
    "git": "git",
    "losetup": "mount",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "prometheus": "prometheus",
    "setpriv": "util-linux",
    "ss": "iproute2",
    "strace": "strace",
    "zsh": "zsh",
    **LAB_PACKAGES,
}
_FETCH_S = 600.0  # at most, for all packages
# A mirror that is silent, or another program that installs, is waited for that long and no longer.
_PATIENT = ("-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=300")
SERVICES_POLICY = Path("/usr/sbin/policy-rc.d")  # what Debian's packages ask before they start a service


def pytest_sessionstart(session):
    """Bring the programs that some tests need, where that is possible; else those tests name what they miss."""
    if hasattr(session.config, "workerinput"):
        return  # of pytest-xdist: the process that distributes the tests has done it
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if missing and shutil.which("apt-get") and os.getuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
        with no_services():
            for words in (["update", "-qq"], ["install", "-qq", "-y", *missing]):
                subprocess.run(["apt-get", *_PATIENT, *words], check=True, timeout=_FETCH_S, **quiet)


# What takes longest, in this order: nobody is to begin with it when the others are done.
LONGEST = (
    "ssh/test_showcase.py",
    "slurm/test_showcase.py",
    "quality/test_style.py",
    "jobs/test_shipped_jobs.py",
    "test_readme.py",
    "docs/test_pages.py",
    "trainer/loop/test_staying.py",
    "trainer/strategies/test_pipeline.py",
    "slurm/test_lost_nodes.py",
    "ssh/test_submit_kills.py",
    "trainer/tasks/",
    "slurm/",
    "ssh/",
    "login/",
    "local/",
    "agent/replication/",
    "trainer/checkpoint",
)


# At the nightly size alone: in CI another test shows the same, as the words behind each say.
NIGHTLY = (
    "jobs/test_shipped_jobs.py::test_it_learns_in_about_a_minute",  # test_readme.py begins that job
    "trainer/tasks/test_learning.py::test_a_resnet_tells_stripes_apart",  # and there it learns
    "slurm/test_showcase.py::test_taken_from_slurm_to_this_machine_and_back",  # ssh/test_showcase.py goes there too
    "ssh/test_showcase.py::test_a_host_gone_for_good",  # agent/replication/test_agents.py loses a disk
    "agent/replication/test_agents.py::test_a_training_that_loses_a_disk",  # ssh/test_showcase.py loses two hosts
)

DEALING = pytest.StashKey[bool]()


def pytest_configure(config):
    """Whoever names a test gets it; of the whole suite a share is tried, unless all of it is asked for."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # started with `&`: what the tests start would not hear Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = config.args_source is config.ArgsSource.TESTPATHS and not config.option.keyword
    of_xdist = getattr(config, "workerinput", {})
    config.stash[DEALING] = of_xdist.get("dealing", whole and SHARE == 1)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """What a worker of pytest-xdist is told: it has the same arguments, but not from the same place."""
    node.workerinput["dealing"] = node.config.stash[DEALING]


def pytest_collection_modifyitems(config, items):
    """Which tests, and the files in the order in which they are given out."""
    if config.stash[DEALING]:
        late = {item for item in items if any(name in item.nodeid for name in NIGHTLY)} | _of_other_days(items)
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if item not in late]
    for item in items:
        if SHARE > 1 and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.timeout(_FUZZING_S * SHARE))  # a mark of its own comes first
    items.sort(key=lambda item: _turn(str(item.path.relative_to(Path(__file__).parent))))


def _of_other_days(items):
    marks = {item: item.get_closest_marker("dealt") for item in items}
    return of_other_days((item, mark.args[0]) for item, mark in marks.items() if mark)


def _turn(file):
    return next((turn for turn, name in enumerate(LONGEST) if file.startswith(name)), len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that fails tells what its runs have written down: not each failure comes again."""
    report = yield
    if report.failed:
        for desk in {id(one): one for one in getattr(item, "funcargs", {}).values() if isinstance(one, Lab)}.values():
            report.sections += [(str(path), path.read_text(errors="replace")[-3000:]) for path in records_of(desk)]
    return report


def pytest_sessionfinish(session):
    """What failed, in itself or in a fixture, is written down for tests/again.py, with the seed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput") or not hasattr(session.config, "cache"):
        return
    failed = {report.nodeid: None for kind in ("failed", "error") for report in reporter.stats.get(kind, [])}
    told = {"failed": [*failed], "seed": SEED}
    session.config.cache.set("launch/last_run", told)


def records_of(desk):
    """The newest files of its runs that say what happened."""
    wanted = ("events.jsonl", "keeper.log", "agent.log", "zygote.log", "exit.json", "stderr")
    runs = desk.project / ".launch" / "runs"
    found = [path for path in runs.rglob("*") if path.name in wanted and path.is_file() and path.stat().st_size]
    return sorted(found, key=lambda path: path.stat().st_mtime)[-12:]


@contextmanager
def no_services() -> Iterator[None]:
    """What is installed meanwhile does not start: a test brings up its own slurmctld, sshd or database."""
    if SERVICES_POLICY.exists():
        yield  # this machine has its own policy
        return
    SERVICES_POLICY.write_text("#!/bin/sh\nexit 101\n")
    SERVICES_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICES_POLICY.unlink()


@pytest.fixture(scope="session", autouse=True)
def environment_of_nobody():
    """Tests may themselves run inside a job: no variable of it may reach what they start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith(("LAUNCH_", "SLURM_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
                patch.delenv(name)
        # Without this, every process that a test starts compiles what it imports, again and again.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        # Without this, each print writes its text and its end apart, and ranks with one stdout write between the two.
        patch.delenv("PYTHONUNBUFFERED", raising=False)
        yield


@pytest.fixture(autouse=True)
def umask_of_everybody():
    """Programs of ours that a test calls as functions leave a stricter one."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory):
    """No process of a run outlives the suite."""
    yield
    base = str(tmp_path_factory.getbasetemp())
    left = {pid: tag for pid, tag in tagged_processes().items() if base in tag}
    assert not left, f"processes of runs are left: {left}"


@pytest.fixture
def lab(tmp_path):
    """A project and a state folder of a user of their own; nothing of its runs may be left at the end."""
    lab = Lab(tmp_path)
    yield lab
    try:
        lab.until("the end of every process of its runs", lambda: not lab.processes())
    finally:
        lab.tidy()


def tagged_processes():
    """Every process that carries a run's tag, and the tag."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is not ours to look at
        found |= {int(folder.name): os.fsdecode(word) for word in words if word.startswith(f"{TAG}=".encode())}
    return found
