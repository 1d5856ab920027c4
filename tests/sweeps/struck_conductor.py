"""Conducts a sweep of runs that only pretend, again and again, killed before each change of the disk in turn.

    python struck_conductor.py FOLDER SEARCH EVERY AT

Of all such moments every EVERY-th is tried, beginning with AT. Where something is wrong afterwards it exits with 1.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from launcher.rundir.durable import make_dir, write_record
from launcher.spec.model import Dimension, SweepOptions
from launcher.sweeps.conducting import Round
from launcher.sweeps.decide import TrialRun
from launcher.sweeps.folder import SweepDir, SweepRecord, Wanted, record_of
from launcher.sweeps.points import grid
from launcher.sweeps.trial_book import TrialBook
from launcher.words import State

CHANGES = ("fsync", "symlink", "link", "rename", "unlink", "mkdir")
SPACE = {"run.args.lr": Dimension(low=1e-4, high=1.0, log=True), "run.args.n": Dimension(values=(1, 2, 3))}
GRID = {"run.args.a": Dimension(values=(1, 2)), "run.args.n": Dimension(values=(1, 2))}
TRIALS = 4


class Pretended:
    """A run is a folder that is made once; it has succeeded as soon as it is looked at."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, run_id, overrides):
        if not (self.folder / run_id).exists():
            draft = self.folder / f".{os.getpid()}"
            draft.mkdir()
            (draft / "overrides").write_text(json.dumps(overrides))
            os.rename(draft, self.folder / run_id)

    def look(self, run_ids):
        there = [one for one in run_ids if (self.folder / one).is_dir()]
        return {one: TrialRun(State.SUCCEEDED, float(len(one))) for one in there}

    def reports(self, run_id):
        return ()

    def cancel(self, run_id):
        raise AssertionError("nobody asked for it")

    def revive(self, run_id, overrides):
        raise AssertionError("nobody asked for it")


def prepare(folder, search):
    sweep = SweepDir(folder / "x-abcd")
    make_dir(sweep.path)
    make_dir(folder / "runs")
    space = GRID if search == "grid" else SPACE
    options = SweepOptions("acc", "max", search, TRIALS, 2, space)
    points = tuple(grid(space)) if search == "grid" else None
    write_record(sweep.record, SweepRecord("x-abcd", "/p", "local", (), options, 7, (), points, 0.0))
    write_record(sweep.wanted, Wanted(TRIALS))
    return sweep


def conduct(sweep, record):
    rounds = Round(sweep, record, TrialBook(sweep, record), Pretended(sweep.path.parent / "runs"))
    while not rounds.go()[1]:
        pass


def in_child(act):
    """The wait status of a process of its own that does this."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def struck(act, at, counts=None):
    """Do it, but be killed before that change of the disk; `counts`: where their number is written at the end."""
    seen = 0

    def counting(real):
        def call(*args, **more):
            nonlocal seen
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    for name in CHANGES:
        setattr(os, name, counting(getattr(os, name)))
    act()
    if counts is not None:
        counts.write_text(str(seen))


def killed_and_conducted_anew(sweep, record, point):
    """Whether the kill came."""
    status = in_child(lambda: struck(lambda: conduct(sweep, record), point))
    lock = sweep.journal.with_name("journal.log.lock")
    if lock.is_symlink():
        os.utime(lock, (1.0, 1.0), follow_symlinks=False)  # it is later, as when a person comes to look
    assert in_child(lambda: conduct(sweep, record)) == 0
    return os.WIFSIGNALED(status)


def outcome(sweep, record):
    """All trials, in the journal, in the conductor's word and as runs."""
    entries = TrialBook(sweep, record).entries()
    runs = {one.name: json.loads((one / "overrides").read_text()) for one in (sweep.path.parent / "runs").glob("x-*")}
    said = json.loads(sweep.state.read_bytes())
    return (
        [(one.number, one.state, one.params, one.run, one.value) for one in entries],
        runs,
        (said["state"], [(one["number"], one["state"], one["run"]) for one in said["trials"]]),
    )


def check(found, undisturbed, search):
    entries, runs, said = found
    assert [one[0] for one in entries] == list(range(TRIALS)), entries
    assert all(one[1] == "complete" for one in entries), entries
    assert sorted(runs) == sorted(one[3] for one in entries), (runs, entries)
    assert said[0] == "succeeded", said
    assert said[1] == [(one[0], one[1], one[3]) for one in entries], said
    for _, _, params, run, _ in entries:
        assert runs[run] == [f"{key}={value!r}" for key, value in params.items()], (runs, params)
    if search != "tpe":  # what it chooses depends on what it knows by then
        assert found == undisturbed


def main():
    folder, search, every, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sweep = prepare(folder / "whole", search)
    record = record_of(sweep)
    counts = folder / "counts"
    assert in_child(lambda: struck(lambda: conduct(sweep, record), 0, counts)) == 0
    undisturbed = outcome(sweep, record)
    check(undisturbed, undisturbed, search)
    total, fired = int(counts.read_text()), 0
    points = range(1 + at % every, total + 1, every)
    for point in points:
        try:
            sweep = prepare(folder / str(point), search)
            fired += killed_and_conducted_anew(sweep, record, point)
            check(outcome(sweep, record), undisturbed, search)
        except AssertionError:
            print(f"killed before change {point} of {total}")
            raise
        shutil.rmtree(sweep.path.parent)
    assert fired >= 0.9 * len(points), f"only {fired} of {len(points)} kills fired"
    print(f"{fired} kills of {total}")


if __name__ == "__main__":
    main()
