"""Trials that are stopped at a rung and go on later, and the best that are trained further: from their checkpoints."""

import json

import pytest
from msgspec.structs import replace
from optuna.trial import TrialState

from launcher.apps.sweeps.decide import Rung
from launcher.apps.sweeps.extending import best_runs, queue_extensions
from launcher.apps.sweeps.folder import SweepDir, SweepRecord, SweepState, TrialNote, Wanted
from launcher.apps.sweeps.points import grid
from launcher.apps.sweeps.sweep import Sweep
from launcher.apps.sweeps.trial_book import TrialBook, enqueue_extensions
from launcher.errors import BadInput, Refused
from launcher.run.durable import make_dir, readable, write_record
from launcher.spec.model import Dimension, EarlyStop, SweepOptions

pytestmark = pytest.mark.nightly

SCRIPT = """
import argparse, json, os, pathlib, signal, sys
parser = argparse.ArgumentParser()
for name in ("x", "steps"):
    parser.add_argument("--" + name, type=int)
args = parser.parse_args()
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
folder = pathlib.Path(os.environ["LAUNCH_CHECKPOINT_DIR"])
folder.mkdir(exist_ok=True)
file = folder / "step"
begin = int(file.read_text()) if file.exists() else 0
print("from step", begin, flush=True)
with open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1) as wire:
    for step in range(begin + 1, args.steps + 1):
        wire.write(json.dumps({"step": step, "loss": args.x - step / 100}) + "\\n")
        file.write_text(str(step))
        while args.x and step in (1, 2, 4) and not stopped:  # of these each is stopped at its rung
            signal.sigtimedwait([], 0.05)
        if stopped:
            sys.exit(1)
"""
SPEC = """
name: rungs
run: {script: t.py, preload: [], args: {steps: 8}}
resources: {ranks_per_node: 1}
sweep:
  search: grid
  metric: loss
  mode: min
  parallel: 1
  space: {run.args.x: [0, 2, 1, 3]}
  stop: {early: asha, min_steps: 1, factor: 2}
"""


def trials_of(lab, sweep):
    status = json.loads(lab.launch("sweep", "status", sweep, "--json").stdout)["status"]
    return status["state"], [(one["state"], one["value"]) for one in status["trials"]], status["trials"]


def begun_from(lab, run):
    return [int(line.rpartition(" ")[2]) for line in lab.rank_logs(run).splitlines() if "from step" in line]


def test_who_is_among_the_best_goes_on_and_the_best_are_trained_further(lab):
    lab.script("t.py", SCRIPT)
    done = lab.launch("sweep", lab.spec(SPEC), "--follow")
    sweep = done.stdout.splitlines()[0]
    assert "all 4 trials are done (1 complete, 3 pruned of 4)" in done.stderr
    runs = [f"{sweep}-t{number:04d}" for number in range(4)]
    # With four trials two go on from the first rung: x of 1, which was stopped when there were three.
    assert [begun_from(lab, run) for run in runs] == [[0], [0], [0, 1], [0]]
    assert [lab.status(run)["attempt"] for run in runs] == [1, 1, 2, 1]

    assert lab.launch("sweep", "extend", "last", "--best", "1", "--steps", "12", "--follow").stdout.startswith(runs[0])
    state, values, trials = trials_of(lab, sweep)
    assert state == "succeeded"
    ended = ["complete", "pruned", "pruned", "pruned", "complete"]
    assert values == [*zip(ended, [-0.08, 2 - 0.01, 1 - 0.02, 3 - 0.01, -0.12], strict=True)]
    assert (trials[4]["run"], trials[4]["params"]) == (runs[0], trials[0]["params"])
    assert begun_from(lab, runs[0]) == [0, 8]
    assert json.loads(lab.launch("sweep", "best", "--json").stdout)["number"] == 4

    lab.until("all to leave", lambda: not lab.processes())


@pytest.fixture
def sweep(tmp_path):
    space = {"run.args.n": Dimension(values=(1, 2, 3, 4))}
    options = SweepOptions("acc", "max", "grid", 4, 2, space, stop=EarlyStop("asha", 1, 2))
    found = SweepDir(tmp_path / "x-abcd")
    make_dir(found.path)
    write_record(found.wanted, Wanted(4))
    record = SweepRecord("x-abcd", "/p", "local", (), options, 7, (), tuple(grid(space)), 0.0)
    write_record(found.record, record)
    return found, record


@pytest.mark.daily
@pytest.mark.parametrize("trials", [0, -1])
def test_trials_are_added_and_never_taken_away(sweep, trials):
    found, _ = sweep
    with pytest.raises(BadInput, match=f"--trials: expected a number above 0, got {trials}"):
        Sweep("x-abcd", found.path).add(trials)
    assert readable(found.wanted, Wanted) == Wanted(4)


@pytest.mark.daily
def test_what_the_journal_says_of_rungs(sweep):
    book = TrialBook(*sweep)
    for number, value in enumerate((0.9, 0.5, 0.7, 0.1)):
        book.choose(book.ask(), f"r{number}")
        book.report(number, [(1, value)], may_prune=True)
    entries = book.entries()
    assert [one.pruned_at for one in entries] == [None, 1, 1, 1]
    assert [one.rung for one in entries] == [Rung(0, 0, 4), Rung(0, 2, 4), Rung(0, 1, 4), Rung(0, 3, 4)]
    assert [one.rung.is_climbed(2) for one in entries] == [True, False, True, False]
    book.promote(2, 1)
    again = TrialBook(*sweep).entries()[2]  # as a conductor finds it that begins after a kill
    assert (again.pruned_at, again.goes_on_after) == (None, 1)
    book.report(2, [(2, 0.2)], may_prune=True)
    assert book.entries()[2].pruned_at is None, "it is the only one at that rung"
    book.report(0, [(2, 0.9)], may_prune=True)
    book.report(2, [(4, 0.2)], may_prune=True)
    assert book.entries()[2].rung == Rung(2, 0, 1)


def test_an_extension_is_the_next_trial_of_the_same_run(sweep):
    book = TrialBook(*sweep)
    book.choose(book.ask(), "r0")
    book.tell(0, 0.5, pruned=False, why="")
    note = TrialNote(0, "complete", "r0", book.entries()[0].params, 0.5)
    enqueue_extensions(sweep[0], [(note, 3)], ["run.args.steps=9"])
    number = book.ask()
    book.choose(number, "r1")
    found = book.entries()[number]
    assert (found.run, found.params, found.goes_on_after) == ("r0", note.params, 3)
    assert found.extension == ("run.args.steps=9",)
    book.choose(book.ask(), "r2")
    assert book.entries()[2].params == {"run.args.n": 2}, "the points of the search are the same"
    assert TrialState.WAITING not in {one.state for one in book._study.get_trials()}


@pytest.mark.daily
def test_the_best_are_those_whose_runs_are_not_at_work():
    def note(number, state, run, value=None):
        return TrialNote(number, state, run, {}, value)

    trials = [
        note(0, "complete", "r0", 0.5),
        note(1, "complete", "r1", 0.9),
        note(2, "pruned", "r2", 1.0),
        note(3, "complete", "r0", 0.7),
        note(4, "complete", "r4", 0.8),
        note(5, "running", "r4"),
    ]
    assert [one.number for one in best_runs(trials, "max")] == [1, 3]
    assert [one.number for one in best_runs(trials, "min")] == [0, 1]


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (1, (), "expected what changes"),
        (2, ("run.args.steps=20",), "expected 1 to 1, the trials that are complete, got 2"),
        (0, ("run.args.steps=20",), "got 0"),
        (1, ("run.args.epochs=2",), "its spec has no such argument"),
        (1, ("run.args.x=2",), "is what the sweep chooses"),
        (1, ("run.arks.steps=2",), "unknown option"),
    ],
)
def test_what_cannot_be_trained_further_is_noted_nowhere(tmp_path, count, words, said):
    project = tmp_path / "project"
    project.mkdir()
    (project / "t.py").write_text(SCRIPT)
    found = SweepDir(tmp_path / "rungs-abcd")
    make_dir(found.path)
    found.spec.write_text(SPEC)
    space = {"run.args.x": Dimension(values=(0, 1))}
    options = SweepOptions("loss", "min", "grid", 2, 1, space)
    write_record(found.record, SweepRecord("rungs-abcd", str(project), "local", (), options, 7, (), None, 0.0))
    status = SweepState("succeeded", "", (TrialNote(0, "complete", "r0", {"run.args.x": 0}, 0.5),), 0.0)
    with pytest.raises(BadInput, match=said):
        queue_extensions(found, status, count, words)
    assert not found.journal.exists()
    with pytest.raises(Refused, match="no further trial begins: 5 trials have failed"):
        queue_extensions(
            found, replace(status, state="failed", message="5 trials have failed"), 1, ["run.args.steps=20"]
        )
