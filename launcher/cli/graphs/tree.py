"""Draw the steps of a graph as a tree, in which each step is below the last of the steps that it needs, and show the
page of `launch status` about a graph.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from launcher.apps.graph import Graph, StepStatus, state_of
from launcher.cli import figures
from launcher.cli.terminal import fitting, paint, safe, state_colour, width_of
from launcher.states import State
from launcher.status.derive import RunStatus, duration_s, state_text

_HEADS = ("STEP", "RUN", "STATE", "PROGRESS", "RESTARTS", "DURATION", "WHY")
_LESS = ("RESTARTS", "PROGRESS", "DURATION", "RUN", "WHY")
Branches = dict[str, str]  # the strokes in front of each step, by the steps' names, in the order of the tree


def branches(needs: Mapping[str, Sequence[str]]) -> Branches:
    """Return {step: the strokes, such as `│  └─ `, to draw before its name}, in the order of the tree.

    `needs` lists the steps that each step needs; a step comes after those in it.
    """
    order = [*needs]
    below: dict[str | None, list[str]] = {}
    for name in order:
        below.setdefault(max(needs[name], key=order.index, default=None), []).append(name)
    return dict(_drawn(below, None, ""))


def _drawn(below: dict[str | None, list[str]], above: str | None, indent: str) -> Iterator[tuple[str, str]]:
    """Yield (step, the strokes to draw before its name) for each step below `above` (None: for the topmost steps), and
    for those below it.

    `below` has the steps below each step, and `indent` is drawn before all of them.
    """
    names = below.get(above, [])
    for name in names:
        last = name == names[-1]
        yield name, f"{indent}{'└─ ' if last else '├─ '}"
        yield from _drawn(below, name, f"{indent}{'   ' if last else '│  '}")


def graph_page(graph: Graph, fresh_s: float = 0.0) -> tuple[list[str], State]:
    """Return (the lines of the page about a graph, the state of the whole graph).

    A cluster's answer may be `fresh_s` seconds old.
    """
    steps, now = graph.steps(fresh_s), time.time()
    state = state_of(steps)
    by_name, drawn = {step.name: step for step in steps}, branches({step.name: step.needs for step in steps})
    rows = [_HEADS, *(_row(by_name[name], drawn[name], now) for name in drawn)]
    head, *lines = fitting(rows, _LESS, width_of(sys.stdout))
    colours = [_colour(by_name[name]) for name in drawn]
    told = [paint(line, colour) for line, colour in zip(lines, colours, strict=True)]
    return [heading(graph.id, state), paint(head, "dim"), *told, *_next(graph, steps, state)], state


def heading(graph_id: str, state: State) -> str:
    """Return the first line of the page about a graph: its id and state, in the state's colour."""
    return paint(f"{graph_id} {state}", state_colour(state))


def graph_facts(graph: Graph) -> dict[str, object]:
    """Return the facts about a graph as `--json` prints them: `graph` (its id), `graph_dir`, `state`, and `steps`, a
    list of dicts with the keys `step` (its name), `needs`, `run` (its run's id) and `status` (a dict of the fields of
    its run's status, or None if that run is not there).
    """
    steps = graph.steps()
    told = [{"step": one.name, "needs": one.needs, "run": one.run, "status": _facts(one.status)} for one in steps]
    return {"graph": graph.id, "graph_dir": str(graph.path), "state": state_of(steps), "steps": told}


def _facts(status: RunStatus | None) -> dict[str, object] | None:
    """Return a run's status as a dict with the status's fields as keys, or None for a step without a run."""
    return None if status is None else msgspec.structs.asdict(status)


def _row(step: StepStatus, branch: str, now: float) -> tuple[str, ...]:
    """Return the table row of a step: its name, its run's id, state, progress, restarts, duration and why it is in that
    state; without a run, most are `-`. `branch` is drawn before the name, and `now` is the Unix time up to which the
    duration counts.
    """
    status, name = step.status, f"{branch}{step.name}"
    needs = f"needs {', '.join(step.needs)}" if len(step.needs) > 1 else ""
    if status is None:
        return (name, step.run, "-", "-", "-", "-", "; ".join(filter(None, ["no run of it is there", needs])))
    seconds = duration_s(status, now)
    said = status.last_word if status.state is State.FAILED else status.message
    return (
        name,
        step.run,
        state_text(status),
        figures.steps(status.step, status.total_steps),
        str(status.restarts.total),
        "-" if seconds is None else figures.duration(seconds),
        "; ".join(filter(None, [safe(said), needs])),
    )


def _colour(step: StepStatus) -> str:
    """Return the name of the colour for a step's state, or "" for none."""
    return "" if step.status is None else state_colour(step.status.state)


def _next(graph: Graph, steps: Sequence[StepStatus], state: State) -> list[str]:
    """Return lines that suggest the next command for a graph that has ended without success, else an empty list."""
    failed = next((step for step in steps if step.status is not None and step.status.state is State.FAILED), None)
    if state in (State.SUCCEEDED, State.UNKNOWN) or not state.ended:
        return []
    look = f"launch status {failed.run} tells more; " if failed is not None else ""
    return ["", f"{paint('next', 'bold')}  {look}launch resume {graph.id} goes on"]
