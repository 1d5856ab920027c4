"""Test what a host reports of its disk and deletes, and how far that is trusted."""

import os
import subprocess

import pytest

from launcher.errors import Unreachable
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.runs_here import tidy
from launcher.places.ssh.messages import Tidied, Tidy
from launcher.places.ssh.results import tidying
from launcher.run.layout import RunDir
from tests.run_folder import RunFolder, plan_of

OLD, OTHER = "old-aaaa", "other-bbbb"


@pytest.fixture
def disk(tmp_path):
    """A host's folder: two runs, the code of each and some that nobody needs, all of it not used lately."""
    for run, digest in ((OLD, "a" * 64), (OTHER, "b" * 64), (None, "c" * 64)):
        tree = tmp_path / "code" / digest
        tree.mkdir(parents=True)
        (tree / "train.py").write_text("1" * 5000)
        os.utime(tree, (0, 0))
        if run is not None:
            made = RunFolder(tmp_path / "runs" / run)
            plan = plan_of(made.path)
            made.write(made.run.plan, type(plan)(**{**as_dict(plan), "code": type(plan.code)(digest, 1, 5000)}))
    return tmp_path


def as_dict(record):
    return {name: getattr(record, name) for name in record.__struct_fields__}


def code(disk):
    return sorted(tree.name[0] for tree in (disk / "code").iterdir())


def test_it_is_told_and_nothing_goes(disk):
    told = tidy(disk, Tidy(str(disk), (OLD, "never-cccc"), remove=False))
    assert (list(told.runs), told.live) == ([OLD], ())
    assert told.runs[OLD] > 0
    assert told.code >= 2 * 5000  # of the run itself too, once it is gone
    assert code(disk) == ["a", "b", "c"]


def test_it_goes_with_the_code_that_nobody_needs_then(disk):
    os.utime(disk / "code" / ("c" * 64))  # on its way to become a run's
    tidy(disk, Tidy(str(disk), (OLD,), remove=True))
    assert [path.name for path in (disk / "runs").iterdir()] == [OTHER]
    assert code(disk) == ["b", "c"]
    assert tidy(disk, Tidy(str(disk), (OLD,), remove=True)).runs == {}


def test_what_lives_stays(disk):
    with presence.held(RunDir(disk / "runs" / OLD)):
        told = tidy(disk, Tidy(str(disk), (OLD, OTHER), remove=True))
    assert told.live == (OLD,)
    environment = {**os.environ, "LAUNCH_RUN_DIR": str(disk / "runs" / OLD)}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        assert tidy(disk, Tidy(str(disk), (OLD,), remove=True)).live == (OLD,)
        process.kill()
    assert [path.name for path in (disk / "runs").iterdir()] == [OLD]
    assert "a" in code(disk)


@pytest.fixture
def tidy_by(monkeypatch, disk):
    """Return the summary of hosts' answers about two runs on each."""

    def of(answers, apart):
        told = [(name, [OLD, OTHER], one) for name, one in answers.items()]
        monkeypatch.setattr(tidying, "_ask_hosts", lambda *_: told)
        monkeypatch.setattr(tidying, "_disks_apart", lambda _: apart)
        return tidying.tidy([RunDir(disk / "runs" / OLD), RunDir(disk / "runs" / OTHER)], remove=False)

    return of


def test_a_host_speaks_of_what_it_was_asked_about(tidy_by):
    (one,) = tidy_by({"gpu1": Tidied({OLD: 5, "lies-9999": 7}, 3, ("lies-9999", OTHER))}, apart=True)
    assert (one.runs, one.code, one.live, one.silent) == ({OLD: 5}, 3, (OTHER,), "")


def test_each_host_has_a_disk_of_its_own(tidy_by):
    one, two = tidy_by({"gpu1": Unreachable("gpu1: no route"), "gpu2": Tidied({OLD: 5}, 3)}, apart=True)
    assert (one.where, one.runs) == ("gpu2", {OLD: 5})
    assert (two.where, two.silent, {*two.runs}) == ("gpu1", "gpu1: no route", {OLD, OTHER})


def test_on_one_disk_the_word_of_one_host_is_enough(tidy_by):
    (one,) = tidy_by({"gpu1": Unreachable("gpu1: no route"), "gpu2": Tidied({}, 3), "gpu3": Tidied({OLD: 5}, 3)}, False)
    assert (one.where, one.runs) == ("gpu3", {OLD: 5})
    (silent,) = tidy_by({"gpu1": Unreachable("gpu1: no route")}, apart=False)
    assert {*silent.runs} == {OLD, OTHER}
    _, live = tidy_by({"gpu1": Tidied({OLD: 5}, 3), "gpu2": Tidied({}, 3, (OLD,))}, apart=False)
    assert live.live == (OLD,)
