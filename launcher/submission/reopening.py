"""Open a new attempt of a run that has ended: on the same cluster or another, with the same or newer code. An attempt
is one allocation of the run: one batch job, or one start on the hosts of a pool; `before` is the plan of the last one.
An override, such as `run.args.lr=0.1`, sets one option of the spec, as `--set` does.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from launcher.copies import news
from launcher.copies.mirror.roles import next_attempts_of_roles
from launcher.copies.stored import fetch_stored, has_store, whole_here
from launcher.errors import BadInput, LaunchError, NotStarted, Refused
from launcher.places.clusters_file import ClusterEntry, as_reached_now, entry
from launcher.places.kinds import DEFERRED, of_kind
from launcher.places.place import Place
from launcher.plan.build import repeat_of
from launcher.plan.interpreter import interpreter
from launcher.plan.model import FrozenCode, Plan
from launcher.plan.queueing import at_once
from launcher.run.attempts import new_attempt, read_plan
from launcher.run.code.diffing import changes, shown
from launcher.run.code.freezing import bring_code
from launcher.run.code.listing import CodeList, list_frozen
from launcher.run.code.renewing import as_frozen, finish_swap, folder_as_frozen, frozen_digest, stage, swap
from launcher.run.durable import (
    append_line,
    read_record,
    readable,
    write_record,
)
from launcher.run.graphs import checkpoint_sources
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.ownership import is_ours_alone
from launcher.run.records import ANEW, Event, Gone
from launcher.spec.model import JobSpec
from launcher.submission.call_there import SCRIPT
from launcher.submission.opening import counted
from launcher.submission.project import ProjectCode, code_of, facts_of_code
from launcher.submission.requests import (
    Defaults,
    Request,
    ShippedRun,
    code_of_roles,
    plan_of,
    python_problems,
    read_with_defaults,
    refuse,
    refuse_roles,
    spec_problems,
    waiting,
)
from launcher.supervisor.handover import give_up
from launcher.supervisor.notify.record import Notifying
from launcher.supervisor.notify.settings import notifying_of
from launcher.supervisor.waiting import awaited_by

_CHANGES = 8
_CHANGED_LINES = 40


def reopen(
    run: RunDir,
    *,
    after: int,
    on: str | None,
    overrides: tuple[str, ...],
    defaults: Defaults | None = None,
    anew: bool = False,
    renew: bool = False,
    unlisted: Collection[str] = (),
) -> None:
    """Open a new attempt of a run whose attempt `after` has ended, and start it.

    Code and spec are the frozen ones, changed by `overrides`; with `renew` the code is the project's present one. With
    `anew`, or if a user has declared a host of the run gone, the run may start from nothing if no checkpoint is
    complete. Without `on` it runs on its cluster as this was configured then, with `on` on that cluster as configured
    now. If another machine resumes the run, `defaults` are the options that its clusters file sets for the cluster;
    they override those here (None: this machine resumes it). `unlisted` are hosts that were declared gone by the
    launcher and not by a user. Raise NotStarted if the cluster refuses the start; the new attempt is then recorded as
    failed.
    """
    _check_code_is_here(run, after)
    before = read_plan(run, after)
    finish_swap(run, run.attempt(after))
    bring_code(run, before.code.digest, counted)
    wish = _next_request(run, before, _place(before, on, defaults), overrides, renew=renew)
    plan = _next_plan(wish, run, before, renew=renew)
    was = of_kind(before.cluster_kind)
    _fetch_newest(run, was, moves=was.kind != wish.cluster.kind, anew=anew)
    prepared = wish.cluster.prepare(plan)
    try:
        attempt, _ = new_attempt(run, wish.on, "resume", None, plan, kind=wish.cluster.kind, after=after)
        by_a_person = [one for one in read_record(run.gone, list[Gone]) or [] if one.host not in unlisted]
        gone = any(one.attempt >= after for one in by_a_person)
        _note_resumed(run, attempt, wish, anew=anew or gone)
        if renew:
            _change_code(run, attempt, wish.code, before)
    except BaseException:
        prepared.drop()
        raise
    try:
        prepared.start(attempt.number)
    except NotStarted as refusal:
        give_up(run, attempt, str(refusal))
        raise


def _check_code_is_here(run: RunDir, after: int) -> None:
    """Raise Refused if the code of the run's last attempt, number `after`, is not on this machine, and BadInput if
    other users could have changed it.
    """
    if not run.attempt(after).code.is_dir() and not _has_code(run):
        hint = "hint: launch resume there; launch cancel and launch fetch work from here too"
        raise Refused(f"{run.id} was submitted from another machine, and its code is not here", hint)
    if not is_ours_alone(run.path.resolve()):
        hint = f"hint: ls -ld {run.path}; where it is yours, chmod go-w gives it back to you alone"
        raise BadInput(f"{run.path}: other users own it or can write to it: the code in it may be theirs", hint)


def _fetch_newest(run: RunDir, was: Place, *, moves: bool, anew: bool) -> None:
    """Fetch the state from which the run continues: from `was`, the place of its last attempt, or else from its object
    store.

    `moves`: the run continues on another cluster; if it stays on one that stores its files there, nothing is fetched.
    `anew`: a user allows it to begin with step 0 if the state cannot be fetched; without that, raise LaunchError if it
    cannot be fetched and the store has none either.
    """
    if was.remote and not moves:
        return
    trouble, stored = None, has_store(run)
    try:
        if was.remote:
            was.bring_newest(run)
    except LaunchError as error:
        trouble = error
    try:
        if stored and (trouble is not None or not whole_here(run)):
            fetch_stored(run, "newest")
    except LaunchError as error:
        if not anew:
            raise
        trouble = error
    if trouble is None:
        return
    here = whole_here(run)
    if not (anew or (stored and here)):
        raise trouble
    begins = f"resumes from step {here[-1]}, which is here" if here else "begins with step 0, as --anew allows"
    news.say(f"{trouble.lines[0]}; it {begins}")


def _place(before: Plan, on: str | None, defaults: Defaults | None) -> ClusterEntry:
    """Return the cluster of the next attempt: `on` as configured now or, if it is None, the cluster of the last attempt
    as it was configured then, but with the present address of a login node and the present hosts of a pool.

    A deferred attempt had not come to its cluster, so that this is taken as configured now. `defaults` override options
    of the cluster as it is configured now; with None, its options stay.
    """
    if before.cluster_kind == DEFERRED and on is None:
        on = before.cluster  # it had not come there yet
    then = ClusterEntry(before.cluster_kind, before.cluster, before.defaults)
    place = as_reached_now(then) if on is None else entry(on)
    if defaults is None:
        return place
    return ClusterEntry(place.kind, place.name, (*entry(place.name).defaults, *defaults))


def _next_request(
    run: RunDir, before: Plan, place: ClusterEntry, overrides: tuple[str, ...], *, renew: bool
) -> Request:
    """Return the checked request for the next attempt: the run's spec with `overrides`, and its code or, with `renew`,
    the present one.

    Raise BadInput or Refused if it cannot run.
    """
    waits = any(one.startswith("queue.") for one in overrides)  # else it has waited, or is not to wait any more
    where, overrides = of_kind(place.kind), (*before.overrides, *overrides)
    spec = read_with_defaults(run.spec, overrides, place.defaults)
    spec = spec if waits else at_once(spec)
    _check_code_options(run, renew, spec, before, where)
    python = before.entry.python
    if spec.run.python != before.spec.run.python:
        python = interpreter(spec, Path(before.project), os.environ)
    found = _code_for(run, spec, python, before, renew=renew)
    project = facts_of_code(spec, found.listed.root, found.listed, python, found.own_folders)
    awaited, unknown = awaited_by(spec.queue.after)
    refuse_roles(run.spec, spec, where)
    wish = Request(
        run.spec, spec, overrides, place.name, where, project, found.listed, python,
        as_run=ShippedRun(repeat=repeat_of(before), roles=next_attempts_of_roles(run)), defaults=place.defaults,
        notifying=_recipients_now(run, spec, before), awaited=awaited, deferred=waits and bool(checkpoint_sources(run)),
        roles=code_of_roles(spec, found, python, Path(before.project)),
    )  # fmt: skip
    wish, problems = waiting(wish)
    refuse(run.spec, [*problems, *unknown])
    return wish


def _next_plan(wish: Request, run: RunDir, before: Plan, *, renew: bool) -> Plan:
    """Return the plan of the run's next attempt, made of the new request `wish`: with the id, folder, time of
    submission and umask that the run has in `before`, and with the run's code or, with `renew`, the project's present
    code.

    Raise BadInput with all problems if the spec cannot run on the cluster.
    """
    machine, code = wish.cluster.machine(wish.spec), wish.code
    problems = spec_problems(wish, machine, ())
    refuse(run.spec, [*problems, *python_problems(wish.python, machine, wish.spec)])
    unfrozen = plan_of(wish, before.run_id, run.path, before.submitted_at)
    if before.umask is not None:
        unfrozen = msgspec.structs.replace(unfrozen, umask=before.umask)
    if renew:
        frozen = FrozenCode(frozen_digest(code), len(code.files), code.bytes)
        return msgspec.structs.replace(unfrozen, code=frozen)
    return msgspec.structs.replace(unfrozen, code=before.code, project=before.project)


def _has_code(run: RunDir) -> bool:
    """Return whether this machine has the run's code: in the run's folder, or in the store of frozen code."""
    plan = readable(run.plan, Plan)
    if run.code.is_dir() or plan is None:
        return run.code.is_dir()
    return (
        of_kind(plan.cluster_kind).most_files_at_once is not None and folder_as_frozen(run, plan.code.digest).is_dir()
    )


def _note_resumed(run: RunDir, attempt: AttemptDir, wish: Request, *, anew: bool) -> None:
    """Record that the run was resumed, and who is notified from now on. `anew` says that the user allows it to start
    without a checkpoint if none is whole; that is recorded too.
    """
    append_line(run.events, Event(time.time(), attempt.number, "resumed", f"resumed on {wish.on}"))
    if wish.notifying is not None:
        write_record(run.notify, wish.notifying)
    else:
        run.notify.unlink(missing_ok=True)
    if anew:
        text = "a person has said that it may begin anew where no checkpoint is whole"
        append_line(run.events, Event(time.time(), attempt.number, ANEW, text))


def _check_code_options(run: RunDir, renew: bool, spec: JobSpec, before: Plan, where: Place) -> None:
    """Raise an error if the next attempt cannot have the code that is asked for: the project's present code with
    `renew`, else the frozen code of the run.

    With `renew`, raise Refused if new code cannot be brought to the cluster at `where`, or if the run is of a Python
    function, which is frozen with its arguments. Without it, raise BadInput if the spec's `code` options, which select
    the files to freeze, are not those of `before`.
    """
    if not renew and spec.code != before.spec.code:
        hint = f"hint: launch resume {run.id} --code takes the code as it is now"
        raise BadInput("code: its options say what is frozen, and the code of this run is frozen already", hint)
    if renew and before.entry.target == SCRIPT:
        raise Refused(f"{run.id} is of a function, which is frozen with its arguments", "hint: submit it again")
    if renew and where.remote:
        hint = "hint: `--on` a cluster that has the run's folder in common with this machine, or submit anew"
        raise Refused("other code cannot be brought to where the files of this run are", hint)


def _recipients_now(run: RunDir, spec: JobSpec, before: Plan) -> Notifying | None:
    """Return who is notified of the resumed run, or None for nobody: the recipients that are recorded for the run, or
    those that `spec`, the spec of the next attempt, names if its `notify` differs from that of the plan `before`.
    """
    if spec.notify != before.spec.notify:
        return notifying_of(spec.notify, Path(before.spec_file), Path(before.project), os.environ)
    return readable(run.notify, Notifying)


def _code_for(run: RunDir, spec: JobSpec, python: str, before: Plan, *, renew: bool) -> ProjectCode:
    """Return the code of the next attempt: the run's own frozen code or, with `renew`, the present code of the project
    from which the run was submitted, as the interpreter `python` would import it. Raise Refused if that project's
    folder is needed and is not on this machine.
    """
    if not renew:
        return ProjectCode(list_frozen(run.code), before.own_folders, ())
    first = read_record(run.plan, Plan)
    if first is None or not Path(first.project).is_dir():
        raise Refused(f"the project that {run.id} was submitted from is not here", "hint: submit it anew")
    return code_of(Path(first.project), spec, python, frozen=False)


def _change_code(run: RunDir, attempt: AttemptDir, code: CodeList, before: Plan) -> None:
    """Replace the run's frozen code by `code` for the new attempt `attempt`; record in the run's history, and print,
    which files differ from the code of the last one.
    """
    old = as_frozen(run, before.code.digest)
    found = changes(old, code)
    stage(run, attempt, code, counted)
    swap(run, attempt, {file.path for file in old.files})
    told = ", ".join(map(str, found[:_CHANGES])) + (f" and {len(found) - _CHANGES} more" if found[_CHANGES:] else "")
    text = f"code as it is now: {told or 'nothing has changed'}"
    append_line(run.events, Event(time.time(), attempt.number, "code", text))
    for line in (text, *shown(found, _CHANGED_LINES)):
        news.say(line)
