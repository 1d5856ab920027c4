"""Runs on clusters whose programs are on another machine: the same verbs, over ssh to a login node.

Imported by every command that names a run; what goes over the connection is imported when it is needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.remote.known import RemoteRun, any_known, find, runs

if TYPE_CHECKING:
    from launcher.clusters.clusters_file import ClusterEntry
    from launcher.clusters.protocol import Preview
    from launcher.plan.model import Plan
    from launcher.remote.asking import Board
    from launcher.rundir.code_list import CodeList
    from launcher.status.derive import RunStatus

__all__ = [
    "RemoteRun",
    "any_known",
    "board",
    "command",
    "find",
    "forward",
    "prepare",
    "refuse_to_move",
    "runs",
    "statuses",
    "submit",
]


def submit(
    place: "ClusterEntry", specs: Sequence[Path], overrides: Sequence[str] = (), *, repeat: int | None = None
) -> list[RemoteRun]:
    """Start runs on a cluster with a login node; they are known here from then on."""
    from launcher.remote import sending

    return sending.submit(place, specs, overrides, repeat=repeat)


def prepare(
    place: "ClusterEntry", spec: Path, overrides: Sequence[str] = ()
) -> "tuple[Plan, CodeList, Preview | None]":
    """What `submit` would do, as data."""
    from launcher.remote import sending

    return sending.prepare(place, spec, overrides)


def statuses(wanted: Sequence[RemoteRun] | None = None) -> "list[RunStatus]":
    """Of these runs, or of all: one question to each login node, all at once."""
    from launcher.remote import asking

    return asking.statuses(wanted)


def board() -> "Board":
    """The same time and again, over connections that stay open while it is used (`with`)."""
    from launcher.remote import asking

    return asking.Board()


def forward(run: RemoteRun, verb: str, argv: Sequence[str] = ()) -> int:
    """`launch VERB ARGV` where the run is, shown as if it ran here; gives its exit code."""
    from launcher.remote import forwarding

    return forwarding.forward(run, verb, argv)


def command(place: "ClusterEntry", verb: str, argv: Sequence[str] = ()) -> int:
    """`launch VERB ARGV` on the cluster's login node, shown as if it ran here; gives its exit code."""
    from launcher.remote import forwarding

    return forwarding.command(place, verb, argv)


def refuse_to_move(run: RemoteRun, on: str) -> None:
    """Raises Refused where another cluster is named than the one that the run is on."""
    from launcher.remote import forwarding

    forwarding.refuse_to_move(run, on)
