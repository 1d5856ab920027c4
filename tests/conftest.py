"""Rules for all tests: which run, which environment they see, and that they leave no process behind."""

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import settings
from lab import Lab

from launcher.run.processes import TAG
from tests import sizes
from tests.lab.requirements import need
from tests.selection import Shard, longest_first, read_times, write_times

NIGHTLY_SCALE = 4
_FUZZING_S = 120.0  # for a fuzz target at scale 1


def pytest_addoption(parser):
    group = parser.getgroup("launch")
    group.addoption("--nightly", action="store_true", help="run all tests, with more random cases and a new seed")
    group.addoption("--shard", metavar="K/N", type=Shard.parse, help="run the K-th of N parts of the chosen tests")
    group.addoption("--scale", metavar="N", type=int, help=f"random cases, times N ({NIGHTLY_SCALE} with --nightly)")
    group.addoption("--seed", metavar="N", type=int, help="seed of what is drawn at random")
    group.addoption("--write-times", action="store_true", help="record how long each file took in tests/times.txt")


def pytest_configure(config):
    """Set how much tests try before they are imported, here and in each worker of pytest-xdist."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started with `&`: programs of tests would ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    options = config.option
    if options.seed is None:
        options.seed = time.time_ns() % 10**6 if options.nightly else 1
    if options.scale is None:
        options.scale = NIGHTLY_SCALE if options.nightly else 1
    sizes.NIGHTLY, sizes.SCALE, sizes.SEED = options.nightly, options.scale, options.seed
    # On a busy machine one example in a thousand is slow for no fault of its own; each test has its time-out.
    settings.register_profile(
        "project", deadline=None, print_blob=True, max_examples=100 * sizes.SCALE, derandomize=not options.nightly
    )
    settings.load_profile("project")


def pytest_report_header(config):
    options = config.option
    return f"launch: {'nightly' if options.nightly else 'daily'} tests, scale {options.scale}, seed {options.seed}"


def pytest_collection_modifyitems(config, items):
    """Leave out nightly tests unless they are asked for, and those of other shards; put the longest files first."""
    nightly, shard, times = config.option.nightly, config.option.shard, read_times()
    if not nightly:
        late = {item for item in items if item.get_closest_marker("nightly") and not item.get_closest_marker("daily")}
        config.hook.pytest_deselected(items=[item for item in items if item in late])
        items[:] = [item for item in items if item not in late]
    for item in items:
        if sizes.SCALE > 1 and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.timeout(_FUZZING_S * sizes.SCALE))  # a mark of its own comes first
    order = longest_first({_file(item) for item in items}, times, nightly=nightly)
    if shard is not None:
        mine = shard.files(order, times, nightly=nightly)
        config.hook.pytest_deselected(items=[item for item in items if _file(item) not in mine])
        items[:] = [item for item in items if _file(item) in mine]
    turn = {file: number for number, file in enumerate(order)}
    items.sort(key=lambda item: turn[_file(item)])


def _file(item):
    return item.nodeid.split("::")[0]


def pytest_runtest_setup(item):
    """Skip a test marked `needs(PROGRAM, …)`, or fail it where CI is set, if one of the programs is not installed."""
    for mark in item.iter_markers("needs"):
        need(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Show the newest records of a failed test's runs: not every failure happens a second time."""
    report = yield
    if report.failed:
        for desk in {id(one): one for one in getattr(item, "funcargs", {}).values() if isinstance(one, Lab)}.values():
            report.sections += [(str(path), path.read_text(errors="replace")[-3000:]) for path in records_of(desk)]
    return report


def pytest_sessionfinish(session):
    """Record how long each file took, where that is asked for."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.write_times and reporter is not None and not hasattr(session.config, "workerinput"):
        reports = [report for kind in ("passed", "failed", "") for report in reporter.stats.get(kind, [])]
        write_times(reports, nightly=session.config.option.nightly)


def records_of(desk):
    """Return the newest files of the runs of `desk` that say what happened."""
    wanted = ("events.jsonl", "keeper.log", "agent.log", "zygote.log", "exit.json", "stderr")
    runs = desk.project / ".launch" / "runs"
    found = [path for path in runs.rglob("*") if path.name in wanted and path.is_file() and path.stat().st_size]
    return sorted(found, key=lambda path: path.stat().st_mtime)[-12:]


@pytest.fixture(scope="session", autouse=True)
def environment_of_nobody():
    """Keep variables of a job that the tests themselves run in from what they start."""
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
    """Give each test the usual umask: programs of ours that a test calls as functions set a stricter one."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory):
    """Fail where a process of a run outlives the suite."""
    yield
    base = str(tmp_path_factory.getbasetemp())
    left = {pid: tag for pid, tag in tagged_processes().items() if base in tag}
    assert not left, f"processes of runs are left: {left}"


@pytest.fixture
def lab(tmp_path):
    """A user's project and state folder; fails where something of their runs is left at the end."""
    lab = Lab(tmp_path)
    yield lab
    try:
        lab.until("the end of every process of its runs", lambda: not lab.processes())
    finally:
        lab.tidy()


def tagged_processes():
    """Return the tag of each process that carries a run's tag, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is not ours to look at
        found |= {int(folder.name): os.fsdecode(word) for word in words if word.startswith(f"{TAG}=".encode())}
    return found
