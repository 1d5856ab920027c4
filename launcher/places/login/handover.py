"""Send attempts to a login node, which starts them once per submit token, however often the request is repeated. A
Handover is one such request: an attempt, or the first attempts of runs that were submitted together.

An error before the request is sent raises NotStarted. After that the result is unknown until there is an answer, with
which the attempt gets a handle or an end record.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from launcher.copies.mirror.fetch import fetch_to_resume_from
from launcher.copies.mirror.holders import Holders
from launcher.copies.mirror.roles import next_attempts_of_roles
from launcher.errors import Exit, LaunchError, NotStarted, Unreachable
from launcher.places.login.address import KIND, Address, address_of
from launcher.places.login.files import LoginDisk, holders_of
from launcher.places.login.lines import ask, persistently
from launcher.places.login.messages import OpenAttempt, OpenRuns, RemoteSpec, RunWanted, VoidTokens
from launcher.places.login.waiting import remote_options
from launcher.plan.build import repeat_of
from launcher.plan.model import Plan
from launcher.remote.rpc.client import RemoteLaunch, remote_error, said_by
from launcher.remote.rpc.wire import Have, Outcome, Tree
from launcher.remote.shipping.tree import contents, digest_of, entries
from launcher.run.attempts import read_plan
from launcher.run.code.listing import CodeList, list_frozen
from launcher.run.durable import read_lines, read_record, readable, write_record
from launcher.run.layout import RunDir
from launcher.run.records import ANEW, Event, Handle
from launcher.supervisor.handover import Handover, give_up
from launcher.supervisor.notify.record import Notifying
from trainer.checkpoint_files.partial import Held


@dataclass(frozen=True, slots=True)
class _Patience:
    """Time limits in seconds for a login node's answer and for sending code; they are shorter in a status command than
    in a submit.
    """

    answer_s: float
    tree_s: float  # for a large tree to be written and read on the login node


_PATIENT, _HASTY = _Patience(120.0, 600.0), _Patience(13.0, 30.0)


def hand_over(handover: Handover) -> None:
    """Send the attempts to the login node, unless another process has done so; wait while another one is doing so.

    Raise NotStarted if certainly nothing was started there. Raise another LaunchError, such as Unreachable, if the
    result is unknown or the login node reports an error.
    """
    with handover.held(wait=True):
        if handover.is_open():
            _carry_out(handover, _PATIENT)


def finish(handover: Handover) -> None:
    """Send attempts whose submitter has died before the login node answered; if that node has not started them and
    never will, record their end. Do nothing if another process is sending them, or if each has a handle (the record
    that it was started) or an end.

    Raise Unreachable if the login node does not answer: it may have started the attempts, so none is given up before it
    has told whether it did.
    """
    with handover.held() as lock:
        if lock is None or not handover.is_open():
            return
        try:
            _carry_out(handover, _HASTY)
        except NotStarted as error:
            if error.exit_code == Exit.UNREACHABLE:
                raise Unreachable(*error.lines) from error
            if not _has_begun(handover):
                handover.give_up("; ".join(error.lines))


def withdraw(handover: Handover) -> bool:
    """Cancel a request that was not carried out yet, for good, and return True; return False if the login node has
    started the runs. Raise Unreachable if the login node does not answer.
    """
    if _has_begun(handover):
        return False
    handover.withdraw()
    return True


def _has_begun(handover: Handover) -> bool:
    """Ask the login node whether it has started runs for the submit token, and return the answer. If it has not, it
    starts none for that token from now on; if it has, record these runs.
    """
    token, address = handover.intent.submit_token, _address(handover)
    outcomes = ask(address, VoidTokens(address.folder, (token,)), dict[str, Outcome], timeout_s=_PATIENT.answer_s)
    outcome = outcomes.get(token, Outcome())
    if outcome.runs:
        _settle(handover, Outcome(outcome.runs))
    return bool(outcome.runs)


def _address(handover: Handover) -> Address:
    """Return the login node's address."""
    return address_of(*handover.members[0])


def _carry_out(handover: Handover, patience: _Patience) -> None:
    """Send the request to the login node, and record on this machine which runs it has started; `patience` has the time
    limits.

    Raise NotStarted if certainly nothing was started there, and another LaunchError if that is unknown or the login
    node reports an error.
    """
    run, attempt = handover.members[0]
    plan, address = read_plan(run, attempt.number), _address(handover)
    begun = False
    following = _next_attempt(handover, plan, address)

    def work(line: RemoteLaunch) -> Outcome:
        """Send the code if necessary, then the request, and return the outcome."""
        nonlocal begun
        request = following or _new_runs(handover, plan, address, line, patience)
        begun = True
        return line.ask(request, Outcome, timeout_s=patience.answer_s)

    try:
        if following is None and (attempt.number > 1 or (run.path / plan.spec.checkpoint.dir).exists()):
            _send_checkpoints(run, address, handover.intent.submit_token)
        outcome = persistently(address, work, without=plan.secrets)
    except LaunchError as error:
        if begun:
            raise
        raise _not_started(error) from error
    except KeyboardInterrupt:
        if begun:
            raise
        told = NotStarted("interrupted before the login node was told of it")
        told.exit_code = Exit.INTERRUPTED
        raise told from None
    _settle(handover, outcome)


def _settle(handover: Handover, outcome: Outcome) -> None:
    """Record the runs that the login node has started, each in its attempt's folder here. If it has started only some,
    record the others as failed, never started.

    Raise the error that the login node reports if there is one, or if it has started none.
    """
    for (_, attempt), made in zip(handover.members, outcome.runs, strict=False):
        write_record(
            attempt.handle, Handle(KIND, submit_token=handover.intent.submit_token, run=made.run, path=made.path)
        )
    if outcome.runs and not outcome.error:
        return
    lines = outcome.error or ("the login node gave no answer",)
    error = said_by(str(_address(handover)), remote_error(lines, outcome.exit_code))
    if not outcome.runs:
        raise _not_started(error)
    for run, attempt in handover.members[len(outcome.runs) :]:
        give_up(run, attempt, f"not started there: {error.lines[0]}")
    raise error


def _next_attempt(handover: Handover, plan: Plan, address: Address) -> OpenAttempt | None:
    """Return the request that opens the new attempt, whose plan is `plan`, as a resume of the run on the login node at
    `address`. Return None if this is the first attempt, or if the one before was not on that login node: then the run
    has to be created there.
    """
    run, attempt = handover.members[0]
    after = attempt.number - 1
    before = run.attempt(after)
    handle = read_record(before.handle, Handle) if after else None
    there = handle.run_there() if handle is not None and handle.cluster_kind == KIND else None
    if there is None or address_of(run, before) != address:
        return None
    last = read_plan(run, after)
    added = plan.overrides[len(last.overrides) :]
    if any(word.startswith("queue.") for word in added):
        added = (*added, *remote_options(plan, address))
    usual = None if plan.defaults == last.defaults else _defaults_without_login(plan)
    anew = any(event.kind == ANEW and event.attempt == attempt.number for event in read_lines(run.events, Event))
    return OpenAttempt(address.folder, handover.intent.submit_token, there, after, added, usual, anew)


def _new_runs(handover: Handover, plan: Plan, address: Address, line: RemoteLaunch, patience: _Patience) -> OpenRuns:
    """Send the code of the runs over `line`, and return the request that creates and starts them on the login node at
    `address`; `patience` has the time limits.
    """
    first, attempt = handover.members[0]
    number = attempt.number
    code = list_frozen(first.code)
    digest = plan.code.digest if number == 1 else digest_of(code)  # ranks may have written into it elsewhere
    send_code(line, code, digest, address.folder, patience.tree_s)
    specs, runs = list[RemoteSpec](), list[RunWanted]()
    for run, _ in handover.members:
        own = read_plan(run, number)
        spec = remote_spec(own, run.spec.read_bytes(), remote_options(own, address, again=number > 1))
        specs += [spec] if specs[-1:] != [spec] else []
        events = run.events.read_bytes() if number > 1 else b""
        roles = next_attempts_of_roles(run)
        runs.append(RunWanted(own.run_id, len(specs) - 1, repeat_of(own), number, roles, events, own.starts_at))
    secrets = read_record(first.secrets, dict[str, str]) or {}
    notifying = readable(first.notify, Notifying)
    token = handover.intent.submit_token
    return OpenRuns(address.folder, address.on, token, digest, tuple(specs), tuple(runs), secrets, notifying)


def _send_checkpoints(run: RunDir, address: Address, token: str) -> None:
    """Send the run's newest checkpoint that this machine or another login node of the run can supply, and its best one,
    to the login node at `address`, so that the run continues there. Send nothing if the run has no checkpoint.

    `token` is the submit token of the attempt. Raise NotTransferred if checkpoints were found but none can be sent.
    Raise Unreachable if none was found but a machine that does not answer may have one, unless a user has allowed the
    run to begin without.
    """
    before = holders_of(run)  # other login nodes
    there = Holders(before.home, {address.login: LoginDisk(address, run.id, token=token)}, {}, {})

    def send(wanted: Held) -> None:
        """Send one checkpoint to the login node."""
        before.bring_home(wanted)
        there.send(wanted, address.login, [*wanted.present, *wanted.missing])

    fetch_to_resume_from(run, before, send)


def send_code(line: RemoteLaunch, code: CodeList, digest: str, folder: str, limit_s: float) -> None:
    """Send the code over the connection `line` to the login node, which stores it in `folder`; send nothing if that
    folder has a tree of code with this digest already. The node has `limit_s` seconds for each of two answers.
    """
    if not line.ask(Have(folder, digest), bool, timeout_s=limit_s):
        tree = Tree(folder, digest, entries(code))
        line.ask(tree, bool, contents=contents(code), timeout_s=limit_s)


def remote_spec(plan: Plan, text: bytes, waits: tuple[str, ...]) -> RemoteSpec:
    """Return the spec as the login node gets it: the file's `text`, the overrides of the plan, and the cluster's
    default options except for those about reaching that node.

    `waits` are further overrides, which say what the run waits for on that node.
    """
    defaults = _defaults_without_login(plan)
    file, project = os.fsencode(plan.spec_file), os.fsencode(plan.project)
    called = (file.decode(errors="replace"), project.decode(errors="replace"))
    return RemoteSpec(Path(called[0]).name, text, (*plan.overrides, *waits), defaults, called)


def _defaults_without_login(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return (path, YAML text) of the cluster's default options from the plan, without those about reaching the login
    node.
    """
    return tuple((key, value) for key, value in plan.defaults if not key.startswith(f"{KIND}."))


def _not_started(error: LaunchError) -> NotStarted:
    """Return the error as a NotStarted with the same lines and exit code. The caller has to be certain that nothing was
    started.
    """
    told = NotStarted(*error.lines)
    told.exit_code = error.exit_code
    return told
