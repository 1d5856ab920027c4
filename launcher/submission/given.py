"""Check that the outputs that a step uses of another one can be read where it runs, and list what must be fetched."""

from collections.abc import Iterator, Mapping

from launcher.plan.facts import Misfit
from launcher.spec.graph.reading import GraphSpec, StepSpec
from launcher.spec.order import needed_by
from launcher.submission.requests import Request, refuse

_NO_FILE = "run"  # its id is known everywhere
_DISKS_HINT = "`shared: true` is of a pool whose hosts see one disk"


def refuse_each(graph: GraphSpec, wishes: Mapping[str, Request]) -> None:
    """Raise BadInput for every output of another step that a step could not read."""
    needs = {step.name: step.needs for step in graph.steps}
    for step in graph.steps:
        for other, word in sorted(step.given):
            if word == _NO_FILE:
                continue
            for why, hint in _problems(step.name, other, word, needs, wishes):
                refuse(wishes[step.name].file, [Misfit("run", f"${{steps.{other}.{word}}}: {why}", hint)])


def to_be_brought(step: StepSpec, wishes: Mapping[str, Request]) -> list[str]:
    """Return the steps whose checkpoints must be fetched to this machine before this one starts."""
    others = sorted({other for other, word in step.given if word != _NO_FILE})
    return [one for one in others if wishes[one].on != wishes[step.name].on and _writes_elsewhere(wishes[one])]


def _problems(
    step: str, other: str, word: str, needs: Mapping[str, tuple[str, ...]], wishes: Mapping[str, Request]
) -> Iterator[tuple[str, str]]:
    """Yield why a step could not read an output of another one."""
    mine, theirs = wishes[step], wishes[other]
    if mine.on == theirs.on:
        yield from _on_its_disks(step, needs, wishes)
    elif mine.cluster.remote:
        hint = f"run {step} where this machine's disk is seen, or {other} on {mine.on} too"
        yield f"{mine.on} does not see this machine's disk, to which files of {theirs.on} are brought", hint
    elif word == "run_dir" and _writes_elsewhere(theirs):
        yield (
            f"of a run on {theirs.on} only checkpoints are brought here",
            f"${{steps.{other}.checkpoints}} can be given",
        )


def _on_its_disks(
    step: str, needs: Mapping[str, tuple[str, ...]], wishes: Mapping[str, Request]
) -> Iterator[tuple[str, str]]:
    """Yield why the files of steps on hosts without a shared disk may not be on the host where this step runs.

    Files are where ranks wrote them. A step can read another one's only if all that it needs begins with one step, on
    whose host all of them then run.
    """
    if not wishes[step].cluster.machine(wishes[step].spec).disks_apart:
        return
    there = [one for one in (step, *needed_by(step, needs)) if wishes[one].on == wishes[step].on]
    for one in there:
        spec = wishes[one].spec
        if spec.resources.nodes.max > 1 or spec.recovery.spares > 0:
            yield (
                f"hosts of {wishes[one].on} have a disk each, and {one} may be on several",
                f"give it one node and no spares, or: {_DISKS_HINT}",
            )
            return
    first = [one for one in there if not needs[one]]
    if len(first) > 1:
        yield f"{' and '.join(sorted(first))} may be on different hosts, which have a disk each", _DISKS_HINT


def _writes_elsewhere(wish: Request) -> bool:
    """Return whether the run writes on other machines."""
    return wish.cluster.remote
