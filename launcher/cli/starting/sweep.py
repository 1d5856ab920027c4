"""`launch sweep`: begin a sweep, show its trials, stop and resume it, add trials, train the best ones further."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import columns, fitting, safe, show_news, to_json, width_of
from launcher.errors import BadInput, Exit
from launcher.ids import LAST
from launcher.states import LOCAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.apps.sweeps.folder import SweepState, TrialNote
    from launcher.apps.sweeps.sweep import Sweep

EXAMPLES = """
  launch sweep jobs/resnet_sweep.yaml             start it on this machine; prints the sweep's id
  launch sweep job.yaml --on slurm --follow       on a cluster, and watch its trials
  launch sweep status                             the newest sweep and its trials
  launch sweep best resnet-sweep-7k3f             the best trial: its value, its options, its run
  launch sweep stop last                          save and stop its trials
  launch sweep resume last                        continue them, also after the conductor was killed
  launch sweep add last --trials 20               twenty trials more
  launch sweep extend last --best 3 --steps 9000  train the best three further, from their checkpoints
  launch sweep plot last                          values by trial, and which options matter; here
  launch sweep plot last -o sweep.html            with parallel coordinates and slices, as pictures
"""
VERBS = ("status", "best", "stop", "resume", "add", "extend", "plot")
_THEIRS = {"list": "status", "ls": "status", "show": "status", "cancel": "stop", "continue": "resume", "more": "add"}
_KINDS = ("history", "parallel", "slice", "importance")
_LESS = ("STEP", "RUN", "WHY")
_PLOT_ROWS, _BAR = 12, 40


class StartedSweep(msgspec.Struct, frozen=True):
    """The id and the folder of a sweep that was started."""

    sweep: str  # its id
    sweep_dir: str


class ExtendedSweep(msgspec.Struct, frozen=True):
    """The runs that were started to continue a sweep's best trials."""

    sweep: str  # id of the sweep with these trials
    runs: tuple[str, ...]  # ids of the new runs


class SweepPicture(msgspec.Struct, frozen=True):
    """The value of each trial by its number, and the share of the result that each option explains."""

    sweep: str  # its id
    values: tuple[tuple[int, float], ...]  # (number of the trial, its value)
    importances: dict[str, float]  # by option


class WrittenPicture(msgspec.Struct, frozen=True):
    """The picture file that was written, and a line for each thing missing in it."""

    sweep: str  # its id
    file: str
    left_out: tuple[str, ...]


def _answers() -> dict[str, object]:
    """Return the type of each form of what `launch sweep --json` prints, by the arguments that print it, such as "SPEC"
    or "plot -o FILE".
    """
    from launcher.apps.sweeps.folder import SweepState, TrialNote  # late: the help does without

    page = msgspec.defstruct(
        "SweepPage", [("sweep", str), ("sweep_dir", str), ("wanted", int), ("status", SweepState)]
    )  # fmt: skip
    return {
        "SPEC": StartedSweep, "status, stop, resume, add": page, "best": TrialNote | None, "extend": ExtendedSweep,
        "plot": SweepPicture, "plot -o FILE": WrittenPicture,
    }  # fmt: skip


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch sweep`."""
    words = f"the YAML file of a job with `sweep:`; or one of {', '.join(VERBS)}"
    arguments.add_argument("what", metavar="SPEC", help=words)
    arguments.add_argument("sweep", metavar="SWEEP", nargs="?", default=LAST, help="a sweep's id, or `last`")
    arguments.takes_place(default=LOCAL)
    arguments.add_argument("--trials", metavar="N", type=int, help="with add: number of further trials")
    arguments.add_argument(
        "--best", metavar="K", type=int, help="with extend: number of trials that are trained further"
    )
    arguments.add_argument(
        "--steps", metavar="N", type=int, help="with extend: train up to this step, as --set run.args.steps=N"
    )
    arguments.add_argument(
        "-o", "--out", metavar="FILE", type=Path, help="with plot: a page (.html) or a picture (.png)"
    )
    arguments.add_argument("--kind", choices=_KINDS, help="with plot: only this picture")
    arguments.add_argument(
        "-f", "--follow", action="store_true", help="show each trial when it ends, until the sweep has ended"
    )
    arguments.prints_json(_answers, "one object, for programs")


def run(options: argparse.Namespace) -> int:
    """Run `launch sweep` and return its exit code."""
    from launcher.apps.sweeps.sweep import Sweep  # late: the help does without

    show_news()
    _refuse_stray(options)
    if options.what not in VERBS:
        return _begin(options)
    sweep = Sweep.get(options.sweep)
    match options.what:
        case "status":
            return _status(sweep, options)
        case "best":
            return _best(sweep, as_json=options.json)
        case "plot":
            return _plot(sweep, options)
        case "stop":
            status = sweep.stop()
            if not options.json:
                print(_headline(sweep, status))
        case "resume":
            sweep.resume()
        case "extend":
            more = [f"run.args.steps={options.steps}"] if options.steps else []
            runs = sweep.extend(options.best, [*options.overrides, *more])
            print(to_json(ExtendedSweep(sweep.id, tuple(runs))) if options.json else "\n".join(runs), flush=True)
        case _:
            print(f"{sweep.id}: {sweep.add(options.trials)} trials", file=sys.stderr)
    if options.json and options.what != "extend":
        return _status(sweep, options)
    return _follow(sweep) if options.follow else Exit.OK


def _refuse_stray(options: argparse.Namespace) -> None:
    """Raise BadInput for an option that does not go with the verb (status, add, extend, ...), or with another
    option.
    """
    if (options.trials is not None) != (options.what == "add"):
        raise BadInput("--trials goes with add", "hint: launch sweep add last --trials 20")
    if (options.best is not None) != (options.what == "extend") or (options.steps and options.best is None):
        raise BadInput("--best and --steps go with extend", "hint: launch sweep extend last --best 3 --steps 9000")
    if (options.out is not None or options.kind is not None) and options.what != "plot":
        raise BadInput("--out and --kind go with plot", "hint: launch sweep plot last -o sweep.html")
    if options.follow and options.json:
        raise BadInput("--follow does not go with --json", "hint: `launch sweep status --json` asks")


def _begin(options: argparse.Namespace) -> int:
    """Start a sweep and return the exit code. Raise BadInput if the first argument names no file, or is followed by
    another.
    """
    from launcher.apps.sweeps.sweep import sweep as begin  # late: it reads YAML

    _refuse_no_spec(options.what)
    if options.sweep != LAST:
        raise BadInput(f"expected one spec, got {safe(options.sweep)} too")
    sweep = begin(options.what, on=options.on, overrides=options.overrides)
    print(to_json(StartedSweep(sweep.id, str(sweep.path))) if options.json else sweep.id, flush=True)
    if options.follow:
        return _follow(sweep)
    print(f"watch it: launch sweep status {sweep.id}", file=sys.stderr)
    return Exit.OK


def _refuse_no_spec(what: str) -> None:
    """Raise BadInput unless `what`, the word in place of a spec, is an existing file. The error's hint proposes a verb
    of `launch sweep` that is similar, or lists all verbs.
    """
    if os.path.lexists(what):
        return
    verbs = ", ".join(VERBS)
    if what in _THEIRS or not re.search(r"[./]", what):
        import difflib  # late: only for a typing error

        near = [_THEIRS[what]] if what in _THEIRS else difflib.get_close_matches(what[:100], VERBS, n=1)
        meant = f"did you mean `launch sweep {near[0]}`?" if near else f"verbs are {verbs}"
        raise BadInput(f"{safe(what[:100])}: neither a verb of `launch sweep` nor a file", f"hint: {meant}")
    raise BadInput(
        f"{safe(what[:200])}: no such file", f"hint: expected the YAML file of a job with `sweep:`, or {verbs}"
    )


def _status(sweep: "Sweep", options: argparse.Namespace) -> int:
    """Print the sweep's state and its trials, or follow it; return the exit code."""
    if options.follow:
        return _follow(sweep)
    status = sweep.status()
    if options.json:
        print(
            to_json(
                {"sweep": sweep.id, "sweep_dir": str(sweep.path), "wanted": sweep.trials_wanted(), "status": status}
            )
        )
        return Exit.OK
    print(_headline(sweep, status))
    if status.trials:
        trials = grouped(status.trials, sweep.best())
        print("\n".join(fitting(_table(sweep, trials), _LESS, width_of(sys.stdout))))
    return Exit.OK


def _best(sweep: "Sweep", *, as_json: bool) -> int:
    """Print the best trial and how to get its weights or, with `as_json`, only the trial as JSON; return the exit code.
    It is 0 as well if no trial is complete, which is then printed (JSON: null).
    """
    best = sweep.best()
    if as_json:
        print(to_json(best))
        return Exit.OK
    if best is None:
        print(f"no trial of {sweep.id} is complete yet", file=sys.stderr)
        return Exit.OK
    rows = [("trial", str(best.number)), ("value", f"{best.value:.6g}"), ("run", best.run)]
    print("\n".join(columns([*rows, *((key, safe(str(value))) for key, value in best.params.items())])))
    print(_how_to_get_weights(sweep, best.run), file=sys.stderr)
    return Exit.OK


def _how_to_get_weights(sweep: "Sweep", run: str) -> str:
    """Return text with the command that writes the weights of the run `run` to a file; if it has no checkpoint of the
    trainer, return text with the command that shows its log.
    """
    from launcher.apps.sweeps.folder import SweepDir  # late: likewise
    from launcher.run.layout import RunDir  # late: only for this
    from launcher.status.checkpoints import kept  # late: likewise

    found = kept(RunDir(SweepDir(sweep.path).runs / run))
    if not (found.best or found.steps):
        return f"what it has said: launch logs {run}"
    return f"its weights: launch export {run}{' --best' if found.best else ''} -o model.safetensors"


def _plot(sweep: "Sweep", options: argparse.Namespace) -> int:
    """Draw the sweep into the file `options.out`, or else in the terminal; with `options.json` print JSON. Return exit
    code 0. Raise BadInput for a kind of picture (`options.kind`) that a terminal cannot show.
    """
    if options.out is not None:
        left_out = sweep.plot(options.out, [options.kind] if options.kind else [])
        for line in left_out if not options.json else ():
            print(safe(line), file=sys.stderr)
        written = WrittenPicture(sweep.id, str(options.out), tuple(left_out))
        print(to_json(written) if options.json else options.out)
        return Exit.OK
    if options.kind in ("parallel", "slice"):
        raise BadInput(f"--kind {options.kind} is a picture", "hint: -o FILE.png says where it goes")
    valued = [(one.number, one.value) for one in sweep.status().trials if one.value is not None]
    if options.json:
        print(to_json(SweepPicture(sweep.id, tuple(valued), sweep.importances() if valued else {})))
        return Exit.OK
    if not valued:
        print(f"no trial of {sweep.id} has a value yet", file=sys.stderr)
        return Exit.OK
    if options.kind != "importance":
        print("\n".join(_history(valued, sweep.best())))
    if options.kind != "history":
        print("\n".join(_bars(sweep.importances())))
    return Exit.OK


def _history(valued: "Sequence[tuple[int, float]]", best: "TrialNote | None") -> list[str]:
    """Return the lines of a plot of the trials' values, and a line about the `best` trial; `valued` has (number of the
    trial, its value) in order.
    """
    from launcher.cli.looking.plot import plot  # late: only for this

    lines = plot({"value": valued}, min(100, width_of(sys.stdout) or 100), _PLOT_ROWS)
    head = "value by trial" + (f"; the best is {best.value:.6g}, of trial {best.number}" if best is not None else "")
    return [head, *("".join(text for text, _ in line).rstrip() for line in lines)]


def _bars(shares: "Mapping[str, float]") -> list[str]:
    """Return lines with a bar for each option: the share of the differences between the trials' results that it
    explains. If there are no `shares`, return lines that say why.
    """
    if not shares:
        return [
            "",
            "which options matter cannot be told yet: it takes more trials that are complete, with other values",
        ]
    rows = [[_short(key), f"{share:.0%}", "█" * round(share * _BAR)] for key, share in shares.items()]
    return ["", "how much each option explains", *columns(rows)]


def _follow(sweep: "Sweep") -> int:
    """Print a line for each trial as it ends; return the exit code, which is OK if the sweep succeeded."""
    import time  # late: only for this

    told = set[int]()
    while True:
        status = sweep.status()
        for one in status.trials:
            if one.state not in ("running", "paused") and one.number not in told:
                told.add(one.number)
                print(_line(one), flush=True)
        if status.state != "running":
            print(_headline(sweep, status), file=sys.stderr)
            return Exit.OK if status.state == "succeeded" else Exit.REFUSED
        time.sleep(0.2)


def _line(one: "TrialNote") -> str:
    """Return the line about a trial that has ended: its number, state, value, chosen options, and why it failed."""
    point = ", ".join(f"{_short(key)} {value}" for key, value in one.params.items())
    return safe(f"trial {one.number} {one.state}{_value(one)}: {point}{f' ({one.why})' if one.why else ''}")


def _value(one: "TrialNote") -> str:
    """Return a trial's value as text with a space before it, or "" if it has none."""
    return "" if one.value is None else f" {one.value:.6g}"


def _headline(sweep: "Sweep", status: "SweepState") -> str:
    """Return a line with the sweep's state, and how many trials are in each state."""
    counts = [f"{sum(one.state == state for one in status.trials)} {state}" for state in _STATES]
    told = ", ".join(text for text in counts if not text.startswith("0 "))
    said = f": {status.message}" if status.message else ""
    return safe(f"{sweep.id} {status.state}{said} ({told or 'no trial yet'} of {sweep.trials_wanted()})")


_STATES = ("running", "paused", "complete", "pruned", "failed")


def grouped(trials: "Sequence[TrialNote]", best: "TrialNote | None") -> "list[TrialNote]":
    """Return the trials ordered by state: running ones first, then complete ones with the `best` one (None: there is
    none) first, then all others.
    """
    values = [one.value for one in trials if one.state == "complete" and one.value is not None]
    most = best is not None and best.value is not None and best.value == max(values, default=None)

    def place(one: "TrialNote") -> tuple[int, float, int]:
        """Return a sort key: the state's place, then the rank among complete trials, then the trial's number."""
        valued = one.value if one.state == "complete" and one.value is not None else 0.0
        state = _STATES.index(one.state) if one.state in _STATES else len(_STATES)
        return state, -valued if most else valued, one.number

    return sorted(trials, key=place)


def _table(sweep: "Sweep", trials: "Sequence[TrialNote]") -> list[list[str]]:
    """Return the rows of the table of trials, with the heads first."""
    keys = list(dict.fromkeys(key for one in trials for key in one.params))
    head = ["TRIAL", "STATE", "VALUE", "STEP", *(_short(key).upper() for key in keys), "RUN", "WHY"]
    return [head, *([safe(cell) for cell in _row(one, keys, _steps(sweep, one))] for one in trials)]


def _steps(sweep: "Sweep", one: "TrialNote") -> str:
    """Return a trial's steps as text, such as `120/200`, from its run or, if that was deleted, from the sweep's record;
    `-` if there are none.
    """
    from launcher.apps.sweeps.folder import SweepDir  # late: likewise
    from launcher.run.durable import readable  # late: only for this
    from launcher.run.records import RunState  # late: likewise

    state = readable(SweepDir(sweep.path).runs / one.run / "state.json", RunState)
    if state is not None and state.step is not None:
        return figures.steps(state.step, state.total_steps)
    return "-" if one.step is None else str(one.step)


def _row(one: "TrialNote", keys: "Sequence[str]", step: str) -> list[str]:
    """Return the table row of a trial; `keys` are the options with a column, and `step` is the text about its steps."""
    given = (one.params.get(key) for key in keys)
    params = ("-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value) for value in given)
    return [str(one.number), one.state, _value(one).strip() or "-", step, *params, one.run, one.why.partition("\n")[0]]


def _short(key: str) -> str:
    """Return the part of an option's key after the last dot."""
    return key.rpartition(".")[2]
