"""Train the best trials of a sweep further: choose them, and check that it is possible. An override, such as
`run.args.lr=0.1`, sets one option of the spec, as `--set` does.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from launcher.api import Run
from launcher.apps.sweeps.folder import SweepDir, SweepRecord, SweepState, TrialNote, record_of
from launcher.apps.sweeps.trial_book import enqueue_extensions
from launcher.apps.sweeps.trial_runs import NO_SWEEP
from launcher.errors import BadInput, Refused
from launcher.spec.read import written_at
from launcher.submission.requests import read_request


def queue_extensions(sweep: SweepDir, status: SweepState, count: int, overrides: Sequence[str]) -> list[str]:
    """Queue further training of the runs of the `count` best trials, with the changes in `overrides`, as new trials;
    return the runs' ids, the best first.

    Nothing is queued if that is impossible: raise BadInput if fewer than `count` trials are complete or an override
    does not fit the sweep, and Refused if the sweep has failed or its time is over.
    """
    record = record_of(sweep)
    _check(sweep, record, status, overrides)
    found = best_runs(status.trials, record.options.mode)
    if not 1 <= count <= len(found):
        raise BadInput(f"{sweep.id}: expected 1 to {len(found)}, the trials that are complete, got {count}")
    trials = [(one, Run.get(one.run).status().attempt) for one in found[:count]]
    enqueue_extensions(sweep, trials, overrides)
    return [one.run for one, _ in trials]


def best_runs(trials: Sequence[TrialNote], mode: str) -> list[TrialNote]:
    """Return the best complete trial of each run, best first; runs with a running or paused trial are left out.

    A run that was trained further has several trials. The best value is the highest if `mode` is "max", else the
    lowest.
    """
    sign, busy = 1 if mode == "max" else -1, {one.run for one in trials if one.state in ("running", "paused")}
    complete = [one for one in trials if one.state == "complete" and one.value is not None and one.run not in busy]
    ordered = sorted(complete, key=lambda one: (-sign * (one.value or 0.0), one.number))
    return [*{one.run: one for one in reversed(ordered)}.values()][::-1]


def _check(sweep: SweepDir, record: SweepRecord, status: SweepState, overrides: Sequence[str]) -> None:
    """Check that trials can be trained further with `overrides`.

    Raise Refused if the sweep has failed, or if the time that its settings allow since it began is over; BadInput if
    there are no overrides, if one sets an option that the sweep chooses or an argument that the spec lacks, or if the
    spec with them is invalid.
    """
    limit_s = record.options.budget.time_s
    if status.state == "failed" or (limit_s is not None and time.time() > record.began_at + limit_s):
        why = status.message if status.state == "failed" else "its time is over"
        raise Refused(f"{sweep.id}: no further trial begins: {why}", "hint: launch resume RUN goes on with one run")
    if not overrides:
        raise BadInput("expected what changes, such as more steps", "hint: --steps 5000, or --set run.args.epochs=30")
    for word in overrides:
        key = word.partition("=")[0]
        if key in record.options.space:
            raise BadInput(f"{key}: is what the sweep chooses; a trial that is trained further keeps it")
        if key.startswith("run.args.") and written_at(sweep.spec.read_text(), record.overrides, key) is None:
            raise BadInput(f"{key}: its spec has no such argument", "hint: --set names the one that says how long")
    words, root = (*record.overrides, NO_SWEEP, *overrides), Path(record.project)
    read_request(sweep.spec, on=record.on, overrides=words, root=root)
