"""The page of `launch status RUN`: everything about one run, first what went wrong, last the command to use next. `now`
is the Unix time from which ages are computed.
"""

import contextlib
import shlex
from pathlib import Path

from launcher.cli import figures
from launcher.cli.looking.run_columns import duration_text
from launcher.cli.terminal import columns, paint, safe, state_colour
from launcher.errors import LaunchError
from launcher.ids import parse_run_id
from launcher.run.durable import read_lines
from launcher.run.layout import RunDir
from launcher.run.records import TOLD, Event, Failure, NodeState
from launcher.states import Cause, State
from launcher.status.derive import RunStatus, local_time, state_text

_EVENTS = 8
_LISTED = 16
_TAIL = 12
_FEW_BYTES = 4 << 20  # of metrics are read for the page; `launch metrics` reads any number


def page(status: RunStatus, now: float) -> list[str]:
    """Return the lines of the page about a run."""
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
        *_roles(status),
        *_avoided(status, now),
        *_lately(status, now),
        *(["", f"{paint('next', 'bold')}  {safe(status.next)}"] if status.next else []),
    ]


def _roles(status: RunStatus) -> list[str]:
    """Return the section about the roles of the run other than its main one: a line for each, or an empty list."""
    rows = [
        (
            f"role {safe(name)}",
            state_text(one),
            f"ranks {one.world_size or '-'}",
            f"step {_progress(one)}",
            f"restarts {_restarts(one)}",
            safe(one.last_word),
        )
        for name, one in status.roles.items()
    ]
    return ["", paint("roles", "bold"), *columns(rows, indent="  ")] if rows else []


def headline(status: RunStatus) -> str:
    """Return the first line of the page: the run's state and the reason for it."""
    words = status.last_word if status.state is State.FAILED else status.message
    said = f": {safe(words)}" if words else ""
    return paint(f"{safe(status.run)} {state_text(status)}", state_colour(status.state)) + said


def failure_lines(failure: Failure, run_dir: str, *, tail: bool = True) -> list[str]:
    """Return the lines about the first failing rank and its cause; with `tail`, the last lines of its log too.

    `run_dir` is the run's folder, relative to which the failure names the log.
    """
    who = f"rank {failure.rank}" if failure.rank is not None else "the run"
    on_node = f" on node {failure.node}" if failure.node is not None else ""
    where = f" at {safe(failure.where)}" if failure.where else ""
    when = f"attempt {failure.attempt}, generation {failure.generation}"
    first = f"first to fail: {who}{on_node}: {failure.cause}{where}, in {when}"
    lines = ["", paint(f"  {first}", "bold")]
    lines += [paint("  │ ", "dim") + safe(line) for line in failure.tail[-_TAIL if tail else len(failure.tail) :]]
    lines += [f"  {safe(line)}" for line in _where_it_ran(failure, run_dir)]
    return [*lines, *([f"  whole log: {safe(run_dir)}/{safe(failure.log)}"] if failure.log else [])]


def _where_it_ran(failure: Failure, run_dir: str) -> list[str]:
    """Return lines about the folder in which the failed program of the run in `run_dir` ran, and about how to get a
    missing file or module there. The list is empty if the failure is not an error of the user's.
    """
    if failure.cause is not Cause.USER_ERROR:
        return []
    from launcher.status.where_it_ran import where_it_ran  # late: it reads the plan, which only a failure is worth

    return where_it_ran(failure, run_dir)


def _facts(status: RunStatus, now: float) -> list[tuple[str, str]]:
    """Return the rows (name, text) of facts about the run, such as its attempt, step, metrics, newest checkpoint,
    restarts, place, times and exit code.
    """
    rows = [("attempt", f"{status.attempt}.{status.generation}"), ("step", _progress(status))]
    if status.metrics:
        rows.append(("metrics", _metrics(status)))
    rows += [("no number", paint(text, "red")) for text in not_finite(status)]
    if status.malformed:
        lines = figures.count(status.malformed, "line")
        rows.append(("no reports", f"{lines} on the progress wire: expected one JSON object a line"))
    rows.append(("checkpoint", _checkpoint(status)))
    if behind := _behind(status):
        rows.append(("disks", behind))
    if status.memory_copy is not None:
        rows.append(("memory", f"step {status.memory_copy} of each node is in another one's memory, too"))
    rows.append(("restarts", _restarts(status)))
    job = f" job {safe(status.job)}" if status.job else ""
    rows.append(("where", f"{safe(status.cluster)}{job}, {safe(status.run_dir)}"))
    rows.append(("submitted", f"{local_time(status.submitted_at)} ({figures.duration(now - status.submitted_at)} ago)"))
    rows += _description_rows(status)
    if status.started_at is not None:
        rows.append(("ran for", duration_text(status, now)))
        rows += _trained(status, now)
    if status.as_of is not None:
        rows.append(("as of", f"{local_time(status.as_of)} ({figures.duration(now - status.as_of)} ago)"))
    if status.failure is not None and status.state is not State.FAILED:
        rows.append(("last failure", f"{status.failure.cause}: {safe(status.failure.summary)}"))
    if status.state is State.FAILED and status.failure is not None and status.message:
        rows.append(("gave up", safe(status.message)))
    if status.exit_code is not None:
        rows.append(("exit code", str(int(status.exit_code))))
    return rows


def _trained(status: RunStatus, now: float) -> list[tuple[str, str]]:
    """Return the row about goodput, the share of time spent on steps that count, and on what the other time was spent;
    an empty list if no step was reported.
    """
    from launcher.status.life import Doing, read_life  # late: the table of runs does without

    life = read_life(status, now)
    if life.goodput is None:
        return []
    gone = {kind: life.seconds[kind] for kind in (Doing.STARTING, Doing.RECOVERING, Doing.LOST)}
    rest = "".join(f", {kind} {figures.duration(seconds)}" for kind, seconds in gone.items() if seconds >= 1)
    return [("trained", f"{life.goodput:.0%} of {figures.duration(life.counted_s)}{rest}")]


def _metrics(status: RunStatus) -> str:
    """Return the newest metrics as text, such as `loss 0.31 (best 0.29 at 120)`. The best value is shown only if the
    metric's name tells whether higher or lower is better.
    """
    from launcher.status.series import figures_of, read_rows, size  # late: the table of runs does not ask for them

    run = RunDir(Path(status.run_dir))
    found = figures_of(read_rows(run)) if size(run) < _FEW_BYTES else []
    best = {one.name: f" (best {one.best:.5g} at {one.best_step})" for one in found if one.best is not None}
    return ", ".join(f"{safe(name)} {value:.5g}{best.get(name, '')}" for name, value in status.metrics.items())


def _first_line(text: str) -> str:
    """Return the first line of a text."""
    first, *more = text.strip().splitlines() or [""]
    return f"{first} ..." if more else first


def _description_rows(status: RunStatus) -> list[tuple[str, str]]:
    """Return the rows (name, text) of descriptions that the spec, git and the user give of the run."""
    from launcher.status.about import about  # late: the table of runs does without

    said = about(RunDir(Path(status.run_dir)), status.attempt)
    changes = ", with changes" if said.dirty else ""
    rows = [
        ("called", said.called), ("for", " ".join(said.description.split())),
        ("command", _first_line(said.command)),
        ("arguments", shlex.join(said.args)),
        ("commit", f"{said.commit[:12]}{changes}" if said.commit else ""), ("tags", ", ".join(said.tags)),
        ("note", " ".join(said.note.split())),
    ]  # fmt: skip
    return [(name, safe(text)) for name, text in rows if text]


def not_finite(status: RunStatus) -> list[str]:
    """Return a text for each metric that is not finite, such as `loss is NaN since step 17`."""
    since = {name: "" if one.since is None else f" since step {one.since}" for name, one in status.not_finite.items()}
    return [f"{safe(name)} is {one.value}{since[name]}" for name, one in status.not_finite.items()]


def _progress(status: RunStatus) -> str:
    """Return step, rate and time left as text; a rate or a time that is not known is left out."""
    words = [figures.steps(status.step, status.total_steps)]
    if status.rate is not None:
        words.append(figures.rate(status.rate))
    if status.eta_s is not None:
        words.append(f"{figures.duration(status.eta_s)} to go")
    return ", ".join(words)


def _checkpoint(status: RunStatus) -> str:
    """Return text about the run's checkpoints: the newest step of the trainer's on disk and how many there are, else
    the step that ranks reported last. The best one and damaged ones that were set aside (renamed) are counted after
    that.
    """
    from launcher import api  # late: it shows this page
    from launcher.status.checkpoints import Kept, by_script, kept  # late: 10 ms that the table of runs must not pay for

    none = "none" if status.state.ended else "none yet"
    reported = f"step {status.checkpoint}" if status.checkpoint is not None else none
    if status.checkpoint is not None and api.Run(parse_run_id(status.run), Path(status.run_dir)).saved_by_script(
        status.checkpoint
    ):
        return by_script(status.checkpoint)
    there = Kept((), 0, 0)
    with contextlib.suppress(OSError, LaunchError):  # the page is worth showing without it
        there = kept(RunDir(Path(status.run_dir)))
    words = [f"step {there.steps[-1]}, {len(there.steps)} committed"] if there.steps else [reported]
    words += ["the best one kept apart"] if there.best else []
    words += [f"{there.set_aside} set aside"] if there.set_aside else []
    return ", ".join(words)


def _behind(status: RunStatus) -> str:
    """Return text that says how many steps the loss of a disk would cost, because the newest checkpoint with a second
    copy on another disk is older than the newest one; "" if none.
    """
    newest, safe = status.checkpoint, status.safe_checkpoint
    if not status.second_copies or newest is None or safe == newest:
        return ""
    if safe is None:
        return "no checkpoint survives a disk yet"
    return f"the newest checkpoint that survives a disk is step {safe}, {newest - safe} steps behind"


def _restarts(status: RunStatus) -> str:
    """Return the number of restarts as text, with their causes."""
    causes = ", ".join(f"{count} {safe(cause)}" for cause, count in status.restarts.by_cause.items() if count)
    return f"{status.restarts.total} ({causes})" if causes else str(status.restarts.total)


def _ranks(status: RunStatus) -> list[str]:
    """Return the section about nodes and ranks as lines, or an empty list if none are recorded."""
    if not status.nodes and not status.ranks:
        return []
    lines = ["", paint(f"nodes {len(status.nodes)}, ranks {status.world_size or len(status.ranks)}", "bold")]
    told = (
        status.nodes if len(status.nodes) <= _LISTED else sorted(status.nodes, key=lambda node: not node.why)[:_LISTED]
    )
    nodes = [
        (f"node {node.node}", _place(node), safe(node.state), safe(node.why) or _numbers(node.ranks)) for node in told
    ]
    ranks = [
        (
            f"rank {one.rank}",
            f"node {one.node}",
            safe(one.state),
            f"pid {one.pid or '-'}",
            f"step {figures.steps(one.step, None)}",
        )
        for one in status.ranks[:_LISTED]
    ]
    for what, rows, count in (("nodes", nodes, len(status.nodes)), ("ranks", ranks, len(status.ranks))):
        lines += columns(rows, indent="  ") if rows else []
        lines += [f"  and {count - len(rows)} {what} more; `--json` has all"] if count > len(rows) else []
    return lines


def _place(node: NodeState) -> str:
    """Return a node's host name and address as text."""
    return f"{safe(node.host)} ({safe(node.address)})" if node.host else safe(node.address)


def _avoided(status: RunStatus, now: float) -> list[str]:
    """Return the section about excluded nodes: for how long, and why; or an empty list if there are none."""
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
    heading = f"nodes that are avoided; `launch nodes include {safe(status.run)}` lets them be used again"
    return ["", paint(heading, "bold"), *columns(rows, indent="  ")]


def _numbers(ranks: tuple[int, ...]) -> str:
    """Return ranks as text, such as `ranks 0..3` or `ranks 0, 2`; "no ranks" for none."""
    if not ranks:
        return "no ranks"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}..{ranks[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _lately(status: RunStatus, now: float) -> list[str]:
    """Return the section about the run's newest events, without those of sent notifications, or an empty list if there
    are none or they cannot be read.
    """
    events: list[Event] = []
    with contextlib.suppress(OSError):  # the page is worth showing without them
        happened = read_lines(RunDir(Path(status.run_dir)).events, Event)
        events = [event for event in happened if event.kind != TOLD][-_EVENTS:]
    if not events:
        return []
    rows = [(f"{figures.duration(now - event.at)} ago", safe(event.text) or safe(event.kind)) for event in events]
    return ["", paint("lately", "bold"), *columns(rows, indent="  ")]
