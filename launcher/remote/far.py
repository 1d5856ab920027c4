"""`launch _far`: the side of a login node. Answers requests on stdin until nobody asks any more.

Nothing that was begun depends on the connection: a request is carried out once it has come whole, and its outcome kept.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, assert_never

import msgspec

from launcher import api
from launcher.errors import Exit, LaunchError
from launcher.hostlink.shipping import kept_trees as trees
from launcher.remote import tokens
from launcher.remote.relay import carry_out
from launcher.remote.tokens import Runs
from launcher.remote.wire import (
    Command,
    Confused,
    Have,
    Incoming,
    Job,
    Outcome,
    Prepare,
    Prepared,
    Reply,
    Request,
    Settle,
    Statuses,
    Submit,
    Tree,
    encoded,
    greeting,
    read_request,
)
from launcher.rundir import registry
from launcher.rundir.durable import make_dir, write_all, write_bytes
from launcher.status.derive import RunStatus
from launcher.submission import Shipped, open_runs, prepare

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST_NAME = 200


def serve() -> int:
    """Until the other side hangs up; gives the exit code."""
    incoming, out = _take_stdio()
    try:
        write_all(out, greeting())
        while True:
            request = read_request(incoming.line())
            if isinstance(request, Command):
                return carry_out(request, incoming, out)
            reply = _answered(request, incoming)
            write_all(out, encoded(reply))
            if reply.error and isinstance(request, Tree):
                return Exit.OK  # what comes next is not a request but the rest of the contents
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return Exit.OK  # nobody is there any more
    except Confused as error:
        write_all(out, encoded(Reply(error=error.lines, exit_code=error.exit_code)))
        return Exit.INTERNAL


def _take_stdio() -> tuple[Incoming, int]:
    """The connection for us alone: nothing that is started or printed here can get between."""
    asked, told = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return Incoming(asked), told


def _answered(request: Request, incoming: Incoming) -> Reply:
    try:
        value = _answer(request, incoming)
    except LaunchError as error:
        return Reply(error=error.lines, exit_code=error.exit_code)
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: one line for people, who are on another machine
        first = (str(error) or "no text").splitlines()[0]
        return Reply(error=(f"on the login node: {type(error).__name__}: {first}",), exit_code=Exit.INTERNAL)
    return Reply(msgspec.Raw(msgspec.json.encode(value)))


def _answer(request: Request, incoming: Incoming) -> Any:
    match request:
        case Have():
            return trees.have(_folder(request.folder) / "projects", request.digest)
        case Tree():
            return _keep(request, incoming)
        case Prepare():
            return _prepare(request.job)
        case Submit():
            return _submit(request)
        case Settle():
            folder = _folder(request.folder)
            return {token: tokens.Ticket(folder, token).void() for token in request.tokens}
        case Statuses():
            return _statuses(request.runs)
        case Command():
            raise TypeError("a command is not answered")
        case _:
            assert_never(request)


def _keep(request: Tree, incoming: Incoming) -> None:
    projects = _folder(request.folder) / "projects"
    trees.keep(projects, request.digest, request.files, incoming.some)
    trees.tidy(projects, time.time())


def _prepare(job: Job) -> Prepared:
    shipped = Shipped(_project(job), {}, lambda _: False, lambda _: None, job.defaults)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder, _spec(job, Path(folder)) as spec:
        plan, _ = prepare(spec, on=job.on, overrides=job.overrides, shipped=shipped)
        return Prepared(plan, api.preview(plan))


def _submit(request: Submit) -> Outcome:
    job = request.job
    folder = _folder(job.folder)
    ticket = tokens.Ticket(folder, request.token)

    def start(choose: Callable[[Runs], None]) -> Runs:
        taken = frozenset(request.taken).__contains__
        shipped = Shipped(_project(job), request.secrets, taken, choose, job.defaults)
        with _spec(job, ticket.path / "spec") as spec:
            return open_runs([spec], on=job.on, overrides=job.overrides, repeat=request.repeat, shipped=shipped)

    outcome = ticket.redeem(start)
    tokens.tidy(folder, time.time())
    return outcome


@contextlib.contextmanager
def _spec(job: Job, folder: Path) -> Iterator[Path]:
    """The spec in a file here; problems name the files where the user is."""
    name = job.spec_name
    plain = name and set(name) <= _PLAIN and not name.startswith((".", "-")) and len(name) <= _LONGEST_NAME
    make_dir(folder)
    place = folder / (name if plain else "job.yaml")
    write_bytes(place, job.spec)
    try:
        yield place
    except LaunchError as error:
        spec, project = job.called
        here = str(_folder(job.folder) / "projects" / job.digest)
        lines = [line.replace(str(place), spec).replace(here, project) for line in error.lines]
        told = LaunchError(*lines)
        told.exit_code = error.exit_code
        raise told from error


def _project(job: Job) -> Path:
    """The tree that the run is made of, whose own runs do not go into it."""
    folder = _folder(job.folder)
    os.environ.setdefault("LAUNCH_RUNS", str(folder / "runs"))
    tree = trees.tree(folder / "projects", job.digest)
    if not tree.is_dir():
        raise LaunchError("code: expected the tree to be here")
    return tree


def _statuses(wanted: Iterable[str]) -> dict[str, RunStatus]:
    known = dict(registry.registered())
    runs = [api.Run(run, known[run]) for run in wanted if run in known and known[run].is_dir()]
    return {run.id: status for run, status in zip(runs, api.statuses(runs), strict=True)}


def _folder(named: str) -> Path:
    """From the home folder, where it is not absolute."""
    return Path.home() / os.path.expanduser(named)
