"""`launch _far`, which runs on a login node: it answers requests on stdin until the input ends. A request that starts
something has a unique token; it is carried out once, however often it comes, and its result is stored, so that a lost
connection does no harm. A part of a run is one of its roles, with a script and a folder of its own.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from launcher import api
from launcher.copies.mirror import tails
from launcher.copies.mirror.holders import keep_file
from launcher.copies.mirror.roles import reports_of_roles
from launcher.errors import BadInput, Exit, LaunchError, NoSuchRun, Refused
from launcher.ids import RunId, parse_run_id
from launcher.node.inside.visit import relay
from launcher.node.inside.visit_messages import VisitDeclined
from launcher.places.clusters_file import entry, hosts_of, merged
from launcher.places.elsewhere import kept_elsewhere
from launcher.places.kinds import of_kind
from launcher.places.login.messages import (
    EVENTS_BYTES,
    MOST_ATTEMPTS,
    PIECE_BYTES,
    AskCheckpoints,
    AskHosts,
    AskLogs,
    AskMachine,
    AskOutputs,
    AskPreview,
    AskQueue,
    AskRunsFolder,
    AskStock,
    AttemptNews,
    EndRun,
    GivePiece,
    IncludeNodes,
    KeepPiece,
    KnownRun,
    LogNews,
    LookAtRuns,
    OpenAttempt,
    OpenRuns,
    ReleaseRun,
    RemotePreview,
    RemoteSpec,
    Request,
    RunNews,
    TidyRuns,
    VoidTokens,
)
from launcher.places.login.records import events_after
from launcher.places.place import KeptRemote
from launcher.plan.facts import Misfit
from launcher.plan.model import Plan
from launcher.remote.rpc.once import Runs, Token, tidy
from launcher.remote.rpc.server import folder_of, projects_in, serve, take_stdio
from launcher.remote.rpc.wire import Outcome, encoded, greeting
from launcher.remote.shipping import kept_trees
from launcher.run import registry
from launcher.run.attempts import attempts, last_attempt, read_intent, read_plan
from launcher.run.code import outputs
from launcher.run.durable import make_dir, readable, write_all, write_bytes
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, RunState, StopRequest
from launcher.run.removal import remove_tree, size_of
from launcher.spec.model import JobSpec, RunOptions
from launcher.states import State
from launcher.status.checkpoints import checkpoint_folder
from launcher.status.derive import RunStatus
from launcher.submission.opening import open_shipped
from launcher.submission.reopening import reopen
from launcher.submission.requests import Shipped, ShippedRun, prepare, roles_problems
from launcher.supervisor.waiting import awaited_by
from trainer.checkpoint_files.partial import inventory, open_file, read_manifest

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST_NAME = 200
_LONGEST_NUMBER = 7  # digits
_MOST_LISTED = 4  # runs

_listed: dict[RunId, list[str]] = {}  # what their ranks have written, for the next answers to who asks for it


def serve_requests() -> int:
    """Answer on stdout the requests that come over stdin, until it ends; return the exit code."""
    return serve(Request, lambda request, _body: answer(request), where="on the login node: ")


def serve_inside(run: str = "", node: str = "", role: str = "") -> int:
    """Serve `launch _inside RUN NODE`: relay messages between the caller, over stdin and stdout, and a program on the
    node that inspects ranks, until the caller's input ends or the program closes its side; return 0.

    `run` is the run's id and `node` the node's number (without one the request is refused), and `role` names a part of
    the run with a script of its own ("": the run itself). An error is sent to the caller as a message.
    """
    source, sink = take_stdio()
    try:
        if not (node.isascii() and node.isdigit() and len(node) <= _LONGEST_NUMBER):
            raise BadInput(f"expected the number of a node, got {node[:100]!r}")
        with _part(parse_run_id(run), role).reach(int(node)) as running:
            relay(running, source, sink)
    except LaunchError as error:
        write_all(sink, greeting() + encoded(VisitDeclined(error.lines, error.exit_code)))
    return Exit.OK


def answer(request: Request) -> Any:
    """Carry out a request and return its answer, to be sent to the caller; a LaunchError is raised, for serve() to send
    instead.
    """
    match request:
        case AskMachine() | AskHosts() | AskQueue() | AskRunsFolder():
            return _answer_on_cluster(request)
        case AskPreview():
            return _preview(request)
        case OpenRuns():
            return _open_runs(request)
        case OpenAttempt():
            return _open_attempt(request)
        case VoidTokens():
            folder = folder_of(request.folder)
            return {token: Token(folder, token).void() for token in request.tokens}
        case LookAtRuns():
            return _look(request.runs)
        case AskLogs():
            return _logs(request)
        case AskOutputs():
            return _outputs(request)
        case EndRun() | IncludeNodes() | ReleaseRun():
            return _answer_on_run(request)
        case AskCheckpoints() | AskStock() | GivePiece() | KeepPiece():
            return _answer_on_checkpoints(request)
        case TidyRuns():
            return _tidy(request)
        case _:
            assert_never(request)


def _answer_on_cluster(request: AskMachine | AskHosts | AskQueue | AskRunsFolder) -> Any:
    """Return the answer to a question about a cluster: its machines, hosts, queue options, or folder of runs."""
    match request:
        case AskMachine(on=on, spec=spec):
            place = entry(on)
            for one in roles_problems(spec, of_kind(place.kind)):
                raise BadInput(f"{one.key}: {one.reason}", f"hint: {one.hint}")
            return of_kind(place.kind).machine(merged(place, spec))
        case AskHosts(on=on, spec=spec):
            return hosts_of(entry(on), spec)
        case AskQueue():
            return _queue_problems(request)
        case AskRunsFolder():
            return str(_runs_root(request.folder))


def _answer_on_run(request: EndRun | IncludeNodes | ReleaseRun) -> Any:
    """Cancel or release a run, or let it use excluded nodes again, as the request says; return the answer."""
    match request:
        case EndRun():
            return _run(request.run).cancel()
        case IncludeNodes():
            return _run(request.run).include_nodes(request.hosts)
        case ReleaseRun():
            return api.release(_run(request.run))


def _answer_on_checkpoints(request: AskCheckpoints | AskStock | GivePiece | KeepPiece) -> Any:
    """List a run's checkpoints, or read or write a piece of one, as the request says; return the answer."""
    match request:
        case AskCheckpoints():
            return list(_part(request.run, request.role).checkpoints(verify=request.verify))
        case AskStock():
            one = _part(request.run, request.role)
            one.fetch(request.checkpoint)  # where this is no login node's disk, but other hosts'
            return inventory(checkpoint_folder(RunDir(one.path)))
        case GivePiece():
            return _piece(request)
        case KeepPiece():
            return _keep_piece(request)


def _queue_problems(request: AskQueue) -> list[Misfit]:
    """Return a problem for each queue option in the request that cannot work on this cluster."""
    place = entry(request.on)
    cluster = of_kind(place.kind)
    awaited, unknown = awaited_by(request.to_follow)
    spec = merged(place, JobSpec("queue", RunOptions(command="true"), queue=request.queue))
    return [*unknown, *cluster.queue_problems(spec, awaited)]


def _preview(request: AskPreview) -> RemotePreview:
    """Return what would be submitted for a spec; nothing is started."""
    root = _project(request.folder, request.digest)
    with tempfile.TemporaryDirectory(prefix="launch-") as made, _shipped(request.spec, Path(made), root) as shipped:
        overrides = shipped.overrides
        plan, _ = prepare(shipped.file, on=request.on, overrides=overrides, shipped=shipped)
        return RemotePreview(plan.run_dir, api.preview(plan))


def _open_runs(request: OpenRuns) -> Outcome:
    """Start the requested runs and return the outcome.

    If the same request has come before, nothing is started twice, and its stored outcome is returned.
    """
    folder = folder_of(request.folder)
    token = Token(folder, request.token)
    if any(one.spec >= len(request.specs) for one in request.runs):
        raise BadInput(f"expected runs of {len(request.specs)} specs")

    def start(choose: Callable[[Runs], None]) -> Runs:
        """Start the runs and return their ids and folders; before that, `choose` records the ids."""
        root = _project(request.folder, request.digest)
        goes_on_from = checkpoints if (checkpoints := _checkpoints(token)).is_dir() else None
        specs = []
        with contextlib.ExitStack() as stack:
            for index, spec in enumerate(request.specs):
                shipped = stack.enter_context(_shipped(spec, token.path / f"spec-{index}", root))
                runs = (
                    ShippedRun(one.run, one.repeat, one.first, one.roles, one.events, goes_on_from, one.starts_at)
                    for one in request.runs
                    if one.spec == index
                )
                specs.append(replace(shipped, secrets=request.secrets, notifying=request.notifying, runs=tuple(runs)))
            return open_shipped(specs, on=request.on, choose=choose)

    outcome = token.redeem(start)
    tidy(folder, time.time())
    return outcome


def _keep_piece(request: KeepPiece) -> None:
    """Write a piece at its offset into a file that belongs to a checkpoint, over what an earlier piece wrote there;
    with the piece that ends the file, move the file into the checkpoint. Raise BadInput for a piece that begins after
    the end of what was written, or reaches beyond the file's size.
    """
    folder = _checkpoints(Token(folder_of(request.folder), request.token))
    make_dir(folder)
    gathered = folder.with_suffix(".part")
    there = gathered.stat().st_size if gathered.exists() else 0
    if request.at > there or request.at + len(request.piece) > request.size:
        raise BadInput(f"expected a piece from byte {there} on at most, got one from {request.at} on")
    with gathered.open("r+b" if request.at else "wb") as file:
        file.seek(request.at)
        file.write(request.piece)
    if request.at + len(request.piece) < request.size:
        return
    with gathered.open("rb") as file:
        keep_file(folder, request.manifest, request.name, iter(partial(file.read, PIECE_BYTES), b""), request.kind)
    gathered.unlink()


def _checkpoints(token: Token) -> Path:
    """Return the folder for checkpoints that were sent ahead of the request with this token."""
    return token.path / "checkpoints"


def _open_attempt(request: OpenAttempt) -> Outcome:
    """Resume a run and return the outcome.

    If the same request has come before, nothing is started twice, and its stored outcome is returned.
    """

    def start(choose: Callable[[Runs], None]) -> Runs:
        """Start the run's next attempt, and return the run's id and folder."""
        one = _run(request.run)
        status = one.status()
        if not status.state.ended:
            raise Refused(f"{one.id} is {status.state} on the login node: {status.message}")
        run = RunDir(one.path)
        opened = [(one.id, run.attempt(request.after + 1).path)]
        choose(opened)  # there once the attempt is
        reopen(
            run, after=request.after, on=None, overrides=request.overrides, defaults=request.defaults, anew=request.anew
        )
        return opened

    return Token(folder_of(request.folder), request.token).redeem(start)


# -- runs that are here


def _look(wanted: tuple[KnownRun, ...], events_bytes: int = EVENTS_BYTES) -> dict[RunId, RunNews]:
    """Return the state of each run, and what its records have beyond those of the caller, with at most `events_bytes`
    of events in total; the rest of the events comes with the next request.

    `wanted` says of each run how much of its records the caller has. Runs that do not exist here are left out; a run
    whose records cannot be read has the state UNKNOWN and the reason.
    """
    known = dict(registry.registered())
    asked = [one for one in wanted if one.run in known and known[one.run].is_dir()]
    runs = [api.Run(one.run, known[one.run]) for one in asked]
    statuses = api.statuses(runs, api.WATCH_S)
    found: dict[RunId, RunNews] = {}
    left = events_bytes  # what does not fit into this answer comes with the next one
    for run, one, status in zip(runs, asked, statuses, strict=True):
        try:
            found[one.run] = _news(run, one, status, left, is_alone=left == events_bytes)
        except (LaunchError, OSError) as error:  # one damaged run keeps nobody else's from being told of
            found[one.run] = RunNews(State.UNKNOWN, str(error), None, None, (), None, (), 0, b"")
        left -= len(found[one.run].events)
    return found


def _news(one: api.Run, known: KnownRun, status: RunStatus, most: int, *, is_alone: bool) -> RunNews:
    """Return what has changed in a run, with at most `most` bytes of its events; `known` says how much of its records
    the caller has.

    If events are left out, `more` tells the caller to ask again. An exception is an event longer than `most` bytes: if
    the answer has no other run's events either (`is_alone`), asking again would bring nothing, and `more` is False.
    """
    run = RunDir(one.path)
    settled = status.state.ended  # else what follows from the end is on its way
    begun = [each for each in attempts(run) if each.number >= known.attempt and each.intent.exists()]
    news = tuple(_attempt_news(each, settled=settled or each != begun[-1]) for each in begun[:MOST_ATTEMPTS])
    last = readable(run.state, RunState)
    at, events = events_after(run, known, most)  # after the end was looked for: it is not told without its events
    more = run.events.exists() and run.events.stat().st_size - at > most
    return RunNews(
        state=status.state,
        message=status.message,
        cause=status.cause,
        job=status.job,
        attempts=news,
        last=last,
        avoided=status.avoided,
        events_at=at,
        events=events,
        more=more and (bool(events) or not is_alone),
        roles=tuple(reports_of_roles(run)),
    )


def _attempt_news(attempt: AttemptDir, *, settled: bool) -> AttemptNews:
    """Return the facts about an attempt.

    Its end is left out until the run has `settled`: until the records that follow from the end are written.
    """
    intent = read_intent(attempt)
    end, stop = readable(attempt.end, AttemptEnd), readable(attempt.stop, StopRequest)
    if end is not None and end.state.ended and not settled:
        end = None
    return AttemptNews(attempt.number, intent.reason, intent.cause, intent.created_at, end, stop)


def _logs(request: AskLogs) -> LogNews:
    """Return what a run's logs and metrics have beyond the bytes that the caller has already, whose number is in the
    request's `known` by file. If that is more than one answer holds, the answer says that there is more (`more`).
    """
    one = _run(request.run)
    one.renew()
    found, more = tails.grown(one.path, request.folders, request.known)
    return LogNews(tuple(found), more)


def _outputs(request: AskOutputs) -> LogNews:
    """Return what the output files of a run have beyond the sizes in `request.known`, as much as one answer holds, and
    whether there is more.

    A request without `known`, the first of a series, makes the list of these files; later ones use it, until an answer
    says that there is no more. Raise Refused if the files are on other machines.
    """
    run = RunDir(_run(request.run).path)
    last = last_attempt(run)
    if of_kind(read_intent(last).cluster_kind).remote:
        hint = f"hint: on the login node: launch fetch {run.id} --outputs"
        raise Refused("what ranks have written is on other machines behind the login node", hint)
    if not request.known or run.id not in _listed:
        _list_outputs(run, read_plan(run, last.number))
    found = (run.code / name for name in _listed[run.id])
    whole = (path for path in found if path.is_file() and not path.is_symlink())
    grown, more = tails.grown_of(run.path, whole, request.known)
    if not more:
        del _listed[run.id]
    return LogNews(tuple(grown), more)


def _list_outputs(run: RunDir, plan: Plan) -> None:
    """Store the names of the run's output files that are text in `_listed`, for later requests to this process. Output
    files are those that ranks wrote beside their code; if `run.outputs` in the plan's spec has patterns, only those
    that match one.
    """
    names = outputs.written(run.code, outputs.frozen_names(run, plan), plan.spec.run.outputs)
    _listed.pop(run.id, None)
    while len(_listed) >= _MOST_LISTED:
        del _listed[next(iter(_listed))]
    _listed[run.id] = [name for name in names if tails.is_text(name)]


def _piece(request: GivePiece) -> bytes:
    """Return a piece, at most `PIECE_BYTES` bytes, of a checkpoint's file from the offset `request.at` on, or of its
    manifest if the request names no file.
    """
    folder = checkpoint_folder(RunDir(_part(request.run, request.role).path))
    if not request.name:
        return read_manifest(folder, request.step, request.kind)[request.at : request.at + PIECE_BYTES]
    with open_file(folder, request.step, request.name, request.kind) as file:
        file.seek(request.at)
        return file.read(PIECE_BYTES)


def _tidy(request: TidyRuns) -> list[KeptRemote]:
    """Measure the disk space of the request's runs and of the frozen code below its folder that no run needs, and with
    `request.remove` delete that code and those runs that have ended.

    Return the bytes that they occupied before that: first of this machine, then of each other one that has some of
    these runs' files.
    """
    known = dict(registry.registered())
    there = [api.Run(run_id, known[run_id]) for run_id in request.runs if run_id in known and known[run_id].is_dir()]
    live = {one.run for one in api.statuses(there) if not one.state.ended}
    over = [one for one in there if one.id not in live]
    sizes = {one.id: one.usage().total for one in there}
    projects = kept_trees.idle(projects_in(request.folder), time.time())
    code = sum(map(size_of, projects))
    further = api.remove(over) if request.remove else kept_elsewhere([RunDir(one.path) for one in over])
    if request.remove:
        for tree in projects:
            remove_tree(tree)
    return [KeptRemote("", sizes, code, tuple(one.id for one in there if one.id in live)), *further]


def _run(run_id: RunId) -> api.Run:
    """Return the run with this full id; raise NoSuchRun if there is none.

    The id is only compared with those in the list of runs, and no path is made from it.
    """
    path = dict(registry.registered()).get(run_id)
    if path is None:
        raise NoSuchRun(f"{run_id}: no such run on the login node")
    if not path.is_dir():
        raise NoSuchRun(f"{run_id}: its folder is gone: {path}")
    return api.Run(run_id, path)


def _part(run_id: RunId, role: str) -> api.Run:
    """Return the run or, if `role` is not "", the first part of it with that role; raise NoSuchRun or BadInput if it
    does not exist.
    """
    one = _run(run_id)
    return api.parts(one, role)[0].run if role else one


# -- specs and code that came


@contextlib.contextmanager
def _shipped(spec: RemoteSpec, folder: Path, root: Path) -> Iterator[Shipped]:
    """Write the spec that was sent to a file in `folder`, and yield that file with its overrides and `root`, the folder
    with the project's code. If the body raises a LaunchError, raise one instead that calls both by their paths on the
    user's machine.
    """
    plain = spec.name and set(spec.name) <= _PLAIN and not spec.name.startswith((".", "-"))
    make_dir(folder)
    file = folder / (spec.name if plain and len(spec.name) <= _LONGEST_NAME else "job.yaml")
    write_bytes(file, spec.text)
    try:
        yield Shipped(file, spec.overrides, root, {}, spec.defaults)
    except LaunchError as error:
        lines = [line.replace(str(file), spec.called[0]).replace(str(root), spec.called[1]) for line in error.lines]
        renamed = LaunchError(*lines)
        renamed.exit_code = error.exit_code
        raise renamed from error


def _runs_root(named: str) -> Path:
    """Return the folder of runs, which need not exist, and use it for the rest of this process: $LAUNCH_RUNS if that
    is set, else `runs` in the launcher's folder on this machine, whose path is `named`.
    """
    os.environ.setdefault("LAUNCH_RUNS", str(folder_of(named) / "runs"))
    return registry.runs_root(folder_of(named))


def _project(named: str, digest: str) -> Path:
    """Return the source tree with this digest, which was sent before to the launcher's folder `named`; raise
    LaunchError if it is not there.

    First set the folder in which this process keeps runs to `runs` in `named`, unless $LAUNCH_RUNS is set, as it would
    lie inside the tree otherwise.
    """
    _runs_root(named)
    tree = kept_trees.tree(folder_of(named) / "projects", digest)
    if not tree.is_dir():
        raise LaunchError("code: expected the tree to be here")
    return tree
