"""Everything about one run, for people: what went wrong first, what to do next last."""

import contextlib
import time
from pathlib import Path

from launcher.cli import figures
from launcher.cli.columns import columns
from launcher.cli.run_table import duration_text, state_text
from launcher.cli.terminal import paint, safe, state_colour
from launcher.errors import LaunchError
from launcher.rundir.events import read_events
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Event, Failure, NodeState
from launcher.status.derive import RunStatus
from launcher.words import State

_EVENTS = 8
_RANKS = 16
_TAIL = 12


def page(status: RunStatus, now: float) -> list[str]:
    """The lines of the page."""
    return [
        headline(status),
        *(
            failure_lines(status.failure, status.run_dir)
            if status.failure is not None and status.state is State.FAILED
            else []
        ),
        "",
        *columns(_facts(status, now), indent="  "),
        *_ranks(status),
        *_avoided(status, now),
        *_lately(status, now),
        *_next(status),
    ]


def headline(status: RunStatus) -> str:
    """State, cause and what there is to say about it."""
    failed = status.state is State.FAILED and status.failure is not None
    words = status.failure.summary if failed and status.failure is not None else status.message
    said = f": {safe(words)}" if words else ""
    return paint(f"{safe(status.run)} {state_text(status)}", state_colour(status.state)) + said


def failure_lines(failure: Failure, run_dir: str) -> list[str]:
    """The first failing rank, its cause and the last lines of its log."""
    who = f"rank {failure.rank}" if failure.rank is not None else "the run"
    on_node = f" on node {failure.node}" if failure.node is not None else ""
    where = f" at {safe(failure.where)}" if failure.where else ""
    first = f"first to fail: {who}{on_node}: {failure.cause}{where}, in {_generation(failure)}"
    lines = ["", paint(f"  {first}", "bold")]
    lines += [paint("  │ ", "dim") + safe(line) for line in failure.tail[-_TAIL:]]
    return [*lines, *([f"  whole log: {safe(run_dir)}/{safe(failure.log)}"] if failure.log else [])]


def _generation(failure: Failure) -> str:
    return f"attempt {failure.attempt}, generation {failure.generation}"


def _facts(status: RunStatus, now: float) -> list[tuple[str, str]]:
    rows = [("attempt", f"{status.attempt}.{status.generation}"), ("step", _progress(status))]
    if status.metrics:
        rows.append(("metrics", ", ".join(f"{safe(name)} {value:.5g}" for name, value in status.metrics.items())))
    rows.append(("checkpoint", _checkpoint(status)))
    rows.append(("restarts", _restarts(status)))
    job = f" job {safe(status.job)}" if status.job else ""
    rows.append(("where", f"{safe(status.cluster)}{job}, {safe(status.run_dir)}"))
    rows.append(("submitted", f"{_moment(status.submitted_at)} ({figures.duration(now - status.submitted_at)} ago)"))
    if status.started_at is not None:
        rows.append(("ran for", duration_text(status, now)))
    if status.as_of is not None:
        rows.append(("as of", f"{_moment(status.as_of)} ({figures.duration(now - status.as_of)} ago)"))
    if status.failure is not None and status.state is not State.FAILED:
        rows.append(("last failure", f"{status.failure.cause}: {safe(status.failure.summary)}"))
    if status.state is State.FAILED and status.failure is not None and status.message:
        rows.append(("gave up", safe(status.message)))
    if status.exit_code is not None:
        rows.append(("exit code", str(int(status.exit_code))))
    return rows


def _progress(status: RunStatus) -> str:
    words = [figures.steps(status.step, status.total_steps)]
    if status.rate is not None:
        words.append(figures.rate(status.rate))
    if status.eta_s is not None:
        words.append(f"{figures.duration(status.eta_s)} to go")
    return ", ".join(words)


def _checkpoint(status: RunStatus) -> str:
    """What ranks have reported, and what of the trainer's is on disk."""
    from launcher.status.checkpoints import Kept, kept  # late: 10 ms that the table of runs must not pay for

    reported = f"step {status.checkpoint}" if status.checkpoint is not None else "none yet"
    there = Kept((), 0, 0)
    with contextlib.suppress(OSError, LaunchError):  # the page is worth showing without it
        there = kept(RunDir(Path(status.run_dir)))
    words = [f"step {there.steps[-1]}, {len(there.steps)} committed"] if there.steps else [reported]
    words += ["the best one kept apart"] if there.best else []
    words += [f"{there.set_aside} set aside"] if there.set_aside else []
    return ", ".join(words)


def _restarts(status: RunStatus) -> str:
    causes = ", ".join(f"{count} {safe(cause)}" for cause, count in status.restarts.by_cause.items() if count)
    return f"{status.restarts.total} ({causes})" if causes else str(status.restarts.total)


def _ranks(status: RunStatus) -> list[str]:
    if not status.nodes and not status.ranks:
        return []
    lines = ["", paint(f"nodes {len(status.nodes)}, ranks {status.world_size or len(status.ranks)}", "bold")]
    nodes = [(f"node {node.node}", _place(node), safe(node.state), _numbers(node.ranks)) for node in status.nodes]
    ranks = [
        (f"rank {one.rank}", f"node {one.node}", safe(one.state), f"pid {one.pid or '-'}", f"step {_or_dash(one.step)}")
        for one in status.ranks[:_RANKS]
    ]
    lines += [line for rows in (nodes, ranks) if rows for line in columns(rows, indent="  ")]
    more = len(status.ranks) - _RANKS
    return [*lines, *([f"  and {more} ranks more; `--json` has all"] if more > 0 else [])]


def _place(node: NodeState) -> str:
    return f"{safe(node.host)} ({safe(node.address)})" if node.host else safe(node.address)


def _avoided(status: RunStatus, now: float) -> list[str]:
    if not status.avoided:
        return []
    rows = [
        (
            safe(one.host),
            f"for another {figures.duration(one.until - now)}",
            f"attempt {one.attempt}",
            safe(one.evidence),
        )
        for one in status.avoided
    ]
    pardon = f"nodes that are avoided; `launch pardon {safe(status.run)}` lets them be used again"
    return ["", paint(pardon, "bold"), *columns(rows, indent="  ")]


def _numbers(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "no ranks"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}..{ranks[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _lately(status: RunStatus, now: float) -> list[str]:
    events: list[Event] = []
    with contextlib.suppress(OSError):  # the page is worth showing without them
        events = read_events(RunDir(Path(status.run_dir)))[-_EVENTS:]
    if not events:
        return []
    rows = [(f"{figures.duration(now - event.at)} ago", safe(event.text) or safe(event.kind)) for event in events]
    return ["", paint("lately", "bold"), *columns(rows, indent="  ")]


def _next(status: RunStatus) -> list[str]:
    return ["", f"{paint('next', 'bold')}  {safe(status.next)}"] if status.next else []


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
