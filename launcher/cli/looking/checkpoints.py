"""`launch checkpoints`: list a run's checkpoints, and whether their bytes are complete."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import fitting, is_terminal, paint, safe, to_json, width_of
from launcher.errors import Exit
from launcher.status.checkpoints import Checkpoint, Condition, by_script
from launcher.status.series import better
from trainer.checkpoint_files.manifest import BEST_BY, Value

EXAMPLES = """
  launch checkpoints last             step, time, size and world of each; the newest first
  launch checkpoints last --verify    read every byte; exit code 6 if a checkpoint is damaged
  launch checkpoints resnet --json    everything that is known of them, for programs

A start loads the newest of kind `step` that is whole, and sets aside what it finds damaged. Kind `best` is the one
with the best monitored value, which is shown; `launch export` writes its weights into a file.
"""
_FEW = 2
_HEAD = ("STEP", "KIND", "SAVED", "SIZE", "WORLD", "VALUES", "STATE")
_LESS = ("WORLD", "SIZE", "SAVED", "KIND", "VALUES")  # what goes first where a terminal is too narrow
_VALUES = _HEAD.index("VALUES")
_COLOURS = {Condition.VERIFIED: "green", Condition.DAMAGED: "red", Condition.SET_ASIDE: "yellow"}


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch checkpoints`."""
    arguments.takes_run()
    arguments.add_argument(
        "--verify", action="store_true", help="read and compare every byte, not only names and sizes"
    )
    arguments.prints_json(lambda: {"": list[Checkpoint]}, "all that is known of them, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch checkpoints` and return its exit code."""
    one = api.run(options.run)
    if options.verify and is_terminal(sys.stderr):
        print("reading every byte of every checkpoint ...", file=sys.stderr, flush=True)
    found = list(one.checkpoints(verify=options.verify))
    if options.json:
        print(to_json(found))
    elif found:
        print("\n".join(_table(found)))
    else:
        print(_why_none(one), file=sys.stderr)
    damaged = [checkpoint for checkpoint in found if checkpoint.state is Condition.DAMAGED]
    if damaged:
        print(_what_follows(found, len(damaged)), file=sys.stderr)
    return Exit.DAMAGED if damaged and options.verify else Exit.OK


def _why_none(one: api.Run) -> str:
    """Return the reason why no checkpoint of the run can be listed, as text."""
    if one.elsewhere:
        return f"no checkpoint of {one.id} is here; `launch fetch {one.id}` brings the newest from its hosts"
    step = one.status(api.WATCH_S).checkpoint
    if step is not None and one.saved_by_script(step):
        return f"{one.id} has checkpoint {by_script(step)}: it is not listed or checked, and its script resumes from it"
    return f"{one.id} has no checkpoints"


def _table(found: Sequence[Checkpoint]) -> list[str]:
    """Return the lines of the table of checkpoints."""
    table = [_HEAD, *map(_row, found)]
    if not any(noted_text(checkpoint.info) for checkpoint in found):
        table = [(*row[:_VALUES], *row[_VALUES + 1 :]) for row in table]
    head, *rows = fitting(table, _LESS, width_of(sys.stdout))
    colours = [_COLOURS.get(checkpoint.state, "") for checkpoint in found]
    return [paint(head, "dim"), *(paint(row, colour) for row, colour in zip(rows, colours, strict=True))]


def _row(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the table row of one checkpoint."""
    return (
        str(checkpoint.step),
        checkpoint.kind,
        "-" if checkpoint.saved_at is None else _moment(checkpoint.saved_at),
        "-" if checkpoint.size_bytes is None else figures.size(checkpoint.size_bytes),
        "-" if checkpoint.world_size is None else figures.count(checkpoint.world_size, "rank"),
        safe(noted_text(checkpoint.info)) or "-",
        _state(checkpoint),
    )


def noted_text(info: Mapping[str, Value]) -> str:
    """Return as text the metric by which a checkpoint is the best, or else up to two metrics that measure quality by
    their names, such as a loss. `info` has the values that were saved with the checkpoint, by name.

    Return "" if there is no such metric.
    """
    by = info.get(BEST_BY)
    named = [by] if by in info else [name for name in info if better(name)][:_FEW]
    return ", ".join(f"{name} {_value(info[name])}" for name in named if isinstance(name, str))


def _value(value: Value) -> str:
    """Return a value that was saved with a checkpoint as text."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _state(checkpoint: Checkpoint) -> str:
    """Return as text the condition of a checkpoint's bytes, such as `verified` or `in part: …`, followed by "weights
    not finite" if that was recorded.
    """
    return _condition_text(checkpoint) + (", weights not finite" if checkpoint.finite is False else "")


def _condition_text(checkpoint: Checkpoint) -> str:
    """Return the condition of a checkpoint's bytes as text, with the reason."""
    reason = safe(checkpoint.reason)
    match checkpoint.state:
        case Condition.OK:
            return "ok (sizes match)"
        case Condition.VERIFIED:
            return "verified"
        case Condition.PARTIAL:
            return f"in part: {reason}"
        case Condition.DAMAGED:
            return f"damaged: {reason}"
        case Condition.SET_ASIDE:
            return f"set aside: {reason}" if reason else "set aside"


def _what_follows(found: Sequence[Checkpoint], damaged: int) -> str:
    """Return text that says from which step the next start continues, given that `damaged` checkpoints are skipped."""
    whole = [one.step for one in found if one.kind == "step" and one.state in (Condition.OK, Condition.VERIFIED)]
    where = f"the next start resumes from step {max(whole)}" if whole else "training starts from step 0"
    return f"{figures.count(damaged, 'checkpoint')} damaged; as it is, {where}"


def _moment(at: float) -> str:
    """Return a Unix time as date and time in the local time zone, or `-` if it is out of range."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, OSError, ValueError):  # a sound manifest may hold any number
        return "-"
