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

from launcher.apps.sweeps.conducting import Round
from launcher.apps.sweeps.decide import TrialRun
from launcher.apps.sweeps.folder import SweepDir, SweepRecord, Wanted, record_of
from launcher.apps.sweeps.points import grid
from launcher.apps.sweeps.trial_book import TrialBook
from launcher.run.durable import make_dir, write_record
from launcher.spec.model import Dimension, EarlyStop, SweepOptions
from launcher.states import State

CHANGES = ("fsync", "symlink", "link", "rename", "unlink", "mkdir")
SPACE = {"run.args.lr": Dimension(low=1e-4, high=1.0, log=True), "run.args.n": Dimension(values=(1, 2, 3))}
GRID = {"run.args.a": Dimension(values=(1, 2)), "run.args.n": Dimension(values=(1, 2))}
TRIALS = 4
HALVING = "random, halved"
VALUES, LAST_STEP = (0.9, 0.2, 0.5, 0.1), 4  # of each trial; the third is among the best two as soon as there are four


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

    def expect(self, run_id):
        """Do nothing: this conductor needs no preparation."""

    def look(self, run_ids):
        there = [one for one in run_ids if (self.folder / one).is_dir()]
        return {one: TrialRun(State.SUCCEEDED, float(len(one))) for one in there}

    def rest(self, seconds):
        """End all active runs at once."""

    def reports(self, run_id):
        return ()

    def cancel(self, run_id):
        raise AssertionError("nobody asked for it")

    def revive(self, run_id, overrides):
        raise AssertionError("nobody asked for it")


class Halved(Pretended):
    """A run makes steps 1, 2 and 4, each once the one before has been read, and can be cancelled and go on between."""

    def start(self, run_id, overrides):
        super().start(run_id, overrides)
        if self._now(run_id) is None:
            self._note(run_id, "running", 1, 1, read=False)

    def look(self, run_ids):
        return {one: self._look(one) for one in run_ids if self._now(one) is not None}

    def reports(self, run_id):
        state, attempt, steps, _ = self._now(run_id)
        self._note(run_id, state, attempt, steps, read=True)
        return [(step, VALUES[int(run_id[-1])]) for step in (1, 2, 4) if step <= steps]

    def cancel(self, run_id):
        state, attempt, steps, read = self._now(run_id)
        assert state == "running"
        self._note(run_id, "cancelled", attempt, steps, read=read)

    def revive(self, run_id, overrides):
        state, attempt, steps, _ = self._now(run_id)
        assert (state, overrides) == ("cancelled", ()), "it goes on once each time"
        self._note(run_id, "running", attempt + 1, steps, read=False)

    def _look(self, run_id):
        state, attempt, steps, read = self._now(run_id)
        if state == "running" and read:
            state, steps = ("succeeded", steps) if steps == LAST_STEP else ("running", 2 * steps)
            self._note(run_id, state, attempt, steps, read=False)
        return TrialRun(State(state), VALUES[int(run_id[-1])], attempt=attempt)

    def _now(self, run_id):
        file = self.folder / run_id / "now"
        return json.loads(file.read_text()) if file.exists() else None

    def _note(self, run_id, state, attempt, steps, *, read):
        draft = self.folder / run_id / f".{os.getpid()}"
        draft.write_text(json.dumps([state, attempt, steps, read]))
        draft.replace(self.folder / run_id / "now")


def prepare(folder, search):
    sweep = SweepDir(folder / "x-abcd")
    make_dir(sweep.path)
    make_dir(folder / "runs")
    space = GRID if search == "grid" else SPACE
    stop = EarlyStop("asha", 1, 2) if search == HALVING else EarlyStop()
    options = SweepOptions("acc", "max", "random" if search == HALVING else search, TRIALS, 2, space, stop=stop)
    points = tuple(grid(space)) if search == "grid" else None
    write_record(sweep.record, SweepRecord("x-abcd", "/p", "local", (), options, 7, (), points, 0.0))
    write_record(sweep.wanted, Wanted(TRIALS))
    return sweep


def conduct(sweep, record):
    kind = Pretended if record.options.stop.early == "none" else Halved
    rounds = Round(sweep, record, TrialBook(sweep, record), kind(sweep.path.parent / "runs"))
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
    """Kill the conductor at this point and conduct again; return whether the kill came."""
    status = in_child(lambda: struck(lambda: conduct(sweep, record), point))
    lock = sweep.journal.with_name("journal.log.lock")
    if lock.is_symlink():
        os.utime(lock, (1.0, 1.0), follow_symlinks=False)  # it is later, as when a person comes to look
    assert in_child(lambda: conduct(sweep, record)) == 0
    return os.WIFSIGNALED(status)


def outcome(sweep, record):
    """Return all trials as the journal, the conductor's state and the runs show them."""
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


def check_halved(sweep, record):
    """Check that each trial ended as its run did, and was continued exactly as often as was decided."""
    entries = TrialBook(sweep, record).entries()
    runs = {one.name: json.loads((one / "now").read_text()) for one in (sweep.path.parent / "runs").glob("x-*")}
    assert [one.number for one in entries] == list(range(TRIALS)), entries
    assert sorted(runs) == sorted(one.run for one in entries), (runs, entries)
    for one in entries:
        state, attempt, steps, _ = runs[one.run]
        assert (one.state, state) in (("complete", "succeeded"), ("pruned", "cancelled")), (one, state)
        assert one.goes_on_after == attempt - 1, (one, attempt)
        assert (state == "succeeded") == (steps == LAST_STEP) or state == "cancelled", (one, steps)
    assert json.loads(sweep.state.read_bytes())["state"] == "succeeded"
    return {one.number: runs[one.run][1] for one in entries}


def main():
    folder, search, every, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sweep = prepare(folder / "whole", search)
    record = record_of(sweep)
    counts = folder / "counts"
    assert in_child(lambda: struck(lambda: conduct(sweep, record), 0, counts)) == 0
    undisturbed = None if search == HALVING else outcome(sweep, record)
    if undisturbed is None:
        assert check_halved(sweep, record)[2] == 2, "it has gone on"
    else:
        check(undisturbed, undisturbed, search)
    total, fired = int(counts.read_text()), 0
    points = range(1 + at % every, total + 1, every)
    for point in points:
        try:
            sweep = prepare(folder / str(point), search)
            fired += killed_and_conducted_anew(sweep, record, point)
            if undisturbed is None:
                check_halved(sweep, record)
            else:
                check(outcome(sweep, record), undisturbed, search)
        except AssertionError:
            print(f"killed before change {point} of {total}")
            raise
        shutil.rmtree(sweep.path.parent)
    assert fired >= 0.9 * len(points), f"only {fired} of {len(points)} kills fired"
    print(f"{fired} kills of {total}")


if __name__ == "__main__":
    main()
