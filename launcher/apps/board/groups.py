"""Group runs that belong together: trials of a sweep, steps of a file, runs of a proof or a scaling measurement."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from launcher.run.graphs import graph_of_step

GroupKind = Literal["sweep", "steps", "proof", "scaling"]
_TAGGED: dict[str, GroupKind] = {"prove": "proof", "scale": "scaling"}  # by these tags, beside one with the id


class RunGroup(msgspec.Struct, frozen=True):
    """A group of runs that one command started together, and the kind of command."""

    id: str  # with which the ids of its runs begin
    kind: GroupKind


def group_of(run: str, path: Path, tags: Sequence[str]) -> RunGroup | None:
    """Return the group to which a run belongs, or None if it belongs to none.

    Runs of a proof or a scaling measurement are tagged with its id, a step's graph is found from the run's folder, and
    a trial's run has an id such as SWEEP-t0007.
    """
    for tag, kind in _TAGGED.items():
        if tag in tags and (found := [one for one in tags if run.startswith(f"{one}-")]):
            return RunGroup(max(found, key=len), kind)
    if graph := graph_of_step(run, path):
        return RunGroup(graph, "steps")
    if "-t" not in run:
        return None
    from launcher.apps.sweeps.folder import sweep_of_trial  # late: it knows all options of a spec

    sweep = sweep_of_trial(run, path)
    return RunGroup(sweep, "sweep") if sweep else None
