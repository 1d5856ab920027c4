"""Find the state of the user's runs on this host's disk, and report or delete what they and their code keep there."""

import contextlib
import os
import time
from pathlib import Path

import msgspec

from launcher.places.ssh.host import presence
from launcher.places.ssh.messages import Tidied, Tidy
from launcher.remote.shipping import kept_trees
from launcher.run.attempts import newest, plan_as
from launcher.run.durable import readable
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.processes import tagged_any
from launcher.run.records import AttemptEnd
from launcher.run.removal import remove_tree, size_of, unneeded
from launcher.states import State
from launcher.status.derive import derive, state_text
from launcher.status.facts import read_facts
from launcher.supervisor.waiting import OtherRun


def tidy(workdir: Path, wanted: Tidy) -> Tidied:
    """Return how many bytes the runs named in `wanted`, and code that no other run needs, take of this host's disk, and
    which of these runs are live: have processes here.

    If `wanted` has `remove` set, delete after counting: these runs except the live ones, and that code.
    """
    there = {run_id: run for run_id in wanted.runs if (run := RunDir(workdir / "runs" / run_id)).path.is_dir()}
    tags = tagged_any([str(run.path) for run in there.values()], os.getuid())
    live = tuple(run_id for run_id, run in there.items() if tags[str(run.path)] or presence.is_held(run))
    over = {run_id: run for run_id, run in there.items() if run_id not in live}
    sizes = {run_id: size_of(run.path) for run_id, run in there.items()}
    idle = kept_trees.idle(workdir / "code", time.time())
    code = [tree for tree in unneeded(workdir / "code", workdir / "runs", without=over) if tree in idle]
    freed = sum(map(size_of, code))
    if wanted.remove:
        for run in over.values():
            with presence.held(run):  # no supervisor of it can begin
                _delete(run.path)
        for tree in code:
            _delete(tree)
    return Tidied(sizes, freed, live)


def _delete(path: Path) -> None:
    """Delete the folder, unless another host with the same disk has done so."""
    with contextlib.suppress(FileNotFoundError):  # another host of the same disk was quicker
        remove_tree(path)


class _Disks(msgspec.Struct, frozen=True):
    """The part of a plan that shows whether other hosts may know more about a run than this disk: it has several nodes
    without a shared disk.
    """

    nodes: tuple[msgspec.Raw, ...]  # not decoded: only their number counts
    disks_apart: bool  # each host has a disk of its own


class RunsOnHost:
    """The states of the runs for which a run of this host waits, as far as this host's disk tells them.

    That a run has succeeded is final. Any other end is reported only if no other host of that run can know more; if one
    can, the state is reported as unknown.
    """

    def __init__(self) -> None:
        self._seen: set[Path] = set()

    def look(self, run_dir: Path) -> OtherRun:
        """Return the state of the run in the folder `run_dir` by this host's records: UNKNOWN if it never was here, or
        if it ended without success here and other hosts may have a later end of it on their disks.
        """
        run = RunDir(run_dir)
        attempt = newest(run)
        if attempt is None:
            return OtherRun(None) if run_dir in self._seen else OtherRun(State.UNKNOWN, "not on this host")
        self._seen.add(run_dir)
        status = derive(read_facts(run_dir))
        if status.state.ended and status.state is not State.SUCCEEDED and _others_may_know_better(run, attempt):
            return OtherRun(State.UNKNOWN, f"{state_text(status)} as far as this host knows", status.step)
        return OtherRun(status.state, state_text(status), status.step)


def _others_may_know_better(run: RunDir, attempt: AttemptDir) -> bool:
    """Return whether other hosts may know how the run ended: they have disks of their own, and this host has no end of
    the run, or only one that it wrote as a host that was cut off.
    """
    plan, end = plan_as(run, attempt.number, _Disks), readable(attempt.end, AttemptEnd)
    return plan.disks_apart and len(plan.nodes) > 1 and (end is None or end.alone)
