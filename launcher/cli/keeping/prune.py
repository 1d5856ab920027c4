"""`launch prune`: delete old runs or checkpoints, after listing them and asking the user."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.keeping.rm import say_what_stays
from launcher.cli.looking.run_columns import RunRow, with_about
from launcher.cli.looking.selection import age, declare_selection, selected, selects
from launcher.cli.terminal import columns, paint, safe, to_json
from launcher.errors import BadInput, Exit, Refused
from launcher.places.elsewhere import kept_elsewhere
from launcher.places.place import KeptRemote
from launcher.run.layout import RunDir
from launcher.run.removal import forget_gone, remove_tree, remove_unused_code, size_of, unused_code
from launcher.states import State
from launcher.status.checkpoints import Checkpoint, Condition, checkpoints
from launcher.status.derive import RunStatus, state_text

EXAMPLES = """
  launch prune --older 7d --state failed             asks before it deletes anything
  launch prune --older 30d --keep best --yes         keeps the runs, each with its best checkpoint
  launch prune --state ended --keep 3                of each run the newest three checkpoints stay
  launch prune --name 'lr*' --dry-run                only shows it

What runs keep on the hosts of pools and on login nodes is shown and goes with them; a run of which a silent host has
some stays known until that is gone. --keep takes checkpoints away here alone.
"""
_MOST_KEPT = 1_000_000
_HEAD = ("RUN", "STATE", "AGE", "GOES", "SIZE")
_USABLE = (Condition.OK, Condition.VERIFIED, Condition.PARTIAL)


class PrunedRun(msgspec.Struct, frozen=True):
    """A run of which `folders` are to be deleted: all of it (`goes` is "run"), or some of its checkpoints."""

    run: str  # its id
    state: State  # in which it ended
    goes: Literal["run", "checkpoints"]
    folders: tuple[str, ...]  # paths: the run's own folder, or those of the checkpoints
    size_bytes: int  # of the folders


class Pruned(msgspec.Struct, frozen=True):
    """The runs that `launch prune` deletes; `done` tells whether it has deleted them, and `code_bytes` is the size of
    frozen code that no run needs.
    """

    done: bool
    runs: tuple[PrunedRun, ...]
    code_bytes: int  # of frozen code that no run needs


@dataclass(frozen=True, slots=True)
class Deletion:
    """A run that the options select, and its folders to be deleted: either the run's own folder, or the folders of some
    of its checkpoints.
    """

    run: api.Run
    status: RunStatus
    folders: tuple[Path, ...]  # the run's own folder, or folders of its checkpoints
    size: int  # bytes of the folders

    @property
    def whole(self) -> bool:
        """Return whether the whole run would be deleted."""
        return self.folders == (self.run.path,)


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch prune`."""
    declare_selection(arguments)
    arguments.add_argument(
        "--older", metavar="AGE", type=age, help="only runs that ended longer ago than 7d or 12h, or before 2026-01-31"
    )
    arguments.add_argument(
        "--keep", metavar="WHICH", type=_kept,
        help="keep runs and logs, and of the checkpoints best, newest or the newest N; delete only the other "
        "checkpoints",
    )  # fmt: skip
    arguments.add_argument("--yes", action="store_true", help="do not ask")
    arguments.add_argument("--dry-run", action="store_true", help="show what would be deleted; delete nothing")
    arguments.prints_json(lambda: {"": Pruned}, "with one of --yes and --dry-run: what goes, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch prune` and return its exit code."""
    if not (selects(options) or options.older is not None):
        raise BadInput("which runs?", "hint: --older 7d, --state failed, --name 'lr*', --tag old; all: --state ended")
    if options.json and options.yes is options.dry_run:
        raise BadInput("--json goes with one of --yes and --dry-run", "hint: without them a person is asked")
    runs = [one for one in api.runs() if one.path.is_dir()]
    going, now = _deletions(runs, options), time.time()
    code = [] if options.keep else unused_code({one.path.parent for one in runs})
    total = sum(one.size for one in going)
    if options.json:
        print(to_json(Pruned(options.yes, tuple(map(_plain, going)), sum(map(size_of, code)))), flush=True)
        return _carry_out(going, {one.path.parent for one in runs} if not options.keep else set()) if options.yes else 0
    there = kept_elsewhere([RunDir(one.run.path) for one in going if one.whole])
    if going:
        lines = columns([(*_HEAD, *(["ELSEWHERE"] if there else [])), *(_row(one, now, there) for one in going)])
        print("\n".join([paint(lines[0], "dim"), *lines[1:]]))
    print(
        f"{figures.count(len(going), 'run')}, {figures.size(total)}"
        + (f", and {figures.size(sum(map(size_of, code)))} of code that no run needs" if code else "")
    )
    if freed := sum(kept.code for kept in there):
        print(f"on other machines {figures.size(freed)} of code that no run there needs then")
    sys.stdout.flush()
    if options.dry_run or not (going or code):
        return Exit.OK
    if not options.yes:
        _ask()
    return _carry_out(going, {one.path.parent for one in runs} if not options.keep else set())


def _deletions(runs: Sequence[api.Run], options: argparse.Namespace) -> list[Deletion]:
    """Return the ended runs that the options select, each with its folders to be deleted, the largest first."""
    found, now = list[Deletion](), time.time()
    for one, status in zip(runs, api.statuses(runs), strict=True):
        over = (status.ended_at or status.submitted_at) if status.state.ended else now
        if not status.state.ended or (options.older is not None and now - over < options.older):
            continue
        if selects(options) and not selected([with_about(RunRow(status))], options):
            continue
        folders = (one.path,) if options.keep is None else tuple(_others(one, options.keep))
        if folders:
            found.append(Deletion(one, status, folders, sum(map(size_of, folders))))
    return sorted(found, key=lambda going: -going.size)


def _kept(text: str) -> str | int:
    """Return `best`, `newest`, or the number of newest checkpoints to keep; raise ArgumentTypeError for any other
    text.
    """
    if text in ("best", "newest"):
        return text
    if not (text.isascii() and text.isdigit() and 0 < int(text) < _MOST_KEPT):
        raise argparse.ArgumentTypeError(f"expected best, newest or a number of checkpoints, got {text!r}")
    return int(text)


def _others(one: api.Run, keep: str | int) -> list[Path]:
    """Return the folders of checkpoints to be deleted: all but the best one (`keep` is `best`), the newest one
    (`newest`), or the `keep` newest ones (a number).

    Only usable checkpoints count as best or newest; without one of the kind asked for, another usable one is kept. If
    none is usable, nothing is deleted.
    """
    there = list(checkpoints(RunDir(one.path)))
    usable = [checkpoint for checkpoint in there if checkpoint.state in _USABLE]
    best = [checkpoint for checkpoint in usable if checkpoint.kind == "best"] if keep == "best" else []
    newest = [checkpoint for checkpoint in usable if checkpoint.kind == "step"][: keep if isinstance(keep, int) else 1]
    kept: list[Checkpoint] = best or newest or usable[:1]
    return [Path(checkpoint.path) for checkpoint in there if checkpoint not in kept] if kept else []


def _row(one: Deletion, now: float, there: Sequence[KeptRemote]) -> tuple[str, ...]:
    """Return the table row of a run: its id, state, time since its end at `now` (Unix time), what is deleted, and the
    size; with `there`, what other machines store of all the runs, also how much of this run they have.
    """
    over = one.status.ended_at or one.status.submitted_at
    goes = "all of it" if one.whole else figures.count(len(one.folders), "checkpoint")
    cells = (safe(one.run.id), state_text(one.status), figures.duration(now - over), goes, figures.size(one.size))
    asked = [kept for kept in there if one.run.id in kept.runs]
    where = ", ".join(
        f"{'?' if kept.silent else figures.size(kept.runs[one.run.id])} on {kept.where}" for kept in asked
    )
    return (*cells, *([safe(where)] if there else []))


def _plain(one: Deletion) -> PrunedRun:
    """Return a deletion as `--json` prints it: the run, what is deleted (all of it or only checkpoints), and how many
    bytes that frees.
    """
    goes: Literal["run", "checkpoints"] = "run" if one.whole else "checkpoints"
    return PrunedRun(one.run.id, one.status.state, goes, tuple(map(str, one.folders)), one.size)


def _ask() -> None:
    """Ask the user on the terminal whether to delete; raise Refused if there is none, or unless the answer is yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused("nothing was taken away: there is no terminal here to ask on", "hint: --yes takes it away")
    print("take it away? type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise Refused("nothing was taken away")


def _carry_out(going: Sequence[Deletion], roots: set[Path]) -> int:
    """Delete the runs and the checkpoints in `going`, then frozen code that no run needs any more, from the folders in
    `roots`, each of which contains the folders of runs. Return the exit code: UNREACHABLE if another machine still
    stores a part of a run, else OK.

    A run that was resumed since it was listed is left as it is, with all its checkpoints.
    """
    now = api.statuses([one.run for one in going])
    whole = list[api.Run]()
    for one, status in zip(going, now, strict=True):
        if not status.state.ended:
            print(f"{one.run.id} is {status.state} by now: it stays", file=sys.stderr)
        elif one.whole:
            whole.append(one.run)
        else:
            for folder in one.folders:
                remove_tree(folder)
    told = api.remove(whole)
    for name in forget_gone():
        print(f"{name}: its folder had been taken away; its name is forgotten", file=sys.stderr)
    remove_unused_code(roots)
    return say_what_stays(whole, told)
