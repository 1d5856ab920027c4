"""Submitting to a login node: the spec is read and the code listed here, what is missing there is sent, once.

A connection that breaks is made again with the same token, for which the login node starts one run and no more. Who
was killed before an answer came leaves a note of the token, and the next `launch status` asks what became of it.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from launcher.clusters.clusters_file import ClusterEntry, login_of, with_defaults
from launcher.clusters.protocol import Preview
from launcher.errors import BadInput, LaunchError, Unreachable, some_exist
from launcher.hostlink.shipping.tree import contents, digest_of, entries, refuse_links_out
from launcher.plan.model import Plan
from launcher.remote import known
from launcher.remote.known import Asked, Login, RemoteRun
from launcher.remote.ssh import Broken, Connection, Silent, far_error
from launcher.remote.wire import Have, Job, Outcome, Prepare, Prepared, Submit, Tree, encoded
from launcher.rundir import registry
from launcher.rundir.code_list import CodeList, list_code
from launcher.rundir.identity import this_process
from launcher.rundir.ids import new_token
from launcher.secret_values import read_secret_values, unset_secrets
from launcher.spec import position, read_spec
from launcher.spec.model import JobSpec
from launcher.submission import project_of

_PAUSES_S = (0.5, 2.0, 5.0)  # before each further try
_ANSWER_S = 120.0
_MINUTES_S = 600.0  # for a large tree to be written and read there

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Wish:
    """A spec that was read, and the code that goes with it."""

    login: Login
    file: Path
    spec: JobSpec
    root: Path
    code: CodeList
    job: Job


def submit(
    place: ClusterEntry,
    specs: Sequence[Path],
    overrides: Sequence[str] = (),
    *,
    repeat: int | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> list[RemoteRun]:
    """Start a run of each spec there, each `repeat` times; they are known here from then on.

    Raises BadInput with every problem before any is started, Unreachable, and what is raised there; each names the runs
    that exist all the same.
    """
    wishes, problems = list[_Wish](), list[str]()
    for spec in specs:
        try:
            wishes.append(_wish(place, spec, overrides))
        except BadInput as error:
            problems += error.lines
    if problems:
        raise BadInput(*problems)
    started = list[RemoteRun]()
    for wish in wishes:
        try:
            started += _submit(wish, repeat, pause)
        except LaunchError as error:
            if not started:
                raise
            raise some_exist(error, _named(started), len(wishes) * (repeat or 1)) from error
    return started


def _named(started: Sequence[RemoteRun]) -> tuple[tuple[str, str], ...]:
    return tuple((run.run, run.place) for run in started)


def prepare(place: ClusterEntry, spec: Path, overrides: Sequence[str] = ()) -> tuple[Plan, CodeList, Preview | None]:
    """What `submit` would do, as data. Starts nothing; the code is sent, because only there it can be looked at."""
    wish = _wish(place, spec, overrides)

    def ask(connection: Connection) -> Prepared:
        return connection.ask(Prepare(wish.job), Prepared, timeout_s=_ANSWER_S)

    found = _persistently(wish, ask, time.sleep)
    return msgspec.structs.replace(found.plan, cluster=place.name), wish.code, found.preview


def _submit(wish: _Wish, repeat: int | None, pause: Callable[[float], None]) -> list[RemoteRun]:
    request = _request(wish, repeat)
    spec = _text(wish.file.resolve())
    asked = Asked(request.token, wish.login, wish.spec.name, wish.job.on, spec, time.time(), this_process())
    known.note_asked(asked)
    begun = False

    def start(connection: Connection) -> Outcome:
        nonlocal begun
        begun = True
        return connection.ask(request, Outcome, timeout_s=_ANSWER_S)

    try:
        outcome = _persistently(wish, start, pause)
    except BaseException as error:
        if not begun:
            known.forget_asked(asked)
        elif isinstance(error, Unreachable):
            hint = "hint: it may have started all the same; `launch status` asks again"
            raise Unreachable(*error.lines, hint) from error
        raise
    runs = known.settle(asked, outcome)
    if outcome.error or not runs:
        told = far_error(outcome.error or ("the login node gave no answer",), outcome.exit_code)
        told.runs = _named(runs)
        raise told
    return runs


def _request(wish: _Wish, repeat: int | None) -> Submit:
    secrets = read_secret_values(wish.spec, wish.root, os.environ)
    known_ids = {run_id for run_id, _ in registry.registered()} | {run.run for run in known.runs()}
    taken = tuple(sorted(run_id for run_id in known_ids if run_id.startswith(f"{wish.spec.name}-")))
    request = Submit(wish.job, repeat, new_token(), secrets, taken)
    try:
        encoded(request)  # before anything is begun
    except UnicodeEncodeError:
        raise BadInput("secrets: expected text, got a value with bytes that are none") from None
    return request


def _wish(place: ClusterEntry, file: Path, overrides: Sequence[str]) -> _Wish:
    way = login_of(place)
    if way.node is None:
        raise BadInput(f"--on {place.name}: has no login node")
    spec = read_spec(file, with_defaults(place.defaults, file, overrides))
    root = project_of(file)
    _refuse_unset(file, unset_secrets(spec, root, os.environ))
    code = list_code(root, spec.code)
    refuse_links_out(code)
    digest = digest_of(code, known.index_folder())
    login = Login(place.name, way.node, way.launch, way.folder)
    on = way.cluster or "local"
    usual = tuple(one for one in place.defaults if not one[0].startswith(f"{place.kind}."))
    called = (_text(file), _text(root))
    words = tuple(overrides)
    job = Job(way.folder, digest, _text(file.name), file.read_bytes(), words, usual, on, called)
    return _Wish(login, file, spec, root, code, job)


def _persistently(wish: _Wish, ask: Callable[[Connection], T], pause: Callable[[float], None]) -> T:
    """Have the code there, then ask; anew where the connection breaks on the way."""
    without = {secret.name for secret in wish.spec.secrets}
    pauses = iter(_PAUSES_S)
    was_there = False
    while True:
        try:
            with Connection(wish.login, without=without, compress=True) as connection:
                connection.greet()
                was_there = True
                _bring(connection, wish)
                return ask(connection)
        except Unreachable as error:
            was_there = was_there or isinstance(error, Broken)
            wait_s = next(pauses, None) if was_there and not isinstance(error, Silent) else None
            if wait_s is None:
                raise
            pause(wait_s)


def _bring(connection: Connection, wish: _Wish) -> None:
    job = wish.job
    if connection.ask(Have(job.folder, job.digest), bool, timeout_s=_MINUTES_S):
        return
    tree = Tree(job.folder, job.digest, entries(wish.code))
    connection.ask(tree, type(None), contents=contents(wish.code), timeout_s=_MINUTES_S)


def _refuse_unset(file: Path, names: Sequence[str]) -> None:
    if names:
        line, column = position(file.read_text(), "secrets")
        raise BadInput(*(f"{file}:{line}:{column}: secrets: {name} is not set" for name in names))


def _text(path: Path | str) -> str:
    """A name for people, where it has bytes that are no text."""
    return os.fsencode(path).decode(errors="replace")
