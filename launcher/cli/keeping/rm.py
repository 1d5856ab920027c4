"""`launch rm`: delete runs on this machine and on others. If one of the named runs cannot be deleted, none is."""

import argparse
import sys
from collections.abc import Sequence

import msgspec

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.looking.selection import runs_like
from launcher.cli.terminal import safe, to_json
from launcher.errors import Exit, Refused
from launcher.places.elsewhere import kept_elsewhere
from launcher.places.place import KeptRemote
from launcher.run.graphs import find_graph, remove_empty_graph
from launcher.run.layout import RunDir

EXAMPLES = """
  launch rm resnet-4ykr                 with its code, logs and checkpoints; a live run is refused
  launch rm resnet-4ykr lr-9x2d         both or, if one of them is live, none
  launch rm 'lr-*'                      all runs whose id or name matches this pattern
  launch rm resnet-4ykr --anyway        on this machine, even if another machine with files of it does not answer

What a run keeps on the hosts of a pool, or on a login node, goes too. While one of them does not answer the run stays
known here, and the same command finishes the work later.
"""


class RemovedRun(msgspec.Struct, frozen=True):
    """The result of deleting a run. The run is kept on this machine, and `gone` is False, if another machine still runs
    a part of it or, without `--anyway`, does not answer.
    """

    run: str  # its id
    gone: bool  # from this machine
    size_bytes: int  # of its part on this machine


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch rm`."""
    arguments.takes_runs(patterns=True)
    arguments.add_argument(
        "--anyway",
        action="store_true",
        help="do not wait for machines that do not answer; their files stay, and are named",
    )
    arguments.prints_json(lambda: {"": list[RemovedRun]}, "what is gone, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch rm` and return its exit code."""
    graphs = [*filter(None, map(find_graph, options.runs))]
    runs = runs_like(options.runs)
    for status in api.statuses(runs):
        api.refuse_live(status)
    _refuse_live_there(kept_elsewhere([RunDir(one.path) for one in runs]))
    sizes = {one.id: one.usage().total for one in runs}
    told = api.remove(runs, anyway=options.anyway)
    for graph in graphs:  # of one whose submit was cut off too
        remove_empty_graph(graph)
    if options.json:
        print(to_json([RemovedRun(one.id, not one.path.exists(), sizes[one.id]) for one in runs]))
    for one in runs:
        if not one.path.exists() and not options.json:
            print(f"{one.id} is gone, with {figures.size(sizes[one.id])}" + deleted_elsewhere(one, told))
    return say_what_stays(runs, told)


def _refuse_live_there(told: Sequence[KeptRemote]) -> None:
    """Raise Refused if a machine has processes of a run that is to be deleted; `told` has each machine's report on
    what it has of these runs. A machine that did not answer is no reason to refuse.
    """
    for one in told:
        if one.live:
            raise Refused(api.kept_text(one), f"hint: launch cancel {one.live[0]} ends them first")


def deleted_elsewhere(one: api.Run, told: Sequence[KeptRemote]) -> str:
    """Return text such as ", and 3 MB on gpu01" for what other machines (`told`) have deleted of the run, or "" for
    nothing.
    """
    words = [f"{figures.size(kept.runs[one.id])} on {safe(kept.where)}" for kept in told if _is_deleted(one, kept)]
    return f", and {', '.join(words)}" if words else ""


def _is_deleted(one: api.Run, kept: KeptRemote) -> bool:
    """Return whether the machine of `kept` answered and has deleted its part of the run; it deletes nothing of a run
    that has processes there.
    """
    return not kept.silent and one.id in kept.runs and one.id not in kept.live


def say_what_stays(runs: Sequence[api.Run], told: Sequence[KeptRemote]) -> int:
    """Print which machines still store a part of a run, judging by their reports in `told`, and which of the `runs` are
    therefore still listed. Return the exit code: OK if no machine stores any, else UNREACHABLE.
    """
    stays = [one for one in told if one.silent or one.live]
    for one in stays:
        print(safe(api.kept_text(one)), file=sys.stderr)
    if known := [str(one.id) for one in runs if one.path.exists()]:
        again = f"hint: launch rm {' '.join(known)} again takes the rest away; --anyway does not wait for it"
        print(f"still known here: {', '.join(known)}\n{again}", file=sys.stderr)
    return Exit.UNREACHABLE if stays else Exit.OK
